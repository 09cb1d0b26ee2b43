"""Addresses of MLflow stores: which are allowed, and whether a given store can be used.

This module does not import MLflow, so that a run with a wrong address is refused before any slow step.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from raysim.common.errors import ScenarioError
from raysim.common.text import holds_secret, redacted

ALLOWED = "sqlite:///path/to/mlflow.db or http(s)://host:port"
DEFAULT = "sqlite:///mlflow.db"
VARIABLE = "MLFLOW_TRACKING_URI"
USER, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
TOKEN = "MLFLOW_TRACKING_TOKEN"
AUTH = "MLFLOW_TRACKING_AUTH"
FOR_TRAINING = "workflowType=machine_learning"
"""Query that makes MLflow's pages show training runs; without it, they show views for language models."""
_VIEW_COLUMNS = (
    "tags.`algorithm`",
    "tags.`seed`",
    "tags.`overridden`",
    "metrics.`accuracy/all`",
    "metrics.`accuracy/best`",
)
VIEW_TAG = "mlflow.sharedViewState.raysim"
"""Tag of an experiment with the shared view `raysim` for MLflow's pages: the listed runs and their columns."""
VIEW = json.dumps(
    {
        "selectedColumns": _VIEW_COLUMNS,
        "columnOrder": _VIEW_COLUMNS,
        "columnWidths": {"tags.`algorithm`": 110, "tags.`seed`": 60, "tags.`overridden`": 170},
        # Without the parent run of a sweep, which has none of these values. With a filter, MLflow lists its children as
        # rows of their own; it would otherwise show the closed parent run alone, and no curve.
        "searchFilter": "tags.algorithm != ''",
        "orderByKey": "tags.`mlflow.runName`",
        "orderByAsc": True,
        "runsHiddenMode": "FIRST_20_RUNS",  # those whose curves are drawn
    }
)
CURVES = "&compareRunsMode=CHART"
"""End of the address of an experiment's page that shows curves in place of the table."""
ANSWER_S = 3.0
"""Time limit for the answer of an MLflow server to a health check, in seconds."""


def resolve_uri(uri: str | None = None) -> str:
    """Return the store's address: `uri`, else `MLFLOW_TRACKING_URI`, else `mlflow.db` in the working directory.

    Paths become absolute. The address is logged, stored and shown, so it must not contain secrets: a user name and
    password in `MLFLOW_TRACKING_URI` are moved to MLflow's variables for them.

    Raises `ScenarioError` for an address with secrets, or one that is neither SQLite nor http(s).
    """
    _move_credentials()
    address = uri or os.environ.get(VARIABLE) or DEFAULT
    if holds_secret(address):
        raise ScenarioError(
            f"{_origin(uri)}: the address {shown(address)} contains a user name, password or token; remove "
            f"these from the address, and set {USER} and {PASSWORD}, or {TOKEN}; allowed: {ALLOWED}"
        )
    if re.match(r"https?://[^/]", address):
        return address.rstrip("/")
    if address.startswith("sqlite:///") and address != "sqlite:///":
        path, mark, query = address.removeprefix("sqlite:///").partition("?")
        return f"sqlite:///{Path.cwd() / path}{mark}{query}"
    why = "is not a supported tracking store"
    if address.startswith("file:") or "://" not in address:
        why = "is a file store, which MLflow no longer supports"
    raise ScenarioError(f"{_origin(uri)}: {shown(address)} {why}; use {ALLOWED}.")


def check_uri(uri: str | None = None, key: str = "tracking.uri") -> str:
    """Check within a few seconds that the store can be used; return its resolved address.

    key: what sets the address, for errors.

    Raises:
        ScenarioError: MLflow is not installed, the server does not answer, or the database cannot be written there.
    """
    if find_spec("mlflow") is None:
        raise ScenarioError("MLflow is not installed, but it records every run; install it with: pip install mlflow")
    resolved = resolve_uri(uri)
    database = database_path(resolved)
    problem = _server_problem(resolved) if database is None else _file_problem(database)
    if problem:
        raise ScenarioError(f"{_origin(uri, key)}: {shown(resolved)} {problem}; use an available store: {ALLOWED}.")
    return resolved


