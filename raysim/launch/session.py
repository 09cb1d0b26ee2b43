"""One run from the moment its folder exists until it is closed: whatever happens, the folder says how it ended."""

from __future__ import annotations

import contextlib
import shlex
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from raysim.common.errors import RaysimError, RunError
from raysim.common.results import RunCard, Status
from raysim.data.heatmap import draw_heatmap
from raysim.data.shards import Partition
from raysim.engine.backend import Backend
from raysim.engine.checkpoint.manager import CheckpointManager
from raysim.engine.checkpoint.store import Checkpoint, CheckpointStore
from raysim.engine.memory import ResourceMonitor, disk_usage
from raysim.engine.policies.placement import Plan
from raysim.engine.records import Startup
from raysim.engine.run import Progress, Schedule, Stop, run_rounds
from raysim.engine.spec import RunSpec
from raysim.engine.workers.hooks import HookError
from raysim.launch.backend_factory import make_backend, metrics_of
from raysim.launch.check import Checked
from raysim.launch.prepare import DatasetHandle, checkpoint_storage, make_run_spec
from raysim.launch.resume import Identity
from raysim.launch.signals import sigterm_kept
from raysim.report.load import read_clients, read_rounds
from raysim.report.plots import plot_accuracy
from raysim.tracking.folder import RunFolder
from raysim.tracking.mlflow import MlflowTracker

if TYPE_CHECKING:
    import pandas as pd

RESUME = "raysim resume"
"""What goes on with a run, with the run's folder behind it."""


