"""Time one server step of DC-PFL, including its refit.

python benchmarks/dc_pfl_server.py [--steps N] [--classes C] [--width D] [--clients K] [--owned S] [--per-class N]
                                   [--threads T]

The representations are random, after a ReLU; each client owns S of C classes, in turn, with about N samples per class.
Only `server_update` is timed: header step, pooling, drawing and refit (defaults: 100 classes, width 500, 10 clients
with 10 classes of 45 samples, 1,000 virtual samples). On a busy machine, several threads can be ten times slower than
one: compare with --threads 1, which the engine uses for its server.
"""

from __future__ import annotations

import argparse
import os
from time import perf_counter

import numpy as np
import torch
from torch import nn

from raysim.algorithms.dc_pfl import DCPFL, ClassStatistics, class_statistics
from raysim.core import Server, Task
from raysim.core.algorithm import ClientId


def uploads(given: argparse.Namespace) -> dict[ClientId, ClassStatistics]:
    """Make the uploads of a round's clients."""
    rng = torch.Generator().manual_seed(0)
    found = {}
    for k in range(given.clients):
        owned = [(k * given.owned + i) % given.classes for i in range(given.owned)]
        # Between -10% and +10%, as in a pathological split.
        low, high = round(0.9 * given.per_class), round(1.1 * given.per_class) + 1
        count_S = torch.randint(low, high, (len(owned),), generator=rng)
        label_N = torch.repeat_interleave(torch.tensor(owned), count_S)
        feature_ND = torch.randn(len(label_N), given.width, generator=rng).relu()
        found[k] = class_statistics(feature_ND, label_N, covariance=True)
    return found


def measure(given: argparse.Namespace, ups: dict[ClientId, ClassStatistics]) -> list[float]:
    """Return the seconds of each step."""
    algorithm = DCPFL()
    task = Task(given.classes, given.width, ("none",), lambda name: nn.Identity())
    server = Server(task, torch.Generator().manual_seed(1), t=1)
    server.state = algorithm.server_start(server, {})
    seconds = []
    for _ in range(given.steps):
        start = perf_counter()
        algorithm.server_update(server, ups)
        seconds.append(perf_counter() - start)
    return seconds


def main() -> None:
    """Measure, and print the median."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in (("steps", 3), ("classes", 100), ("width", 500), ("clients", 10), ("owned", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--per-class", type=int, default=45)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: one per core")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    ups = uploads(given)
    print(f"{given.threads} threads, load {os.getloadavg()[0]:.1f}")
    seconds = measure(given, ups)
    print(f"{np.median(seconds):7.2f} s per step (median of {len(seconds)}; slowest {max(seconds):.2f})")


if __name__ == "__main__":
    main()
