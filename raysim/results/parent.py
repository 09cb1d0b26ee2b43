"""The run of a sweep in MLflow, with aggregates over all cells and plots. The runs of the cells are its children.

MLflow's comparison page gets slow beyond a hundred runs, so the parent run must show the results by itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysim.common.errors import RunError
from raysim.results.database import ensure_database, in_words, load_mlflow
from raysim.results.mlflow import find_experiment

PARENT_TAG = "mlflow.parentRunId"
SWEEP_TAG = "raysim.sweeps"


class ParentRun:
    """The run of a sweep in MLflow. If the sweep is run again, the run is found by its tag.

    As a context, it ends the run if the sweep does not get as far as `close`.

    Raises:
        RunError: MLflow does not answer or refuses a request.
    """

    def __init__(self, uri: str, sweep: str, folder: Path) -> None:
        self.uri, self.sweep, self.folder = uri, sweep, folder
        try:
            load_mlflow(uri)
            from mlflow.tracking import MlflowClient

            ensure_database(uri)
            self.client: Any = MlflowClient(uri)
            self.experiment_id = find_experiment(self.client, uri, sweep)
            self.run_id = self._find() or self._create()
        except Exception as error:  # requests, SQLAlchemy and MLflow raise different exceptions
            raise self._failure(error) from error

    def tags(self) -> dict[str, str]:
        """Return the tags that make the run of a cell a child of this run."""
        return {PARENT_TAG: self.run_id}

    def close(self, finished: bool, metrics: Mapping[str, float], files: Sequence[Path]) -> None:
        """Log the aggregates and the files, and end the run."""
        now = time.time_ns() // 1_000_000
        try:
            from mlflow.entities import Metric

            points = [Metric(name, value, now, 0) for name, value in metrics.items()]
            for i in range(0, len(points), 1000):  # MLflow's maximum per call
                self.client.log_batch(self.run_id, metrics=points[i : i + 1000])
            for path in files:
                self.client.log_artifact(self.run_id, str(path))
            self.client.set_terminated(self.run_id, "FINISHED" if finished else "FAILED")
        except Exception as error:
            raise self._failure(error) from error

    def __enter__(self) -> ParentRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """End the run after the sweep was interrupted or failed. Errors are ignored: MLflow may be the cause."""
        if kind is not None:
            with contextlib.suppress(Exception):
                self.client.set_terminated(self.run_id, "KILLED" if kind is KeyboardInterrupt else "FAILED")

    def _find(self) -> str | None:
        quote = '"' if "'" in str(self.folder) else "'"
        runs = self.client.search_runs([self.experiment_id], f"tags.`{SWEEP_TAG}` = {quote}{self.folder}{quote}")
        if not runs:
            return None
        self.client.update_run(runs[0].info.run_id, status="RUNNING")
        return str(runs[0].info.run_id)

    def _create(self) -> str:
        tags = {SWEEP_TAG: str(self.folder), "mlflow.source.name": "raysim"}
        run = self.client.create_run(self.experiment_id, tags=tags, run_name=f"sweep {self.sweep}")
        return str(run.info.run_id)

    def _failure(self, error: Exception) -> RunError:
        return RunError(f"MLflow at {self.uri} could not record the sweep: {in_words(error)}")