@dataclass(frozen=True)
class Result:
    """A run that ended well."""

    folder: Path
    summary: Mapping[str, Any]

    @property
    def state_digest(self) -> str:
        """SHA-256 over all client and server state; equal digests mean bit-identical runs."""
        return str(self.summary["state_digest"])

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row per round, from `rounds.parquet`; see `raysim describe metrics`."""
        return read_rounds(self.folder).to_pandas()

    @cached_property
    def clients(self) -> pd.DataFrame:
        """A row per round and measured client, from `clients.parquet`; see `raysim describe clients.parquet`."""
        return read_clients(self.folder).to_pandas()


@dataclass
class Session:
    """One run from the moment its folder exists: whatever happens, the folder says how it ended."""

    checked: Checked
    own: DatasetHandle
    partition: Partition
    card: RunCard
    folder: RunFolder
    mlflow: MlflowTracker
    trackers: list[Any]
    notify: Callable[[str], None]
    within: Callable[[int, int], None]
    stop: Stop
    identity: Identity
    resumed: tuple[CheckpointStore, Checkpoint | None] | None = None  # what a run that goes on has
    monitor: ResourceMonitor = field(default_factory=ResourceMonitor)
    resume_command: str = RESUME
    warnings_: Sequence[str] = ()  # what the user is told as a run goes on
    startup: Startup | None = None  # how long actors took to come up

    def run(self, plan: Plan | None, cleanup: contextlib.ExitStack) -> Result:
        """Start everything, run every round, end everything."""
        scenario = self.checked.loaded.scenario
        progress = Progress()
        checkpoints: CheckpointManager | None = None
        under_way = False  # whether the folder is as this run has it
        began = time.perf_counter()
        status: Status = "failed"
        facts: dict[str, Any] = {}
        try:
            progress, checkpoints = self._where_it_stands()
            under_way = True
            self.stop.saved_round = lambda: checkpoints is None or checkpoints.saved_round == progress.t
            self._write_inputs()
            for tracker in self.trackers:
                tracker.open(self.card)
            if checkpoints is not None and checkpoints.saved_round is not None:
                self._saved(checkpoints.saved_round)
            with sigterm_kept():
                plan, backend = make_backend(self.checked, plan, cleanup, self.notify, lambda: "state_digest" in facts)
            if metrics := metrics_of(scenario.backend):
                metrics.open(self.card)
                self.trackers.append(metrics)
            facts["actors"] = plan.num_actors
            spec = make_run_spec(self.checked, self.own.data, self.partition, plan)
            for text in self.checked.notes:
                self.notify(text)
            if idle := sum(not count for count in spec.num_samples.values()):
                self.notify(f"{idle} of {spec.num_clients} clients hold no training samples and never take part")
            schedule = Schedule(
                scenario.rounds,
                self.checked.participants,
                scenario.evaluation.every,
                scenario.failure.max_failed_fraction,
                scenario.failure.max_attempts,
            )
            facts["state_digest"] = run_rounds(
                spec,
                schedule,
                backend,
                self.trackers,
                progress,
                self.notify,
                self.within,
                checkpoints,
                self.stop,
                partial(self._start, backend, spec),
            )
            status = "finished"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        except OSError as error:
            facts["error"] = self.folder.gone() or str(_in_words(error, self.card.folder))
            raise RunError(facts["error"]) from error
        except BaseException as error:
            if gone := self.folder.gone():
                facts["error"] = gone
                raise RunError(gone) from error
            facts["error"] = str(error) or type(error).__name__
            if isinstance(error, HookError) and error.trace:
                self.folder.write_text("logs/error.txt", error.trace)
            if self.resumed and isinstance(error, Exception) and not isinstance(error, RaysimError):
                raise self._unfit(error) from error
            raise
        finally:
            self.stop.closing = True
            facts["seconds"] = time.perf_counter() - began
            if status != "finished" and under_way:
                if not self.folder.gone():
                    self.notify(f"what was done until round {progress.rounds} is kept in {self.card.folder}")
                    self.notify(f"go on with:  {self.resume_command} {shlex.quote(str(self.card.folder))}")
                self._shut_down(cleanup)  # first: actors may still be at work on a round that was cut off
            summary = self._summary(status, progress, checkpoints, facts)
            self._close(status, summary, cleanup)
        return Result(self.card.folder, summary)

    def complete(self, summary: dict[str, Any]) -> Result:
        """Close a run that has all its rounds and whose closing was cut off, without Ray. summary: what it left."""
        self.stop.closing = True
        self.notify("closing the run: what plots and MLflow lack is added")
        summary = {**summary, "status": "finished", "folder": str(self.card.folder)}
        try:
            rows = read_rounds(self.card.folder).to_pylist()
            self.mlflow.resume([{name: value for name, value in row.items() if value is not None} for row in rows])
        except (ValueError, TypeError, LookupError) as error:
            raise self._unfit(error) from error
        for tracker in self.trackers:
            if tracker is not self.folder:
                tracker.open(self.card)
        self._close("finished", summary, contextlib.ExitStack())
        return Result(self.card.folder, {**summary, "completed": True})

    def _unfit(self, error: Exception) -> RunError:
        """The sentence about an error in a run that goes on: nothing in its folder is known to be what raysim wrote."""
        self.folder.write_text("logs/error.txt", traceback.format_exc())
        return RunError(
            f"the run cannot go on with what {self.card.folder} holds ({type(error).__name__}: {error}); "
            "logs/error.txt there says where that showed"
        )

    @property
    def checkpoints(self) -> str:
        """Where the checkpoints are."""
        return self.identity.checkpoints_of(self.card.folder)

    def _where_it_stands(self) -> tuple[Progress, CheckpointManager | None]:
        """What is done already, and who checkpoints what follows."""
        scenario = self.checked.loaded.scenario
        every = scenario.checkpoint.every
        if self.resumed is None:
            store, checkpoint = CheckpointStore(checkpoint_storage(self.checkpoints)), None
        else:
            store, checkpoint = self.resumed
        checkpoints = None
        if every != 0:
            checkpoints = CheckpointManager(
                store, None if every == "auto" else every, scenario.rounds, self._sync, self._saved
            )
        if self.resumed is None:
            return Progress(), checkpoints
        for text in (*store.damage, *self.warnings_):
            self.notify(text)
        t = checkpoint.round if checkpoint else -1
        latest = self.folder.rewind(t)
        for text in self.folder.damage:
            self.notify(text)
        self.mlflow.resume(self.folder.kept)
        if checkpoint is None:
            self.notify("there is no checkpoint: the run begins anew in its folder")
            return Progress(), checkpoints
        self.notify(f"going on after round {t}")
        if checkpoints is not None:
            checkpoints.round = t
        return Progress.resumed(t, checkpoint.facts, latest), checkpoints

    def _start(self, backend: Backend, spec: RunSpec) -> None:
        backend.start(spec, self.own.images)
        self.startup = backend.startup()
        store, checkpoint = self.resumed or (None, None)
        if store and checkpoint:
            backend.restore(store.clients(checkpoint), store.server(checkpoint))

    def _sync(self) -> None:
        """Before a checkpoint: let the run folder be as far; a word if its disk is nearly full."""
        self.folder.sync()
        for text in self.monitor.check_disk(disk_usage(self.folder.path)):
            self.notify(text)

    def _saved(self, t: int) -> None:
        """Write down that there is a checkpoint: a resumption that finds none must not begin anew."""
        self.folder.running({"checkpoint": {"round": t, "folder": self.checkpoints}})

    def _write_inputs(self) -> None:
        if self.resumed is None:
            self.folder.write_text("scenario.yaml", self.checked.loaded.text)
            pq.write_table(self.partition.table(self.own.data.label_M), self.card.folder / "partition.parquet")
        self.folder.write_text("resolved.yaml", self.checked.loaded.resolved_yaml())
        self.folder.write_text("run.json", self.identity.json())

    def _close(self, status: Status, summary: dict[str, Any], cleanup: contextlib.ExitStack) -> None:
        """End the folder, stop Ray, draw the plots, let MLflow take all. A step that fails does not stop the others.

        The folder of a run that has all its rounds says "closing" until every step is done, so `resume` can do them
        again, whatever cut them off.
        """
        over = status == "finished"
        complete = f"complete it with:  {self.resume_command} {shlex.quote(str(self.card.folder))}"
        failed: list[Exception] = []

        def attempt(step: Callable[..., None], *given: Any) -> None:
            try:
                step(*given)
            except OSError as error:
                failed.append(_in_words(error, self.card.folder))
            except Exception as error:
                failed.append(error)

        try:
            with self.folder.held():  # nobody else gets it before all is done
                summary["mlflow"] = self.mlflow.where
                attempt(self.folder.close, "closing" if over else status, summary)
                if failed:
                    status = "failed"
                attempt(self._shut_down, cleanup)
                for tracker in self.trackers:
                    if tracker is not self.folder and tracker is not self.mlflow:
                        attempt(tracker.close, status, summary)
                attempt(self._draw)
                attempt(self.mlflow.close, status, summary)
                for text in self.mlflow.warnings:
                    self.notify(text)
                if over and not failed:
                    summary["mlflow"] = self.mlflow.where
                    attempt(self.folder.conclude, summary)
        except KeyboardInterrupt:
            if over:
                self.notify(f"all rounds are done, but not everything is written; {complete}")
            raise
        if over and failed:
            if isinstance(failed[0], RaysimError) and not self.folder.gone():
                raise RunError(f"{str(failed[0]).rstrip('.')}. All rounds are done; {complete}") from failed[0]
            raise failed[0]

    def _shut_down(self, cleanup: contextlib.ExitStack) -> None:
        with sigterm_kept():
            cleanup.close()

    def _draw(self) -> None:
        if self.folder.gone():  # not to be made again for pictures alone
            return
        plots = self.card.folder / "plots"
        plots.mkdir(exist_ok=True)
        title = f"{self.card.name}: {self.card.label}"
        classes = self.checked.dataset.num_classes
        draw_heatmap(self.partition, self.own.data.label_M, classes, plots / "partition.png", title=title)
        rounds = read_rounds(self.card.folder)
        if rounds.num_rows:
            plot_accuracy(rounds, plots / "accuracy.png", title=title)

    def _summary(
        self, status: Status, progress: Progress, checkpoints: CheckpointManager | None, facts: Mapping[str, Any]
    ) -> dict[str, Any]:
        client_reports = max(1, progress.client_rounds)
        up, down = sum(progress.up_components.values()), sum(progress.down_components.values())
        return {
            **self.card.facts,
            "status": status,
            "rounds": progress.rounds,
            "best_round": progress.best_round,
            "best_val_round": progress.best_val_round,
            "final": dict(progress.final),
            "up_bytes_per_participant": up / client_reports,
            "down_bytes_per_participant": down / client_reports,
            "up_bytes_by_field": progress.up_components,
            "down_bytes_by_field": progress.down_components,
            "rejected_uploads": progress.rejected,
            "failed_clients": progress.failed,
            "restarts": progress.restarts,
            "checkpoint": {"round": checkpoints.saved_round, "folder": self.checkpoints} if checkpoints else None,
            "state_digest": facts.get("state_digest"),
            "error": facts.get("error"),
            "actors": facts.get("actors", 0),
            "startup": self.startup.facts() if self.startup else None,
            "seconds": {"total": facts["seconds"], **progress.seconds},
        }


def _in_words(error: OSError, folder: Path) -> RunError:
    return RunError(f"{error.filename or folder}: {error.strerror or error}")
