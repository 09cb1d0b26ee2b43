"""Run a scenario, or go on with a run: the one place that knows all rooms."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.results import RunCard, Tracker, written
from raysim.common.text import expanded
from raysim.data.shards import Partition
from raysim.engine.checkpoint.storage import local_folder
from raysim.engine.checkpoint.store import Checkpoint, CheckpointStore
from raysim.engine.policies.placement import Plan, make_plan
from raysim.engine.run import Stop
from raysim.launch.check import Checked, check
from raysim.launch.code import Code
from raysim.launch.prepare import (
    DatasetHandle,
    check_local,
    checkpoint_storage,
    deal,
    joined,
    local_machine,
    try_storage,
    versions,
)
from raysim.launch.resume import (
    Identity,
    label,
    own_scenario,
    refuse_differences,
    refuse_incompatible,
    refuse_lost_checkpoints,
)
from raysim.launch.session import RESUME, Result, Session
from raysim.launch.signals import interruptible
from raysim.report.load import read_rounds, read_summary
from raysim.report.progress import make_progress
from raysim.scenario.load import Loaded, load_scenario
from raysim.tracking.folder import RunFolder
from raysim.tracking.mlflow import MlflowTracker
from raysim.tracking.store import VARIABLE, check_recorded, check_uri


@dataclass(frozen=True)
class _Observers:
    """Who is told of a run, and how; see `run`."""

    quiet: bool
    trackers: Sequence[Tracker]
    resume_command: str


def run(
    given: Loaded | str | Path | Mapping[str, Any],
    *,
    sets: Sequence[str] = (),
    quiet: bool = False,
    trackers: Sequence[Tracker] = (),
    resume_command: str = RESUME,
) -> Result:
    """Run a scenario to its end.

    given: a YAML file, the same content as a mapping, or what `load_scenario` returned. sets: overrides of the first
    two, such as "training.lr=0.1". quiet: show no progress. trackers: told of every round, besides the run folder and
    MLflow. resume_command: what a user is told to go on with, before the run's folder, if the run ends early.
    Raises `ScenarioError` when it cannot start, `RunError` when it cannot go on; what was done until then is kept in
    the run folder, and `resume` continues from the last checkpoint. Ctrl-C and SIGTERM end it with `KeyboardInterrupt`:
    the first after the current round, which is saved, the second at once.
    """
    told = _Observers(quiet, trackers, resume_command)
    loaded = _loaded(given, sets)
    checked = check(loaded)
    check_local(checked)
    scenario = loaded.scenario
    uri = check_uri(scenario.tracking.uri)
    plan = None if joined(checked) else make_plan(checked.requests, local_machine(), checked.participants)
    own = DatasetHandle(checked)
    partition = deal(checked, own.data)
    run_id = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    where = scenario.checkpoint.folder
    checkpoints = f"{_absolute(where)}/{scenario.name}/{run_id}" if where else "checkpoints"
    if where and scenario.checkpoint.every != 0:
        try_storage(checkpoints)
    code = Code.of(loaded.algorithm)
    folder = RunFolder.create(scenario.output_folder, scenario.name, run_id)
    identity = Identity(
        run_id, uri, checkpoints, own.data.digest, partition.digest, versions(), code, overrides=loaded.overrides
    )
    return _begin(checked, own, partition, folder, identity, plan, None, told)


def _loaded(given: Loaded | str | Path | Mapping[str, Any], sets: Sequence[str]) -> Loaded:
    if not isinstance(given, Loaded):
        return load_scenario(given, sets)
    if sets:
        raise ScenarioError(f"sets: {list(sets)} given for a scenario that is loaded; give them to load_scenario")
    return given


def resume(
    folder: Path | str,
    loaded: Loaded | None = None,
    *,
    sets: Sequence[str] = (),
    quiet: bool = False,
    trackers: Sequence[Tracker] = (),
    resume_command: str = RESUME,
    code_changed: bool = False,
) -> Result:
    """Go on with a run that ended anyhow, from its last checkpoint, in the same run folder and MLflow run.

    loaded: the scenario again, which may differ in what does not change the result; default: the run's own with `sets`.
    code_changed: go on although the method's code, or that of raysim which computes, is not what it was.
    A run that has all its rounds is left as it is; where plots or MLflow lack something, that is added, without Ray.
    Raises `ScenarioError` when this is not that run, or cannot go on.
    """
    told = _Observers(quiet, trackers, resume_command)
    path = expanded(folder).absolute()
    if loaded is None:
        loaded = own_scenario(path, sets)
    checked = check(loaded)
    check_local(checked)
    refuse_differences(path, checked.loaded)
    try:
        summary = read_summary(path)
    except ScenarioError:  # it was killed before it began, or the file is damaged, which costs nothing else
        summary = {}
    done = summary.get("rounds")
    over = isinstance(done, int) and done >= loaded.scenario.rounds
    if over and summary.get("status") == "finished":
        return Result(path, {**summary, "folder": str(path), "nothing_to_do": True})
    closing: dict[str, Any] | None = None
    if over and summary.get("status") == "closing":
        with contextlib.suppress(ScenarioError):  # a damaged file is mended from the last checkpoint
            read_rounds(path)
            closing = summary
    identity = Identity.of(path)
    code = Code.of(loaded.algorithm)
    if not code_changed and closing is None:
        identity.refuse_other_code(path, code)
    if loaded.scenario.tracking.uri is None and not os.environ.get(VARIABLE):
        identity = replace(identity, tracking=check_recorded(identity.tracking))
    else:
        identity = replace(identity, tracking=check_uri(loaded.scenario.tracking.uri))
    plan = None
    if closing is None and not joined(checked):
        plan = make_plan(checked.requests, local_machine(), checked.participants)
    own = DatasetHandle(checked)
    partition = deal(checked, own.data)
    identity.refuse_other_data(path, own.data.digest, partition.digest)
    reopened = RunFolder.reopen(path)
    if closing is not None:
        return _begin(checked, own, partition, reopened, identity, None, None, told, closing=closing)
    store = CheckpointStore.open(checkpoint_storage(identity.checkpoints_of(path)))
    checkpoint = store.latest()
    refuse_lost_checkpoints(path, store, summary)
    if checkpoint is not None:
        refuse_incompatible(path, checkpoint, loaded.scenario)
    warnings_ = identity.warnings_(versions(), code)
    identity = identity.with_code(code, checkpoint.round if checkpoint else -1)
    identity = replace(identity, overrides={**identity.overrides, **loaded.overrides})
    return _begin(checked, own, partition, reopened, identity, plan, (store, checkpoint), told, warnings_)


def _begin(
    checked: Checked,
    own: DatasetHandle,
    partition: Partition,
    folder: RunFolder,
    identity: Identity,
    plan: Plan | None,
    resumed: tuple[CheckpointStore, Checkpoint | None] | None,
    told: _Observers,
    warnings_: Sequence[str] = (),
    closing: dict[str, Any] | None = None,
) -> Result:
    """closing: the summary of a run that has all its rounds and only is to be closed."""
    scenario = checked.loaded.scenario
    stop = Stop()
    with interruptible(stop), contextlib.ExitStack() as cleanup:
        mlflow = MlflowTracker(identity.tracking, scenario.tracking.experiment or scenario.name, scenario.tracking.tags)
        shown = [] if told.quiet else [make_progress(scenario.rounds, scenario.clients.count)]
        session = Session(
            checked=checked,
            own=own,
            partition=partition,
            card=_card(checked, own, partition, folder, identity),
            folder=folder,
            mlflow=mlflow,
            trackers=[*([] if closing else shown), *told.trackers, folder, mlflow],
            notify=shown[0].notify if shown else _nowhere,
            within=shown[0].within if shown else _nowhere,
            stop=stop,
            identity=identity,
            resumed=resumed,
            resume_command=told.resume_command,
            warnings_=warnings_,
        )
        return session.run(plan, cleanup) if closing is None else session.complete(closing)


def _card(checked: Checked, own: DatasetHandle, partition: Partition, folder: RunFolder, identity: Identity) -> RunCard:
    scenario, data = checked.loaded.scenario, own.data
    algorithm = str(checked.loaded.resolved["algorithm"]["name"])
    apart = ("algorithm.name", "seed")  # tags of their own
    overridden = " ".join(written(item for item in identity.overrides.items() if item[0] not in apart))
    return RunCard(
        name=scenario.name,
        run_id=identity.run_id,
        folder=folder.path,
        parameters=checked.loaded.flat(),
        tags={
            "algorithm": algorithm,
            "dataset": data.name,
            "partition": scenario.data.partition["name"],
            "clients": str(scenario.clients.count),
            "seed": str(scenario.seed),
            **({"overridden": overridden} if overridden else {}),
            **identity.code.tags(),
        },
        dataset=data.name,
        dataset_source=data.source,
        dataset_digest=data.digest,
        partition_digest=partition.digest,
        num_samples=len(data.label_M),
        num_clients=scenario.clients.count,
        label=label(algorithm, scenario.seed, identity.overrides),
        facts={
            "scenario": scenario.name,
            "algorithm": algorithm,
            "run_id": identity.run_id,
            "seed": scenario.seed,
            "overrides": identity.overrides,
            "backend": scenario.backend,
            "rounds_asked": scenario.rounds,
            "clients": scenario.clients.count,
            "participants_per_round": checked.participants,
            "dataset": {"name": data.name, "source": data.source, "digest": data.digest},
            "partition_digest": partition.digest,
            "versions": versions(),
            "code": {**asdict(identity.code), "changes": list(identity.code_changes)},
            "folder": str(folder.path),
        },
    )


def _absolute(address: str) -> str:
    return str(local_folder(address) or address.rstrip("/"))


def _nowhere(*told: object) -> None:
    """Where goes what nobody is to see."""
