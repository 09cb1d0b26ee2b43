"""Functions that read the files of a run folder, whether the run is finished, still running, or was killed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.common.errors import ScenarioError
from raysim.common.files import lock
from raysim.common.parquet import read_parquet
from raysim.common.results import LOCK, Summary
from raysim.results.client_rows import CLIENT_SCHEMA, last_measured, stream_batches


def read_rounds(folder: Path | str) -> pa.Table:
    """Return one row per round: `round` and the metrics, null if a metric was not measured.

    While the run is running, rounds of the last two seconds may be missing.

    Raises:
        ScenarioError: no such run, or its file is damaged.
    """
    return _parquet(Path(folder), "rounds.parquet")


def read_clients(folder: Path | str) -> pa.Table:
    """Return one row per round and client that took part or was tested, with the fields of `ClientRow`.

    For a run that is running or was killed: the rounds that were written in full.

    Raises:
        ScenarioError: no such run, or its file is damaged.
    """
    folder = Path(folder)
    if not (folder / "clients.parquet").exists():
        # Between the two checks, the run may have ended and replaced the stream by the Parquet file.
        with contextlib.suppress(FileNotFoundError):
            batches = [batch for _, batch in stream_batches(folder / "clients.arrows")]
            return pa.Table.from_batches(batches, batches[0].schema if batches else CLIENT_SCHEMA)
    return _parquet(folder, "clients.parquet")


def read_partition(folder: Path | str) -> pa.Table:
    """Return one row per sample of a client: client, part (train, val or test), sample, label.

    Raises:
        ScenarioError: no such run, or its file is damaged.
    """
    return _parquet(Path(folder), "partition.parquet")


def class_accuracy(folder: Path | str) -> pa.Table:
    """Return one row per class of the test samples, with the accuracy in all clients' latest tests.

    The columns are class, name (null in a run of an earlier raysim), correct, total and accuracy.

    Raises:
        ScenarioError: no such run, or its file is damaged.
    """
    import pandas as pd

    latest = last_measured(read_clients(folder))
    dealt = read_partition(folder)
    names = json.loads((dealt.schema.metadata or {}).get(b"class_names", "[]"))
    tests = dealt.filter(pc.and_(pc.equal(dealt["part"], "test"), pc.is_in(dealt["client"], latest["client"])))
    total = tests.to_pandas().groupby(["client", "label"]).size()  # sorted by client, then class, like class_correct
    correct = np.concatenate([np.empty(0, np.int64), *latest["class_correct"].to_pylist()])
    by_class = pd.DataFrame({"correct": correct, "total": total}).groupby("label").sum().astype(np.int64)
    by_class.insert(0, "name", pd.Series([names[c] if names else None for c in by_class.index], by_class.index, object))
    by_class["accuracy"] = by_class["correct"] / by_class["total"]
    return pa.Table.from_pandas(by_class.rename_axis("class").reset_index(), preserve_index=False)


def read_summary(folder: Path | str) -> Summary:
    """Return the run's `summary.json`. Its `status` is "running" during the run, and "died" if the process was killed.

    The file has the status "running" in both cases; a run whose folder is not locked has died. In a copy of the folder
    without the lock file, or on a file system without locks, the status remains "running".

    "closing" means that all rounds are done and in the folder, but plots and MLflow data are still being written. If
    that was interrupted, the status stays until `raysim resume` completes them.

    Raises:
        ScenarioError: no such run, or its file is damaged.
    """
    path = Path(folder) / "summary.json"
    try:
        value: Summary = json.loads(path.read_text())
        if value.get("status") == "running":
            with contextlib.suppress(OSError), (Path(folder) / LOCK).open("rb") as file:
                lock(file.fileno(), shared=True)  # raises an error while the run's process holds the lock
                # The file is read again, because the run may have ended between the two checks.
                value = json.loads(path.read_text())
                if value.get("status") == "running":
                    value["status"] = "died"
    except FileNotFoundError as error:
        raise ScenarioError(f"{folder} is not a run folder: it has no summary.json.") from error
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path} cannot be read ({error}).") from error
    return value


def rounds_done(folder: Path | str, summary: Summary) -> int:
    """Return a run's number of finished rounds, which `summary.json` contains only after the end of the run.

    summary: of `read_summary`. While the run is running, rounds of the last two seconds may be missing.
    """
    if isinstance(rounds := summary.get("rounds"), int):
        return rounds
    try:
        done = read_rounds(folder)["round"].to_pylist()
    except (ScenarioError, KeyError):  # no round is finished yet, or the file is damaged
        return 0
    return max(done, default=0)


def _parquet(folder: Path, name: str) -> pa.Table:
    try:
        return read_parquet(folder / name)
    except FileNotFoundError as error:
        raise ScenarioError(f"{folder} has no {name}: it is not a run folder, or no round is done yet.") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise ScenarioError(f"{folder / name} cannot be read ({error}).") from error
