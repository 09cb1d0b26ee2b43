"""From a scenario to a finished run folder: the one place that knows all rooms."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from raysim.core.errors import RunError, ScenarioError
from raysim.core.results import RunCard, Status, Tracker
from raysim.data.datasets import ImageData, load_dataset
from raysim.data.heatmap import draw_heatmap
from raysim.data.partition import make_partition
from raysim.data.shards import Partition
from raysim.data.transform import transform_for
from raysim.engine.backend import Backend
from raysim.engine.commits import Commit, Commits
from raysim.engine.hooks import HookError
from raysim.engine.inprocess import InProcess
from raysim.engine.leftovers import leftovers
from raysim.engine.placement import Machine, Node, Plan, make_plan, refuse_unseated, seats
from raysim.engine.pressure import Watch, disk_pressure
from raysim.engine.run import Progress, Schedule, Stop, run_rounds
from raysim.engine.store import Store, open_store
from raysim.engine.survival import Keeper, Note
from raysim.engine.world import World
from raysim.launch.again import Identity, own_scenario, refuse_differences
from raysim.launch.check import Checked, check
from raysim.report.load import read_rounds, read_summary
from raysim.report.plots import plot_accuracy
from raysim.report.progress import make_progress
from raysim.scenario.load import Loaded
from raysim.tracking.folder import RunFolder
from raysim.tracking.mlflow import MlflowTracker
from raysim.tracking.store import VARIABLE, check_uri


@dataclass(frozen=True)
class Result:
    """A run that ended well."""

    folder: Path
    summary: Mapping[str, Any]

    @property
    def state_digest(self) -> str:
        """SHA-256 over all client and server state; equal digests mean bit-identical runs."""
        return str(self.summary["state_digest"])


def run(loaded: Loaded, *, quiet: bool = False, trackers: Sequence[Tracker] = ()) -> Result:
    """Run a scenario to its end.

    quiet: show no progress. trackers: told of every round, besides the run folder and MLflow.
    Raises `ScenarioError` when it cannot start, `RunError` when it cannot go on; what was done until then is kept in
    the run folder, and `resume` goes on from the last commit. Ctrl-C and SIGTERM end it with `KeyboardInterrupt`: the
    first after the round that is being run, which is committed, the second at once.
    """
    checked = check(loaded)
    scenario = loaded.scenario
    uri = check_uri(scenario.tracking.uri)
    plan = None if attaches(checked) else make_plan(checked.asks, local_machine(), scenario.clients.participation)
    data = read_data(checked)
    partition = deal(checked, data)
    run_id = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    folder = RunFolder.create(scenario.output_folder, scenario.name, run_id)
    where = scenario.checkpoint.folder
    checkpoints = f"{where.rstrip('/')}/{scenario.name}/{run_id}" if where else str(folder.path / "checkpoints")
    identity = Identity(run_id, uri, checkpoints, data.digest, partition.digest, versions())
    return _begin(checked, data, partition, folder, identity, plan, None, quiet, trackers)


def resume(
    folder: Path | str,
    loaded: Loaded | None = None,
    *,
    sets: Sequence[str] = (),
    quiet: bool = False,
    trackers: Sequence[Tracker] = (),
) -> Result:
    """Go on with a run that ended anyhow, from its last commit, in the same run folder and MLflow run.

    loaded: the scenario again, which may differ in what does not change the result; default: the run's own with `sets`.
    A run that has all its rounds is left as it is. Raises `ScenarioError` when this is not that run, or cannot go on.
    """
    path = Path(folder).expanduser().absolute()
    if loaded is None:
        loaded = own_scenario(path, sets)
    checked = check(loaded)
    refuse_differences(path, checked.loaded)
    if (path / "summary.json").exists():  # else it was killed before it began
        summary = read_summary(path)
        if summary["status"] == "finished" and summary["rounds"] >= loaded.scenario.rounds:
            return Result(path, {**summary, "nothing_to_do": True})
    identity = Identity.of(path)
    if loaded.scenario.tracking.uri is None and not os.environ.get(VARIABLE):
        identity = replace(identity, tracking=check_uri(identity.tracking))
    else:
        identity = replace(identity, tracking=check_uri(loaded.scenario.tracking.uri))
    scenario = loaded.scenario
    plan = None if attaches(checked) else make_plan(checked.asks, local_machine(), scenario.clients.participation)
    data = read_data(checked)
    partition = deal(checked, data)
    identity.refuse_other_data(path, data.digest, partition.digest)
    reopened = RunFolder.reopen(path)
    commits = Commits.open(_store(identity.checkpoints))
    commit = commits.latest()
    return _begin(checked, data, partition, reopened, identity, plan, (commits, commit), quiet, trackers)


def _begin(
    checked: Checked,
    data: ImageData,
    partition: Partition,
    folder: RunFolder,
    identity: Identity,
    plan: Plan | None,
    resumed: tuple[Commits, Commit | None] | None,
    quiet: bool,
    trackers: Sequence[Tracker],
) -> Result:
    scenario = checked.loaded.scenario
    stop = Stop()
    with _interruptible(stop), contextlib.ExitStack() as cleanup:
        mlflow = MlflowTracker(identity.tracking, scenario.tracking.experiment or scenario.name, scenario.tracking.tags)
        shown = [] if quiet else [make_progress(scenario.rounds, scenario.clients.count)]
        session = _Session(
            checked=checked,
            data=data,
            partition=partition,
            card=_card(checked, data, partition, folder, identity.run_id),
            folder=folder,
            mlflow=mlflow,
            trackers=[*shown, *trackers, folder, mlflow],
            note=shown[0].note if shown else _nowhere,
            within=shown[0].within if shown else _nowhere,
            stop=stop,
            identity=identity,
            resumed=resumed,
        )
        del data  # the session lets go of the images once the backend has them
        return session.run(plan, cleanup)


def attaches(checked: Checked) -> bool:
    """Whether the run joins a Ray that is already there, whose size is known only after joining."""
    if checked.loaded.scenario.backend != "ray":
        return False
    ray = sys.modules.get("ray")
    return bool(os.environ.get("RAY_ADDRESS")) or (ray is not None and ray.is_initialized())


@dataclass
class _Session:
    """One run from the moment its folder exists: whatever happens, the folder says how it ended."""

    checked: Checked
    data: ImageData
    partition: Partition
    card: RunCard
    folder: RunFolder
    mlflow: MlflowTracker
    trackers: list[Any]
    note: Callable[[str], None]
    within: Callable[[int, int], None]
    stop: Stop
    identity: Identity
    resumed: tuple[Commits, Commit | None] | None = None  # what a run that goes on has
    watch: Watch = field(default_factory=Watch)

    def run(self, plan: Plan | None, cleanup: contextlib.ExitStack) -> Result:
        """Start everything, run every round, end everything."""
        scenario = self.checked.loaded.scenario
        progress = Progress()
        keeper: Keeper | None = None
        under_way = False  # whether the folder is as this run has it
        began = time.perf_counter()
        status: Status = "failed"
        facts: dict[str, Any] = {}
        try:
            progress, keeper = self._where_it_stands()
            under_way = True
            self.stop.committed = lambda: keeper is None or keeper.committed == progress.t
            self._write_inputs()
            for tracker in self.trackers:
                tracker.open(self.card)
            plan, backend = _backend(self.checked, plan, cleanup, self.note, lambda: "state_digest" in facts)
            if metrics := _metrics(scenario.backend):
                metrics.open(self.card)
                self.trackers.append(metrics)
            cleanup.enter_context(_interruptible(self.stop))  # again: Ray sets a handler of its own
            facts["actors"] = plan.num_actors
            world = world_of(self.checked, self.data, self.partition, plan)
            schedule = Schedule(
                scenario.rounds,
                self.checked.participants,
                scenario.evaluation.every,
                scenario.failure.max_failed_fraction,
                scenario.failure.max_attempts,
            )
            facts["state_digest"] = run_rounds(
                world,
                schedule,
                backend,
                self.trackers,
                progress,
                self.note,
                self.within,
                keeper,
                self.stop,
                partial(self._start, backend, world),
            )
            status = "finished"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        except OSError as error:
            facts["error"] = f"{error.filename or self.card.folder}: {error.strerror or error}"
            raise RunError(str(facts["error"])) from error
        except BaseException as error:
            facts["error"] = str(error) or type(error).__name__
            if isinstance(error, HookError) and error.trace:
                self.folder.write_text("logs/error.txt", error.trace)
            raise
        finally:
            self.stop.possible = False
            facts["seconds"] = time.perf_counter() - began
            if status != "finished" and under_way:
                self.note(f"what was done until round {progress.rounds} is kept in {self.card.folder}")
                self.note(f"go on with:  raysim resume {shlex.quote(str(self.card.folder))}")
            cleanup.close()  # first: actors may still be at work on a round that was cut off
            summary = self._summary(status, progress, keeper, facts)
            self._close(status, summary)
        return Result(self.card.folder, summary)

    def _where_it_stands(self) -> tuple[Progress, Keeper | None]:
        """What is done already, and who commits what follows."""
        scenario = self.checked.loaded.scenario
        every = scenario.checkpoint.every
        if self.resumed is None:
            commits, commit = Commits(_store(self.identity.checkpoints)), None
        else:
            commits, commit = self.resumed
        keeper = None
        if every != 0:
            keeper = Keeper(commits, None if every == "auto" else every, scenario.rounds, self._sync)
        if self.resumed is None:
            return Progress(), keeper
        for text in commits.damage:
            self.note(text)
        t = commit.round if commit else -1
        latest = self.folder.rewind(t)
        self.mlflow.resume(self.folder.kept)
        if commit is None:
            self.note("there is no commit: the run begins anew in its folder")
            return Progress(), keeper
        self.note(f"going on after round {t}")
        if keeper is not None:
            keeper.round = t
        return Progress.resumed(t, commit.facts, latest), keeper

    def _start(self, backend: Backend, world: World) -> None:
        backend.start(world, self._images)
        commits, commit = self.resumed or (None, None)
        if commits and commit:
            backend.restore(commits.clients(commit), commits.server(commit))

    def _sync(self) -> None:
        """Before a commit: let the run folder be as far; a word if its disk is nearly full."""
        self.folder.sync()
        for text in self.watch.look_at_disks([disk_pressure(self.folder.path)]):
            self.note(text)

    def _images(self) -> NDArray[np.uint8]:
        """All images, read again if they were given away: the backend holds them, once per node."""
        images = self.data.image_MHWC
        if not len(images):
            return read_data(self.checked).image_MHWC
        self.data = replace(self.data, image_MHWC=np.zeros((0, *images.shape[1:]), dtype=np.uint8))
        return images

    def _write_inputs(self) -> None:
        if self.resumed is None:
            self.folder.write_text("scenario.yaml", self.checked.loaded.text)
            pq.write_table(self.partition.table(self.data.label_M), self.card.folder / "partition.parquet")
        self.folder.write_text("resolved.yaml", self.checked.loaded.resolved_yaml())
        self.folder.write_text("run.json", self.identity.json())

    def _close(self, status: Status, summary: dict[str, Any]) -> None:
        """End the folder, draw the pictures, then let MLflow take both. One that fails does not stop the others."""
        failed: list[Exception] = []
        summary["mlflow"] = self.mlflow.where
        for tracker in self.trackers:
            try:
                if tracker is self.mlflow:
                    self._draw()
                tracker.close(status, summary)
                for text in getattr(tracker, "warnings", []):
                    self.note(text)
            except Exception as error:
                failed.append(error)
        if failed and status == "finished":
            raise failed[0]

    def _draw(self) -> None:
        plots = self.card.folder / "plots"
        plots.mkdir(exist_ok=True)
        draw_heatmap(self.partition, self.data.label_M, self.checked.dataset.num_classes, plots / "partition.png")
        rounds = read_rounds(self.card.folder)
        if rounds.num_rows:
            plot_accuracy(rounds, plots / "accuracy.png", title=self.card.name)

    def _summary(
        self, status: Status, progress: Progress, keeper: Keeper | None, facts: Mapping[str, Any]
    ) -> dict[str, Any]:
        loaded = self.checked.loaded
        turns = max(1, progress.turns)
        up, down = sum(progress.up_components.values()), sum(progress.down_components.values())
        return {
            "scenario": loaded.scenario.name,
            "algorithm": loaded.resolved["algorithm"]["name"],
            "run_id": self.card.run_id,
            "status": status,
            "seed": loaded.scenario.seed,
            "backend": loaded.scenario.backend,
            "rounds": progress.rounds,
            "rounds_asked": loaded.scenario.rounds,
            "clients": loaded.scenario.clients.count,
            "participants_per_round": self.checked.participants,
            "best_round": progress.best_round,
            "final": dict(progress.final),
            "up_bytes_per_participant": up / turns,
            "down_bytes_per_participant": down / turns,
            "up_bytes_by_field": progress.up_components,
            "down_bytes_by_field": progress.down_components,
            "rejected_uploads": progress.rejected,
            "failed_clients": progress.failed,
            "restarts": progress.restarts,
            "commit": {"round": keeper.committed, "folder": self.identity.checkpoints} if keeper else None,
            "state_digest": facts.get("state_digest"),
            "error": facts.get("error"),
            "dataset": {"name": self.data.name, "source": self.data.source, "digest": self.card.dataset_digest},
            "partition_digest": self.card.partition_digest,
            "actors": facts.get("actors", 0),
            "seconds": {"total": facts["seconds"], **progress.seconds},
            "versions": versions(),
            "folder": str(self.card.folder),
        }


def read_data(checked: Checked) -> ImageData:
    """The scenario's images. Raises `ScenarioError` when they are not there or damaged."""
    given = checked.loaded.scenario.data
    return load_dataset(given.name, given.root, given.format)


