"""Access to MLflow: import it without log lines, create a new database atomically, shorten its errors to one line."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import secrets
import warnings
from typing import Any

from raysim.common.files import if_supported, lock, sync_folder
from raysim.common.memory import without_collection
from raysim.tracking.store import PASSWORD, USER, bypass_proxy, database_path, is_loopback

# Short words for errors that the library requests describes in several lines.
_NO_ANSWER = {
    "timed out": "timed out",
    "Connection refused": "connection refused",
    "NewConnectionError": "no connection",
    "Connection aborted": "connection lost",
}


def load_mlflow(uri: str) -> Any:
    """Import MLflow without log lines and telemetry; return `mlflow.entities`."""
    quiet = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        # MLflow would retry a dead server for minutes; raysim's tracker retries by itself.
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    }
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    if is_loopback(uri):
        bypass_proxy()
    # MLflow's libraries warn about MLflow's own calls; a program that turns warnings into errors would lose its run.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="mlflow|sqlalchemy|alembic")
    with without_collection():
        from mlflow import entities

    # alembic logs every migration, and urllib3 every retry, which the tracker's `warnings` summarise.
    for name in ("mlflow", "alembic", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # It logs the traceback of an error, such as a database locked by another run, and raises the error as well.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    return entities


def is_new(resolved: str) -> bool:
    """Return whether the database of a resolved `sqlite:` address does not exist yet; False for a server."""
    database = database_path(resolved)
    return database is not None and not (database.exists() and database.stat().st_size)


def ensure_database(resolved: str) -> None:
    """Create the database of a resolved `sqlite:` address if it does not exist; do nothing for a server.

    The database is created under another name and then renamed: MLflow creates it in dozens of steps, and refuses a
    database whose creation was interrupted. A lock keeps two runs from creating it at once; MLflow's own lock is in
    the temporary folder, which the two runs may not share. The lock file is not removed, because that would undo the
    lock for a process that waits for it. Raises MLflow's exceptions.
    """
    path = database_path(resolved)
    if path is None:
        return
    with path.with_name(f"{path.name}.lock").open("wb") as file:
        with if_supported():
            lock(file.fileno(), wait=True)
        if not is_new(resolved):
            return
        database = path.resolve()  # the target, if it is a link
        for left in database.parent.glob(f".{glob.escape(database.name)}.new-*"):  # left by a killed process
            left.unlink(missing_ok=True)
        # Use a new name each time, because MLflow remembers the addresses at which it created a database.
        new = database.with_name(f".{database.name}.new-{secrets.token_hex(4)}")
        try:
            _make(f"sqlite:///{new}")
            new.replace(database)
            sync_folder(database.parent)
        finally:
            new.unlink(missing_ok=True)


def _make(uri: str) -> None:
    """Let MLflow create a database, and close it."""
    load_mlflow(uri)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    client.search_experiments()
    # MLflow keeps a connection open, which would hold memory and a file that is about to be renamed.
    with contextlib.suppress(AttributeError):
        client._tracking_client.store.engine.dispose()


def in_words(error: BaseException) -> str:
    """Return an error of MLflow in one line, or in a few words if the server did not answer."""
    text = " ".join(str(error).split())
    if getattr(error, "error_code", None) == "UNAUTHENTICATED" or "error code 401" in text:
        return f"the server requires a user name and password: set {USER} and {PASSWORD}"
    for sign, words in _NO_ANSWER.items():
        if sign in text:
            return words
    for end in (" [SQL: ", " (Background on this error"):  # what SQLAlchemy adds to an error
        text = text.partition(end)[0]
    text = re.sub(r"^\((?:\w+\.)+\w+\) ", "", text)
    return text[:300].rstrip(".") or type(error).__name__
