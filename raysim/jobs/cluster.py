"""Connection to a cluster's Jobs API."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from typing import Any

from raysim.common.errors import RaysimError, RunError, ScenarioError
from raysim.common.text import holds_secret, redacted
from raysim.tracking.store import bypass_proxy, is_loopback

VARIABLE = "RAY_API_SERVER_ADDRESS"
"""Environment variable with the address, which Ray's client prefers to its argument."""

KIND = "raysim"
"""The metadata key that marks a job as raysim's; its value is raysim's version."""


@contextlib.contextmanager
def connect(address: str) -> Iterator[Any]:
    """Yield a `JobSubmissionClient` of a dashboard; errors of the client in the block become one sentence."""
    if holds_secret(address):
        raise ScenarioError(
            f"--address: {redacted(address)} contains a password; remove it, and put the cluster's token "
            "into RAY_AUTH_TOKEN"
        )
    if is_loopback(address):
        bypass_proxy()
    from ray.exceptions import AuthenticationError

    try:
        yield _client(address)
    except RaysimError:
        raise
    except AuthenticationError:
        raise ScenarioError(
            f"{address} refuses the token, or none was found: set RAY_AUTH_MODE=token, and put the token that the "
            "cluster was started with into RAY_AUTH_TOKEN or ~/.ray/auth_token; for a cluster without a token, unset "
            "RAY_AUTH_MODE"
        ) from None
    except ConnectionError:
        raise ScenarioError(
            f"{address} does not answer: check that Ray is running and that this is its dashboard's address"
        ) from None
    except OSError as error:
        if error.errno is not None:  # an error of this machine's disk; those of requests have no number
            raise
        raise RunError(f"{address} gave no valid answer ({error})") from None
    except RuntimeError as error:
        raise _refusal(address, str(error)) from None


def _client(address: str) -> Any:
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)  # they log every upload and closed connection
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = address
    try:
        return JobSubmissionClient(address)
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def _refusal(address: str, text: str) -> RaysimError:
    """The error for a request that Ray refused. Ray sends the whole traceback; its last line holds the reason."""
    reason = [line for line in text.splitlines() if line.strip(" .")][-1]
    reason = re.sub(r"^Request failed with status code \d+: ", "", reason)
    if "status code 404" in text:
        return ScenarioError(f"{address}: {reason} `raysim jobs` lists all jobs.")
    return RunError(f"{address} refused: {reason}")


def jobs_of(client: Any) -> list[Any]:
    """Return Ray's `JobDetails` of all jobs that raysim submitted, newest first."""
    jobs = [job for job in client.list_jobs() if KIND in (job.metadata or {})]
    return sorted(jobs, key=lambda job: job.start_time or 0, reverse=True)
