"""Golden curves: tiny fixed runs whose every number is stored. `make golden` writes them anew, a reviewed act.

Stored with the type of the processor, the vector instructions that torch uses (see `tests/__init__.py`) and torch's
version. If these are equal, all numbers must be identical, state digest included. Otherwise sums may round differently,
so losses agree to 1e-3 and counts of bytes exactly.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from raysim.engine.inprocess import InProcessBackend
from raysim.engine.progress import Progress
from raysim.engine.run import Observers, run_rounds, state_digest
from raysim.plugins.registry import algorithm_names
from raysim.runs.assembly import assemble
from raysim.runs.code import processor
from raysim.scenario.scenario import Scenario
from raysim.tracking.in_memory import MemoryTracker
from tests.engine.scenarios import loaded, of_method

FOLDER = Path(__file__).parent
KEPT = ("accuracy/all", "accuracy/participants", "loss/train", "loss/test", "comm/total_bytes", "compute/total_flops")


def environment() -> dict[str, str]:
    """What may change how a sum is rounded. oneDNN and MKL also choose their kernels by the type of the processor."""
    return {
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "processor": processor(),
        "torch": str(torch.__version__),
    }


def curves(method: str) -> dict[str, Any]:
    """Three rounds of a method on digits: every kept metric per round, and the digest of all state."""
    # One by one: how torch multiplies several networks at once is another sum with each of its versions.
    checked = Scenario.of(loaded(*of_method(method), "training.together=1"))
    assembly = assemble(checked)
    backend, memory = InProcessBackend(), MemoryTracker()
    backend.start(assembly.spec, assembly.raw)
    run_rounds(backend, assembly.loop_settings, Progress(), Observers([memory]))
    digest = state_digest(backend)
    backend.close()
    rounds = [{name: row[name] for name in KEPT if name in row} for row in memory.rounds]
    return {"environment": environment(), "rounds": rounds, "state_digest": digest}


def main() -> None:
    """Write the curves of the methods that are named, or of all."""
    for method in sys.argv[1:] or algorithm_names():
        text = json.dumps(curves(method), indent=1) + "\n"
        (FOLDER / f"{method}.json").write_text(text, encoding="utf-8")
        print(f"{method}.json")


if __name__ == "__main__":
    main()
