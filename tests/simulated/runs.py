"""Runs whose outcome is compared between devices, in a process of their own: torch keeps a device once it has it.

`python -m tests.simulated.runs engine METHOD,METHOD KEY=VALUE...` runs the engine in this process. With
`launch` instead, runs have folders, end after two rounds and are resumed; `ray` does this on actors.
"""

from __future__ import annotations

import json
import sys
import traceback

from raysim.engine.inprocess import InProcessBackend
from raysim.runs.run import Run, run
from tests.engine.scenarios import ROUNDS, loaded, of_method, outcome

Found = list[str]
"""Everything that must be equal on two devices, as text."""


def in_process(device: str, method: str, *sets: str) -> Found:
    """Digest, client rows and round values of a run of the engine."""
    return [str(part) for part in outcome(loaded(*of_method(method), *sets), InProcessBackend(device))]


def resumed(method: str, *sets: str) -> Found:
    """State digest and accuracy of a run that was resumed after two rounds; whether it used an accelerator."""
    short = run(loaded(*of_method(method), "rounds=2", "checkpoint.every=1", *sets), quiet=True)
    longer = Run(short.folder).resume(sets=[f"rounds={ROUNDS}"], quiet=True)
    used = longer.rounds["memory/gpu_peak_mb"].iloc[[1, -1]] > 0  # before and after the resumption
    return [str(longer.state_digest), str(longer.summary["final"]["accuracy/all"]), str(used.tolist())]


def found(mode: str, method: str, *sets: str) -> Found:
    """What a run on the simulated device gives, or its error."""
    try:
        return in_process("simulated", method, *sets) if mode == "engine" else resumed(method, *sets)
    except Exception:
        return [traceback.format_exc()]


def main() -> None:
    """Print what is found for each method, as one line of JSON."""
    mode, methods, *sets = sys.argv[1:]
    if mode == "ray":
        import ray

        # Ray does not know the simulated device, and so cannot count it.
        ray.init(address="local", num_cpus=8, num_gpus=1, include_dashboard=False, logging_level="ERROR")
    for method in methods.split(","):
        print(json.dumps([method, *found(mode, method, *sets)]), flush=True)


if __name__ == "__main__":
    main()
