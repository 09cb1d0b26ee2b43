"""The scenario of an existing run, and the checks of its folder, settings and checkpoints before it is resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.results import Summary
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.engine.learning_rate import factor_of
from raysim.plugins.own_code import OwnCode
from raysim.runs.code import RAYSIM, Code
from raysim.runs.identity import Identity
from raysim.runs.plan import stopping_rule
from raysim.scenario.parse import ParsedScenario, parse_scenario
from raysim.scenario.scenario import Scenario
from raysim.scenario.schema import FREE, decides
from raysim.scenario.yaml_text import short, shown


def run_scenario(folder: Path, sets: Sequence[str] = (), *, code_changed: bool | None = None) -> ParsedScenario:
    """Read the scenario of an existing run, with `--set` overrides.

    Raises `ScenarioError` if the user's own code in the folder differs from the digests in `run.json`, before any of
    that code runs. code_changed: whether to allow the difference when the run is resumed; None: the run is only
    inspected.
    """
    if not folder.is_dir():
        raise ScenarioError(f"{folder} given, but there is no such run folder")
    identity = Identity.of(folder)

    def trust(code: OwnCode) -> None:
        # With an entry for raysim, so that the user's files are compared even if `run.json` lists no files.
        noted = Code({RAYSIM: "", **identity.code.files})
        if not code_changed:
            replace(identity, code=noted).refuse_other_code(
                folder,
                replace(noted, files={**noted.files, **code.digests}),
                inspecting=code_changed is None,
            )

    return parse_scenario(folder / "resolved.yaml", sets, trust=trust)


def refuse_differences(folder: Path, before: ParsedScenario, scenario: Scenario) -> None:
    """Raise `ScenarioError`, naming the keys, if the scenario would not give the same result as `before`, the run's."""
    had, has = before.flat(), scenario.flat()
    differing = [
        key for key in dict.fromkeys([*had, *has]) if had.get(key) != has.get(key) and not _free(key, before, scenario)
    ]
    if "algorithm.name" in differing:
        differing = ["algorithm.name"]  # the settings of two methods always differ
    if differing:
        named = [f"{key} ({_shown(had.get(key))} before, {_shown(has.get(key))} now)" for key in differing]
        place = scenario.origin.of(tuple(differing[0].split(".")))
        raise ScenarioError(
            f"{place}: cannot resume {folder} with different settings: {', '.join(named)}; allowed "
            f"changes: {', '.join(FREE)}, more rounds, and a `stop` that ends the run later than before; to run with "
            "other settings, use `raysim launch`"
        )


class LostCheckpointsError(ScenarioError):
    """A run cannot be resumed, because it has saved checkpoints but none exists any more."""


def refuse_lost_checkpoints(folder: Path, store: CheckpointStore, summary: Summary) -> None:
    """Raise `LostCheckpointsError` if a run's summary names a checkpoint but no checkpoint exists.

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
    """Say how to run more rounds of a finished run, as the end of a sentence. resume_line: the line that resumes it.

    early: whether the run ended before its last round.
    """
    if early:
        return f"to run the remaining rounds: {resume_line} --set stop=null"
    rounds = scenario.rounds
    if _may_have_more_rounds(scenario, rounds, rounds + 1):
        return f"to run more rounds: {resume_line} --set rounds=N, where N is greater than {rounds}"
    return "for more rounds, launch a new run, because the learning rate or the method of this run depends on `rounds`"


def _may_have_more_rounds(scenario: Scenario, had: int, have: int) -> bool:
    """Return whether a run with `had` rounds equals the first `had` rounds of a run with `have` rounds.

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
    if key in ("init.run", "init.digest") and before.init and now.init:  # the run folder has the state
        return now.init.digest in (None, before.init.digest)
    if key in (
        "data.path",
        "data.partition.path",
        "system.trace",
        "inputs",
    ):  # a file may be moved; its digest is compared
        return True
    return not decides(key)


def _shown(value: Any) -> str:
    """Return a value of `flat`, whose lists are text, for a sentence."""
    return short(value) if isinstance(value, str) else shown(value)
