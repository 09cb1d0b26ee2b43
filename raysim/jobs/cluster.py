"""Connection to a cluster's Jobs API."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from raysim.common.errors import RaysimError, RunError, ScenarioError
from raysim.common.text import holds_secret, redacted
from raysim.tracking.store import bypass_proxy, is_loopback

KIND = "raysim"
"""The metadata key that marks raysim's jobs. Its value is the version of raysim."""


@contextlib.contextmanager
def connect(address: str) -> Iterator[Any]:
    """Yield a `JobSubmissionClient` for a dashboard. Inside the block, its errors become one sentence."""
    if holds_secret(address):
        raise ScenarioError(
            f"--address: {redacted(address)} contains a password; remove it, and put the cluster's token into "
            "RAY_AUTH_TOKEN"
        )
    if is_loopback(address):
        bypass_proxy()
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    logging.getLogger("ray").setLevel(logging.WARNING)  # Ray logs every upload and every closed connection
    # The client would prefer this variable to `address`, although `--address` overrides it.
    os.environ.pop("RAY_API_SERVER_ADDRESS", None)
    try:
        yield JobSubmissionClient(address)
    except AuthenticationError as error:
        raise ScenarioError(f"{address}: {' '.join(str(error).split())}") from None
    except ConnectionError:
        raise ScenarioError(
            f"{address} does not answer: check that Ray is running and that this is its dashboard's address"
        ) from None
    except (OSError, RuntimeError) as error:
        # An error with a number comes from this machine's disk.
        if isinstance(error, RaysimError) or getattr(error, "errno", None) is not None:
            raise
        reason = str(error).strip(" .\n").splitlines()[-1]  # Ray sends a traceback, whose last line is the reason
        raise (ScenarioError if "status code 404" in reason else RunError)(f"{address}: {reason}") from None


def jobs_of(client: Any) -> list[Any]:
    """Return Ray's `JobDetails` of all jobs that raysim submitted, newest first."""
    jobs = [job for job in client.list_jobs() if KIND in (job.metadata or {})]
    return sorted(jobs, key=lambda job: job.start_time or 0, reverse=True)
