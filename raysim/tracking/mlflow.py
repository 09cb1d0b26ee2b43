"""The tracker that writes a run to MLflow, from a separate thread so that no round waits for it.

The thread also imports MLflow and creates a new database (see `raysim.tracking.database`), which takes seconds, while
the actors start. The run waits for both before its first round, so that it does not train for a store that refuses it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import logging
import math
import re
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raysim.common.errors import RunError, ScenarioError
from raysim.common.results import METRICS, ClientRow, RunCard, Status
from raysim.common.text import mlflow_name
from raysim.tracking.database import ensure_database, in_words, load_mlflow
from raysim.tracking.folder import summary_text
from raysim.tracking.store import FOR_TRAINING, VIEW, VIEW_TAG, database_path, resolve_uri, shown

logger = logging.getLogger(__name__)

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
_RESUMED = "raysim.resumed"  # the tag that counts how often a run was resumed
_SEND_EVERY_S = 1.0  # short rounds are sent together: a call takes as much CPU time as a hundred small trainings
SEND_AGAIN_S = 5.0  # the wait after rounds that MLflow did not take
_REPEAT_S = 0.2  # the wait before an attempt to begin or to complete MLflow's run is repeated
# Each round with metrics has one of these; round 0, in which all clients are evaluated, has the second.
_EVERY_ROUND = ("time/round_s", "accuracy/all")
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

    Close it after the run folder, whose files it uploads. Rounds that MLflow does not take are kept and sent later, at
    the latest by `close`. To begin and to complete MLflow's run, requests are repeated for up to `timeout_s` seconds.

    MLflow stores all metrics of a call or none, and a call contains complete rounds. So after a run's process was
    killed, MLflow has complete rounds, and `resume` adds the missing ones.

    Attributes:
        uri: the resolved address of the store.
        run_id: MLflow's id of the run; None until the run is created.
        experiment_id: MLflow's id of the experiment; None until it is known.
    """

    def __init__(self, uri: str | None, experiment: str, tags: Mapping[str, str], *, timeout_s: float = 30.0) -> None:
        """Resolve the address, without sending a request. Raises `ScenarioError` if it is not a supported store."""
        self.uri = resolve_uri(uri)
        self.experiment = experiment
        self.tags = dict(tags)
        self.timeout_s = timeout_s
        self.run_id: str | None = None
        self.experiment_id: str | None = None
        self._card: RunCard | None = None
        self._client: Any = None
        self._resumed = False
        self._existing: Any = None  # the run that MLflow already has, if any
        self._there: frozenset[int] = frozenset()  # rounds that MLflow already has
        self._waiting: deque[_Round] = deque()  # rounds that are not sent yet
        self._status: Status = "running"
        self._summary: Mapping[str, object] = {}
        self._failure: str | None = None  # why MLflow's run could not be created
        self._incomplete: str | None = None  # why MLflow does not have the whole run
        self._opened, self._ended = threading.Event(), threading.Event()
        self._began_ms = 0
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
        self._check_created()
        return True

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Pass round `t` to the writer's thread. Raises `ScenarioError` if the run could not be created."""
        self._check_created()
        self._take(t, values)

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Send the remaining rounds and the files, and end MLflow's run.

        Raises:
            RunError: MLflow does not have the whole of a finished run, but another attempt may succeed. For a run that
                did not finish, the log gets a warning instead.
        """
        if not self._thread.ident:
            return  # `open` was not called
        self._status, self._summary = status, summary
        self._ended.set()
        self._thread.join()
        if status == "finished" and (problem := self._failure or self._incomplete):
            raise RunError(f"{problem} The results are in {self._folder}.")
        if self._incomplete:
            logger.warning(self._incomplete)

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
        metrics = {mlflow_name(name): _rounded(name, v) for name, v in ordered if v is not None and not math.isnan(v)}
        if metrics:
            self._waiting.append((t, time.time_ns() // 1_000_000, metrics))

    def _check_created(self) -> None:
        if self._failure is not None:
            raise ScenarioError(self._failure)

    # All methods below run in the writer's thread.

    def _work(self) -> None:
        try:
            problem = _persist(self._start, self.timeout_s)
            if problem is not None:
                self._failure = f"MLflow at {shown(self.uri)} could not record the run: {problem}."
        finally:
            self._opened.set()
        if self._failure is not None:
            return
        answers = self._send_rounds()
        problem = _persist(self._complete, self.timeout_s if answers else 0.0)
        if problem is not None:
            self._incomplete = f"MLflow at {shown(self.uri)} does not have the whole run: {problem}."

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
            tags = {mlflow_name(k): str(v)[:_LONGEST_TAG] for k, v in tags.items()}
            self._existing = self._find_run(card.run_id) if self._resumed else None
            if self._existing is not None:
                self.run_id = self._go_on(tags)
            else:
                run = self._client.create_run(self.experiment_id, self._began_ms, tags, f"{card.label} {card.run_id}")
                self.run_id = run.info.run_id
        present = self._existing.data.params if self._existing else {}
        params = [
            entities.Param(mlflow_name(k), _text(v))
            for k, v in card.parameters.items()
            if mlflow_name(k) not in present
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
        self._there = frozenset(m.step for name in _EVERY_ROUND for m in self._client.get_metric_history(run_id, name))
        if "ended_early" in self._existing.data.tags:  # the run may now do all its rounds
            self._client.delete_tag(run_id, "ended_early")
        times = int(self._existing.data.tags.get(_RESUMED, 0)) + 1
        # Last, because a second attempt would otherwise count the resume twice.
        self._client.log_batch(run_id, tags=[RunTag(k, v) for k, v in {**tags, _RESUMED: str(times)}.items()])
        return run_id

    def _send_rounds(self) -> bool:
        """Send rounds until the run ends; return whether MLflow took the last ones. Warn once if it stops answering."""
        failing_since, warned = math.inf, False
        while not self._ended.wait(_SEND_EVERY_S if failing_since == math.inf else SEND_AGAIN_S):
            try:
                self._send_waiting()
                failing_since = math.inf
            except Exception as error:  # MLflow raises exceptions of requests and SQLAlchemy, and its own
                failing_since = min(failing_since, time.monotonic())
                if time.monotonic() - failing_since >= self.timeout_s and not warned:
                    logger.warning(
                        f"MLflow at {shown(self.uri)} does not take rounds ({in_words(error)}); the run continues, and "
                        "raysim sends them later"
                    )
                    warned = True
        return failing_since == math.inf

    def _send_waiting(self) -> None:
        """Send all rounds that wait and that MLflow does not have yet, as many in one call as it takes."""
        from mlflow.entities import Metric

        while self._waiting:
            rounds = _fitting(list(self._waiting))
            metrics = [
                Metric(name, value, when_ms, t)
                for t, when_ms, values in rounds
                for name, value in values.items()
                if t not in self._there
            ]
            if metrics:
                self._client.log_batch(self.run_id, metrics=metrics[:_METRICS_PER_BATCH])
            for _ in rounds:
                self._waiting.popleft()

    def _complete(self) -> None:
        """Send the last rounds, upload the files and end MLflow's run."""
        self._send_waiting()
        # The final content: the file in the run folder gets it only once MLflow has everything.
        text = summary_text(self._status, {**self._summary, "mlflow": self.where})
        self._client.log_text(self.run_id, text, "summary.json")
        for file in (f for name in ARTIFACTS for f in sorted(self._folder.glob(name))):
            inside = file.parent.relative_to(self._folder).as_posix()
            self._client.log_artifact(self.run_id, str(file), None if inside == "." else inside)
        if early := self._summary.get("ended_early"):
            self._client.set_tag(self.run_id, "ended_early", str(early))
        self._client.set_terminated(self.run_id, _STATUS[self._status])


