"""Run a scenario, or resume a run: check, assemble, run. The one place that knows all rooms."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.results import RunCard, Tracker, written
from raysim.common.text import expanded
from raysim.engine.checkpoint.storage import local_folder
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.engine.stop import Stop
from raysim.report.load import read_rounds, read_summary
from raysim.report.progress import make_display
from raysim.runs.assembly import Assembly, assemble, check_local, checkpoint_storage, try_storage
from raysim.runs.code import Code, versions
from raysim.runs.execution import RESUME, Result, Resumed, Session, resume_line
from raysim.runs.resume import (
    Identity,
    how_to_continue,
    label,
    refuse_differences,
    refuse_incompatible,
    refuse_lost_checkpoints,
    run_scenario,
)
from raysim.scenario.check import check
from raysim.scenario.load import Loaded, load_scenario
from raysim.tracking.folder import RunFolder
from raysim.tracking.store import VARIABLE, check_recorded, check_uri


def run(
    given: Loaded | str | Path | Mapping[str, Any],
    *,
    sets: Sequence[str] = (),
    quiet: bool = False,
    trackers: Sequence[Tracker] = (),
    resume_command: str = RESUME,
    stop: Stop | None = None,
) -> Result:
    """Run a scenario to its end.

    given: a YAML file, the same content as a mapping, or what `load_scenario` returned. sets: overrides of the first
    two, such as "training.lr=0.1". quiet: show no progress. trackers: these receive every round, besides the run folder
    and MLflow. resume_command: what the user is shown, before the run's folder, to resume a run that ended early. stop:
    ends the run after its round, as Ctrl-C does, once `stop.requested` is set.
    Raises `ScenarioError` when it cannot start, `RunError` when it cannot continue; what was done until then is kept in
    the run folder, and `resume` continues from the last checkpoint. Ctrl-C and SIGTERM end it with `KeyboardInterrupt`:
    the first after the current round, which is saved, the second at once.
    """
    if not isinstance(given, Loaded):
        given = load_scenario(given, sets)
    elif sets:
        raise ScenarioError(f"sets: {list(sets)} given for a scenario that is loaded; give them to load_scenario")
    checked = check(given)
    check_local(checked)
    scenario = given.scenario
    uri = check_uri(scenario.tracking.uri)
    assembly = assemble(checked)
    run_id = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    checkpoints = "checkpoints"
    if folder := scenario.checkpoint.folder:
        checkpoints = f"{local_folder(folder) or folder.rstrip('/')}/{scenario.name}/{run_id}"
        if scenario.checkpoint.every != 0:
            try_storage(checkpoints)
    identity = Identity(
        run_id,
        uri,
        checkpoints,
        assembly.digest,
        assembly.partition.digest,
        versions(),
        Code.of(given.algorithm, given.own_code),
        overrides=given.overrides,
    )
    run_folder = RunFolder.create(scenario.results_folder(), run_id)
    return _session(assembly, identity, run_folder, quiet, trackers, resume_command, stop=stop).run()


def resume(
    folder: Path | str,
    loaded: Loaded | None = None,
    *,
    sets: Sequence[str] = (),
    quiet: bool = False,
    trackers: Sequence[Tracker] = (),
    resume_command: str = RESUME,
    code_changed: bool = False,
    stop: Stop | None = None,
) -> Result:
    """Resume a run, however it ended, from its last checkpoint, in the same run folder and MLflow run.

    loaded: the scenario again, which may differ in what does not change the result; default: the run's own with `sets`.
    code_changed: resume although the method's code, or that of raysim which computes, is not what it was.
    A run that has all its rounds is left as it is; where plots or MLflow lack something, that is added, without Ray.
    Raises `ScenarioError` when this is not that run, or it cannot be resumed.
    """
    path = expanded(folder).absolute()
    if loaded is None:
        loaded = run_scenario(path, sets, code_changed=code_changed)
    checked = check(loaded)
    check_local(checked)
    loaded = checked.loaded
    refuse_differences(path, loaded, code_changed)
    try:
        summary = read_summary(path)
    except ScenarioError:  # the run was killed before it began, or the file is damaged, which costs nothing else
        summary = {}
    done, status = summary.get("rounds"), summary.get("status")
    over = isinstance(done, int) and done >= loaded.scenario.rounds
    if over and status == "finished":
        how = how_to_continue(loaded, resume_line(resume_command, path))
        return Result(path, {**summary, "folder": str(path), "nothing_to_do": how})
    closing = False
    if over and status == "closing":
        with contextlib.suppress(ScenarioError):  # a damaged file is mended from the last checkpoint
            read_rounds(path)
            closing = True
    identity = Identity.of(path)
    code = Code.of(loaded.algorithm, loaded.own_code)
    if not code_changed and not closing:
        identity.refuse_other_code(path, code)
    if loaded.scenario.tracking.uri is None and not os.environ.get(VARIABLE):
        identity = replace(identity, tracking=check_recorded(identity.tracking))
    else:
        identity = replace(identity, tracking=check_uri(loaded.scenario.tracking.uri))
    assembly = assemble(checked, rounds_left=not closing)
    identity.refuse_other_data(path, assembly.digest, assembly.partition.digest)
    run_folder = RunFolder.reopen(path)
    if closing:
        return _session(assembly, identity, run_folder, quiet, trackers, resume_command).complete(summary)
    store = CheckpointStore.open(checkpoint_storage(identity.checkpoints_of(path)))
    checkpoint = store.latest()
    refuse_lost_checkpoints(path, store, summary)
    if checkpoint is not None:
        refuse_incompatible(path, checkpoint, loaded.scenario)
    resumed = Resumed(store, code, identity.warnings(versions(), code))
    identity = replace(identity, overrides={**identity.overrides, **loaded.overrides})
    return _session(assembly, identity, run_folder, quiet, trackers, resume_command, resumed, stop).run()


def _session(
    assembly: Assembly,
    identity: Identity,
    folder: RunFolder,
    quiet: bool,
    trackers: Sequence[Tracker],
    resume_command: str,
    resumed: Resumed | None = None,
    stop: Stop | None = None,
) -> Session:
    scenario = assembly.checked.loaded.scenario
    display = make_display(scenario.rounds, scenario.clients.number, quiet)
    card = _card(assembly, identity, folder.path)
    return Session(assembly, identity, card, folder, display, [*trackers], resume_command, resumed, stop or Stop())


def _card(assembly: Assembly, identity: Identity, folder: Path) -> RunCard:
    checked, data = assembly.checked, assembly.data
    scenario = checked.loaded.scenario
    algorithm = str(checked.loaded.resolved["algorithm"]["name"])
    tagged = ("algorithm.name", "seed")  # each is a tag itself
    overridden = " ".join(written(item for item in identity.overrides.items() if item[0] not in tagged))
    return RunCard(
        name=scenario.name,
        run_id=identity.run_id,
        folder=folder,
        parameters=checked.loaded.flat(),
        tags={
            "algorithm": checked.loaded.method,
            "dataset": data.name,
            "partition": scenario.data.partition["name"],
            "clients": str(scenario.clients.number),
            "seed": str(scenario.seed),
            **({"overridden": overridden} if overridden else {}),
            **identity.code.tags(),
        },
        dataset=data.name,
        dataset_source=data.source,
        dataset_digest=assembly.digest,
        partition_digest=assembly.partition.digest,
        num_samples=len(data.label_M),
        num_clients=scenario.clients.number,
        label=label(checked.loaded.method, scenario.seed, identity.overrides),
        facts={
            "scenario": scenario.name,
            "algorithm": algorithm,
            "method": checked.loaded.method,
            "run_id": identity.run_id,
            "seed": scenario.seed,
            "overrides": identity.overrides,
            "backend": scenario.backend,
            "rounds_asked": scenario.rounds,
            "clients": scenario.clients.number,
            "participants_per_round": checked.participants,
            "dataset": {"name": data.name, "source": data.source, "digest": assembly.digest},
            "partition_digest": assembly.partition.digest,
            "versions": versions(),
            "code": identity.code_facts(),
            "folder": str(folder),
        },
    )
