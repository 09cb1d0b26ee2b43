"""Address of a cluster, and calls to its Jobs API; every failure is reported in one sentence."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from raysim.common.errors import RaysimError, RunError, ScenarioError
from raysim.common.suggestions import suggest
from raysim.common.text import expanded, holds_secret, is_name, one_line
from raysim.tracking.store import bypass_proxy, is_loopback, shown

VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_DASHBOARD_ADDRESS", "RAY_ADDRESS")
"""Environment variables with the address, in order of preference; RAY_ADDRESS counts only if it is an http address."""

DEFAULT = "http://127.0.0.1:8265"
ALLOWED = "the dashboard's address, such as http://HOST:8265"

ANSWER_S = 5.0
"""How long to wait for a dashboard's version, in seconds."""

ANSWER_BYTES = 1 << 20
"""The most bytes to read of an answer."""

KIND = "raysim"
"""The metadata key that marks a job as raysim's; its value is raysim's version."""


@dataclass(frozen=True)
class Address:
    """A dashboard's address, and the option or variable that set it."""

    url: str
    origin: str

    def error(self, text: str) -> ScenarioError:
        """Return a `ScenarioError` about this address."""
        return ScenarioError(f"{self.origin}: {shown(self.url)} {text}")


def find_address(option: str | None) -> Address:
    """Return the dashboard's address: `option`, else the first of `VARIABLES` that is set, else this machine's.

    Raises `ScenarioError` if it cannot be the address of a dashboard.
    """
    address = Address(DEFAULT, "--address (the default)")
    if option is not None:
        address = Address(option.strip(), "--address")
    else:
        for name in VARIABLES:
            value = os.environ.get(name, "")
            if value and (name != "RAY_ADDRESS" or value.startswith(("http://", "https://"))):
                address = Address(value, name)
                break
    if holds_secret(address.url):
        raise address.error(
            "contains a user name or password; remove them, and put the cluster's token into RAY_AUTH_TOKEN"
        )
    try:
        host = urlsplit(address.url).hostname or "HOST"
    except ValueError:  # such as http://[::1 without the second bracket
        raise address.error(f"given; use {ALLOWED}") from None
    if address.url.startswith("ray://"):
        raise address.error(f"is an address of the Ray Client; use {ALLOWED.replace('HOST', host)}")
    url = address.url if "://" in address.url else f"http://{address.url}"
    if not re.fullmatch(r"https?://[^/\s]+/*", url) or address.url in {"", "auto", "local"}:
        raise address.error(f"given; use {ALLOWED}")
    return Address(url.rstrip("/"), address.origin)


@dataclass(frozen=True)
class Cluster:
    """A connection to a cluster's dashboard."""

    address: str
    ray_version: str
    client: Any  # a JobSubmissionClient
    notes: tuple[str, ...] = ()  # for the user, about the token

    def info(self, job: str) -> Any:
        """Return Ray's `JobDetails` of a job.

        Raises `ScenarioError` if there is no such job, or raysim did not submit it.
        """
        try:
            details = self.call("get_job_info", job)
        except UnknownJobError:
            names = [known.submission_id for known in self.jobs()]
            raise ScenarioError(
                f"{job}: there is no such job at {shown(self.address)}{suggest(job, names)} (`raysim jobs` lists all "
                "jobs)"
            ) from None
        if KIND not in (details.metadata or {}):
            raise ScenarioError(f"{job}: this job was not submitted by raysim; choose one that `raysim jobs` lists")
        return details

    def jobs(self) -> list[Any]:
        """Return all jobs that raysim submitted, newest first."""
        jobs = [job for job in self.call("list_jobs") if is_name(job.submission_id) and KIND in (job.metadata or {})]
        return sorted(jobs, key=lambda job: job.start_time or 0, reverse=True)

    def log(self, job: str) -> str:
        """Return the output of a job so far."""
        return str(self.call("get_job_logs", job))

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of Ray's client. Raises `UnknownJobError`, or `RunError` for any other failure."""
        try:
            return getattr(self.client, method)(*args, **kwargs)
        except (OSError, RuntimeError) as error:
            raise self._translate(error) from None
        except (ValueError, KeyError, TypeError) as error:  # Ray's client cannot parse the answer
            raise RunError(
                f"{shown(self.address)} does not answer like Ray ({type(error).__name__}); check that --address is the "
                "address of Ray's dashboard"
            ) from None
        except Exception as error:
            from ray.exceptions import AuthenticationError

            if not isinstance(error, AuthenticationError):
                raise
            raise RunError(
                f"{shown(self.address)} no longer accepts the token in {_token_origin()}; put the cluster's current "
                "token there"
            ) from None

    def _translate(self, error: Exception) -> RaysimError:
        status = re.search(r"status code (\d+)", str(error))
        if status is None:
            return NoAnswerError(f"{shown(self.address)} does not answer any more ({_reason(error)})")
        if status[1] == "404":
            return UnknownJobError(str(error))
        # Ray sends the whole traceback; its last line holds the error.
        last = [line for line in str(error).splitlines() if line.strip(" .")][-1]
        kind = NotReadyError if "No available agent" in last else RunError
        return kind(f"{shown(self.address)} refused: {one_line(last)}")


