"""Resumes a run: checks its folder, settings, code, data and checkpoints, and runs the remaining rounds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.results import LOCK, Summary
from raysim.common.text import cut
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.engine.learning_rate import factor_of
from raysim.engine.stop import Stop
from raysim.results.folder import RunFolder
from raysim.results.load import read_summary
from raysim.results.store import VARIABLE, check_uri
from raysim.runs.code import Code
from raysim.runs.execution import Execution, Options
from raysim.runs.identity import INSIDE, Identity, checkpoints_of, initial_of, run_scenario
from raysim.runs.plan import make_plan, stopping_rule
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.scenario import Scenario
from raysim.scenario.schema import FREE, decides
from raysim.scenario.trackers import trackers_of
from raysim.scenario.yaml_text import shown

MOVABLE = ("data.path", "data.partition.path", "system.trace", "inputs")
"""Keys with paths that may change, because the digests of the files are compared."""


def resume(folder: Path, scenario: Scenario, options: Options, *, code_changed: bool) -> Summary:
    """Resume the run in a folder, whatever ended it, from its last checkpoint, with the same folder and MLflow run.

    scenario: that of the run, or one that differs only in settings that do not change the result. code_changed: resume
    although the code of the method or of raysim has changed.
    Returns an empty mapping, except for a run that has all its rounds. Such a run is not changed, and the mapping has
    `nothing_to_do`, which says how to add rounds. If its plots or MLflow data are incomplete, they are completed
    without Ray, and the mapping has `completed`: true.
    Raises `ScenarioError` when the scenario or the folder does not fit the run, or the run cannot be resumed.
    """
    scenario.own_code.activate()
    before = run_scenario(folder, code_changed=code_changed)
    refuse_differences(folder, before, scenario)
    try:
        summary = read_summary(folder)
    except ScenarioError:  # the run was killed before it began, or the file is damaged; `resume` works in both cases
        summary = {}
    # The same rule would end the run in the same round again.
    early = bool(summary.get("ended_early")) and scenario.stop == before.stop
    over = early or summary.get("rounds", 0) >= scenario.rounds
    if over and summary["status"] == "finished":
        return {"nothing_to_do": how_to_continue(scenario, options.resume_line(folder), early)}
    closing = over and summary["status"] == "closing"
    identity, code = Identity.of(folder), Code.of(scenario.algorithm, scenario.own_code)
    if summary.get("status") == "running" and identity.checkpoints != INSIDE:
        _refuse_copy(folder, identity.checkpoints)
    if not code_changed and not closing:
        identity.refuse_other_code(folder, code)
    kept = scenario.tracking.uri is None and not os.environ.get(VARIABLE)
    identity = replace(
        identity,
        tracking=check_uri(identity.tracking if kept else scenario.tracking.uri),
        overrides={**identity.overrides, **scenario.overrides},
    )
    options = replace(options, trackers=trackers_of(scenario, options.trackers))
    plan, data = make_plan(scenario, rounds_left=not closing)
    identity.refuse_other_data(folder, data)
    plan = replace(plan, initial=initial_of(folder, before))
    run_folder = RunFolder.reopen(folder)
    if closing:
        Execution(plan, data, identity, run_folder, replace(options, stop=Stop())).complete(summary)
        return {"completed": True}
    store = checkpoints_of(folder)
    refuse_lost_checkpoints(folder, store, summary)
    notes = identity.warnings(code)
    if scenario.checkpoint.folder != before.checkpoint.folder:
        notes.append(
            f"checkpoint.folder: without effect, because the run keeps its checkpoints in {store.storage.where}"
        )
    data = replace(data, notes=(*data.notes, *notes))
    Execution(plan, data, identity, run_folder, options, store).run()
    return {}


def _refuse_copy(folder: Path, checkpoints: str) -> None:
    """Refuse a run folder without a lock file, which shows that it was copied while the original was running.

    Both would write checkpoints to the same place, and each would remove those of the other.
    """
    if not (folder / LOCK).exists():
        raise ScenarioError(
            f"{folder} is a copy of a run that had not ended, and the original may still write its checkpoints to "
            f"{checkpoints}. Stop the original; then create the empty file {folder / LOCK}, and resume the copy"
        )


def refuse_differences(folder: Path, before: ParsedScenario, scenario: Scenario) -> None:
    """Raise `ScenarioError` with the differing keys if the scenario gives another result than the run's (`before`)."""
    had, has = before.flat(), scenario.flat()
    differing = [
        key for key in dict.fromkeys([*had, *has]) if had.get(key) != has.get(key) and not _free(key, before, scenario)
    ]
    if "algorithm.name" in differing:
        differing = ["algorithm.name"]  # the settings of another method differ anyway
    if differing:
        named = [f"{key} ({_shown(had.get(key))} before, {_shown(has.get(key))} now)" for key in differing]
        place = scenario.origin.of(tuple(differing[0].split(".")))
        raise ScenarioError(
            f"{place}: cannot resume {folder} with different settings: {', '.join(named)}; allowed "
            f"changes: {', '.join(FREE)}, more rounds, and a `stop` that ends the run later than before; to run with "
            "other settings, use `raysim launch`"
        )


