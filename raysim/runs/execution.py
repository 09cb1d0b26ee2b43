"""One process of a run, from the moment the run folder exists until it is closed: status, trackers, summary, plots."""

from __future__ import annotations

import contextlib
import copy
import logging
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from raysim.common.errors import HookError, RaysimError, RunError
from raysim.common.logs import show_logs
from raysim.common.memory import return_freed_memory
from raysim.common.results import Status, Summary, Tracker
from raysim.common.text import cause
from raysim.data.heatmap import draw_heatmap
from raysim.engine.checkpoint.manager import CheckpointManager
from raysim.engine.checkpoint.store import Checkpoint, CheckpointStore
from raysim.engine.plan import Plan
from raysim.engine.progress import Progress
from raysim.engine.recorder import Recorder
from raysim.engine.resource_monitor import ResourceMonitor
from raysim.engine.run import Rounds
from raysim.engine.stop import Stop
from raysim.plugins.own_code import CODE
from raysim.report.load import read_rounds
from raysim.report.plots import plot_accuracy
from raysim.report.progress import make_display
from raysim.report.units import plural
from raysim.runs.backend import make_backend, metrics_tracker
from raysim.runs.code import Code
from raysim.runs.data import RunData
from raysim.runs.identity import Identity, card_of
from raysim.runs.initial import FILE as INITIAL
from raysim.runs.signals import interruptible, sigterm_kept
from raysim.runs.storage import checkpoint_storage
from raysim.scenario.scenario import Scenario
from raysim.scenario.trackers import NamedTracker
from raysim.tracking.folder import RunFolder
from raysim.tracking.mlflow import MlflowTracker

logger = logging.getLogger(__name__)

RESUME = "raysim resume"
"""The command that resumes a run; the run folder is appended to it."""


def resume_line(command: str, folder: Path) -> str:
    """Return the command line that resumes the run in `folder`."""
    return f"{command} {shlex.quote(str(folder))}"


@dataclass(frozen=True)
class Options:
    """Options of the process that executes a run: how to show, track and end it. They do not change a result."""

    quiet: bool = False  # show no progress
    trackers: Sequence[Tracker] = ()  # the caller's, besides the run folder and MLflow
    resume_command: str = RESUME  # shown, followed by the run folder, when the run ends early
    stop: Stop = field(default_factory=Stop)  # ends the run after the current round once `requested` is set


class Resumed(NamedTuple):
    """The state and facts that a resumed run starts from."""

    store: CheckpointStore
    code: Code  # the method's code as it is now
    warnings: Sequence[str]


