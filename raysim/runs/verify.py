"""Verify a scenario: run it on several backends and compare the state of all clients and of the server bit by bit."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from raysim.common.logs import show_logs
from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointManager, CheckpointStore
from raysim.engine.progress import Progress
from raysim.engine.recorder import Recorder
from raysim.engine.run import Rounds, state_digest
from raysim.results.in_memory import MemoryTracker
from raysim.results.units import plural
from raysim.runs.machine import make_backend
from raysim.runs.plan import make_plan
from raysim.runs.signals import sigterm_kept
from raysim.runs.warm_start import warm_start
from raysim.scenario.parse import ParsedScenario, parse_scenario
from raysim.scenario.scenario import Scenario

VARYING = ("time/", "memory/", "engine/")
"""Prefixes of metrics that describe the execution and may differ between backends, except those in `SAME`."""
SAME = ("time/virtual_s", "time/virtual_total_s", "engine/dropped_clients", "engine/participants")


@dataclass(frozen=True)
class Variation:
    """A way to run a scenario: in this process, or on a number of actors."""

    actors: int | None  # None: in this process, without Ray
    kill: bool = False  # whether to kill an actor in the middle of the run

    @property
    def name(self) -> str:
        """The variation in a few words, for example "2 actors, one killed"."""
        if self.actors is None:
            return "in process"
        return plural(self.actors, "actor") + (", one killed" if self.kill else "")


@dataclass
class Trace:
    """Digests and metrics of a run in every round."""

    variation: Variation
    # rounds[t - 1]: client or server -> tensor -> SHA-256
    rounds: list[dict[str, dict[str, str]]] = field(default_factory=list)
    metrics: list[Mapping[str, Any]] = field(default_factory=list)  # metrics[t]: metrics of round t
    digest: str = ""
    best_val: tuple[int, str] | None = None  # best round by validation, and the digest of its saved state
    seconds: float = 0.0
    restarts: int = 0
    difference: str | None = None  # sentence about the first difference from the first variation


def verify(
    scenario: ParsedScenario, actors: Sequence[int], kill: bool, show: Callable[[str], None] = lambda text: None
) -> list[Trace]:
    """Run in this process, then on Ray with each of these numbers of actors, and compare the results.

    kill: also run with the largest number of actors and kill one of them. Each trace except the first says where it
    first differs from the first trace, if it does. The runs leave no files.
    show: receives the name of each run when it begins, and the log records of the first run only, because the others
    may repeat them.
    Raises `ScenarioError` when the scenario cannot run on this machine, `RunError` when a run fails.
    """
    placements = [Variation(None), *(Variation(n) for n in actors)]
    if kill:
        placements.append(Variation(max(actors), kill=True))
    traces: list[Trace] = []
    for variation in placements:
        show(f"{variation.name} …")
        with contextlib.nullcontext() if traces else show_logs(show):
            trace = _traced(scenario, variation, len(traces[0].rounds) if traces else 0)
        if traces:
            trace.difference = difference(traces[0], trace)
        traces.append(trace)
    return traces


def difference(one: Trace, other: Trace) -> str | None:
    """Return a sentence about the first tensor, or else the first metric, that differs; None if all are equal.

    If all of these agree, the final digests are compared, and then the kept states of the best round by validation.
    """
    first = f"the first run ({one.variation.name})"
    for t, (expected, actual) in enumerate(zip(one.rounds, other.rounds, strict=True), start=1):
        for party in expected:  # clients first, because a client's difference causes later ones
            had, has = expected[party], actual.get(party, {})
            for tensor in dict.fromkeys([*had, *has]):
                if had.get(tensor) != has.get(tensor):
                    return f"round {t}, {party}, {tensor}: bits differ from those of {first}"
    for t, (mine, its) in enumerate(zip(one.metrics, other.metrics, strict=True)):
        for name in dict.fromkeys([*mine, *its]):
            had_it, has_it = mine.get(name), its.get(name)
            both_nan = had_it != had_it and has_it != has_it  # for example, both losses of a diverged client are NaN
            if (name in SAME or not name.startswith(VARYING)) and had_it != has_it and not both_nan:
                return f"round {t}, {name}: {has_it}, but {had_it} in {first}"
    for what, ours, theirs in (
        ("state digest", one.digest, other.digest),
        ("saved state of the best round by validation", one.best_val, other.best_val),
    ):
        if ours != theirs:
            return f"the {what} differs from that of {first}"
    return None


def _traced(given: ParsedScenario, variation: Variation, rounds: int = 0) -> Trace:
    """Run one variation. rounds: the number of rounds that the first variation did, because `stop` may end it early."""
    actors = variation.actors
    where = ["backend=in_process"] if actors is None else ["backend=ray", f"resources.actors={actors}"]
    sets = [*where, "tracking.also=[]"]
    scenario = Scenario.of(parse_scenario(given.resolved, sets, known_code=given.own_code))
    plan, data = warm_start(*make_plan(scenario))
    trace = Trace(variation)
    with tempfile.TemporaryDirectory(prefix="raysim-verify-") as temporary, contextlib.ExitStack() as cleanup:
        folder, memory, progress = Path(temporary), MemoryTracker(), Progress()
        with sigterm_kept():
            backend = make_backend(scenario, plan, cleanup, folder)
        began = perf_counter()
        within = _killer(backend, rounds, progress) if variation.kill else lambda done, of: None
        store, keeps = CheckpointStore(open_storage(folder)), "best_val" in scenario.checkpoint.keep
        checkpoints = CheckpointManager(store, 2, plan.num_rounds, keep_best_val=keeps)
        with Recorder([memory]) as record:
            run = Rounds(plan, backend, record, checkpoints, progress=progress, within=within)
            run.start(data.raw)
            for _ in run:
                clients, server = run.recovering(partial(backend.fingerprints, run.participants))
                trace.rounds.append({**{f"client {k}": one for k, one in clients.items()}, "the server": server})
            trace.digest = run.state_digest()
        trace.metrics, trace.restarts = list(memory.rounds), progress.restarts
        if (best := checkpoints.best_val) is not None:
            backend.recover()
            store.restore(best, backend.restore)
            trace.best_val = (best.round, state_digest(backend))
        trace.seconds = perf_counter() - began
    return trace


def _killer(backend: Any, rounds: int, progress: Progress) -> Callable[[int, int], None]:
    """Return a function that kills the first client actor in the middle round, after a result of this round arrived."""
    left = [(rounds + 1) // 2]

    def within(done: int, of: int) -> None:
        if left and progress.t + 1 == left[0]:
            left.clear()
            os.kill(backend.pids()[0], signal.SIGKILL)

    return within