def deal(checked: Checked, data: ImageData) -> Partition:
    """Who holds which image."""
    scenario = checked.loaded.scenario
    return make_partition(
        data.label_M,
        data.num_train,
        checked.dataset.num_classes,
        scenario.clients.count,
        checked.partition,
        checked.split,
        scenario.seed,
        data.name,
    )


def world_of(checked: Checked, data: ImageData, partition: Partition, plan: Plan) -> World:
    """What every process of the run is told."""
    scenario = checked.loaded.scenario
    threads = dict.fromkeys(range(scenario.clients.count), 1)
    for group in plan.groups:
        threads |= dict.fromkeys(group.clients, group.threads)
    published = np.arange(data.num_train, len(data.label_M), dtype=np.int64)
    return World(
        algorithm=checked.loaded.algorithm,
        seed=scenario.seed,
        num_classes=checked.dataset.num_classes,
        feature_dim=checked.feature_dim,
        models=tuple(scenario.clients.models),
        build_model=checked.build,
        transform=transform_for(data.name, scenario.data.augment),
        local=checked.local,
        train=partition.train,
        test=partition.test,
        threads=tuple(threads[k] for k in range(scenario.clients.count)),
        global_test=published if scenario.evaluation.global_test else None,
        evaluate_when=scenario.evaluation.when,
        tolerant=scenario.failure.max_failed_fraction > 0,
        client_timeout_s=scenario.failure.client_timeout_s,
        independent_init=scenario.clients.independent_init,
        num_rounds=scenario.rounds,
        labels=data.label_M,
        image_shape_HWC=tuple(data.image_MHWC.shape[1:]),
        encoder=checked.task.encoder,
    )