class UnknownJobError(RunError):
    """The cluster has no job with that id."""


class NoAnswerError(RunError):
    """The connection broke before the cluster answered; the cluster may have executed the request."""


class NotReadyError(RunError):
    """The cluster has just started: none of its nodes accepts jobs yet."""


def connect(address: Address) -> Cluster:
    """Connect to a Ray dashboard. Raises `ScenarioError` if none answers, or it refuses the token."""
    if is_loopback(address.url):
        bypass_proxy()
    token = ""
    notes: tuple[str, ...] = ()
    status, facts = _ask(address, token)
    if status == 401 and os.environ.get("RAY_AUTH_MODE", "token").lower() == "token":
        token, notes = find_token()
        status, facts = _ask(address, token) if token else (status, facts)
    if status == 401:
        raise address.error(
            "asks for a token, but none was found: set RAY_AUTH_TOKEN to the cluster's token, or write the token to "
            "~/.ray/auth_token or to a file whose path is in RAY_AUTH_TOKEN_PATH (RAY_AUTH_MODE must be unset or "
            "`token`)"
        )
    if status == 403:
        raise address.error(f"refuses the token in {_token_origin()}: use the token that the cluster was started with")
    version = facts.get("ray_version") if isinstance(facts, dict) else None
    if not isinstance(version, str):
        raise address.error(f"answers, but is not a Ray dashboard; use {ALLOWED}")
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)  # they log every upload and closed connection
    headers = {"Authorization": f"Bearer {token}"} if token else None
    with _unset(*VARIABLES):  # Ray's client would prefer them to its argument
        try:
            client = JobSubmissionClient(address.url, headers=headers)
        except (OSError, RuntimeError) as error:
            raise address.error(f"gives an unexpected answer ({_reason(error)})") from None
        except AuthenticationError:
            # The cluster needs no token, but with RAY_AUTH_MODE=token, Ray's client looks for one.
            text = "RAY_AUTH_MODE is `token`, but no token was found; this cluster needs none, so unset RAY_AUTH_MODE"
            raise ScenarioError(text) from None
    return Cluster(address.url, version, client, notes)


def find_token() -> tuple[str, tuple[str, ...]]:
    """Return the token that Ray would use, "" if there is none, and notes for the user."""
    if value := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return value, ()
    file = _token_file()
    try:
        token = file.read_text(encoding="utf-8").strip()
        mode = file.stat().st_mode & 0o777
    except (OSError, UnicodeDecodeError):
        return "", ()
    note = f"other users of this machine can read the token in {file} (mode {mode:o}): run `chmod 600 {file}`"
    return token, (note,) if mode & 0o077 else ()


def _token_file() -> Path:
    return expanded(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token")


def _token_origin() -> str:
    return "RAY_AUTH_TOKEN" if os.environ.get("RAY_AUTH_TOKEN", "").strip() else str(_token_file())


def _ask(address: Address, token: str) -> tuple[int, Any]:
    """Request /api/version; returns (status, content). Waits for `ANSWER_S`, where Ray's client would wait minutes."""
    request = urllib.request.Request(f"{address.url}/api/version")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    answers: list[tuple[int, Any] | Exception] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                answers.append((answer.status, json.loads(answer.read(ANSWER_BYTES))))
        except urllib.error.HTTPError as error:
            error.close()
            answers.append((error.code, None))
        except (ValueError, RecursionError):
            answers.append((200, None))
        except (OSError, http.client.HTTPException) as error:
            answers.append(error)

    # In a thread that may outlive this call, because urlopen's timeout restarts with each byte of an answer.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    answer = answers[0] if answers else TimeoutError("timed out")
    if isinstance(answer, Exception):
        raise address.error(
            f"does not answer ({_reason(answer)}): check that Ray is running and that this is its dashboard's address"
        )
    return answer


def _reason(error: Exception) -> str:
    """The cause of a failed connection in a few words."""
    inner = getattr(error, "reason", error)
    text = str(getattr(inner, "strerror", None) or inner).lower()
    for known in ("connection refused", "timed out", "name or service not known", "connection aborted"):
        if known in text:
            return known
    return text.splitlines()[0][:120] if text else type(error).__name__


@contextlib.contextmanager
def _unset(*names: str) -> Iterator[None]:
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)
