"""One process of a run, from the creation of the run folder to its closing: rounds, trackers, summary, plots."""

from __future__ import annotations

import contextlib
import copy
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysim.common.errors import HookError, RaysimError, RunError
from raysim.common.logs import show_logs
from raysim.common.memory import return_freed_memory
from raysim.common.results import Status, Summary, Tracker
from raysim.common.text import cause
from raysim.data.heatmap import draw_heatmap
from raysim.engine.checkpoint.store import CheckpointManager, CheckpointStore
from raysim.engine.plan import Plan
from raysim.engine.progress import Progress
from raysim.engine.recorder import Recorder
from raysim.engine.run import Rounds
from raysim.engine.stop import Stop
from raysim.plugins.own_code import CODE
from raysim.results.folder import RunFolder
from raysim.results.load import read_rounds
from raysim.results.mlflow import MlflowTracker
from raysim.results.plots import plot_accuracy
from raysim.results.progress import Display
from raysim.runs.code import Code
from raysim.runs.identity import INITIAL, Identity, checkpoint_storage
from raysim.runs.machine import make_backend, metrics_tracker
from raysim.runs.plan import RunData
from raysim.runs.signals import interruptible, sigterm_kept

logger = logging.getLogger(__name__)

RESUME = "raysim resume"
"""The command that resumes a run; the run folder is appended."""


@dataclass(frozen=True)
class Options:
    """Options of a process that executes a run, for display, tracking and ending. They do not change a result."""

    quiet: bool = False  # show no progress
    trackers: Sequence[Tracker] = ()  # the caller's trackers, in addition to the run folder and MLflow
    resume_command: str = RESUME  # command that is shown, with the run folder, if the run ends early
    stop: Stop = field(default_factory=Stop)  # set `stop.requested` to end the run after the current round

    def resume_line(self, folder: Path) -> str:
        """Return the command line that resumes the run in `folder`."""
        return f"{self.resume_command} {shlex.quote(str(folder))}"