class LostCheckpointsError(ScenarioError):
    """A run cannot be resumed, because all checkpoints that it saved are missing."""


def refuse_lost_checkpoints(folder: Path, store: CheckpointStore, summary: Summary) -> None:
    """Raise `LostCheckpointsError` if a run's summary names a checkpoint, but none exists.

    Otherwise the resumed run would silently start from round 1.
    """
    saved = summary.get("checkpoint")
    if store.kept or store.damage or not isinstance(saved, Mapping) or saved.get("round") is None:
        return
    raise LostCheckpointsError(
        f"{folder} cannot be resumed: its summary.json names a checkpoint of round {saved['round']} in "
        f"{saved.get('folder')}, but {store.storage.where} contains no checkpoint; restore the checkpoint there, or "
        "start a new run with `raysim launch`"
    )


def how_to_continue(scenario: Scenario, resume_line: str, early: bool = False) -> str:
    """Return the end of a sentence: how to run more rounds of a finished run. resume_line: the command to resume it.

    early: whether the run ended before its last round.
    """
    if early:
        return f"to run the remaining rounds: {resume_line} --set stop=null"
    rounds = scenario.rounds
    if _may_have_more_rounds(scenario, rounds, rounds + 1):
        return f"to run more rounds: {resume_line} --set rounds=N, where N is greater than {rounds}"
    return "for more rounds, launch a new run, because the learning rate or the method of this run depends on `rounds`"


def _may_have_more_rounds(scenario: Scenario, had: int, have: int) -> bool:
    """Return whether the first `had` rounds are the same in runs with `had` and with `have` rounds.

    It does not if the method or the learning rate depends on the total number of rounds.
    """
    schedule = scenario.training.schedule
    same = all(factor_of(schedule, t, had) == factor_of(schedule, t, have) for t in range(1, had + 1))
    return have > had and same and not scenario.algorithm.scheduled


def _free(key: str, before: ParsedScenario, now: Scenario) -> bool:
    if key == "rounds":
        return _may_have_more_rounds(now, before.rounds, now.rounds)
    if key.partition(".")[0] == "stop":
        had, has = stopping_rule(before), stopping_rule(now)
        return has is None or (had is not None and has.relaxes(had))
    if key in ("init.run", "init.digest") and before.init and now.init:  # the run folder contains the initial state
        return now.init.digest in (None, before.init.digest)
    return key in MOVABLE or not decides(key)


def _shown(value: Any) -> str:
    """Return a value of `flat` for a sentence; lists are already text."""
    return cut(value) if isinstance(value, str) else shown(value)
