"""The run folder: everything a run reports, as files that can be read while it runs and after it failed.

Rounds are in `tracking.rounds`, client rows in `tracking.client_rows`. `summary.json` says "running" until
the run ends, so a run that was killed never looks complete. A run is resumed in its folder: `reopen`, then `truncate`
to the round of its checkpoint, then as a new run. A run that has all its rounds is closed as "closing" first;
`mark_finished` makes it "finished" once plots and MLflow are complete, too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shlex
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from raysim.common.errors import RunError, ScenarioError
from raysim.common.files import hold, holder, reason, remove_leftovers, replace, set_aside, sync_folder
from raysim.common.results import LOCK, ClientRow, RunCard, Status
from raysim.common.text import redacted
from raysim.tracking.client_rows import CLIENT_SCHEMA, ClientRows, MissingRowsError
from raysim.tracking.rounds import RoundRows

__all__ = ["CLIENT_SCHEMA", "RunFolder"]

ROUNDS_EVERY_S = 2.0
"""How long a finished round may wait before `rounds.parquet` shows it, in seconds."""

_DAMAGE = (MissingRowsError, pa.ArrowException, OSError, KeyError, TypeError, ValueError)
"""What reading a file raises that is not what was written."""


class RunFolder:
    """The Tracker that owns `<output>/<scenario>/<run id>/`, for one process at a time.

    Attributes:
        path: the folder, absolute.
        damage: a sentence for each file that `truncate` found damaged and set aside.
    """

    def __init__(self, path: Path, lock: int) -> None:
        """See `create` and `reopen`. `lock`: a descriptor that `close` is to close."""
        self.path = path
        self._inode = _inode(path)
        self.damage: list[str] = []
        # A folder that is never closed is unlocked when it is collected; until then no other process can resume.
        self._lock = lock
        self._release = weakref.finalize(self, _close, lock)
        self._card: RunCard | None = None
        self._rounds = RoundRows(path)
        self._written = -math.inf  # time.monotonic() of the last rounds.parquet
        self._clients = ClientRows(path)
        self._restored = True  # whether what is above is what the files hold; not so between `reopen` and `truncate`

    @classmethod
    def create(cls, results: Path, run_id: str) -> RunFolder:
        """Make the folder of a run in that of its scenario's results, and see that it can be written to.

        Raises:
            ScenarioError: the folder exists already, or cannot be made or written.
        """
        path = Path(results).absolute() / run_id
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            (path / "logs").mkdir()
            # A full disk often lets folders be made, and shows only when bytes reach it, as here.
            return cls(path, hold(path / LOCK))
        except FileExistsError as error:
            if path.is_dir():
                raise ScenarioError(f"The run folder {path} exists already: choose another run id.") from error
            raise ScenarioError(_refusal(path, error)) from error
        except OSError as error:
            raise ScenarioError(_refusal(path, error)) from error

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """An existing run folder, to resume in; call `truncate` next.

        Raises:
            ScenarioError: it is no run folder, cannot be written, or its run is still running.
        """
        path = Path(path).absolute()
        try:
            if not any((path / name).is_file() for name in ("summary.json", "run.json", LOCK)):
                raise ScenarioError(f"{path} is not a run folder: it holds no summary.json.")
            (path / "logs").mkdir(exist_ok=True)
            folder = cls(path, hold(path / LOCK))
            folder._restored = False
            for place in (path, path / "logs"):
                remove_leftovers(place)
        except BlockingIOError as error:
            raise ScenarioError(f"The run in {path} is still running, in {holder(path / LOCK)}.") from error
        except OSError as error:
            raise ScenarioError(f"The run in {path} cannot be resumed ({reason(error)}).") from error
        return folder

    def truncate(self, t: int) -> dict[int, ClientRow]:
        """Keep rounds 0 to `t` and forget later ones; -1 keeps nothing.

        Returns, per client, the last of the rows kept in which it was measured. When this fails or is cut off, all that
        was to be kept still is in the folder, and `close` leaves it as it is. A file that is damaged, or lacks rounds,
        does not stop the run, whose state is elsewhere: it gets another name, and `damage` says what is missing.

        Raises:
            RunError: the disk fails.
        """
        self._restored, self.damage = False, []
        try:
            self._check_summary()
            self._truncate_rounds(t)
            latest = self._truncate_clients(t)
            if t < 0:
                self._rounds.remove()
            else:
                self._write_rounds()
        except OSError as error:
            where = f"after round {t}" if t >= 0 else "from its beginning"
            raise RunError(f"The run in {self.path} cannot be resumed {where}: {reason(error)}.") from error
        self._restored = True
        return latest

    @property
    def rounds(self) -> Sequence[Mapping[str, float]]:
        """The rounds that are held, each with its number, "round", and the metrics that were measured."""
        return list(self._rounds)

    def write_text(self, name: str, text: str) -> None:
        """Put a text file such as `scenario.yaml` into the folder. Raises `RunError` when that fails."""
        self.write(name, text.encode())

    def write(self, name: str, content: bytes) -> None:
        """Put a file into the folder, or below it. Raises `RunError` when that fails."""
        with self._writing(self.path / name):
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            replace(self.path / name, lambda file: file.write(content))

    def open(self, card: RunCard) -> None:
        """Begin or resume the run. Raises `ScenarioError` when its files cannot be opened."""
        assert self._restored, "open before truncate"
        self._card = card
        try:
            self._write_summary("running", {})
            self._clients.begin()
        except OSError as error:
            raise ScenarioError(_refusal(self.path, error)) from error

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Log round `t`. Raises `RunError` when the disk fails or the folder is missing."""
        self._rounds.append(t, values)
        with self._writing(self._clients.stream):
            self._clients.append(t, clients)
        if time.monotonic() - self._written >= ROUNDS_EVERY_S:
            with self._writing(self._rounds.parquet):
                self._write_rounds()

    def sync(self) -> None:
        """Write every round so far to the disk, safe from a power cut. Raises `RunError` when that fails."""
        with self._writing(self._clients.stream):
            self._clients.sync()
        with self._writing(self._rounds.parquet):
            self._write_rounds()
            sync_folder(self.path)

    def write_summary(self, status: Status, summary: Mapping[str, object]) -> None:
        """Write `summary.json` without closing the folder. Raises `RunError` when that fails."""
        with self._writing(self.path / "summary.json"):
            self._write_summary(status, summary)

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Write all that is left, `summary.json` last, and unlock the folder.

        A folder that was reopened and never taken back to a round is left as it is.

        Raises:
            RunError: something could not be written; everything else was, and a run that was to be "closing" or
                "finished" is marked "failed".
        """
        try:
            if self._restored:
                self._end(status, summary)
        finally:
            self._clients.close_stream()
            self._release()

    def mark_finished(self, summary: Mapping[str, object]) -> None:
        """Let a run that was closed as "closing" be "finished". Raises `RunError` when that cannot be written."""
        self.write_summary("finished", summary)

    def why_missing(self) -> str:
        """One sentence on what became of the folder, if it is no longer where this run began; else nothing."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if _inode(self.path) == self._inode:
                return ""
        with contextlib.suppress(OSError):  # also where there is no /proc
            now = Path(f"/proc/self/fd/{self._lock}").readlink().parent.parent
            if _inode(now) == self._inode:
                return (
                    f"The run folder {self.path} was moved to {now} while the run was running, so no more was "
                    f"written to it; resume it from its last checkpoint with: raysim resume {shlex.quote(str(now))}"
                )
        return f"The run folder {self.path} is gone, with all that it held: it was deleted while the run was running."

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the folder locked for this block, even if `close` comes first."""
        with contextlib.ExitStack() as over:
            with contextlib.suppress(OSError):  # a method closed it
                # Of the same open file, so the lock ends when both are closed.
                over.callback(_close, os.dup(self._lock))
            yield

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Raise `RunError` when the folder is missing, or a write to `path` within this block fails."""
        if missing := self.why_missing():
            raise RunError(missing)
        try:
            yield
        except OSError as error:
            kept = f"the first {self._rounds.written} of {len(self._rounds)} rounds are kept in {self.path}"
            raise RunError(f"{path} could not be written ({reason(error)}); {kept}.") from error

    def _end(self, status: Status, summary: Mapping[str, object]) -> None:
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
        text = summary_text(status, {**known, **summary})
        replace(self.path / "summary.json", lambda file: file.write(text.encode()))

    def _check_summary(self) -> None:
        path = self.path / "summary.json"
        try:
            if not isinstance(json.loads(path.read_bytes()), dict):
                raise ValueError
        except FileNotFoundError:
            pass
        except (ValueError, RecursionError):
            self.damage.append(f"{path} is damaged and kept as {set_aside(path)}; it is written anew")

    def _truncate_rounds(self, t: int) -> None:
        try:
            missing = self._rounds.truncate(t)
        except _DAMAGE as error:
            self._rounds.truncate(-1)
            self._set_aside(self._rounds.parquet, error, t)
        else:
            if missing:
                self.damage.append(f"{self._rounds.parquet} lacks {missing} of rounds 0 to {t}")

    def _truncate_clients(self, t: int) -> dict[int, ClientRow]:
        parquet, stream = self._clients.parquet, self._clients.stream
        path = parquet if parquet.exists() else stream
        try:
            return self._clients.truncate(t)
        except _DAMAGE as error:
            self._set_aside(path, error, t)
        if path is parquet and stream.exists():
            return self._truncate_clients(t)  # a process that is killed at the right moment leaves all rows twice
        self._clients.start_after(t)
        return {}

    def _set_aside(self, path: Path, error: Exception, t: int) -> None:
        """Rename a damaged file and note which rows are missing. Raises the error if it is the disk's."""
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):  # pyarrow's own have no number
            raise error
        aside = set_aside(path)
        why = f"is damaged and kept as {aside.name}" if aside else "is not there"
        self.damage.append(f"{path} {why}: from now on the rows of rounds 0 to {t} are missing")


def summary_text(status: Status, summary: Mapping[str, object]) -> str:
    """The text of `summary.json`."""
    return json.dumps(_plain({**summary, "status": status}), indent=2) + "\n"


def _plain(value: object) -> object:
    """`value` as JSON can hold it: NaN and infinity become null, NumPy's and torch's numbers Python's.

    Secrets in addresses are left out: an error may quote one.
    """
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return redacted(value)
    if value is None or isinstance(value, int):
        return value
    item = getattr(value, "item", None)
    return _plain(item()) if callable(item) else str(value)


def _inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _refusal(path: Path, error: OSError) -> str:
    return f"The run folder {path} cannot be used ({reason(error)}): choose another place for the results."


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # a method closed it
        os.close(descriptor)
