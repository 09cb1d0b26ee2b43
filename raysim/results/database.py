"""Access to MLflow: a quiet import, atomic creation of databases, and errors in one line."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

from raysim.common.files import if_supported, lock
from raysim.results.store import bypass_proxy, database_path, is_loopback


def load_mlflow(uri: str) -> Any:
    """Import MLflow without log lines and telemetry; return `mlflow.entities`."""
    quiet = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        # MLflow would retry for minutes if a server is dead, but raysim's tracker does its own retries.
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    }
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    if is_loopback(uri):
        bypass_proxy()
    # MLflow's own calls cause warnings in its libraries. In a program that turns warnings into errors, they would end
    # the run.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="mlflow|sqlalchemy|alembic")
    from mlflow import entities

    # These packages log every migration and every retry; raysim's tracker logs a summary instead.
    for name in ("mlflow", "alembic", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # This logger prints the traceback of an error, such as a locked database, although MLflow also raises the error.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    return entities


def ensure_database(resolved: str) -> None:
    """Create the database at a resolved `sqlite:` address, unless it exists; for a server, do nothing.

    MLflow creates a database in dozens of steps, and refuses one whose creation was interrupted, so it is created under
    another name and then renamed. A lock keeps two runs from creating it at once. Raises MLflow's exceptions.
    """
    path = database_path(resolved)
    if path is None or _exists(path):
        return
    with path.with_name(f"{path.name}.lock").open("wb") as file:
        with if_supported():
            lock(file.fileno(), wait=True)
        if _exists(path):
            return
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            load_mlflow(resolved)
            from mlflow.tracking import MlflowClient

            new = Path(folder, path.name)
            MlflowClient(f"sqlite:///{new}").search_experiments()
            new.replace(path)


def _exists(path: Path) -> bool:
    """Return whether a database has content. SQLite first creates an empty file."""
    return path.exists() and path.stat().st_size > 0


def in_words(error: BaseException) -> str:
    """Return the first line of an MLflow error: SQLAlchemy adds the statement and an address in further lines."""
    return str(error).strip().partition("\n")[0][:300].rstrip(".") or type(error).__name__
