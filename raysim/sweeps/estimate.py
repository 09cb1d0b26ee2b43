"""Time and communication of a sweep's cells: measured in finished cells, else estimated once for all seeds."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from raysim.common.errors import RaysimError, ScenarioError, UnavailableError
from raysim.common.shards import Shards
from raysim.core.algorithm import ClientId
from raysim.data.datasets import missing
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.run import run_round
from raysim.report.load import read_summary
from raysim.runs.data import RunData
from raysim.runs.plan import make_plan
from raysim.runs.preview import preview
from raysim.scenario.scenario import Scenario
from raysim.scenario.schema import decides
from raysim.sweeps.cells import Cell, Sweep, placed
from raysim.sweeps.state import CellState, states_of
from raysim.sweeps.tuning import Standing, Tuning

logger = logging.getLogger(__name__)

PROBED = 2
"""Participants per round whose messages the estimate counts."""

FEW = 64
"""Training samples per client of the first of two measurements of bytes."""

START_S = 5.0
"""Seconds until a sweep's worker processes have imported PyTorch and MLflow."""

CELL_S = 0.6
"""Seconds of a cell besides its rounds: samples, networks, MLflow, files. Both are measured with the digits on two
cores; large data takes longer."""

PHASES = ("train", "aggregate", "evaluate")


@dataclass(frozen=True)
class Cost:
    """The total time and communication of a cell; None: unknown."""

    seconds: float | None  # in one process
    sent: float | None  # bytes in both directions


@dataclass
class Estimator:
    """Estimates the costs of a sweep's cells. Cells that differ only in the seed have the same cost.

    Both are measured in finished cells. Otherwise, seconds are estimated from timed training steps and tests, without
    the server's work; bytes from the first, the middle and the last round, with two participants that train for one
    epoch on some of their samples.
    """

    sweep: Sweep
    notes: list[str] = field(default_factory=list)  # one sentence per cost that could not be estimated
    refused: dict[str, str] = field(default_factory=dict)  # a cell that can never run, one per variant -> the reason
    _costs: dict[str, Cost] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)

    def of(self, states: Sequence[CellState]) -> list[Cost]:
        """The cost of each cell."""
        finished: dict[str, list[Cost]] = {}
        for one in states:
            if one.state == "done" and one.folder is not None:
                finished.setdefault(_key(one.cell), []).append(_measured(one))
        self._costs.update({key: _mean(costs) for key, costs in finished.items()})
        return [self._of(one.cell) for one in states]

    def seconds_per_round(self, cells: Iterable[Cell], within_s: float = 10.0) -> dict[str, float]:
        """Estimate the seconds per round of cells from timed training steps and tests, by the cells' names.

        After `within_s` seconds no more steps are timed: the estimate lacks the other cells, and those that fail.
        """
        began_s, found = time.monotonic(), {}
        with torch.random.fork_rng(devices=[]):  # networks are made for it, perhaps beside a run in this process
            for cell in cells:
                key = _key(cell, "algorithm")
                if key not in self._seconds and time.monotonic() - began_s < within_s:
                    try:
                        scenario = Scenario.of(placed(cell, self.sweep, ["backend=in_process"]))
                        self._seconds[key] = preview(scenario).total_s
                    except Exception:  # the cell itself reports why it fails
                        continue
                if key in self._seconds:
                    found[cell.name] = self._seconds[key] / cell.scenario.rounds
        return found

    def _of(self, cell: Cell) -> Cost:
        key = _key(cell)
        if key not in self._costs:
            self._costs[key] = self._estimated(cell)
        return self._costs[key]

    def _estimated(self, cell: Cell) -> Cost:
        logger.info(f"measuring {cell.name}: {PROBED} clients train for an epoch")
        try:
            scenario = Scenario.of(placed(cell, self.sweep, ["backend=in_process"]))
            without_method = _key(cell, "algorithm")
            if without_method not in self._seconds:
                self._seconds[without_method] = preview(scenario).total_s
            return Cost(self._seconds[without_method], _probed(scenario))
        except RaysimError as error:
            if isinstance(error, ScenarioError) and not isinstance(error, UnavailableError):
                self.refused[cell.name] = str(error)
            self.notes += [text for text in [f"{cell.name}: {error}"] if text not in self.notes]
            return Cost(None, None)


def costs_of_trials(tuning: Tuning, standings: Sequence[Standing]) -> tuple[list[Cost], list[str]]:
    """The cost of a cell of each candidate with all its rounds, and one sentence per cost that is not known.

    It is that of the first trial: the values of the others may change it.
    """
    cells = [
        tuning.cells(standing.candidate, 0, standing.trials[0].values, standing.candidate.rounds)[0]
        for standing in standings
    ]
    estimator = Estimator(replace(tuning.sweep, cells=tuple(cells)))
    return estimator.of(states_of(estimator.sweep)), estimator.notes


