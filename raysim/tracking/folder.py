"""The run folder: everything a run reports, as files that can be read while it runs and after it failed.

`rounds.parquet` is replaced as a whole; client rows grow an Arrow stream, `clients.arrows`, that becomes
`clients.parquet` when the run ends. `summary.json` says "running" until then, so a run that was killed never
looks whole.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysim.core.errors import RunError, ScenarioError
from raysim.core.results import METRICS, ClientRow, RunCard, Status

CLIENT_SCHEMA = pa.schema(
    [
        pa.field("round", pa.int64(), nullable=False),
        pa.field("client", pa.int64(), nullable=False),
        pa.field("model", pa.string(), nullable=False),
        pa.field("participated", pa.bool_(), nullable=False),
        pa.field("accuracy", pa.float64()),
        pa.field("correct", pa.int64()),
        pa.field("total", pa.int64()),
        pa.field("loss", pa.float64()),
        pa.field("global_accuracy", pa.float64()),
        pa.field("train_loss", pa.float64()),
        pa.field("train_samples", pa.int64(), nullable=False),
        pa.field("up_bytes", pa.int64(), nullable=False),
        pa.field("down_bytes", pa.int64(), nullable=False),
        pa.field("up_params", pa.int64(), nullable=False),
        pa.field("down_params", pa.int64(), nullable=False),
        pa.field("flops", pa.float64(), nullable=False),
        pa.field("train_s", pa.float64(), nullable=False),
        pa.field("evaluate_s", pa.float64(), nullable=False),
    ]
)
"""The columns of `clients.parquet`: the fields of `ClientRow`, in their order."""

ROUNDS_EVERY_S = 2.0
"""How long a finished round may wait before `rounds.parquet` shows it, in seconds."""

_ROW_GROUP = 65_536  # rows; many small groups, one a round, would make a slow file


class RunFolder:
    """The Tracker that owns `<output>/<scenario>/<run id>/`.

    Attributes:
        path: the folder, absolute.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._card: RunCard | None = None
        self._rounds: list[dict[str, float]] = []
        self._columns: dict[str, None] = dict.fromkeys(METRICS)  # an ordered set
        self._written = -math.inf  # time.monotonic() of the last rounds.parquet
        self._kept = 0  # rounds in rounds.parquet
        self._file: IO[bytes] | None = None
        self._stream: Any = None

    @classmethod
    def create(cls, output: Path, name: str, run_id: str) -> RunFolder:
        """Make the folder and see that it can be written to.

        Raises:
            ScenarioError: the folder exists already, or cannot be made or written.
        """
        path = Path(output).absolute() / name / run_id
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            (path / "logs").mkdir()
            # A full disk often lets folders be made, and shows only when bytes reach it.
            probe = path / "logs" / ".probe"
            _replace(probe, lambda file: file.write(bytes(4096)))
            probe.unlink()
        except FileExistsError as error:
            if path.is_dir():
                raise ScenarioError(f"The run folder {path} exists already: choose another run id.") from error
            raise ScenarioError(_refusal(path, error)) from error
        except OSError as error:
            raise ScenarioError(_refusal(path, error)) from error
        return cls(path)

    def write_text(self, name: str, text: str) -> None:
        """Put a text file such as `scenario.yaml` into the folder. Raises `RunError` when that fails."""
        try:
            _replace(self.path / name, lambda file: file.write(text.encode()))
        except OSError as error:
            raise self._failure(self.path / name, error) from error

    def open(self, card: RunCard) -> None:
        """The run begins. Raises `ScenarioError` when its files cannot be begun."""
        self._card = card
        try:
            self._summarise("running", {})
            self._file = (self.path / "clients.arrows").open("wb")
            self._stream = pa.ipc.new_stream(self._file, CLIENT_SCHEMA)
            # Arrow holds the schema back until the first batch; an empty one makes the file readable at once.
            self._append([])
        except OSError as error:
            raise ScenarioError(_refusal(self.path, error)) from error

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Take in round `t`. Raises `RunError` when the disk does not."""
        self._columns.update(dict.fromkeys(values))
        self._rounds.append({"round": t, **values})
        at = self.path / "clients.arrows"
        try:
            if clients:
                self._append(clients)
            at = self.path / "rounds.parquet"
            if time.monotonic() - self._written >= ROUNDS_EVERY_S:
                self._write_rounds()
        except OSError as error:
            raise self._failure(at, error) from error

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Write all that is left, `summary.json` last.

        Raises:
            RunError: something could not be written; everything else was, and a run that was to be "finished"
                is marked "failed".
        """
        first: tuple[Path, OSError] | None = None
        for name, write in (("rounds.parquet", self._write_rounds), ("clients.parquet", self._write_clients)):
            try:
                write()
            except OSError as error:
                first = first or (self.path / name, error)
        if first is not None and status == "finished":
            status = "failed"
        try:
            self._summarise(status, summary)
        except OSError as error:
            first = first or (self.path / "summary.json", error)
        if first is not None:
            raise self._failure(*first) from first[1]

    def _append(self, clients: Sequence[ClientRow]) -> None:
        assert self._file is not None, "log before open"
        columns = [pa.array([getattr(row, f.name) for row in clients], f.type) for f in CLIENT_SCHEMA]
        self._stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=CLIENT_SCHEMA))
        self._file.flush()

    def _write_rounds(self) -> None:
        schema = pa.schema(
            [pa.field("round", pa.int64(), nullable=False)] + [pa.field(name, pa.float64()) for name in self._columns]
        )
        columns: list[Any] = [pa.array([row["round"] for row in self._rounds], pa.int64())]
        for name in self._columns:
            values = (row.get(name) for row in self._rounds)
            columns.append(pa.array([None if v is None else float(v) for v in values], pa.float64()))
        table = pa.Table.from_arrays(columns, schema=schema)
        _replace(self.path / "rounds.parquet", lambda file: pq.write_table(table, file))
        self._written, self._kept = time.monotonic(), len(self._rounds)

    def _write_clients(self) -> None:
        stream = self.path / "clients.arrows"
        if self._file is not None:
            file, self._file = self._file, None
            try:
                self._stream.close()
            finally:
                file.close()
        if not stream.exists():
            return

        def convert(file: IO[bytes]) -> None:
            with pq.ParquetWriter(file, CLIENT_SCHEMA, compression="zstd") as writer:
                for table in _tables(stream):
                    writer.write_table(table)

        _replace(self.path / "clients.parquet", convert)
        stream.unlink()

    def _summarise(self, status: Status, summary: Mapping[str, object]) -> None:
        known: dict[str, object] = {}
        if self._card is not None:
            known = {"scenario": self._card.name, "run_id": self._card.run_id, "folder": str(self.path)}
        text = json.dumps(_plain({**known, **summary, "status": status}), indent=2) + "\n"
        _replace(self.path / "summary.json", lambda file: file.write(text.encode()))

    def _failure(self, path: Path, error: OSError) -> RunError:
        kept = f"the first {self._kept} of {len(self._rounds)} rounds are kept in {self.path}"
        return RunError(f"{path} could not be written ({_reason(error)}); {kept}.")


def _tables(stream: Path) -> Iterator[pa.Table]:
    """The rows of an Arrow stream, in pieces of at least `_ROW_GROUP`, up to where a full disk cut it off."""
    held: list[Any] = []
    with stream.open("rb") as file:
        try:
            for batch in pa.ipc.open_stream(file):
                held.append(batch)
                if sum(b.num_rows for b in held) >= _ROW_GROUP:
                    yield pa.Table.from_batches(held, CLIENT_SCHEMA)
                    held = []
        except (pa.ArrowInvalid, OSError):
            pass  # the batch that was being written; those before it are whole
    yield pa.Table.from_batches(held, CLIENT_SCHEMA)


def _replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `path` be what `write` writes, as a whole or not at all, even if the machine stops half-way."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner can read; results are for sharing.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _plain(value: object) -> object:
    """`value` as JSON can hold it: NaN and infinity become null, NumPy's and torch's numbers Python's."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    item = getattr(value, "item", None)
    return _plain(item()) if callable(item) else str(value)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()


def _refusal(path: Path, error: OSError) -> str:
    return f"The run folder {path} cannot be used ({_reason(error)}): choose another place for the results."
