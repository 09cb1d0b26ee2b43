"""Measure time and peak memory of clustering many logits by fastcluster's Ward, and by SciPy's if it fits.

python benchmarks/ward.py [--points N] [--coordinates C] [--scipy-gb GB]

The points are a mixture of C Gaussians in C dimensions, similar to the logits of a half-trained network. Each side runs
in a separate process; its memory before the clustering is subtracted from the peak. SciPy keeps two copies of N(N-1)/2
distances of 8 bytes, and is skipped if they need more than --scipy-gb. The merge heights of both are compared.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time
from multiprocessing.queues import Queue
from typing import Any

import numpy as np
import torch

from raysim.core.ward import ward


def mixture(points: int, coordinates: int) -> torch.Tensor:
    """Draw points [N, C]; the same points for the same arguments."""
    rng = torch.Generator().manual_seed(0)
    centre_CC = 4 * torch.randn(coordinates, coordinates, generator=rng)
    at_N = torch.randint(0, coordinates, (points,), generator=rng)
    return centre_CC[at_N] + 1.5 * torch.randn(points, coordinates, generator=rng)


def measure(side: str, points: int, coordinates: int, found: Queue[Any]) -> None:
    """Cluster once, and put (seconds, peak MB, heights [N-1]) into the queue `found`."""
    ward(mixture(300, coordinates).numpy())  # warm-up
    if side == "scipy":
        from scipy.cluster.hierarchy import linkage
    point_NC = mixture(points, coordinates).double().numpy()
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin_s = time.perf_counter()
    linkage_2 = ward(point_NC) if side == "raysim" else linkage(point_NC, "ward")
    seconds = time.perf_counter() - begin_s
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    found.put((seconds, peak_kb / 1024, linkage_2[:, 2]))


def main() -> None:
    """Measure both sides and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=60_000)
    parser.add_argument("--coordinates", type=int, default=10)
    parser.add_argument("--scipy-gb", type=float, default=2.0, help="leave SciPy out if it needs more")
    given = parser.parse_args()
    scipy_gb = 8 * given.points * (given.points - 1) / 1e9
    spawn = multiprocessing.get_context("spawn")
    heights = []
    load = os.getloadavg()[0]
    print(f"{given.points} points, {given.coordinates} coordinates, load {load:.1f}")
    for side in ("raysim", "scipy"):
        if side == "scipy" and scipy_gb > given.scipy_gb:
            print(f"scipy   needs {scipy_gb:.1f} GB")
            continue
        found = spawn.Queue()
        process = spawn.Process(target=measure, args=(side, given.points, given.coordinates, found))
        process.start()
        seconds, peak_mb, height = found.get()
        process.join()
        heights.append(height)
        print(f"{side:7} {seconds:8.1f} s  {peak_mb:8.0f} MB")
    if len(heights) == 2:
        print(f"greatest relative difference of heights: {np.abs(heights[0] / heights[1] - 1).max():.1e}")


if __name__ == "__main__":
    main()
