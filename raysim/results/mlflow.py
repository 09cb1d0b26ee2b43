"""The tracker for MLflow. It writes from a separate thread, so that no round waits for MLflow.

The thread also imports MLflow and creates a new database (see `raysim.results.database`), which takes seconds, while
the actors start. The run waits for both before its first round, so that it does not train for a store that refuses it.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import math
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from raysim.common.errors import RunError, ScenarioError
from raysim.common.parquet import read_parquet
from raysim.common.results import METRICS, ClientRow, RunCard, Status
from raysim.common.text import mlflow_name
from raysim.results.database import ensure_database, in_words, load_mlflow
from raysim.results.folder import summary_text
from raysim.results.store import database_path, resolve_uri

logger = logging.getLogger(__name__)

ARTIFACTS = (
    "scenario.yaml",
    "resolved.yaml",
    "rounds.parquet",
    "clients.parquet",
    "partition.parquet",
    "plots/*.png",
)
"""Files of the run folder, besides `summary.json`, that are uploaded to MLflow at the end of the run."""

_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "running": "RUNNING"}
_PER_BATCH = 100  # maximum number of parameters per call in MLflow
_METRICS_PER_BATCH = 1000  # maximum number of metrics per call in MLflow
_LONGEST_PARAMETER, _LONGEST_TAG = 6000, 5000  # maximum numbers of characters in MLflow
_SEND_EVERY_S = 1.0  # seconds between calls: each takes as much CPU time as a hundred small trainings
_REPEAT_S = 0.2  # seconds before another attempt to begin or complete MLflow's run
# A round is in MLflow if one of these metrics is. Round 0 has no duration, but tests all clients.
_EVERY_ROUND = ("time/round_s", "accuracy/all")
_Round = tuple[int, int, Mapping[str, float | None]]  # (number, time in ms, metrics)


def find_experiment(client: Any, uri: str, name: str) -> str:
    """Return the id of the experiment with this name, which is created if it does not exist.

    Raises `ScenarioError` if it was deleted.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        database = database_path(uri)
        location = None if database is None else (database.parent / "mlartifacts").as_uri()
        try:
            return str(client.create_experiment(name, location))
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                raise
            # Another run has created the experiment at the same time.
            experiment = client.get_experiment_by_name(name)
    if experiment.lifecycle_stage == "deleted":
        number = experiment.experiment_id
        raise ScenarioError(
            f"the experiment {name!r} was deleted in MLflow; restore it with `MLFLOW_TRACKING_URI={uri} mlflow "
            f"experiments restore --experiment-id {number}`, or set another name in tracking.experiment"
        )
    return str(experiment.experiment_id)