@dataclass
class Execution:
    """One process of a run, from the moment the run folder exists; `run` or `complete` closes it."""

    scenario: Scenario
    plan: Plan
    data: RunData
    identity: Identity
    folder: RunFolder
    options: Options
    resumed: Resumed | None = None
    facts: dict[str, Any] = field(init=False, default_factory=dict)  # entries of the summary besides the progress

    def __post_init__(self) -> None:
        scenario = self.scenario
        self.card = card_of(scenario, self.data, self.identity, self.folder.path)
        self.display = make_display(scenario.rounds, scenario.clients.number, self.options.quiet)
        self.mlflow = MlflowTracker(
            self.identity.tracking, scenario.tracking.experiment or scenario.name, scenario.tracking.tags
        )
        self.stop = self.options.stop
        self.trackers: list[Tracker] = [self.display, *self.options.trackers, self.folder, self.mlflow]
        self.checkpoint_folder = self.identity.checkpoints_of(self.card.folder)
        self.monitor = ResourceMonitor(self.folder.path)
        self.progress = Progress()
        self.checkpoints: CheckpointManager | None = None  # None: the scenario wants no checkpoints
        self.cleanup = contextlib.ExitStack()  # ends the backend
        self.restored = self.resumed is None  # whether the folder holds exactly the rounds that the run continues from
        self.own_code_failed = False

    def run(self) -> None:
        """Run every round that is left and close the run."""
        began = time.perf_counter()
        status: Status = "failed"
        self.stop.possible = self.stop.closing = False  # the caller may have used it for another run
        with show_logs(self.display.print), interruptible(self.stop), self.cleanup:
            try:
                progress, checkpoints = self.progress, self._make_checkpoints()
                self.checkpoints = checkpoints
                self.stop.saved_round = lambda: checkpoints is None or checkpoints.saved_round == progress.t
                if self.resumed is None:
                    self._open()
                self._run_rounds()
                status = "finished"
            except KeyboardInterrupt:
                status = "interrupted"
                raise
            except BaseException as error:
                if (failure := self._failure(error)) is error:
                    raise
                raise failure from error
            finally:
                self.stop.closing = True
                self.facts["seconds"] = time.perf_counter() - began
                try:
                    if status != "finished":
                        self._end_early()
                finally:  # after another Ctrl-C, too, the folder has to be unlocked, so that the run can be resumed
                    self._close(status, self._summary(status))

    def _end_early(self) -> None:
        try:
            if self.folder.path.exists():
                self._say_how_to_resume()
        finally:  # a log handler of the user may raise
            self._shut_down()  # before the folder is closed: actors may still work on a round that was cut off

    def _say_how_to_resume(self) -> None:
        if not (self.card.folder / "run.json").exists():
            logger.info("the run had not begun, so it cannot be resumed; launch the scenario again")
            return
        if self.restored:
            logger.info(self._saved(self.progress.rounds, self.checkpoints.saved_round if self.checkpoints else None))
        logger.info(f"resume with:  {self._resume_line}")
        if self.own_code_failed:
            logger.info(
                f"resuming uses the copy of your code in {self.card.folder / CODE}; to run a corrected file, launch "
                "again"
            )

    def _saved(self, rounds: int, checkpoint: int | None) -> str:
        """Return the rounds that the folder holds. checkpoint: the round after which the state was last saved."""
        folder = self.card.folder
        if checkpoint == rounds:
            return f"the run is saved up to round {rounds} in {folder}"
        start = "starts from the beginning" if checkpoint is None else f"continues after round {checkpoint}"
        last = "no checkpoint was saved" if checkpoint is None else "the last checkpoint is older"
        return f"the results of {plural(rounds, 'round')} are in {folder}; {last}, so a resumed run {start}"

    def complete(self, summary: Summary) -> None:
        """Finish the interrupted closing of a run that has all its rounds, without Ray. summary: from the folder."""
        self.stop.closing = True
        summary = {**summary, "status": "finished", "folder": str(self.card.folder)}
        with show_logs(self.display.print), interruptible(self.stop):
            logger.info("finalising: writing missing plots and MLflow data")
            self.trackers.remove(self.display)
            card = replace(self.card, first_round=int(summary["rounds"]) + 1)
            for tracker in self.trackers:
                if tracker is not self.folder:
                    tracker.open(card)
            self._close("finished", summary)

    def _make_checkpoints(self) -> CheckpointManager | None:
        """Return the manager that saves checkpoints, or None if the scenario wants no checkpoints."""
        scenario = self.scenario
        if (every := scenario.checkpoint.every) == 0:
            return None
        store = self.resumed.store if self.resumed else CheckpointStore(checkpoint_storage(self.checkpoint_folder))
        return CheckpointManager(
            store,
            None if every == "auto" else every,
            scenario.rounds,
            self.folder.sync,
            partial(_log_checkpoint, self.folder, self.checkpoint_folder),
            keep_best_val="best_val" in scenario.checkpoint.keep,
        )

    def _go_on(self, resumed: Resumed, checkpoint: Checkpoint | None, rounds: Rounds) -> None:
        """Reset the folder, the trackers and the progress of a resumed run to the round of the restored checkpoint."""
        t = checkpoint.round if checkpoint else -1
        latest = self.folder.truncate(t)
        self.restored = True
        for text in (*resumed.store.take_damage(), *resumed.warnings):
            logger.warning(text)
        if checkpoint is None:
            logger.warning("no checkpoint was found, so the run starts from its beginning again, in the same folder")
        else:
            logger.info(f"resuming after round {t}")
            rounds.go_on(checkpoint, latest)
        self.identity = self.identity.with_code(resumed.code, t)
        self.card = replace(
            self.card,
            first_round=t + 1,
            tags={**self.card.tags, **resumed.code.tags()},
            facts={**self.card.facts, "code": self.identity.code_facts()},
        )
        self._open()

    def _open(self) -> None:
        """Write all files that are known before the first round, and open the trackers."""
        if self.resumed is None:
            self.folder.write_text("scenario.yaml", self.scenario.text)
            dataset = self.data.dataset
            table = self.data.partition.table(dataset.label_M, dataset.class_names)
            pq.write_table(table, self.card.folder / "partition.parquet")
            del table
            if self.plan.initial is not None:
                self.folder.write(INITIAL, self.plan.initial.file())
            # The table of 100,000 clients takes 200 MB, which no round needs.
            pa.default_memory_pool().release_unused()
            return_freed_memory()
        scenario = self.scenario
        self.folder.write_text("resolved.yaml", scenario.resolved_yaml())
        for name, source in scenario.own_code.files.items():
            self.folder.write(f"{CODE}/{name}", source.text)
        self.folder.write_text("run.json", self.identity.json())
        for tracker in self.trackers:
            tracker.open(self.card)
        if self.checkpoints is not None and self.checkpoints.saved_round is not None:
            _log_checkpoint(self.folder, self.checkpoint_folder, self.checkpoints.saved_round)

    def _run_rounds(self) -> None:
        plan = self.plan
        assert plan.layout is not None
        with sigterm_kept():
            succeeded = partial(self.facts.__contains__, "state_digest")
            backend = make_backend(self.scenario, plan, self.cleanup, succeeded, self.folder.path)
        if metrics := metrics_tracker(self.scenario.backend):
            metrics.open(self.card)
            self.trackers.append(metrics)
        self.facts["actors"] = plan.layout.num_actors
        for text in (*self.scenario.warnings, *self.data.notes):
            logger.warning(text)
        for text in _without_samples(plan):
            logger.info(text)
        with Recorder(self.trackers, self._logs_at_once) as record:
            stop, within = self.stop, self.display.within
            rounds = Rounds(plan, backend, record, self.checkpoints, progress=self.progress, stop=stop, within=within)
            startup, checkpoint = rounds.start(self.data.raw, self.resumed.store if self.resumed else None)
            self.facts["startup"] = startup.facts() if startup else None
            if self.resumed:
                self._go_on(self.resumed, checkpoint, rounds)
            self.mlflow.ready()
            for t in rounds:
                if t == 1:  # all clients were tested before it: 100 MB of rows for 100,000 clients
                    return_freed_memory()
                self.monitor.check()
            self.facts["state_digest"] = rounds.state_digest()
        if self.progress.ended_early:
            logger.info(f"the run ends early: {self.progress.ended_early}")

    @property
    def _logs_at_once(self) -> bool:
        """Whether hooks and a tracker that is not raysim's would draw from the same random generators in two threads.

        Such a tracker may draw itself, or open the run and thereby build networks.
        """
        called = [one.tracker if isinstance(one, NamedTracker) else one for one in self.trackers]
        foreign = [one for one in called if not type(one).__module__.startswith("raysim.")]
        return self.scenario.backend == "in_process" and bool(foreign)

    def _failure(self, error: BaseException) -> BaseException:
        """Return the exception to raise for an error that ended the run, and record it in the summary.

        The traceback of a hook is written to `logs/error.txt`.
        """
        failure = _disk_error(error, self.card.folder) if isinstance(error, OSError) else error
        self.facts["error"] = str(failure) or type(failure).__name__
        if failure is not error:
            return failure
        if isinstance(error, HookError) and error.trace:
            with contextlib.suppress(RunError):  # of a full disk, which must not replace the error of the hook
                self.folder.write_text("logs/error.txt", error.trace)
            self.own_code_failed = bool(self.scenario.own_code.files)
        return error

    def _close(self, status: Status, summary: Summary) -> None:
        """Close the folder, stop Ray, draw plots, complete MLflow's run. A step that fails does not stop the others.

        The status of a run that has all its rounds is "closing" until every step is done, so `resume` can repeat the
        steps after any interruption.
        """
        over = status == "finished"
        complete = f"complete the run with:  {self._resume_line}"
        failed: list[Exception] = []

        def attempt(step: Callable[..., None], *given: Any) -> None:
            try:
                step(*given)
            except OSError as error:
                failed.append(_disk_error(error, self.card.folder))
            except Exception as error:
                failed.append(error)

        try:
            summary["mlflow"] = self.mlflow.where
            attempt(self.folder.end, "closing" if over else status, summary)
            if failed:
                status = "failed"
            attempt(self._shut_down)
            for tracker in self.trackers:
                if tracker is not self.folder and tracker is not self.mlflow:
                    attempt(tracker.close, status, copy.deepcopy(summary))  # a custom tracker may change it
            attempt(self._draw)
            attempt(self.mlflow.close, status, summary)
            if over and not failed:
                summary["mlflow"] = self.mlflow.where
                attempt(self.folder.mark_finished, summary)
        except KeyboardInterrupt:
            if over:
                logger.warning(f"all rounds are done, but some results are not written yet; {complete}")
            raise
        finally:
            self.folder.release()  # only now, so that no other process resumes the run before all steps are done
        if over and failed:
            if isinstance(failed[0], RaysimError) and self.folder.path.exists():
                raise RunError(f"{str(failed[0]).rstrip('.')}. All rounds are done; {complete}") from failed[0]
            raise failed[0]

    def _shut_down(self) -> None:
        with sigterm_kept():
            self.cleanup.close()

    def _draw(self) -> None:
        plots = self.card.folder / "plots"
        plots.mkdir(exist_ok=True)
        title = f"{self.card.name}: {self.card.label}"
        data = self.data.dataset
        rounds = read_rounds(self.card.folder)
        partition, accuracy = plots / "partition.png", plots / "accuracy.png"
        pictures: dict[Path, Callable[[], object]] = {
            partition: partial(
                draw_heatmap, self.data.partition, data.label_M, data.class_names, partition, title=title
            ),
            accuracy: partial(plot_accuracy, rounds, accuracy, title=title),
        }
        if not rounds.num_rows:
            del pictures[accuracy]
        for path, draw in pictures.items():
            try:
                draw()
            except OSError:
                raise  # for example a full disk: `resume` draws the plot later
            except Exception as error:
                # Another attempt would fail on the same numbers, and the run would stay "closing" for ever.
                logger.warning(f"cannot draw plots/{path.name} ({cause(error)}); the run finishes without this plot")

    def _checkpoint_facts(self) -> dict[str, Any] | None:
        if (checkpoints := self.checkpoints) is None:
            return None
        facts: dict[str, Any] = {"round": checkpoints.saved_round, "folder": self.checkpoint_folder}
        if checkpoints.keep_best_val:
            best_val = checkpoints.best_val
            facts["best_val_round"] = best_val and best_val.round
        return facts

    @property
    def _resume_line(self) -> str:
        return resume_line(self.options.resume_command, self.card.folder)

    def _summary(self, status: Status) -> Summary:
        progress = self.progress
        client_rounds = max(1, progress.client_rounds)
        up, down = sum(progress.up_components.values()), sum(progress.down_components.values())
        return {
            **self.card.facts,
            "status": status,
            "rounds": progress.rounds,
            "ended_early": progress.ended_early or None,
            "best_round": progress.best_round,
            "best_val_round": progress.best_val_round,
            "best_val": None if progress.best_val_round is None else progress.best_val,
            "final": dict(progress.final),
            "up_bytes_per_participant": up / client_rounds,
            "down_bytes_per_participant": down / client_rounds,
            "up_bytes_by_field": progress.up_components,
            "down_bytes_by_field": progress.down_components,
            "uploads": progress.uploads,
            "rejected_uploads": progress.rejected,
            "diverged_clients": len(progress.diverged),
            "failed_clients": progress.failed,
            "dropped_clients": int(progress.totals.get("dropped", 0)),
            "restarts": progress.restarts,
            "checkpoint": self._checkpoint_facts(),
            "state_digest": self.facts.get("state_digest"),
            "error": self.facts.get("error"),
            "actors": self.facts.get("actors", 0),
            "startup": self.facts.get("startup"),
            "seconds": {"total": self.facts["seconds"], "before_resume": progress.before_s, **progress.seconds},
        }


def _log_checkpoint(folder: RunFolder, checkpoint_folder: str, t: int) -> None:
    """Record in the summary that a checkpoint exists; if it is lost, a resumed run must not start from round 1."""
    folder.write_summary("running", {"checkpoint": {"round": t, "folder": checkpoint_folder}})


def _without_samples(plan: Plan) -> Iterator[str]:
    """Yield a note for each kind of samples that some clients lack."""
    idle = plan.num_clients - len(plan.eligible)
    untested, unvalidated = (int((part.size_N == 0).sum()) for part in (plan.test, plan.val))
    clients = f"of {plan.num_clients} clients hold no"
    if idle:
        yield f"{idle} {clients} training samples and never take part"
    if untested:
        yield f"{untested} {clients} test samples; mean accuracies leave them out"
    if 0 < unvalidated < plan.num_clients:
        yield f"{unvalidated} {clients} validation samples; validation accuracies leave them out"


def _disk_error(error: OSError, folder: Path) -> RunError:
    return RunError(f"{error.filename or folder}: {error.strerror or error}")
