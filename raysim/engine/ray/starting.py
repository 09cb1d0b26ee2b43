"""Waiting for actors to start, and for the nodes on which they will."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import ray

from raysim.common.errors import RunError
from raysim.engine.policies.placement import ActorGroup, Node, NodeOrder, place_actors
from raysim.engine.ray.calls import POLL_S, ActorCalls

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 300.0
"""Seconds to wait for the next actor to start; a thousand actors may take longer in total."""

SLOW_START_S = 30.0
"""Seconds after which the user is warned that some actors have not started."""

NODES_TIMEOUT_S = 900.0
"""Seconds after the start of the wait, and after each node that joins, within which the next node must join."""

CHECK_S = 2.0
"""Seconds between checks for new nodes while a run waits for them."""

REPORT_S = 60.0
"""Seconds between messages that a run still waits for nodes."""


class NodeWait:
    """The wait of a run for nodes on which its actors fit; says so at once, and then every `REPORT_S`.

    Attributes:
        missing: which actors fitted on no node at the last check, in words; "" if all fitted.
    """

    def __init__(self, groups: Sequence[ActorGroup], order: NodeOrder, nodes: Callable[[], Sequence[Node]]) -> None:
        """order: as in `resources.placement`. nodes: returns the present nodes of the cluster."""
        self.groups, self.order, self.nodes = groups, order, nodes
        self.missing = ""
        self.began_s = self.joined_s = perf_counter()
        self.checked_s = self.reported_s = -math.inf
        self.known = {node.id for node in nodes()}
        self.joined = 0

    def check(self) -> float:
        """Report the wait for nodes, if actors do not fit yet. Returns perf_counter() of the last node that joined."""
        now_s = perf_counter()
        if now_s - self.checked_s < CHECK_S:
            return self.joined_s
        self.checked_s, present = now_s, self.nodes()
        if new := {node.id for node in present} - self.known:
            self.known |= new
            self.joined, self.joined_s = self.joined + len(new), now_s
        self.missing = self._missing(present)
        if self.missing and now_s - self.reported_s >= REPORT_S:
            if self.reported_s < 0:
                text = (
                    f"waiting for nodes from the cluster's autoscaler: {self.missing}. The run ends if no node joins "
                    f"for {NODES_TIMEOUT_S / 60:.0f} minutes"
                )
            else:
                minutes = (now_s - self.began_s) / 60
                text = f"still waiting for nodes after {minutes:.0f} min: {self.joined} joined so far; {self.missing}"
            self.reported_s = now_s
            logger.info(text)
        return self.joined_s

    def _missing(self, present: Sequence[Node]) -> str:
        placed = place_actors(self.groups, present, self.order)
        return " and ".join(
            f"{group.actors - len(places)} of {group.actors} client actors ({group.cpus_per_actor:g} CPU and "
            f"{group.gpus_per_actor:g} GPU each) fit on no node"
            for group, places in zip(self.groups, placed, strict=True)
            if len(places) < group.actors
        )


def wait_until_started(calls: ActorCalls, setups: Sequence[Any], growing: NodeWait | None) -> list[float]:
    """Wait for the first answer of every actor, and warn if that takes long. Returns perf_counter() of each answer.

    growing: the wait for nodes, on a cluster with an autoscaler. Raises `LostError` if an actor died, `RunError` if no
    further actor started within `START_TIMEOUT_S`, or no node joined within `NODES_TIMEOUT_S`.
    """
    began = latest = perf_counter()
    warned, timeout_s = False, START_TIMEOUT_S if growing is None else NODES_TIMEOUT_S
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
        if left and growing is not None:
            latest = max(latest, growing.check())
        missing = "" if growing is None else growing.missing
        if left and perf_counter() - latest >= timeout_s:
            raise RunError(
                f"starting: no further {f'node joined ({missing})' if missing else 'actor started'} within "
                f"{timeout_s:.0f} s; on a cluster, run `ray status` to see which resources are missing"
            )
        if left and not warned and not missing and perf_counter() - began >= SLOW_START_S:
            warned = True
            logger.warning(
                f"{len(started_s)} of {len(setups)} actors have started; the others are starting, or wait for CPUs "
                "or GPUs (on a cluster, `ray status` shows which are in use). The run ends if no further actor "
                f"starts for {timeout_s:.0f} s"
            )
    return [started_s[answer] for answer in setups]
