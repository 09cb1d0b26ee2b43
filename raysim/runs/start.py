"""Begin the run of a scenario, or resume a run: check everything and create the `Execution`, which does the work."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from raysim.common.errors import ScenarioError
from raysim.common.results import LOCK, Summary
from raysim.engine.checkpoint.storage import local_folder
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.engine.stop import Stop
from raysim.report.load import read_rounds, read_summary
from raysim.runs.backend import only_in_process
from raysim.runs.code import Code, versions
from raysim.runs.execution import Execution, Options, Resumed, resume_line
from raysim.runs.identity import INSIDE, Identity
from raysim.runs.initial import initial_of
from raysim.runs.machine import check_local
from raysim.runs.plan import make_plan
from raysim.runs.resume import (
    how_to_continue,
    refuse_differences,
    refuse_lost_checkpoints,
    run_scenario,
)
from raysim.runs.storage import checkpoint_storage, try_storage
from raysim.runs.warm_start import warm_start
from raysim.scenario.scenario import Scenario
from raysim.scenario.trackers import lacks, trackers_of
from raysim.tracking.folder import RunFolder
from raysim.tracking.store import VARIABLE, check_uri


def begin(scenario: Scenario, options: Options) -> Path:
    """Run a scenario to its end, in a new run folder, and return the folder.

    Raises `ScenarioError` when the run cannot start, `RunError` when it cannot continue, `KeyboardInterrupt` when it is
    stopped.
    """
    with only_in_process(scenario.backend):
        check_local(scenario)
        uri = check_uri(scenario.tracking.uri)
        options = _with_trackers(options, scenario)
        scenario, plan, data = warm_start(scenario, *make_plan(scenario))
        run_id = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        checkpoints = INSIDE
        if folder := scenario.checkpoint.folder:
            place = local_folder(folder)
            checkpoints = f"{place or folder.rstrip('/')}/{scenario.name}/{run_id}"
            if scenario.checkpoint.every != 0:
                try_storage(checkpoints)
        identity = Identity(
            run_id,
            uri,
            checkpoints,
            data.digest,
            data.partition.digest,
            versions(),
            Code.of(scenario.algorithm, scenario.own_code),
            overrides=scenario.overrides,
            init=None if scenario.init is None else scenario.init.model_dump(mode="json"),
            inputs=data.inputs,
        )
        run_folder = RunFolder.create(scenario.results_folder(), run_id)
        Execution(scenario, plan, data, identity, run_folder, options).run()
        return run_folder.path


def resume(folder: Path, scenario: Scenario, options: Options, *, code_changed: bool) -> Summary:
    """Resume the run in a folder, however it ended, from its last checkpoint, in the same folder and MLflow run.

    scenario: that of the run, or one that differs only in settings that do not change the result. code_changed: resume
    although the code of the method or of raysim has changed.
    Returns an empty mapping, except for a run that has all its rounds. Such a run is not changed, and the mapping has
    `nothing_to_do`, which says how to add rounds. If its plots or MLflow data are incomplete, they are completed
    without Ray, and the mapping has `completed`: true.
    Raises `ScenarioError` when the scenario or the folder does not fit the run, or the run cannot be resumed.
    """
    with only_in_process(scenario.backend):
        return _resume(folder, scenario, options, code_changed)


def _resume(folder: Path, scenario: Scenario, options: Options, code_changed: bool) -> Summary:
    check_local(scenario)
    before = run_scenario(folder, code_changed=code_changed)
    refuse_differences(folder, before, scenario)
    try:
        summary = read_summary(folder)
    except ScenarioError:  # the run was killed before it began, or the file is damaged; both can be resumed
        summary = {}
    done, status = summary.get("rounds"), summary.get("status")
    early = bool(summary.get("ended_early")) and scenario.stop == before.stop  # it would end in the same round again
    over = isinstance(done, int) and (done >= scenario.rounds or early)
    if over and status == "finished":
        return {"nothing_to_do": how_to_continue(scenario, resume_line(options.resume_command, folder), early)}
    closing = False
    if over and status == "closing":
        with contextlib.suppress(ScenarioError):  # with a damaged file, the run is resumed from the last checkpoint
            read_rounds(folder)
            closing = True
    identity = Identity.of(folder)
    if status == "running" and identity.checkpoints != INSIDE:
        _refuse_copy(folder, identity.checkpoints)
    code = Code.of(scenario.algorithm, scenario.own_code)
    if not code_changed and not closing:
        identity.refuse_other_code(folder, code)
    if scenario.tracking.uri is None and not os.environ.get(VARIABLE):
        identity = replace(identity, tracking=check_uri(identity.tracking))
    else:
        identity = replace(identity, tracking=check_uri(scenario.tracking.uri))
    options = _with_trackers(options, scenario)
    plan, data = make_plan(scenario, rounds_left=not closing)
    identity.refuse_other_data(folder, data)
    plan = replace(plan, initial=initial_of(folder, before))
    run_folder = RunFolder.reopen(folder)
    if closing:
        Execution(scenario, plan, data, identity, run_folder, replace(options, stop=Stop())).complete(summary)
        return {"completed": True}
    store = CheckpointStore.open(checkpoint_storage(identity.checkpoints_of(folder)))
    refuse_lost_checkpoints(folder, store, summary)
    warnings = identity.warnings(versions(), code)
    if scenario.checkpoint.folder != before.checkpoint.folder:
        warnings.append(
            "checkpoint.folder: the change has no effect, because a resumed run keeps its checkpoints in "
            f"{store.storage.where}"
        )
    resumed = Resumed(store, code, warnings)
    identity = replace(identity, overrides={**identity.overrides, **scenario.overrides})
    Execution(scenario, plan, data, identity, run_folder, options, resumed).run()
    return {}


def _refuse_copy(folder: Path, checkpoints: str) -> None:
    """Refuse a run folder without its lock file: a copy, made while the original was running.

    Both would write checkpoints to the same place, and each would remove those of the other.
    """
    if not (folder / LOCK).exists():
        raise ScenarioError(
            f"{folder} is a copy of a run that had not ended, and the original may still write its checkpoints to "
            f"{checkpoints}. Stop the original; then create the empty file {folder / LOCK}, and resume the copy"
        )


def _with_trackers(options: Options, scenario: Scenario) -> Options:
    """Add the trackers that the scenario names. Raises `ScenarioError` if one cannot be created or lacks a method."""
    for tracker in options.trackers:
        if problem := lacks(tracker):
            name = getattr(tracker, "__name__", type(tracker).__name__)  # of a class, or of an object's class
            raise ScenarioError(f"trackers: {name} {problem}")
    return replace(options, trackers=[*options.trackers, *trackers_of(scenario)])
