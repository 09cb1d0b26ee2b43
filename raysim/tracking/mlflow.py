"""The tracker that writes a run to MLflow, from a thread of its own so that no round waits for it.

Importing MLflow takes seconds and is therefore left to that thread. The first database is made there too (see
`raysim.tracking.database`): a run's first round does not wait for either. The import still takes a CPU and Python's
lock: the round beside it, mostly the second, takes one to two seconds longer. An import that began six seconds later
made the rounds beside it as much longer.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import itertools
import json
import math
import re
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raysim.common import names
from raysim.common.errors import RunError, ScenarioError
from raysim.common.results import METRICS, ClientRow, RunCard, Status
from raysim.tracking.database import ensure_database, in_words, load_mlflow
from raysim.tracking.folder import summary_text
from raysim.tracking.store import FOR_TRAINING, VIEW, VIEW_TAG, database_path, resolve_uri, shown

ARTIFACTS = (
    "scenario.yaml",
    "resolved.yaml",
    "rounds.parquet",
    "clients.parquet",
    "partition.parquet",
    "plots/*.png",
)
"""What of the run folder goes to MLflow when the run ends, besides `summary.json`."""

_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "running": "RUNNING"}
_PER_BATCH = 100  # parameters; MLflow's limit
_METRICS_PER_BATCH = 1000  # MLflow's limit
_LONGEST_PARAMETER, _LONGEST_TAG = 6000, 5000  # characters
# Asking again does not help with these; anything else may be a server or a disk that comes back.
_FINAL = {
    "BAD_REQUEST",
    "INVALID_PARAMETER_VALUE",
    "INVALID_STATE",
    "PERMISSION_DENIED",
    "RESOURCE_DOES_NOT_EXIST",
    "UNAUTHENTICATED",
}
_RESUMED = "raysim.resumed"  # the tag that counts how often a run was resumed
_SEND_EVERY_S = 1.0  # short rounds go together: a call costs the time of a hundred small trainings, on their CPU
# Every round that has metrics has one of these: the second is round 0's, in which all clients are evaluated.
_EVERY_ROUND = ("time/round_s", "accuracy/all")
_HOLDOFF_S = (0.2, 5.0)  # the first wait before trying again, and the longest
_Round = tuple[int, int, dict[str, float]]  # number, time in ms, metrics


def find_experiment(client: Any, uri: str, name: str) -> str:
    """The id of the experiment of this name, which is made if there is none."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        database = database_path(uri)
        location = None if database is None else (database.parent / "mlartifacts").as_uri()
        try:
            return str(client.create_experiment(name, location, {VIEW_TAG: VIEW}))
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                raise
            # Another run made it meanwhile.
            experiment = client.get_experiment_by_name(name)
    if experiment.tags.get(VIEW_TAG) != VIEW:
        with contextlib.suppress(Exception):  # without the permission, pages show MLflow's own columns
            client.set_experiment_tag(experiment.experiment_id, VIEW_TAG, VIEW)
    return str(experiment.experiment_id)


