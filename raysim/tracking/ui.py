"""Serve MLflow's web pages for a SQLite store, by default on the loopback address only.

`mlflow ui` alone would send telemetry, start processes that evaluate language models, and show a front page for these.
`serve_ui` prints the addresses of the pages with runs, and ends all processes of the server at Ctrl-C.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from raysim.common.errors import ScenarioError
from raysim.common.files import reason
from raysim.tracking.database import ensure_database, in_words, is_new
from raysim.tracking.store import CURVES, check_uri, database_path, experiment_pages, shown

_STARTS_WITHIN_S = 120.0
_MOST_PAGES = 10


def ui_command(resolved: str, database: Path, host: str, port: int) -> list[str]:
    """Return the command line of the MLflow server for a database; run it with `ui_environment()`.

    resolved: the address of the database, a `sqlite:` store.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", resolved]
    # Without this, the server would create a folder for artifacts in its working directory.
    command += ["--artifacts-destination", (database.parent / "mlartifacts").as_uri()]
    # One worker starts faster and is enough for one user; a log line per request is not useful.
    command += ["--workers", "1", "--uvicorn-opts", "--log-level=warning"]
    return [*command, "--host", host, "--port", str(port)]


def ui_environment() -> dict[str, str]:
    """Return this process's environment, with MLflow features that local runs do not need turned off."""
    defaults = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # evaluation jobs of language models; more processes
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "PYTHONWARNINGS": "ignore",  # about the server's own calls of its libraries
    }
    return {**defaults, **os.environ}


def serve_ui(uri: str | None, host: str = "127.0.0.1", port: int = 5000) -> int:
    """Serve MLflow's pages for the store until Ctrl-C; return the exit status, 0 after Ctrl-C.

    Prints the addresses of the pages with runs, because MLflow's front page leads to pages for language models.
    If the store is a server, this only prints the addresses of its pages and returns.

    Raises:
        ScenarioError: the store cannot be used, or the port is taken.
    """
    resolved = check_uri(uri, "--uri")
    database = database_path(resolved)
    if database is None:
        print(f"MLflow is at {shown(resolved)}")
        _print_pages(shown(resolved))
        return 0
    command = ui_command(resolved, database, host, port)
    _refuse_taken_port(host, port)
    if is_new(resolved):
        print(f"{database} contains no run yet; new runs will appear here", flush=True)
        try:
            ensure_database(resolved)
        except Exception as error:
            raise ScenarioError(f"--uri: {shown(resolved)} cannot be created ({in_words(error)}).") from error
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    print(f"MLflow is at {address} (Ctrl-C ends it)", flush=True)

    # The server starts child processes; in a separate session, all of them can be ended together.
    server = subprocess.Popen(command, env=ui_environment(), start_new_session=True)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _when_up(server, address)
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        end_group(server)
        signal.signal(signal.SIGTERM, before)


def _when_up(server: subprocess.Popen[bytes], address: str) -> None:
    """Print the addresses of the pages once the server answers."""
    end = time.monotonic() + _STARTS_WITHIN_S
    while server.poll() is None and time.monotonic() < end and not _print_pages(address):
        time.sleep(0.2)


def _print_pages(address: str) -> bool:
    """Print the pages of experiments, that of the latest run first; return False if the server does not answer."""
    try:
        pages = experiment_pages(address)
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return False
    for name, page in pages[:_MOST_PAGES]:
        print(f"{name}: {page}\n  curves: {page}{CURVES}", flush=True)
    if len(pages) > _MOST_PAGES:
        print(f"and {len(pages) - _MOST_PAGES} more experiments", flush=True)
    return True


def end_group(server: subprocess.Popen[bytes]) -> None:
    """End a process that was started in a separate session, and all its children; return within 10 s."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _refuse_taken_port(host: str, port: int) -> None:
    try:
        _bind(host, port)
    except OSError as error:
        try:
            free = _bind(host, 0)
        except OSError:
            message = f"--host: {host} cannot be used ({reason(error)}); give an address of this machine"
            raise ScenarioError(message) from error
        message = f"Port {port} on {host} cannot be used ({reason(error)}); choose a free port, such as --port {free}."
        raise ScenarioError(message) from error


def _bind(host: str, port: int) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # Like the server, treat a port whose last connections are still closing as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])
