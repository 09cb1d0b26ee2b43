"""The run folder: all results of a run, in files that can be read during the run and after a failure.

`tracking.rounds` writes the rounds, `tracking.client_rows` the client rows. The status in `summary.json` is "running"
until the run ends, so a run that was killed never looks complete. To resume a run in its folder, call `reopen`, then
`truncate` to the round of its checkpoint, then continue as for a new run. A run that has all its rounds is closed with
the status "closing"; `mark_finished` changes it to "finished" once plots and MLflow data are also complete.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pydantic_core import to_json

from raysim.common.errors import RunError, ScenarioError
from raysim.common.files import hold, holder, reason, sync_folder, write_bytes
from raysim.common.results import LOCK, ClientRow, RunCard, Status
from raysim.results.client_rows import ClientRows, MissingRowsError
from raysim.results.rounds import RoundRows

ROUNDS_EVERY_S = 2.0
"""Minimum seconds between two writes of `rounds.parquet` while rounds are logged."""


class RunFolder:
    """The tracker for `<output>/<scenario>/<run id>/`. Only one process at a time can own this folder.

    Attributes:
        path: the absolute path of the folder.
        release: unlocks the folder, after which another process may resume the run.
    """

    def __init__(self, path: Path, lock: int) -> None:
        """Call `create` or `reopen` instead. lock: descriptor of the locked file."""
        self.path = path
        # If `release` is not called, the folder is unlocked when this object is garbage collected.
        self.release = weakref.finalize(self, os.close, lock)
        self._card: RunCard | None = None
        self._rounds = RoundRows(path)
        self._written = -math.inf  # time.monotonic() when rounds.parquet was last written
        self._clients = ClientRows(path)
        self._restored = True  # whether memory and files agree, which they do not between `reopen` and `truncate`

    @classmethod
    def create(cls, results: Path, run_id: str) -> RunFolder:
        """Create the folder of a run inside the folder of its scenario, and check that it is writable.

        Raises:
            ScenarioError: the folder exists already, or cannot be created or written.
        """
        path = Path(results).absolute() / run_id
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            (path / "logs").mkdir()
            # `hold` writes bytes, which fails on a full disk, while folders can often still be created.
            return cls(path, hold(path / LOCK))
        except OSError as error:
            raise ScenarioError(_refusal(path, error)) from error

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """Open an existing run folder to resume its run. Call `truncate` next.

        Raises:
            ScenarioError: it is not a run folder, cannot be written, or its run is still running.
        """
        path = Path(path).absolute()
        try:
            if not any((path / name).is_file() for name in ("summary.json", "run.json", LOCK)):
                raise ScenarioError(f"{path} is not a run folder: it has no summary.json")
            (path / "logs").mkdir(exist_ok=True)
            folder = cls(path, hold(path / LOCK))
            folder._restored = False
        except BlockingIOError as error:
            raise ScenarioError(
                f"The run in {path} is still running, in {holder(path / LOCK)}; wait until it ends, or stop it."
            ) from error
        except OSError as error:
            raise ScenarioError(
                f"The run in {path} cannot be resumed ({reason(error)}); make the folder and its files writable."
            ) from error
        return folder

    def truncate(self, t: int) -> dict[int, ClientRow]:
        """Keep rounds 0 to `t`, and delete later rounds; -1: keep none.

        Returns, per client, the last kept row in which it was measured. If this fails or is interrupted, all rows up to
        `t` are still in the folder, and `close` does not change it.

        Raises:
            RunError: the disk fails, or rows of these rounds are missing.
        """
        self._restored = False
        try:
            self._rounds.truncate(t)
            latest = self._clients.truncate(t)
            if t < 0:
                self._rounds.remove()
            else:
                self._write_rounds()
        except (OSError, pa.ArrowException, MissingRowsError) as error:
            where = f"after round {t}" if t >= 0 else "from its beginning"
            why = reason(error) if isinstance(error, OSError) else error
            raise RunError(f"The run in {self.path} cannot be resumed {where}: {why}.") from error
        self._restored = True
        return latest

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file, such as `scenario.yaml`, into the folder or a sub-folder. Raises `RunError` if that fails."""
        with self._writing(self.path / name):
            if not self.path.exists():  # the next line must not create a deleted folder again
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self.path / name, content.encode() if isinstance(content, str) else content)

    def open(self, card: RunCard) -> None:
        """Open the files, and write the status "running". Raises `ScenarioError` if that fails."""
        assert self._restored, "open before truncate"
        self._card = card
        try:
            self._write_summary("running", {})
            self._clients.begin()
        except OSError as error:
            raise ScenarioError(_refusal(self.path, error)) from error

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Log round `t`. Raises `RunError` if the disk fails or the folder is missing."""
        self._rounds.append(t, values)
        with self._writing(self._clients.stream):
            self._clients.append(t, clients)
        if time.monotonic() - self._written >= ROUNDS_EVERY_S:
            with self._writing(self._rounds.parquet):
                self._write_rounds()

    def sync(self) -> None:
        """Write all rounds so far to the disk, so that they survive a power cut. Raises `RunError` if that fails."""
        with self._writing(self._clients.stream):
            self._clients.sync()
        with self._writing(self._rounds.parquet):
            self._write_rounds()
            sync_folder(self.path)

    def write_summary(self, status: Status, summary: Mapping[str, object]) -> None:
        """Write `summary.json` without closing the folder. Raises `RunError` if that fails."""
        with self._writing(self.path / "summary.json"):
            self._write_summary(status, summary)

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Write the remaining data, and unlock the folder; see `end`."""
        try:
            self.end(status, summary)
        finally:
            self.release()

    def end(self, status: Status, summary: Mapping[str, object]) -> None:
        """Write the remaining data, with `summary.json` last. The folder stays locked until `release`.

        A folder that was reopened but not truncated is not changed.

        Raises:
            RunError: a file could not be written. All others were, and the status is "failed" in place of "closing" or
                "finished".
        """
        try:
            if self._restored:
                self._write_end(status, summary)
        finally:
            self._clients.close_stream()

    def mark_finished(self, summary: Mapping[str, object]) -> None:
        """Change the status from "closing" to "finished". Raises `RunError` if that fails."""
        self.write_summary("finished", summary)

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Raise `RunError` if a write to `path` inside this block fails."""
        try:
            yield
        except OSError as error:
            last = self._rounds.written - 1  # the first row is round 0
            kept = f"; its rounds up to {last} are kept in {self.path}" if last >= 0 else "; no round is written"
            kept = kept if self.path.exists() else ", because the run folder was moved or deleted"
            raise RunError(f"{path} could not be written ({reason(error)}){kept}.") from error

    def _write_end(self, status: Status, summary: Mapping[str, object]) -> None:
        failed: list[RunError] = []
        for path, write in ((self._rounds.parquet, self._write_rounds), (self._clients.parquet, self._clients.end)):
            try:
                with self._writing(path):
                    write()
            except RunError as error:
                failed.append(error)
        if failed and status in {"closing", "finished"}:
            status = "failed"
        try:
            self.write_summary(status, summary)
        except RunError as error:
            failed.append(error)
        if failed:
            raise failed[0]

    def _write_rounds(self) -> None:
        self._rounds.write()
        self._written = time.monotonic()

    def _write_summary(self, status: Status, summary: Mapping[str, object]) -> None:
        known = {} if self._card is None else self._card.facts
        write_bytes(self.path / "summary.json", summary_text(status, {**known, **summary}).encode())


def summary_text(status: Status, summary: Mapping[str, object]) -> str:
    """Return the text of `summary.json`, in which NaN and infinity are null."""
    content = to_json({**summary, "status": status}, inf_nan_mode="null", fallback=_plain)
    return json.dumps(json.loads(content), indent=2) + "\n"


def _plain(value: object) -> object:
    """Convert a mapping to a dict, a number of NumPy or torch to one of Python, and any other object to text."""
    if isinstance(value, Mapping):
        return dict(value)
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


def _refusal(path: Path, error: OSError) -> str:
    return f"The run folder {path} cannot be used ({reason(error)}); set output to a folder that can be written."
