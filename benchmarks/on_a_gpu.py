"""Measure raysim on one NVIDIA GPU by one command, within a number of minutes.

python benchmarks/on_a_gpu.py --out FOLDER [--minutes 12] [--parts PART,...] [--device cuda|simulated|cpu] [--quick]

The parts, in this order:

machine  versions, GPU, number of CPU cores
steps    a training step of CNN-1 to CNN-5, eager and recorded as a CUDA graph: time, time of the kernels, memory
tests    tests/gpu, in several processes if pytest-xdist is installed
clients  clients per second with CNN-1 to CNN-5 on 1, 2, 4 and 8 actors, with and without NVIDIA's MPS, beside one eager
         process (goal: 10 times as many); GPU memory of all processes, host memory, and whether the digests are equal.
         Without Ray, several processes share the clients instead of actors
pfl      the CIFAR-10 benchmark of pfl-research (benchmarks/image_classification/configs/baseline.yaml, `cifar10_iid`)
         for 30 of its 1,500 rounds (goal: 1,500 rounds in 5 minutes): FedAvg, 1,000 clients with 50 images each, drawn
         IID, 50 per round with equal weights, one epoch of batches of 10, SGD with learning rate 0.1 without momentum,
         server learning rate 1.0, no differential privacy, all 10,000 test images every 10 rounds; two 3x3 convolutions
         (32, 64), max-pooling, dropout 0.25, a layer of 128, dropout 0.5. Differences: images are random, so accuracies
         mean nothing, and the server's model is tested on the test images by the clients, 10 images each

FOLDER/results.csv gets each row as soon as it is measured, so an interrupted run keeps what it measured. Each part is a
process with a time limit; if it fails or is stopped, the next part begins. Parts for which the budget does not suffice
are skipped, which is a row too. The last thing that is printed is a table of all rows. Exit code 1: a part failed.

For a machine with Python 3.12 and torch, but without internet: here, in the repository's root, pack what raysim needs
besides (30 MiB, with Ray; git must not commit it):

    bash benchmarks/pack_for_gpu.sh .gpu

and there, in a copy of the repository with this folder:

    python3 -m tarfile -e .gpu/site.tar.xz /tmp/site &&
    PYTHONPATH=/tmp/site:$PWD python3 benchmarks/on_a_gpu.py --out FOLDER

To try the script without a GPU: `--quick --device cpu`, or `simulated`, which needs a C++ compiler (tests/simulated).
It then skips CUDA graphs, MPS and the GPU's memory.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import gpu_parts
from gpu_parts import REPOSITORY, Context, Mps, watched


def steps(to: Context) -> None:
    """Measure training steps."""
    from gpu_steps import steps as measure  # imports torch, which the process that starts the parts does not need

    measure(to)


@dataclass(frozen=True)
class Part:
    """A part and its times."""

    run: Callable[[Context], None]
    limit_s: float
    least_s: float  # with less time left, it does not begin


PARTS: Mapping[str, Part] = {
    "machine": Part(gpu_parts.machine, 40, 10),
    "steps": Part(steps, 60, 30),
    "tests": Part(gpu_parts.tests, 200, 60),
    "clients": Part(gpu_parts.clients, 320, 60),
    "pfl": Part(gpu_parts.pfl, 130, 50),
}


def environment(device: str) -> dict[str, str]:
    """Return the environment of the parts."""
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    if device == "simulated":
        sys.path.insert(0, str(REPOSITORY))
        from tests.simulated.build import PLUGIN, library

        paths.insert(1, str(PLUGIN))
        env["RAYSIM_SIMULATED_LIBRARY"] = str(library())
    return {**env, "PYTHONPATH": os.pathsep.join(paths)}


def run_part(to: Context) -> int:
    """Run one part in this process; return the exit code."""
    try:
        PARTS[to.part].run(to)
    except Exception as error:
        traceback.print_exc()
        to.add("", "error", type(error).__name__, note=str(error)[:300])
        return 1
    return 0


def run_parts(names: list[str], device: str, quick: bool, out: Path, minutes: float) -> bool:
    """Run parts, each in a process of its own, while the budget lasts; return whether none failed."""
    ends_s, env, good = time.time() + 60 * minutes, environment(device), True
    for name in names:
        part, left_s = PARTS[name], ends_s - time.time()
        limit_s = min(part.limit_s, left_s)
        with tempfile.TemporaryDirectory(prefix="on-a-gpu-") as scratch:
            to = Context(name, device, quick, out, Path(scratch), ends_s)
            if left_s < part.least_s:
                to.skip("", f"{max(0.0, left_s):.0f} s of {minutes:g} minutes are left; it needs {part.least_s:g} s")
                continue
            print(f"{name}: at most {limit_s:.0f} s", flush=True)
            command = [sys.executable, __file__, "--one", name, "--seconds", str(limit_s), "--device", device]
            command += ["--out", str(out), "--scratch", scratch, *(["--quick"] if quick else [])]
            ran = watched(command, limit_s, out / f"{name}.log", env)
        Mps.stop()  # a part that was stopped may have left it
        state = {0: "done", None: "stopped"}.get(ran.code, "failed")
        to.add("", "status", state, note=f"{ran.seconds:.0f} s of {limit_s:.0f} s")
        good &= state == "done"
    return good


def table(path: Path) -> str:
    """Return all rows as lines of text."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def main() -> int:
    """Run the parts that are asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--device", choices=["cuda", "simulated", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a part, in the process that runs it
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if given.one:
        ends_s = time.time() + given.seconds
        return run_part(Context(given.one, given.device, given.quick, out, given.scratch, ends_s))
    if unknown := [name for name in given.parts.split(",") if name not in PARTS]:
        parser.error(f"--parts: {unknown[0]} given; choose from {', '.join(PARTS)}")
    (out / "results.csv").unlink(missing_ok=True)
    good = run_parts(given.parts.split(","), given.device, given.quick, out, given.minutes)
    print(table(out / "results.csv"))
    return not good


if __name__ == "__main__":
    sys.exit(main())
