"""Addresses of MLflow stores: which addresses are allowed, and whether a store can be used.

This module does not import MLflow, so that a run with a wrong address is refused before any slow step.
"""

from __future__ import annotations

import http.client
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from raysim.common.errors import ScenarioError
from raysim.common.text import holds_secret, redacted

ALLOWED = "sqlite:///path/to/mlflow.db or http(s)://host:port"
DEFAULT = "sqlite:///mlflow.db"
VARIABLE = "MLFLOW_TRACKING_URI"
USER, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
TOKEN = "MLFLOW_TRACKING_TOKEN"
ANSWER_S = 3.0
"""Maximum seconds to wait for an MLflow server's answer to a health check."""


def resolve_uri(uri: str | None = None) -> str:
    """Return the store's address: `uri`, or MLFLOW_TRACKING_URI, or `mlflow.db` in the working directory.

    Paths become absolute. The address is logged, stored and shown, so it must not contain secrets.

    Raises `ScenarioError` for an address with secrets, or one that is neither SQLite nor http(s).
    """
    address = uri or os.environ.get(VARIABLE) or DEFAULT
    if holds_secret(address):
        raise ScenarioError(
            f"{_origin(uri)}: the address {redacted(address)} contains a user name, password or token; remove these "
            f"from the address, and set {USER} and {PASSWORD}, or {TOKEN}; allowed: {ALLOWED}"
        )
    if re.match(r"https?://[^/]", address):
        return address.rstrip("/")
    if address.startswith("sqlite:///") and address != "sqlite:///":
        path, mark, query = address.removeprefix("sqlite:///").partition("?")
        return f"sqlite:///{Path.cwd() / path}{mark}{query}"
    raise ScenarioError(f"{_origin(uri)}: {address} is not a supported tracking store; use {ALLOWED}.")


def check_uri(uri: str | None = None, key: str = "tracking.uri") -> str:
    """Check, within a few seconds, that the store can be used; return its resolved address.

    key: what sets the address, for errors.

    Raises:
        ScenarioError: the server does not answer, or the database has no folder.
    """
    resolved = resolve_uri(uri)
    database = database_path(resolved)
    problem = _server_problem(resolved) if database is None else _file_problem(database)
    if problem:
        raise ScenarioError(f"{_origin(uri, key)}: {resolved} {problem}; use an available store: {ALLOWED}.")
    return resolved


def database_path(resolved: str) -> Path | None:
    """Return the file for a resolved `sqlite:` address; None for a server."""
    if not resolved.startswith("sqlite:///"):
        return None
    return Path(resolved.removeprefix("sqlite:///").partition("?")[0])


def is_loopback(uri: str) -> bool:
    """Return whether a server is on this machine, so that requests must bypass the proxy."""
    host = urlsplit(uri).hostname or ""
    return host in {"localhost", "::1"} or host.startswith("127.")


def bypass_proxy() -> None:
    """Make requests to servers on this machine bypass the proxy, which cannot reach this machine's loopback address."""
    hosts = [host for host in os.environ.get("NO_PROXY", os.environ.get("no_proxy", "")).split(",") if host]
    merged = ",".join(dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1"]))
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = merged


def _origin(uri: str | None, key: str = "tracking.uri") -> str:
    from_variable = os.environ.get(VARIABLE) and (not uri or uri == os.environ[VARIABLE])
    return VARIABLE if from_variable else key


def _file_problem(database: Path) -> str:
    place = database if database.exists() else database.parent
    return "" if os.access(place, os.W_OK) else "cannot be written"


def _server_problem(uri: str) -> str:
    """Return why a server cannot be used; "" if it can."""
    if is_loopback(uri):
        bypass_proxy()
    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=ANSWER_S):
            return ""
    except urllib.error.HTTPError as error:
        # 401 and 403 mean that the server exists and requires a password, which MLflow's client sends.
        return "" if error.code in {401, 403} else f"does not look like an MLflow server (/health: {error.code})"
    except (OSError, http.client.HTTPException) as error:  # HTTPException: the server does not use HTTP
        return f"does not answer ({error})"
