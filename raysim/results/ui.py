"""MLflow's web pages for a SQLite store, by default only on the loopback address."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

from raysim.results.database import ensure_database
from raysim.results.store import check_uri, database_path

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # no additional processes, which evaluate language models
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "PYTHONWARNINGS": "ignore",  # hides warnings about the server's use of its libraries
}


def serve_ui(uri: str | None, host: str = "127.0.0.1", port: int = 5000) -> int:
    """Run `mlflow server` for the store until Ctrl-C; return the exit status, which is 0 after Ctrl-C.

    If the store is a server, this only prints its address. Raises `ScenarioError` if the store cannot be used.
    """
    resolved = check_uri(uri, "--uri")
    database = database_path(resolved)
    if database is None:
        print(f"MLflow is at {resolved}")
        return 0
    ensure_database(resolved)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", resolved]
    # By default, the server would create a folder for artifacts in its working directory.
    command += ["--artifacts-destination", (database.parent / "mlartifacts").as_uri()]
    # One worker starts faster, and is enough for one user. A log line per request would not help.
    command += ["--workers", "1", "--uvicorn-opts", "--log-level=warning", "--host", host, "--port", str(port)]
    print(f"MLflow is at http://{host}:{port} (Ctrl-C ends it)", flush=True)
    # The server starts child processes. In a separate session, all of them can be ended together.
    server = subprocess.Popen(command, env={**_ENVIRONMENT, **os.environ}, start_new_session=True)
    try:
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()
