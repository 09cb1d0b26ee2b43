"""The tracker that writes a run to MLflow, from a separate thread so that no round waits for it.

The thread also imports MLflow and creates a new database (see `raysim.tracking.database`), which takes seconds, while
the actors start. The run waits for both before its first round, so that it does not train for a store that refuses it.
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
"""Files of the run folder that are uploaded to MLflow when the run ends, besides `summary.json`."""

_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "running": "RUNNING"}
_PER_BATCH = 100  # parameters; MLflow's limit
_METRICS_PER_BATCH = 1000  # MLflow's limit
_LONGEST_PARAMETER, _LONGEST_TAG = 6000, 5000  # characters
# Requests with these errors would fail again; with any other error, the server or disk may recover.
_FINAL = {
    "BAD_REQUEST",
    "INVALID_PARAMETER_VALUE",
    "INVALID_STATE",
    "PERMISSION_DENIED",
    "RESOURCE_DOES_NOT_EXIST",
    "UNAUTHENTICATED",
}
_RESUMED = "raysim.resumed"  # the tag that counts how often a run was resumed
_SEND_EVERY_S = 1.0  # short rounds are sent together: a call takes as much CPU time as a hundred small trainings
# Each round with metrics has one of these; round 0, in which all clients are evaluated, has the second.
_EVERY_ROUND = ("time/round_s", "accuracy/all")
_HOLDOFF_S = (0.2, 5.0)  # the first and the longest wait before a retry
_Round = tuple[int, int, dict[str, float]]  # number, time in ms, metrics


def find_experiment(client: Any, uri: str, name: str) -> str:
    """Return the id of the experiment of this name, and create the experiment if it does not exist.

    Raises `ScenarioError` if it was deleted.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        database = database_path(uri)
        location = None if database is None else (database.parent / "mlartifacts").as_uri()
        try:
            return str(client.create_experiment(name, location, {VIEW_TAG: VIEW}))
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                raise
            # Another run created it at the same time.
            experiment = client.get_experiment_by_name(name)
    if experiment.lifecycle_stage == "deleted":
        number = experiment.experiment_id
        raise ScenarioError(
            f"the experiment {name!r} was deleted in MLflow; restore it with `MLFLOW_TRACKING_URI={shown(uri)} mlflow "
            f"experiments restore --experiment-id {number}`, or set another name in tracking.experiment"
        )
    if experiment.tags.get(VIEW_TAG) != VIEW:
        with contextlib.suppress(Exception):  # without permission to set it, pages show MLflow's default columns
            client.set_experiment_tag(experiment.experiment_id, VIEW_TAG, VIEW)
    return str(experiment.experiment_id)