@dataclass
class Execution:
    """One process of a run whose folder exists. `run` or `complete` runs it and closes the run."""

    plan: Plan
    data: RunData
    identity: Identity
    folder: RunFolder
    options: Options
    store: CheckpointStore | None = None  # the checkpoints of a run that is resumed; None: the run is new
    # Entries of the summary in addition to the progress.
    facts: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.scenario = scenario = self.data.scenario
        self.card = self.identity.card(self.data, self.folder.path)
        self.display = Display(scenario.rounds, scenario.clients.number, self.options.quiet)
        self.mlflow = MlflowTracker(
            self.identity.tracking, scenario.tracking.experiment or scenario.name, scenario.tracking.tags
        )
        self.stop = self.options.stop
        self.trackers: list[Tracker] = [self.display, *self.options.trackers, self.folder, self.mlflow]
        self.checkpoint_folder = self.identity.checkpoints_of(self.folder.path)
        self.progress = Progress()
        self.checkpoints = self._checkpoint_manager()
        self.cleanup = contextlib.ExitStack()  # ends the backend when it is closed

    def run(self) -> None:
        """Run all remaining rounds, and close the run."""
        plan, stop = self.plan, self.stop
        with show_logs(self.display.print), interruptible(stop), self._closed():
            if self.store is None:
                self._write_inputs()
                self._open()
            with sigterm_kept():
                backend = make_backend(self.scenario, plan, self.cleanup, self.folder.path)
            self._say_notes()
            # Hooks in this process must not run while trackers run in a thread: both may use its random generators.
            with Recorder(self.trackers, at_once=self.scenario.backend == "in_process") as record:
                rounds = Rounds(
                    plan, backend, record, self.checkpoints, progress=self.progress, stop=stop,
                    within=self.display.within,
                )  # fmt: skip
                self.facts["startup"] = rounds.start(self.data.raw, self.store, self.folder.truncate)
                if self.store is not None:
                    self._go_on(self.store)
                if metrics := metrics_tracker(self.scenario.backend):
                    metrics.open(self.card)
                    self.trackers.append(metrics)
                self.mlflow.ready()
                for t in rounds:
                    if t == 1:  # the first test of all clients leaves 100 MB of rows for 100,000 clients
                        return_freed_memory()
                self.facts["state_digest"] = rounds.state_digest()

    def complete(self, summary: Summary) -> None:
        """Complete the interrupted closing of a run that has all rounds, without Ray. summary: from the folder."""
        self.stop.closing = True
        with show_logs(self.display.print), interruptible(self.stop):
            logger.info("finalising: writing missing plots and MLflow data")
            self.trackers.remove(self.display)
            card = replace(self.card, first_round=int(summary["rounds"]) + 1)
            for tracker in self.trackers:
                if tracker is not self.folder:
                    tracker.open(card)
            self._close("finished", {**summary, "status": "finished", "folder": str(self.folder.path)})

    @contextlib.contextmanager
    def _closed(self) -> Iterator[None]:
        """Close the run after this block, even if it raises. If the run has not finished, say how to resume it."""
        began = time.perf_counter()
        status: Status = "failed"
        self.stop.possible = self.stop.closing = False  # the caller may have used this object for another run
        try:
            yield
            status = "finished"
            if self.progress.ended_early:
                logger.info(f"the run ends early: {self.progress.ended_early}")
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
                    # The backend ends before the folder is closed, because actors may still work on a round.
                    self._shut_down()
                    self._say_how_to_resume()
            finally:  # even after another Ctrl-C, the folder must be unlocked, so that the run can be resumed
                self._close(status, {**self.card.facts, "status": status, **self._summary()})

    def _checkpoint_manager(self) -> CheckpointManager | None:
        """Return the manager that saves checkpoints; None if the scenario requests none."""
        scenario = self.scenario
        if (every := scenario.checkpoint.every) == 0:
            return None
        return CheckpointManager(
            self.store or CheckpointStore(checkpoint_storage(self.checkpoint_folder)),
            None if every == "auto" else every,
            scenario.rounds,
            self.folder.sync,
            self._note_checkpoint,
            keep_best_val="best_val" in scenario.checkpoint.keep,
        )

    def _note_checkpoint(self, t: int) -> None:
        """Record in the summary that a checkpoint exists. If it is lost, `resume` must not restart from round 1."""
        self.folder.write_summary("running", {"checkpoint": {"round": t, "folder": self.checkpoint_folder}})

    def _checkpoint_facts(self) -> dict[str, Any] | None:
        if (checkpoints := self.checkpoints) is None:
            return None
        facts: dict[str, Any] = {"round": checkpoints.saved_round, "folder": self.checkpoint_folder}
        if checkpoints.keep_best_val:
            facts["best_val_round"] = checkpoints.best_val and checkpoints.best_val.round
        return facts

    def _summary(self) -> Summary:
        """Return the entries of the summary that trackers receive when the run ends."""
        progress, facts = self.progress, self.facts
        client_rounds = max(1, progress.client_rounds)
        up, down = sum(progress.up_components.values()), sum(progress.down_components.values())
        return {
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
            "state_digest": facts.get("state_digest"),
            "error": facts.get("error"),
            "actors": facts.get("actors", 0),
            "startup": facts.get("startup"),
            "seconds": {"total": facts["seconds"], "before_resume": progress.before_s, **progress.seconds},
        }

    def _write_inputs(self) -> None:
        """Write the inputs of a new run: the scenario as given, the partition and the initial state."""
        self.folder.write("scenario.yaml", self.scenario.text)
        dataset = self.data.dataset
        table = self.data.partition.table(dataset.label_M, dataset.class_names)
        pq.write_table(table, self.folder.path / "partition.parquet")
        del table
        if self.plan.initial is not None:
            self.folder.write(INITIAL, self.plan.initial.file())
        # The table of 100,000 clients takes 200 MB, which the rounds do not need.
        pa.default_memory_pool().release_unused()
        return_freed_memory()

    def _go_on(self, store: CheckpointStore) -> None:
        """Report where a resumed run continues, and open the trackers for its next round."""
        t = self.progress.t
        for text in store.take_damage():
            logger.warning(text)
        if t < 0:
            logger.warning("no checkpoint was found, so the run starts from its beginning again, in the same folder")
        else:
            logger.info(f"resuming after round {t}")
        self.identity = self.identity.with_code(Code.of(self.scenario.algorithm, self.scenario.own_code), t)
        self.card = self.identity.card(self.data, self.folder.path, first_round=t + 1)
        self._open()

    def _open(self) -> None:
        """Write the resolved scenario, the user's own code and `run.json`, and open the trackers."""
        scenario = self.scenario
        self.folder.write("resolved.yaml", scenario.resolved_yaml())
        for name, source in scenario.own_code.files.items():
            self.folder.write(f"{CODE}/{name}", source.text)
        self.folder.write("run.json", self.identity.json())
        for tracker in self.trackers:
            tracker.open(self.card)
        if self.checkpoints is not None and self.checkpoints.saved_round is not None:
            self._note_checkpoint(self.checkpoints.saved_round)

    def _say_notes(self) -> None:
        """Log facts before the first round: the scenario's warnings, and notes about its data."""
        plan = self.plan
        assert plan.layout is not None
        self.facts["actors"] = plan.layout.num_actors
        for text in (*self.scenario.warnings, *self.data.notes):
            logger.warning(text)
        idle, untested, unvalidated = (int((part.size_N == 0).sum()) for part in (plan.train, plan.test, plan.val))
        clients = f"of {plan.num_clients} clients hold no"
        if idle:
            logger.info(f"{idle} {clients} training samples and never take part")
        if untested:
            logger.info(f"{untested} {clients} test samples; mean accuracies leave them out")
        if 0 < unvalidated < plan.num_clients:
            logger.info(f"{unvalidated} {clients} validation samples; validation accuracies leave them out")

    def _say_how_to_resume(self) -> None:
        folder = self.folder.path
        if not (folder / "run.json").exists():
            logger.info(f"{folder} contains no run to resume; launch the scenario again")
            return
        if self.progress.t >= 0:
            saved = self.checkpoints.saved_round if self.checkpoints else None
            never = "no checkpoint was saved yet, so a resumed run starts from its beginning"
            upto = never if saved is None else f"the run is saved up to round {saved}"
            logger.info(f"{upto}; the results so far are in {folder}")
        logger.info(f"resume with:  {self.options.resume_line(folder)}")
        if self.facts.get("hook") and self.scenario.own_code.files:
            logger.info(
                f"resuming uses the copy of your code in {folder / CODE}; to run a corrected file, launch again"
            )

    def _failure(self, error: BaseException) -> BaseException:
        """Return the exception to raise for an error that ended the run, and record the error in the summary.

        The traceback of a hook is written to `logs/error.txt`.
        """
        failure = _disk_error(error, self.folder.path) if isinstance(error, OSError) else error
        self.facts["error"] = str(failure) or type(failure).__name__
        if isinstance(error, HookError) and error.trace:
            self.facts["hook"] = error.hook
            with contextlib.suppress(RunError):  # an error of a full disk must not replace the error of the hook
                self.folder.write("logs/error.txt", error.trace)
        return failure

    def _close(self, status: Status, summary: Summary) -> None:
        """Close the folder, stop Ray, draw plots, complete MLflow's run. If a step fails, the other steps still run.

        The status of a run that has all its rounds is "closing" until every step is done, so `resume` can repeat the
        steps after any interruption.
        """
        over = status == "finished"
        complete = f"complete the run with:  {self.options.resume_line(self.folder.path)}"
        failed: list[Exception] = []

        def attempt(step: Callable[..., None], *given: Any) -> None:
            try:
                step(*given)
            except OSError as error:
                failed.append(_disk_error(error, self.folder.path))
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
                    # Trackers get a copy of the summary, because a custom tracker may change it.
                    attempt(tracker.close, status, copy.deepcopy(summary))
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
            self.folder.release()  # last, so that no other process resumes the run before all steps are done
        if over and failed:
            if isinstance(failed[0], RaysimError) and self.folder.path.exists():
                raise RunError(f"{str(failed[0]).rstrip('.')}. All rounds are done; {complete}") from failed[0]
            raise failed[0]

    def _shut_down(self) -> None:
        with sigterm_kept():
            self.cleanup.__exit__(*sys.exc_info())  # with the exception that ends the run, Ray's logs are kept

    def _draw(self) -> None:
        plots, data, title = self.folder.path / "plots", self.data.dataset, f"{self.card.name}: {self.card.label}"
        plots.mkdir(exist_ok=True)
        rounds = read_rounds(self.folder.path)
        partition = partial(draw_heatmap, self.data.partition, data.label_M, data.class_names)
        pictures: dict[str, Callable[..., object]] = {"partition.png": partition}
        if rounds.num_rows:
            pictures["accuracy.png"] = partial(plot_accuracy, rounds)
        for name, draw in pictures.items():
            try:
                draw(plots / name, title=title)
            except OSError:
                raise  # for example because of a full disk; `resume` draws the plot later
            except Exception as error:
                # Do not raise: `resume` would fail on the same numbers, and the run would stay "closing" for ever.
                logger.warning(f"cannot draw plots/{name} ({cause(error)}); the run finishes without this plot")


def _disk_error(error: OSError, folder: Path) -> RunError:
    return RunError(f"{error.filename or folder}: {error.strerror or error}")
