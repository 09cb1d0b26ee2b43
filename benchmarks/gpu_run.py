"""Run one scenario for `on_a_gpu.py`, and write when each round ended. It needs neither MLflow nor a run folder.

python benchmarks/gpu_run.py SCENARIO.json RESULT.json --device cuda
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysim import Scenario
from raysim.common.results import ClientRow
from raysim.core import accelerator
from raysim.engine.recorder import Recorder
from raysim.engine.run import Rounds
from raysim.results.in_memory import MemoryTracker
from raysim.runs.machine import make_backend
from raysim.runs.plan import make_plan


class Timed(MemoryTracker):
    """Also records the time at which each round was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived_s: list[float] = []

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Record the time, and store the metrics."""
        self.arrived_s.append(time.time())
        super().log(t, values, clients)


class Warnings(logging.Handler):
    """Keeps raysim's warnings, such as that clients could not be trained by one call."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text."""
        self.texts.append(record.getMessage())


def run(content: dict[str, Any]) -> dict[str, Any]:
    """Run a scenario; return the arrival of each round, the digest, and memory of tensors on the accelerator."""
    scenario = Scenario.load(content)
    plan, data = make_plan(scenario)
    timed, warnings = Timed(), Warnings()
    logging.getLogger("raysim").addHandler(warnings)
    with tempfile.TemporaryDirectory() as temp, contextlib.ExitStack() as cleanup, Recorder([timed]) as record:
        rounds = Rounds(plan, make_backend(scenario, plan, cleanup, Path(temp)), record)
        rounds.start(data.raw)
        for _ in rounds:
            pass
        digest = rounds.state_digest()
    tensors_mb = max(timed.series("memory/gpu_peak_mb"), default=0.0)
    return {"arrived_s": timed.arrived_s, "digest": digest, "tensors_mb": tensors_mb, "warnings": warnings.texts}


def main() -> None:
    """Run the scenario on the device, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    content = json.loads(given.scenario.read_text())
    kind = accelerator.available()
    if given.device != "cpu" and (kind is None or kind.type != given.device):
        sys.exit(f"torch finds no device of the kind {given.device}")
    if given.device == "simulated" and content["backend"] == "ray":
        import ray

        # Ray does not know the simulated device, and so cannot count it.
        ray.init(address="local", num_cpus=8, num_gpus=1, include_dashboard=False, logging_level="ERROR")
    given.result.write_text(json.dumps(run(content)))


if __name__ == "__main__":
    main()