def database_path(resolved: str) -> Path | None:
    """Return the file of a resolved `sqlite:` address; None for a server."""
    if not resolved.startswith("sqlite:///"):
        return None
    return Path(resolved.removeprefix("sqlite:///").partition("?")[0])


def shown(uri: str) -> str:
    """Return `uri` without any user name, password or token."""
    return redacted(uri)


def is_loopback(uri: str) -> bool:
    """Return whether a server is on this machine, so that it must be reached without a proxy."""
    host = urlsplit(uri).hostname or ""
    return host in {"localhost", "::1"} or host.startswith("127.")


def bypass_proxy() -> None:
    """Let this process reach servers on this machine directly, because a proxy cannot reach its loopback address."""
    hosts = [host for host in os.environ.get("NO_PROXY", os.environ.get("no_proxy", "")).split(",") if host]
    merged = ",".join(dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1"]))
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = merged


def _move_credentials() -> None:
    match = re.match(r"(https?://)([^:@/]*):([^@/]*)@(?=[^@/]+(?:/|$))", os.environ.get(VARIABLE, ""))
    if match:
        os.environ[USER], os.environ[PASSWORD] = unquote(match[2]), unquote(match[3])
        os.environ[VARIABLE] = match[1] + os.environ[VARIABLE][match.end() :]


def experiment_pages(address: str) -> list[tuple[str, str]]:
    """Return name and page of each raysim experiment on the MLflow server at `address`, that of the latest run first.

    Raises `OSError`, `ValueError` or `KeyError` if the server does not answer like an MLflow server.
    """
    experiments = _ask(address, "experiments/search", {"max_results": 1000}).get("experiments", [])
    names = {
        one["experiment_id"]: one["name"]
        for one in experiments
        if any(t["key"] == VIEW_TAG for t in one.get("tags", []))
    }
    latest = {"experiment_ids": list(names), "max_results": 1, "order_by": ["attributes.start_time DESC"]}
    runs = _ask(address, "runs/search", latest).get("runs", []) if names else []
    order = dict.fromkeys([*(run["info"]["experiment_id"] for run in runs), *names])
    question = f"{FOR_TRAINING}&viewStateShareKey={VIEW_TAG.rpartition('.')[2]}"
    return [(names[key], f"{address}/#/experiments/{key}/runs?{question}") for key in order]


def _ask(address: str, what: str, question: dict[str, object]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{address}/api/2.0/mlflow/{what}", json.dumps(question).encode(), {"Content-Type": "application/json"}
    )
    with _open(request) as answer:
        content = json.load(answer)
    return content if isinstance(content, dict) else {}


def _open(request: urllib.request.Request) -> Any:
    proxies = [urllib.request.ProxyHandler({})] if is_loopback(request.full_url) else []
    return urllib.request.build_opener(*proxies).open(request, timeout=ANSWER_S)


def _origin(uri: str | None, key: str = "tracking.uri") -> str:
    from_variable = os.environ.get(VARIABLE) and (not uri or uri == os.environ[VARIABLE])
    return VARIABLE if from_variable else key


def _server_problem(uri: str) -> str | None:
    try:
        with _open(urllib.request.Request(f"{shown(uri)}/health")):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in {401, 403}:
            return None  # the server exists and wants a password, which MLflow's client sends
        return f"does not look like an MLflow server (/health answers {error.code})"
    except (OSError, ValueError, http.client.HTTPException) as error:  # HTTPException: it does not speak HTTP
        reason = getattr(error, "reason", error)
        return f"does not answer ({str(getattr(reason, 'strerror', None) or reason).lower()})"


def _file_problem(database: Path) -> str | None:
    if not database.parent.is_dir():
        return f"cannot be opened (there is no folder {database.parent})"
    if not os.access(database if database.exists() else database.parent, os.W_OK):
        return f"cannot be written ({database})"
    return None
