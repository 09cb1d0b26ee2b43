"""MLflow without its noise: imports it, makes a new database whole or not at all, puts its errors into one line."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import secrets
import warnings
from typing import Any

from raysim.common.files import if_supported, lock, sync_folder
from raysim.common.memory import without_collection
from raysim.common.text import redacted
from raysim.tracking.store import PASSWORD, USER, bypass_proxy, database_path, is_loopback

# What requests says about them takes several lines.
_NO_ANSWER = {
    "timed out": "timed out",
    "Connection refused": "connection refused",
    "NewConnectionError": "no connection",
    "Connection aborted": "connection lost",
}


def load_mlflow(uri: str) -> Any:
    """Import MLflow without its log lines and its telemetry; returns `mlflow.entities`."""
    quiet = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        # MLflow would ask a dead server for minutes; this tracker retries itself.
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    }
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    if is_loopback(uri):
        bypass_proxy()
    # Of MLflow's own use of its libraries; a program that turns warnings into errors would lose its run.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="mlflow|sqlalchemy|alembic")
    with without_collection():
        from mlflow import entities

    # alembic logs every migration; urllib3 every retry, which `warnings` sums up.
    for name in ("mlflow", "alembic", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return entities


def is_new(resolved: str) -> bool:
    """Whether the database of a resolved `sqlite:` address is still to be made; never of a server."""
    database = database_path(resolved)
    return database is not None and not (database.exists() and database.stat().st_size)


def ensure_database(resolved: str) -> None:
    """Make the database of a resolved `sqlite:` address if it is new; nothing for a server. Raises what MLflow does.

    A new database appears whole: MLflow makes one in dozens of steps, and refuses what a process left that was killed
    between two of them. Two runs do not make it at once: MLflow has a lock of its own, but in the temporary folder,
    which the two need not share. The lock file stays, because removing one that another process waits for would undo
    the lock.
    """
    path = database_path(resolved)
    if path is None:
        return
    with path.with_name(f"{path.name}.lock").open("wb") as file:
        with if_supported():
            lock(file.fileno(), wait=True)
        if not is_new(resolved):
            return
        database = path.resolve()  # of a link: the file that it names
        for left in database.parent.glob(f".{glob.escape(database.name)}.new-*"):  # by a killed process
            left.unlink(missing_ok=True)
        # Never the same name: MLflow remembers addresses that it made a database at.
        new = database.with_name(f".{database.name}.new-{secrets.token_hex(4)}")
        try:
            _make(f"sqlite:///{new}")
            new.replace(database)
            sync_folder(database.parent)
        finally:
            new.unlink(missing_ok=True)


def _make(uri: str) -> None:
    """Have MLflow make a database, and close it."""
    load_mlflow(uri)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    client.search_experiments()
    # It keeps a connection, which would hold memory and a file that is about to get another name.
    with contextlib.suppress(AttributeError):
        client._tracking_client.store.engine.dispose()


def in_words(error: BaseException) -> str:
    """An error of MLflow's in one line; two words where the server did not answer."""
    text = " ".join(redacted(str(error)).split())
    if getattr(error, "error_code", None) == "UNAUTHENTICATED" or "error code 401" in text:
        return f"it wants a user name and password: set {USER} and {PASSWORD}"
    for sign, words in _NO_ANSWER.items():
        if sign in text:
            return words
    return text[:300].rstrip(".") or type(error).__name__