def _persist(action: Callable[[], object], timeout_s: float) -> str | None:
    """Repeat `action` for up to `timeout_s` seconds after it first failed; return the last error in words, or None."""
    give_up_at = math.inf
    while True:
        try:
            action()
            return None
        except Exception as error:  # MLflow raises exceptions of requests and SQLAlchemy, and its own
            give_up_at = min(give_up_at, time.monotonic() + timeout_s)
            if _is_final(error) or time.monotonic() + _REPEAT_S > give_up_at:
                return in_words(error)
        time.sleep(_REPEAT_S)


def _fitting(rounds: Sequence[_Round]) -> list[_Round]:
    """Return the first rounds, at least one, that fit into one call."""
    sizes = itertools.accumulate(len(metrics) for _, _, metrics in rounds)
    return [one for i, (one, size) in enumerate(zip(rounds, sizes, strict=True)) if not i or size <= _METRICS_PER_BATCH]


def _is_final(error: Exception) -> bool:
    """Whether MLflow would refuse the same request again."""
    if isinstance(error, ScenarioError):
        return True
    # If two runs add the same data set at once, one of them gets an IntegrityError, and succeeds when it repeats this.
    status = getattr(error, "get_http_status_code", lambda: 503)()
    return status < 500 and "IntegrityError" not in str(error)


def _rounded(name: str, value: float) -> float:
    """Return a metric's value; an accuracy as in raysim's tables, because MLflow's pages show every digit."""
    return round(float(value), 4) if name.startswith("accuracy/") else float(value)


def _text(value: str | int | float | bool | None) -> str:
    """Return a parameter's value as text, in the form of a scenario file."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:_LONGEST_PARAMETER]