class MlflowTracker:
    """The tracker for MLflow: parameters, tags and data set once, at most one `log_batch` per round, files at the end.

    Close it after the run folder, whose files it uploads. If the server stops answering, requests are retried for
    `timeout_s` seconds; then `warnings` gets a sentence, the run continues, and rounds are kept until the server
    answers again.

    MLflow stores all metrics of a call or none, and a call contains complete rounds. So after a run's process was
    killed, MLflow has complete rounds, and `resume` adds the missing ones.

    Attributes:
        uri: the resolved address of the store.
        warnings: sentences for the user, complete after `close`.
        run_id: MLflow's id of the run; None until the run is created.
        experiment_id: MLflow's id of the experiment; None until it is known.
    """

    def __init__(self, uri: str | None, experiment: str, tags: Mapping[str, str], *, timeout_s: float = 30.0) -> None:
        """Resolve the address, without sending a request. Raises `ScenarioError` if it is not a supported store."""
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
        self._there: frozenset[int] = frozenset()  # rounds that MLflow already has
        self._pending: deque[_Round] = deque()
        self._refused: dict[str, list[int]] = {}  # reason -> rounds that MLflow did not accept
        self._missing: list[str] = []  # sentences about missing data that a resumed run may add
        self._ending: Status | None = None
        self._summary: Mapping[str, object] = {}
        self._failure: BaseException | None = None
        self._opened = threading.Event()
        self._began_ms = 0
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)

    def resume(self, rounds: Sequence[Mapping[str, float]]) -> None:
        """Continue a run that MLflow may already have; call this before `open`. rounds: the rounds done so far.

        The run is found by its tag `raysim.run_id`; if there is none, a new run is created and gets all of `rounds`.
        Rounds that MLflow already has are not sent again. Parameters keep their values in MLflow.
        """
        assert not self._thread.ident, "resume after open"
        self._resumed = True
        for row in rounds:
            self._take(int(row["round"]), {name: value for name, value in row.items() if name != "round"})

    def open(self, card: RunCard) -> None:
        """Record the start of the run and return at once; `ready` waits until MLflow's run is created."""
        self._card, self._began_ms = card, time.time_ns() // 1_000_000
        self._thread.start()

    def ready(self, timeout_s: float | None = None) -> bool:
        """Wait until MLflow's run is created; return False if that takes longer than `timeout_s`.

        Raises:
            ScenarioError: the run could not be created.
        """
        if not self._opened.wait(timeout_s):
            return False
        self._raise_failure()
        return True

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Pass round `t` to the writer's thread. Raises `ScenarioError` if the run could not be created."""
        self._raise_failure()
        self._take(t, values)

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Send the remaining rounds and the files, and end MLflow's run.

        Raises:
            RunError: data of a finished run is missing in MLflow, but another attempt may succeed. For a run that did
                not finish, `warnings` gets a sentence instead.
        """
        if not self._thread.ident:
            return  # `open` was not called
        with self._wake:
            self._ending, self._summary = status, summary
            self._wake.notify()
        # Opening, sending and ending each have the time limit `timeout_s`; uploads of files have none.
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
        """The address of the run's page on the MLflow server, `#/experiments/…`; None until the run is created."""
        return f"#/experiments/{self.experiment_id}/runs/{self.run_id}?{FOR_TRAINING}" if self.run_id else None

    @property
    def where(self) -> str:
        """The address to open, or the command to type, to see the run."""
        if database_path(self.uri) is not None:
            return f"raysim ui --uri {shlex.quote(self.uri)}"
        return f"{shown(self.uri)}/{self.run_path}" if self.run_path else shown(self.uri)

    @property
    def _folder(self) -> Path:
        assert self._card is not None
        return self._card.folder

    def _take(self, t: int, values: Mapping[str, float | int]) -> None:
        # The engine's metrics come first: if a round exceeds one call, metrics of the algorithm are left out.
        ordered = sorted(values.items(), key=lambda item: item[0] not in METRICS)
        metrics = {names.mlflow(name): _rounded(name, v) for name, v in ordered if v is not None and not math.isnan(v)}
        with self._wake:
            if metrics and t not in self._there:
                self._pending.append((t, time.time_ns() // 1_000_000, metrics))
                self._wake.notify()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise ScenarioError(str(failure)) from failure

    # All methods below run in the writer's thread.

    def _work(self) -> None:
        try:
            problem = self._persist(self._start, self.timeout_s)
            if problem is not None:
                self._failure = ScenarioError(f"MLflow at {shown(self.uri)} could not record the run: {problem}.")
        finally:
            self._opened.set()
        if self._failure is None:
            answers = self._send_rounds()
            timeout_s = self.timeout_s if answers else 0.0
            whole = self._upload(timeout_s)
            whole = self._terminate(timeout_s) and whole
            if whole and not answers:  # the server answers again: rounds that it still refuses are lost
                self._send_rounds(warned=True)
            self._count_lost(whole)

    def _persist(self, action: Callable[[], object], timeout_s: float) -> str | None:
        """Retry `action` for `timeout_s` seconds after it first failed; return the last error in words, or None."""
        failing_since, holdoff = math.inf, _HOLDOFF_S[0]
        while True:
            try:
                action()
                return None
            except Exception as error:  # MLflow raises exceptions of requests and SQLAlchemy, and its own
                failing_since = min(failing_since, time.monotonic())
                over = time.monotonic() - failing_since + holdoff > timeout_s
                if over or _is_final(error):
                    return in_words(error)
            time.sleep(holdoff)
            holdoff = min(2 * holdoff, _HOLDOFF_S[1])

    def _start(self) -> None:
        """Create or continue MLflow's run, from the step at which a failed attempt stopped."""
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
        for i in range(0, len(params), _PER_BATCH):  # MLflow accepts the same parameter again
            self._client.log_batch(self.run_id, params=params[i : i + _PER_BATCH])
        if self._existing and self._existing.inputs.dataset_inputs:
            return
        remote = re.match("https?://", card.dataset_source)
        dataset = entities.Dataset(
            name=card.dataset[:500],
            digest=card.dataset_digest[:36],
            source_type="http" if remote else "local",
            source=json.dumps({"url" if remote else "uri": card.dataset_source}),
            # Runs of an experiment share a data set, so its profile must not describe a single run.
            profile=json.dumps({"num_samples": card.num_samples}),
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
            "raysim.partition": card.partition_digest,
        }

    def _find_experiment(self) -> str:
        return find_experiment(self._client, self.uri, self.experiment)

    def _find_run(self, run_id: str) -> Any:
        """Return MLflow's run with this `raysim.run_id`; None if there is none, or it was deleted."""
        runs = self._client.search_runs([self.experiment_id], f"tags.`raysim.run_id` = '{run_id}'")
        # There are two if the answer to the first creation came too late and it was retried; one of them is empty.
        return max(runs, key=lambda run: (len(run.data.metrics), len(run.data.params)), default=None)

    def _go_on(self, tags: Mapping[str, str]) -> str:
        """Set the existing run to running again, with these tags; return its id."""
        from mlflow.entities import RunTag

        assert self._card is not None
        run_id = str(self._existing.info.run_id)
        ours = str(self._existing.info.run_name).endswith(f" {self._card.run_id}")  # not a name given in MLflow's pages
        self._client.update_run(run_id, _STATUS["running"], f"{self._card.label} {self._card.run_id}" if ours else None)
        there = frozenset(m.step for name in _EVERY_ROUND for m in self._client.get_metric_history(run_id, name))
        if "ended_early" in self._existing.data.tags:  # the run may now do all its rounds
            self._client.delete_tag(run_id, "ended_early")
        times = int(self._existing.data.tags.get(_RESUMED, 0)) + 1
        # Last, because a second attempt would otherwise count the resume twice.
        self._client.log_batch(run_id, tags=[RunTag(k, v) for k, v in {**tags, _RESUMED: str(times)}.items()])
        with self._wake:
            self._there = there
            self._pending = deque(one for one in self._pending if one[0] not in there)
        return run_id

    def _send_rounds(self, warned: bool = False) -> bool:
        """Send rounds until the run ends; return False if MLflow did not answer at the end."""
        failing_since: float | None = None
        sent_s = -math.inf  # time.monotonic()
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._pending or self._ending)
                self._wake.wait_for(lambda: self._ending, sent_s + _SEND_EVERY_S - time.monotonic())
                if not self._pending:
                    return True
                # Send one round at a time while requests fail, to identify the round that causes it.
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
                    self._refused.setdefault(in_words(error), []).append(t)
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
                with self._wake:  # a new round, or the end of the run, ends the wait early
                    if warned:  # this round may be the cause: send the others first
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
        """Upload the files; return False if one could not be uploaded."""
        assert self._ending is not None
        # The final content: the file in the run folder gets it only once MLflow has everything.
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
                return False  # the next file would most likely fail too, after another `timeout_s`
        return True

    def _terminate(self, timeout_s: float) -> bool:
        """End MLflow's run; return False if MLflow did not record it."""
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
        for reason, refused in self._refused.items():
            which = (
                f"round {refused[0]}" if len(refused) == 1 else f"{len(refused)} rounds, the first of them {refused[0]}"
            )
            self.warnings.append(f"MLflow could not record {which}: {reason}.")
        lost = sum(map(len, self._refused.values())) + len(self._pending)
        if lost:
            where = f"all rounds are in {self._folder}"
            rounds = "1 round" if lost == 1 else f"{lost} rounds"
            text = f"{rounds} could not be logged to MLflow at {shown(self.uri)}; {where}."
            (self.warnings if whole else self._missing).append(text)


def _fitting(rounds: Sequence[_Round]) -> list[_Round]:
    """Return the first rounds, at least one, that fit into one call."""
    sizes = itertools.accumulate(len(metrics) for _, _, metrics in rounds)
    return [one for i, (one, size) in enumerate(zip(rounds, sizes, strict=True)) if not i or size <= _METRICS_PER_BATCH]


def _is_final(error: Exception) -> bool:
    """Whether MLflow would refuse the same request again."""
    # If two runs add the same data set at once, one of them gets an IntegrityError, and succeeds on a retry.
    final = getattr(error, "error_code", None) in _FINAL and "IntegrityError" not in str(error)
    return final or isinstance(error, ScenarioError)


def _rounded(name: str, value: float) -> float:
    """Return a metric's value; an accuracy as in raysim's tables, because MLflow's pages show every digit."""
    return round(float(value), 4) if name.startswith("accuracy/") else float(value)


def _text(value: str | int | float | bool | None) -> str:
    """Return a parameter's value as text, in the form of a scenario file."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:_LONGEST_PARAMETER]