def local_machine() -> Machine:
    """This machine as a local Ray would share it out."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Machine(float(os.cpu_count() or 1), float(gpus), elastic=True)


def versions() -> dict[str, str]:
    """The versions that can change a number."""
    return {
        "raysim": metadata.version("raysim"),
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def _store(address: str) -> Store:
    try:
        return open_store(address)
    except OSError as error:
        raise ScenarioError(
            f"checkpoint.folder: {address} given, which cannot be used ({error.strerror}); allowed: a folder, or an "
            "address whose fsspec package is installed"
        ) from None


def _nowhere(*told: object) -> None:
    """Where goes what nobody is to see."""


def _backend(
    checked: Checked, plan: Plan | None, cleanup: contextlib.ExitStack, note: Note, well: Callable[[], bool]
) -> tuple[Plan, Backend]:
    """The scenario's backend, not yet started, and the plan that it follows. `cleanup` closes it.

    well: whether the run ended well, so that nobody needs Ray's logs of it.
    """
    scenario = checked.loaded.scenario
    backend: Backend
    if scenario.backend == "in_process":
        assert plan is not None
        wanted = any(group.gpus_per_actor for group in plan.groups)
        backend = InProcess("cuda" if wanted and torch.cuda.is_available() else "cpu")
        plan = replace(plan, groups=tuple(replace(group, actors=0) for group in plan.groups))
        for text in plan.notes:
            note(text)
        cleanup.callback(backend.close)
        return plan, backend
    from raysim.engine import ray_backend

    owned = ray_backend.connect(plan.cpus if plan else None)
    if owned:
        cleanup.callback(lambda: ray_backend.disconnect(remove_logs=well()))
    resources = scenario.resources

    def planned(machine: Machine) -> Plan:
        return make_plan(checked.asks, machine, scenario.clients.participation)

    if plan is None:
        plan = planned(ray_backend.machine(resources.head))
    nodes = ray_backend.nodes(resources.head)
    refuse_unseated(plan, nodes)
    for text in (*plan.notes, *_seating(plan, nodes, resources.placement == "pack")):
        note(text)
    backend = ray_backend.RayBackend(
        plan, resources.placement == "pack", resources.head, None if owned else planned, note, checked.participants
    )
    cleanup.callback(backend.close)
    for left in leftovers():
        note(left.sentence)
    return plan, backend


def _metrics(backend: str) -> Tracker | None:
    """What shows the run to a cluster's Prometheus; a Ray of our own has none."""
    if backend != "ray":
        return None
    from raysim.engine import ray_backend, ray_metrics

    return ray_metrics.RayMetrics() if ray_backend.attached() else None


