"""Waiting for actors to start."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import ray

from raysim.common.errors import RunError
from raysim.engine.ray.calls import POLL_S, ActorCalls

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 900.0
"""Seconds to wait for the next actor to start, perhaps on a node that an autoscaler adds; all may take longer."""

SLOW_START_S = 30.0
"""Seconds after which the user is warned that some actors have not started."""


def wait_until_started(calls: ActorCalls, setups: Sequence[Any]) -> list[float]:
    """Wait for the first answer of every actor, and warn if that takes long. Returns perf_counter() of each answer.

    Raises `LostError` if an actor died, `RunError` if no further actor started within `START_TIMEOUT_S`.
    """
    began = latest = perf_counter()
    warned = False
    started_s: dict[Any, float] = {}
    left = list(setups)
    while left:
        calls.wait_for_gcs("starting")
        with calls.translate_errors("starting"):
            ray.wait(left, num_returns=1, timeout=POLL_S)
            # Take all answers at once: one wait per answer would take quadratic time with a thousand actors.
            ready, left = ray.wait(left, num_returns=len(left), timeout=0)
        if ready:
            calls.get(ready, "starting")  # raises the error of a failed setup
            latest = perf_counter()
            started_s |= dict.fromkeys(ready, latest)
        if left and perf_counter() - latest >= START_TIMEOUT_S:
            raise RunError(
                f"starting: no further actor started within {START_TIMEOUT_S:.0f} s ({len(started_s)} of {len(setups)} "
                "have); on a cluster, run `ray status` to see which resources are missing"
            )
        if left and not warned and perf_counter() - began >= SLOW_START_S:
            warned = True
            logger.warning(
                f"{len(started_s)} of {len(setups)} actors have started; the others are starting, or wait for CPUs, "
                "GPUs or nodes (on a cluster, `ray status` shows which are in use). The run ends if no further actor "
                f"starts for {START_TIMEOUT_S:.0f} s"
            )
    return [started_s[answer] for answer in setups]