def _key(cell: Cell, *without: str) -> str:
    """The keys that decide a cell's cost, as text: those that decide its result, except the seed.

    without: sections to leave out.
    """
    flat = cell.scenario.flat()
    sections = ("seed", *without)
    kept = {key: value for key, value in flat.items() if decides(key) and key.partition(".")[0] not in sections}
    return json.dumps(kept, sort_keys=True, default=str)


def _measured(state: CellState) -> Cost:
    assert state.folder is not None
    summary = read_summary(state.folder)
    seconds, final = summary.get("seconds", {}), summary.get("final", {})
    return Cost(sum(float(seconds.get(phase, 0.0)) for phase in PHASES), float(final.get("comm/total_bytes", 0.0)))


def _mean(costs: Iterable[Cost]) -> Cost:
    seconds, sent = zip(*((cost.seconds, cost.sent) for cost in costs), strict=True)
    return Cost(sum(seconds) / len(seconds), sum(sent) / len(sent))


def _probed(scenario: Scenario) -> float | None:
    """Estimate a run's bytes from the messages of a few participants; None if its data is not on this machine.

    The first round counts separately, because the server may have nothing to send yet; the middle and the last round
    stand for the others, which may differ by the method's schedule.
    """
    if missing(scenario.data.name, scenario.data.root, scenario.data.format):
        return None
    plan, data = make_plan(scenario)
    rounds = sorted({1, scenario.rounds // 2 + 1, scenario.rounds})
    cohorts = {t: plan.cohort(t)[:PROBED] for t in rounds}
    first, *later = _bytes_per_client(plan, data, cohorts)
    return scenario.participants * (first + sum(later) / max(1, len(later)) * (scenario.rounds - 1))


def _bytes_per_client(plan: Plan, data: RunData, cohorts: Mapping[int, Sequence[ClientId]]) -> list[float]:
    """Return the mean bytes that a client sends and receives in each round of `cohorts` (round -> participants).

    Training on all samples of a client can take minutes. A message has a fixed size, a part per class, or a part per
    sample, so clients train on `FEW` samples, and again on twice as many; what a sample adds is the difference.
    """
    train, label_M = plan.train, plan.labels
    ids = sorted({k for cohort in cohorts.values() for k in cohort})
    if all(len(train.of(k)) <= 2 * FEW for k in ids):
        return _measure_bytes(plan, data, train, cohorts)
    low, high = (fewer_samples(train, label_M, most) for most in (FEW, 2 * FEW))
    each = []
    low_bytes, high_bytes = (_measure_bytes(plan, data, part, cohorts) for part in (low, high))
    for cohort, at_low, at_high in zip(cohorts.values(), low_bytes, high_bytes, strict=True):
        at, to, all_ = (sum(len(part.of(k)) for k in cohort) for part in (low, high, train))
        each.append(at_low + (at_high - at_low) * (all_ - at) / max(1, to - at))
    return each


def _measure_bytes(plan: Plan, data: RunData, train: Shards, cohorts: Mapping[int, Sequence[ClientId]]) -> list[float]:
    """Run the rounds with these training samples for one epoch, and return the mean bytes per client of each."""
    # Message sizes do not depend on the number of epochs.
    own = {k: replace(local, epochs=1) for k, local in plan.own_local.items()}
    local = replace(plan.local, epochs=1)
    backend = InProcessBackend()
    try:
        backend.start(replace(plan, local=local, own_local=own, stragglers=None, train=train), data.raw)
        reports = [run_round(backend, t, cohort).client_reports.values() for t, cohort in cohorts.items()]
        return [sum(one.up.bytes + one.down.bytes for one in each) / max(1, len(each)) for each in reports]
    finally:
        backend.close()


def fewer_samples(train: Shards, label_M: NDArray[np.int64], most: int) -> Shards:
    """Return the shards with at most `most` samples per client, evenly from its classes, and at least one of each."""
    kept = []
    for k in range(len(train)):
        position_N = train.of(k)
        if len(position_N) > most:
            class_N, before = label_M[position_N], Counter[int]()
            place_N = np.empty(len(class_N), np.int64)  # number of earlier samples of the same class
            for i, c in enumerate(class_N.tolist()):
                place_N[i] = before[c]
                before[c] += 1
            position_N = np.sort(position_N[np.argsort(place_N, kind="stable")[: max(most, len(before))]])
        kept.append(position_N)
    return Shards(np.concatenate(kept), np.cumsum([0, *map(len, kept)]))
