"""An untested round costs what its participants cost, however many clients there are: in bytecodes and bytes."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from raysim.common.results import ClientRow
from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointManager, CheckpointStore
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.policies.evaluations import EvaluationSchedule
from raysim.engine.progress import Progress
from raysim.engine.records import client_row
from raysim.engine.run import Rounds
from tests.engine.scenarios import all_rounds, loaded, planned

FEW, MANY = 1_000, 20_000  # so many that participants are new in either


def spec_of(clients: int, *sets: str) -> tuple[Plan, Any]:
    given = loaded(
        f"clients.count={clients}", f"clients.participation={4 / clients}", "clients.models=[digits_mlp64]",
        "data.partition={name: resample, samples_per_client: 8}", "algorithm={name: lg_fedavg}", *sets,
    )  # fmt: skip
    return planned(given)


def row_of(plan: Plan, k: int) -> ClientRow:
    return replace(client_row(plan, 0, k, None, None), accuracy=k % 2, total=4, loss=k / 7, val_correct=1, val_total=2)


class Cost:
    """Bytecodes of this thread and the greatest memory that was taken, from the end of one round to that of another."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end, self.bytecodes, self.bytes = begin, end, 0, 0

    def after_round(self, rounds: Rounds, t: int) -> None:
        if t == self.begin:
            tracemalloc.start()
            sys.settrace(self._trace)
        elif t == self.end:
            sys.settrace(None)
            self.bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.bytecodes += event == "opcode"
        return self._trace


def cost(clients: int, folder: Path) -> Cost:
    plan, raw = spec_of(clients)
    backend = InProcessBackend()
    progress = Progress(t=0, latest={k: row_of(plan, k) for k in range(clients)})
    found = Cost(3, 4)
    checkpoints = CheckpointManager(CheckpointStore(open_storage(folder / str(clients))), None, 5)
    plan = replace(plan, num_rounds=5, participants=4, evaluations=EvaluationSchedule(5, every=5))
    all_rounds(plan, backend, raw, checkpoints=checkpoints, after=found.after_round, progress=progress)
    backend.close()
    return found


def test_a_round_costs_what_its_participants_cost(tmp_path: Path) -> None:
    cost(FEW, tmp_path / "before")  # what is computed once in a process
    few, many = cost(FEW, tmp_path), cost(MANY, tmp_path)
    assert many.bytecodes < few.bytecodes + MANY / 4, (few.bytecodes, many.bytecodes)
    assert many.bytes < few.bytes + 2 * MANY, (few.bytes, many.bytes)