def _seating(plan: Plan, nodes: Sequence[Node], pack: bool) -> list[str]:
    """What each of several nodes will hold."""
    if len(nodes) < 2:
        return []
    seated = Counter(node.id for group in seats(plan.groups, nodes, pack) for node in group)
    return [f"node {node.name}: {seated[node.id]} client actors" for node in nodes]


def _card(checked: Checked, data: ImageData, partition: Partition, folder: RunFolder, run_id: str) -> RunCard:
    scenario = checked.loaded.scenario
    return RunCard(
        name=scenario.name,
        run_id=run_id,
        folder=folder.path,
        parameters=checked.loaded.flat(),
        tags={
            "algorithm": checked.loaded.resolved["algorithm"]["name"],
            "dataset": data.name,
            "partition": scenario.data.partition["name"],
            "clients": str(scenario.clients.count),
            "seed": str(scenario.seed),
        },
        dataset=data.name,
        dataset_source=data.source,
        dataset_digest=data.digest,
        partition_digest=partition.digest,
        num_samples=len(data.label_M),
        num_clients=scenario.clients.count,
    )


@contextlib.contextmanager
def _interruptible(stop: Stop) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a run after its round, and at once when they come again or there is nothing to save.

    Python allows this in the main thread only; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        if stop.possible and not stop.requested and not stop.committed():
            stop.requested = True
            # Not through the progress display, which may be in the middle of a line.
            text = "\nraysim: ending after this round, which is then committed; once more to end at once\n"
            os.write(sys.stderr.fileno(), text.encode())
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: ending takes seconds and is not to be cut
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as in the background of a script
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