class MlflowTracker:
    """The Tracker for MLflow: parameters, tags and data set once, at most one `log_batch` a round, files at the end.

    Close it after the run folder, whose files it uploads. A server that stops answering is asked again for
    `timeout_s` seconds; then `warnings` says so, the run continues, and rounds are kept until it answers.

    MLflow takes a call's metrics as a whole or not at all, and a call carries whole rounds. So of a run whose process
    was killed it holds whole rounds, and `resume` adds those that it does not hold.

    Attributes:
        uri: the resolved address of the store.
        warnings: sentences for the user, whole after `close`.
        run_id: MLflow's id of the run; None until it is made.
        experiment_id: MLflow's id of the experiment; None until it is known.
    """

    def __init__(self, uri: str | None, experiment: str, tags: Mapping[str, str], *, timeout_s: float = 30.0) -> None:
        """Raises `ScenarioError` when the address is no store that is written to; sends no request yet."""
        self.uri = resolve_uri(uri)
        self.experiment = experiment
        self.tags = dict(tags)
        self.timeout_s = timeout_s
        self.warnings: list[str] = []
        self.run_id: str | None = None
        self.experiment_id: str | None = None
        self._card: RunCard | None = None
        self._client: Any = None
        self._resumed = False
        self._existing: Any = None  # the run that MLflow already has, if any
        self._there: frozenset[int] = frozenset()  # rounds that it holds
        self._pending: deque[_Round] = deque()
        self._lost = 0
        self._missing: list[str] = []  # sentences on what did not arrive, and may when the run is resumed
        self._ending: Status | None = None
        self._summary: Mapping[str, object] = {}
        self._failure: BaseException | None = None
        self._opened = threading.Event()
        self._go = threading.Event()
        self._began_ms = 0
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)

    def resume(self, rounds: Sequence[Mapping[str, float]]) -> None:
        """Continue the run that MLflow may hold already, and which has done `rounds`; to be called before `open`.

        The run is known by its tag `raysim.run_id`; where there is none, one is made and gets all of `rounds`. A round
        that MLflow holds is not sent again, neither from these nor from those that follow. Parameters keep the values
        that they have there.
        """
        assert not self._thread.ident, "resume after open"
        self._resumed = True
        for row in rounds:
            self._take(int(row["round"]), {name: value for name, value in row.items() if name != "round"})

    def open(self, card: RunCard) -> None:
        """Note that the run begins and return at once; it is made after the first round, or when `ready` asks.

        Importing MLflow and making a store takes seconds of a CPU that the actors need to start; no user looks at a run
        that has no round yet, and `check_uri` has found the store well before.
        """
        self._card, self._began_ms = card, time.time_ns() // 1_000_000
        self._thread.start()

    def ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is there; False when `timeout_s` passed first.

        Raises:
            ScenarioError: MLflow did not take the run.
        """
        self._go.set()
        if not self._opened.wait(timeout_s):
            return False
        self._raise_failure()
        return True

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Hand round `t` to the writer. Raises `ScenarioError` when MLflow did not take the run."""
        self._raise_failure()
        if t > 0:
            self._go.set()
        self._take(t, values)

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Send what is left and the files, and end the run there.

        Raises:
            RunError: something of a run that finished did not arrive, but may if this is repeated. Of any other run,
                `warnings` says so.
        """
        if not self._thread.ident:
            return  # never opened
        with self._wake:
            self._ending, self._summary = status, summary
            self._wake.notify()
        self._go.set()
        # Opening, sending and ending are each bounded by timeout; files take the time they take.
        self._thread.join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._missing.append(str(failure))
        if status != "finished":
            self.warnings += self._missing
        elif self._missing:
            raise RunError(f"{' '.join(self._missing)} The results are in {self._folder}.")

    @property
    def run_path(self) -> str | None:
        """The run's page within MLflow's pages, `#/experiments/…`; None until the run is made."""
        return f"#/experiments/{self.experiment_id}/runs/{self.run_id}?{FOR_TRAINING}" if self.run_id else None

    @property
    def where(self) -> str:
        """What to open, or to type, to see the run."""
        if database_path(self.uri) is not None:
            return f"raysim ui --uri {shlex.quote(self.uri)}"
        return f"{shown(self.uri)}/{self.run_path}" if self.run_path else shown(self.uri)

    @property
    def _folder(self) -> Path:
        assert self._card is not None
        return self._card.folder

    def _take(self, t: int, values: Mapping[str, float | int]) -> None:
        # The engine's first: should a round be too long for one call, it is the algorithm's that are left out.
        ordered = sorted(values.items(), key=lambda item: item[0] not in METRICS)
        metrics = {names.mlflow(name): float(v) for name, v in ordered if v is not None and not math.isnan(v)}
        with self._wake:
            if metrics and t not in self._there:
                self._pending.append((t, time.time_ns() // 1_000_000, metrics))
                self._wake.notify()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise ScenarioError(str(failure)) from failure

    # All below runs in the writer's thread.

    def _work(self) -> None:
        self._go.wait()
        try:
            problem = self._persist(self._start, self.timeout_s)
            if problem is not None:
                self._failure = ScenarioError(f"MLflow at {shown(self.uri)} did not take the run: {problem}.")
        finally:
            self._opened.set()
        if self._failure is None:
            answers = self._send_rounds()
            timeout_s = self.timeout_s if answers else 0.0
            whole = self._upload(timeout_s)
            whole = self._terminate(timeout_s) and whole
            if whole and not answers:  # it does now: what it still does not take, it never will
                self._send_rounds(warned=True)
            self._count_lost(whole)

    def _persist(self, action: Callable[[], object], timeout_s: float) -> str | None:
        """Do `action` until it works or time is up; returns what was wrong at the end, in a few words."""
        began, holdoff = time.monotonic(), _HOLDOFF_S[0]
        while True:
            try:
                action()
                return None
            except Exception as error:  # MLflow raises those of requests, SQLAlchemy and its own
                over = time.monotonic() - began + holdoff > timeout_s
                if over or _is_final(error):
                    return in_words(error)
            time.sleep(holdoff)
            holdoff = min(2 * holdoff, _HOLDOFF_S[1])

    def _start(self) -> None:
        """Open the run, from where a failed attempt stopped."""
        entities = load_mlflow(self.uri)
        from mlflow.tracking import MlflowClient

        card = self._card
        assert card is not None
        if self._client is None or self.experiment_id is None:
            ensure_database(self.uri)
            self._client = MlflowClient(self.uri)
            self.experiment_id = self._find_experiment()
        if self.run_id is None:
            tags = {**self._own_tags(card), **card.tags, **self.tags}
            tags = {names.mlflow(k): str(v)[:_LONGEST_TAG] for k, v in tags.items()}
            self._existing = self._find_run(card.run_id) if self._resumed else None
            if self._existing is not None:
                self.run_id = self._go_on(tags)
            else:
                run = self._client.create_run(self.experiment_id, self._began_ms, tags, f"{card.label} {card.run_id}")
                self.run_id = run.info.run_id
        present = self._existing.data.params if self._existing else {}
        params = [
            entities.Param(names.mlflow(k), _text(v))
            for k, v in card.parameters.items()
            if names.mlflow(k) not in present
        ]
        for i in range(0, len(params), _PER_BATCH):  # MLflow takes the same parameter again
            self._client.log_batch(self.run_id, params=params[i : i + _PER_BATCH])
        if self._existing and self._existing.inputs.dataset_inputs:
            return
        profile = {
            "num_samples": card.num_samples,
            "num_clients": card.num_clients,
            "partition_digest": card.partition_digest,
        }
        remote = re.match("https?://", card.dataset_source)
        dataset = entities.Dataset(
            name=card.dataset[:500],
            digest=card.dataset_digest[:36],
            source_type="http" if remote else "local",
            source=json.dumps({"url" if remote else "uri": card.dataset_source}),
            profile=json.dumps(profile),
        )
        context = entities.InputTag("mlflow.data.context", "training")
        self._client.log_inputs(self.run_id, datasets=[entities.DatasetInput(dataset, [context])])

    def _own_tags(self, card: RunCard) -> dict[str, str]:
        return {
            "mlflow.source.name": "raysim",
            "mlflow.source.type": "LOCAL",
            "raysim.version": importlib.metadata.version("raysim"),
            "raysim.run_id": card.run_id,
            "raysim.folder": str(card.folder),
        }

    def _find_experiment(self) -> str:
        return find_experiment(self._client, self.uri, self.experiment)

    def _find_run(self, run_id: str) -> Any:
        """MLflow's run of this `raysim.run_id`; None if there is none, or it was deleted there."""
        runs = self._client.search_runs([self.experiment_id], f"tags.`raysim.run_id` = '{run_id}'")
        # Two, if creating the first was answered too late and it was tried again: then the first stayed empty.
        return max(runs, key=lambda run: (len(run.data.metrics), len(run.data.params)), default=None)

    def _go_on(self, tags: Mapping[str, str]) -> str:
        """Set the run that was found to running again, with these tags; returns its id."""
        from mlflow.entities import RunTag

        run_id = str(self._existing.info.run_id)
        self._client.update_run(run_id, status=_STATUS["running"])
        there = frozenset(m.step for name in _EVERY_ROUND for m in self._client.get_metric_history(run_id, name))
        times = int(self._existing.data.tags.get(_RESUMED, 0)) + 1
        # Last, because this is what a second attempt would do twice.
        self._client.log_batch(run_id, tags=[RunTag(k, v) for k, v in {**tags, _RESUMED: str(times)}.items()])
        with self._wake:
            self._there = there
            self._pending = deque(one for one in self._pending if one[0] not in there)
        return run_id

    def _send_rounds(self, warned: bool = False) -> bool:
        """Send rounds until the run ends; False when MLflow did not answer at the end."""
        failing_since: float | None = None
        sent_s = -math.inf  # time.monotonic()
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._pending or self._ending)
                self._wake.wait_for(lambda: self._ending, sent_s + _SEND_EVERY_S - time.monotonic())
                if not self._pending:
                    return True
                # One at a time while something fails, so that it is known which round is at fault.
                batch = list(self._pending)[: 1 if failing_since else None]
            batch = _fitting(batch)
            t = batch[0][0]
            try:
                self._send(batch)
            except Exception as error:
                if len(batch) > 1:
                    failing_since = time.monotonic()
                    continue
                if _is_final(error):
                    self._lost += 1
                    self.warnings.append(f"MLflow did not take round {t}: {in_words(error)}.")
                    self._pending.popleft()
                    continue
                failing_since = failing_since or time.monotonic()
                failing_s = time.monotonic() - failing_since
                if failing_s > self.timeout_s:
                    if not warned:
                        text = f"has not answered for {failing_s:.0f} s ({in_words(error)}); the run continues"
                        self.warnings.append(f"MLflow at {shown(self.uri)} {text}.")
                        warned = True
                    if self._ending:
                        return False
                with self._wake:  # a new round, or the end of the run, is a reason to ask again sooner
                    if warned:  # it may be this round that is at fault: let the others pass
                        self._pending.rotate(-1)
                    self._wake.wait(min(_HOLDOFF_S[0] + failing_s, _HOLDOFF_S[1]))
            else:
                for _ in batch:
                    self._pending.popleft()
                failing_since, sent_s = None, time.monotonic()

    def _send(self, rounds: Sequence[_Round]) -> None:
        from mlflow.entities import Metric

        batch = [Metric(name, value, when_ms, t) for t, when_ms, metrics in rounds for name, value in metrics.items()]
        self._client.log_batch(self.run_id, metrics=batch[:_METRICS_PER_BATCH])

    def _upload(self, timeout_s: float) -> bool:
        """Upload the files; False when MLflow did not take one."""
        assert self._ending is not None
        # What the folder's will say: it says so only once MLflow has everything.
        text = summary_text(self._ending, {**self._summary, "mlflow": self.where})
        uploads = {"summary.json": functools.partial(self._client.log_text, self.run_id, text, "summary.json")}
        for file in (f for name in ARTIFACTS for f in sorted(self._folder.glob(name))):
            inside = file.parent.relative_to(self._folder).as_posix()
            place = None if inside == "." else inside
            uploads[str(file)] = functools.partial(self._client.log_artifact, self.run_id, str(file), place)
        for name, upload in uploads.items():
            problem = self._persist(upload, timeout_s)
            if problem is not None:
                self._missing.append(f"{name} could not be uploaded to MLflow: {problem}.")
                return False  # the next would most likely fail too, after as long a wait
        return True

    def _terminate(self, timeout_s: float) -> bool:
        """End the run there; False when MLflow did not take that."""
        assert self._ending is not None
        status, early = _STATUS[self._ending], self._summary.get("ended_early")
        problem = None
        if early:
            problem = self._persist(lambda: self._client.set_tag(self.run_id, "ended_early", str(early)), timeout_s)
        if problem is None:
            problem = self._persist(lambda: self._client.set_terminated(self.run_id, status), timeout_s)
        if problem is not None:
            self._missing.append(f"MLflow did not record that the run ended: {problem}.")
        return problem is None

    def _count_lost(self, whole: bool) -> None:
        lost = self._lost + len(self._pending)
        if lost:
            where = f"all rounds are in {self._folder}"
            text = f"{lost} rounds could not be logged to MLflow at {shown(self.uri)}; {where}."
            (self.warnings if whole else self._missing).append(text)


def _fitting(rounds: Sequence[_Round]) -> list[_Round]:
    """The first rounds, at least one, that one call can carry."""
    sizes = itertools.accumulate(len(metrics) for _, _, metrics in rounds)
    return [one for i, (one, size) in enumerate(zip(rounds, sizes, strict=True)) if not i or size <= _METRICS_PER_BATCH]


def _is_final(error: Exception) -> bool:
    """Whether MLflow would refuse the same request again."""
    # Two runs that add the same data set at once: one of them meets the other's row, and finds it the next time.
    return getattr(error, "error_code", None) in _FINAL and "IntegrityError" not in str(error)


def _text(value: str | int | float | bool | None) -> str:
    """A parameter as it would stand in the scenario file."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:_LONGEST_PARAMETER]