class MlflowTracker:
    """The tracker for MLflow. It logs parameters, tags and data once, metrics every second, and files at the end.

    Close it after the run folder, whose files it uploads. `close` also sends the rounds in `rounds.parquet` that MLflow
    does not have: rounds that it did not take, and those that a killed process did not send. To begin and to complete
    MLflow's run, requests are repeated for up to `timeout_s` seconds.

    MLflow stores all metrics of a call or none, and a call contains complete rounds, so MLflow has complete rounds.

    Attributes:
        uri: the resolved address of the store.
        run_id: MLflow's id of the run; None until the run is created.
        experiment_id: MLflow's id of the experiment; None until it is known.
    """

    def __init__(self, uri: str | None, experiment: str, tags: Mapping[str, str], *, timeout_s: float = 10.0) -> None:
        """Resolve the address without sending a request. Raises `ScenarioError` if the store is not supported."""
        self.uri = resolve_uri(uri)
        self.experiment = experiment
        self.tags = dict(tags)
        self.timeout_s = timeout_s
        self.run_id: str | None = None
        self.experiment_id: str | None = None
        self._card: RunCard | None = None
        self._client: Any = None
        self._there: set[int] = set()  # rounds that MLflow already has
        self._waiting: SimpleQueue[_Round] = SimpleQueue()
        self._status: Status = "running"
        self._summary: Mapping[str, object] = {}
        self._failure: str | None = None  # reason why MLflow's run could not be created
        self._incomplete: str | None = None  # reason why the run in MLflow is incomplete
        self._opened, self._ended = threading.Event(), threading.Event()
        self._began_ms = 0
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)

    def open(self, card: RunCard) -> None:
        """Record the start of the run without waiting; `ready` waits until MLflow's run is created."""
        self._card, self._began_ms = card, _now_ms()
        self._thread.start()

    def ready(self, timeout_s: float | None = None) -> bool:
        """Wait until MLflow's run is created; return False if that takes longer than `timeout_s`.

        Raises:
            ScenarioError: the run could not be created.
        """
        if not self._opened.wait(timeout_s):
            return False
        if self._failure is not None:
            raise ScenarioError(self._failure)
        return True

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Pass round `t` to the writer's thread."""
        self._waiting.put((t, _now_ms(), values))

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Send the missing rounds and the files, and end MLflow's run.

        Raises:
            RunError: MLflow does not have the whole of a finished run, but another attempt may succeed. For a run that
                did not finish, the log gets a warning instead.
        """
        if not self._thread.ident:
            return  # `open` has not been called
        self._status, self._summary = status, summary
        self._ended.set()
        self._thread.join()
        if status == "finished" and (problem := self._failure or self._incomplete):
            raise RunError(f"{problem} The results are in {self._folder}.")
        if self._incomplete:
            logger.warning(self._incomplete)

    @property
    def where(self) -> str:
        """The address to open, or the command to type, to see the run."""
        if database_path(self.uri) is not None:
            return f"raysim ui --uri {shlex.quote(self.uri)}"
        page = f"/#/experiments/{self.experiment_id}/runs/{self.run_id}" if self.run_id else ""
        return f"{self.uri}{page}"

    @property
    def _folder(self) -> Path:
        assert self._card is not None
        return self._card.folder

    # All methods below run in the tracker's own thread.

    def _work(self) -> None:
        try:
            _persist(self._start, self.timeout_s)
        except Exception as error:  # requests, SQLAlchemy and MLflow raise different exceptions
            self._failure = f"MLflow at {self.uri} could not record the run: {in_words(error)}."
            return
        finally:
            self._opened.set()
        self._send_rounds()
        try:
            _persist(self._complete, self.timeout_s)
        except Exception as error:
            self._incomplete = f"MLflow at {self.uri} does not have the whole run: {in_words(error)}."

    def _start(self) -> None:
        """Create MLflow's run, or continue an existing run with the same tag `raysim.run_id`."""
        entities = load_mlflow(self.uri)
        from mlflow.tracking import MlflowClient

        card = self._card
        assert card is not None
        ensure_database(self.uri)
        self._client = MlflowClient(self.uri)
        self.experiment_id = find_experiment(self._client, self.uri, self.experiment)
        tags = {**self._own_tags(card), **card.tags, **self.tags}
        tags = {mlflow_name(k): str(v)[:_LONGEST_TAG] for k, v in tags.items()}
        runs = self._client.search_runs([self.experiment_id], f"tags.`raysim.run_id` = '{card.run_id}'")
        if runs:
            # If the answer to a first creation was late, the creation was repeated, so two runs may exist, one of them
            # empty.
            run = max(runs, key=lambda run: (len(run.data.metrics), len(run.data.params)))
            self._go_on(run, tags)
        else:
            run = self._client.create_run(self.experiment_id, self._began_ms, tags, f"{card.label} {card.run_id}")
        self.run_id = str(run.info.run_id)
        known = run.data.params  # MLflow does not allow changes of parameters
        params = [entities.Param(mlflow_name(k), _text(v)) for k, v in card.parameters.items()]
        params = [one for one in params if one.key not in known]
        for i in range(0, len(params), _PER_BATCH):
            self._client.log_batch(self.run_id, params=params[i : i + _PER_BATCH])
        if not run.inputs.dataset_inputs:
            self._log_dataset(entities, card)

    def _log_dataset(self, entities: Any, card: RunCard) -> None:
        remote = re.match("https?://", card.dataset_source)
        dataset = entities.Dataset(
            name=card.dataset[:500],
            digest=card.dataset_digest[:36],
            source_type="http" if remote else "local",
            source=json.dumps({"url" if remote else "uri": card.dataset_source}),
            # The runs of an experiment share a data set, so its profile must not describe a single run.
            profile=json.dumps({"num_samples": card.num_samples}),
        )
        context = entities.InputTag("mlflow.data.context", "training")
        # If two runs add the same data set at the same time, one of them gets an error. `_start` is then repeated, and
        # succeeds.
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

    def _go_on(self, run: Any, tags: Mapping[str, str]) -> None:
        """Set an existing run to running again, with these tags, and find out which rounds it has."""
        from mlflow.entities import RunTag

        run_id = run.info.run_id
        self._client.update_run(run_id, _STATUS["running"])
        self._there = {m.step for name in _EVERY_ROUND for m in self._client.get_metric_history(run_id, name)}
        if "ended_early" in run.data.tags:  # the tag is outdated, because the resumed run may do all its rounds
            self._client.delete_tag(run_id, "ended_early")
        self._client.log_batch(run_id, tags=[RunTag(k, v) for k, v in tags.items()])

    def _send_rounds(self) -> None:
        """Send rounds until the run ends. If sending fails, warn once, and leave the missing rounds to `_complete`."""
        warned = False
        while not self._ended.wait(_SEND_EVERY_S):
            try:
                self._send(self._logged())
            except Exception as error:  # requests, SQLAlchemy and MLflow raise different exceptions
                if not warned:
                    logger.warning(
                        f"MLflow at {self.uri} does not take rounds ({in_words(error)}); the run continues, and "
                        "raysim sends them at its end"
                    )
                warned = True

    def _logged(self) -> list[_Round]:
        """Return the rounds logged since the last call."""
        return [self._waiting.get() for _ in range(self._waiting.qsize())]

    def _send(self, rounds: Iterable[_Round]) -> None:
        """Send the rounds that MLflow does not have, as many per call as MLflow allows."""
        from mlflow.entities import Metric

        missing: dict[int, list[Any]] = {}
        for t, when_ms, values in rounds:
            # If a round has too many metrics for one call, some metrics of the algorithm are left out, but none of the
            # engine.
            known = {name: v for name, v in values.items() if v is not None and not math.isnan(v)}
            ordered = sorted(known.items(), key=lambda item: item[0] not in METRICS)[:_METRICS_PER_BATCH]
            if ordered and t not in self._there:
                missing[t] = [Metric(mlflow_name(name), _rounded(name, v), when_ms, t) for name, v in ordered]
        numbers = list(missing)
        per_call = _METRICS_PER_BATCH // max(map(len, missing.values()), default=1)
        for i in range(0, len(numbers), per_call):
            sent = numbers[i : i + per_call]
            self._client.log_batch(self.run_id, metrics=[metric for t in sent for metric in missing[t]])
            self._there.update(sent)

    def _complete(self) -> None:
        """Send the missing rounds, upload the files and end MLflow's run."""
        self._send(self._logged())
        if (parquet := self._folder / "rounds.parquet").exists():
            rows = read_parquet(parquet).to_pylist()
            self._send((row.pop("round"), _now_ms(), row) for row in rows)
        # MLflow gets the final content of the file now. The run folder gets it only after MLflow has everything.
        text = summary_text(self._status, {**self._summary, "mlflow": self.where})
        self._client.log_text(self.run_id, text, "summary.json")
        for file in (f for name in ARTIFACTS for f in sorted(self._folder.glob(name))):
            inside = file.parent.relative_to(self._folder).as_posix()
            self._client.log_artifact(self.run_id, str(file), None if inside == "." else inside)
        if early := self._summary.get("ended_early"):
            self._client.set_tag(self.run_id, "ended_early", str(early))
        self._client.set_terminated(self.run_id, _STATUS[self._status])


def _persist(action: Callable[[], object], timeout_s: float) -> None:
    """Repeat `action` until it succeeds, or until `timeout_s` seconds after its first failure."""
    give_up_at = math.inf
    while True:
        try:
            action()
            return
        except ScenarioError:
            raise
        except Exception:
            give_up_at = min(give_up_at, time.monotonic() + timeout_s)
            if time.monotonic() + _REPEAT_S > give_up_at:
                raise
        time.sleep(_REPEAT_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _rounded(name: str, value: float) -> float:
    """Return a metric's value; accuracies are rounded as in raysim's tables, because MLflow's pages show all digits."""
    return round(float(value), 4) if name.startswith("accuracy/") else float(value)


def _text(value: str | int | float | bool | None) -> str:
    """Return a parameter's value as text, in the form of a scenario file."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:_LONGEST_PARAMETER]
