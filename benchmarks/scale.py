"""Measure rounds, memory and resuming with 100,000 small clients (W3), or with more client state than memory (W4).

python benchmarks/scale.py [w3|w4] [--clients N] [--rounds N] [--memory-gb GB] [--data FOLDER]

W3: 100,000 clients with a 64-32-10 perceptron, 1,000 per round, compared with 2,000 clients.
W4: 10,000 clients with CNN-5 (25 GB of state), 100 per round, `resources.memory_gb: 8`, compared with 100 clients in
memory.
There are three runs: the small federation; the large one, which is ended by `kill -9` after half of its rounds and
continued by `raysim resume`; and the large one again, without interruption. Only the interrupted run writes
checkpoints. Exit code 1: the digests of the two large runs differ.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from handwritten import Workload
from overhead import W1, W2, Figure, data_folder, scenario, tree_pss_gb

from raysim.results.load import read_rounds, read_summary

RAYSIM = [sys.executable, "-m", "raysim"]
WARM_UP = 2
SAMPLE_EVERY_S = 5.0
W3 = replace(W2, name="w3", clients=100_000, participants=1_000)
W4 = replace(
    W1,
    name="w4",
    partition={"name": "resample", "samples_per_client": 32},
    clients=10_000,
    participants=100,
    models=("cnn5",),
    batch_size=32,
)
SMALL = {"w3": 2_000, "w4": 100}  # clients of the small federation
ROUNDS = {"w3": 100, "w4": 120}


@dataclass
class Ran:
    """Measurements of a command that ended, or was killed."""

    seconds: float
    start_s: float  # until it printed its first line of a round: round 0, or after `resume` the first repeated round
    peak_gb: float
    last: int  # the last round that it printed


def watch(command: list[str], folder: Path, kill_after: int | None = None) -> Ran:
    """Run a raysim command; after the line of round `kill_after`, end it by SIGKILL."""
    begin = time.perf_counter()
    with subprocess.Popen(
        [*RAYSIM, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    ) as process:
        done, sampled = threading.Event(), [0.0]

        def sample() -> None:
            while not done.wait(SAMPLE_EVERY_S):
                sampled.append(tree_pss_gb(process.pid))

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        start_s, last = 0.0, 0
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.match(r"round +(\d+)/", line):
                start_s, last = start_s or time.perf_counter() - begin, int(found[1])
                if kill_after is not None and last >= kill_after:
                    os.kill(process.pid, signal.SIGKILL)
        done.set()
        thread.join()
    if kill_after is None and process.returncode:
        sys.exit(f"raysim {' '.join(command)} ended with exit code {process.returncode}:\n{''.join(said[-20:])}")
    return Ran(time.perf_counter() - begin, start_s, max(sampled), last)


def run(work: Workload, rounds: int, folder: Path, memory_gb: float | None, kill: bool) -> tuple[list[Ran], Path]:
    """Run the workload in a new folder; with `kill`, kill it after half of the rounds and resume it."""
    folder.mkdir()
    # Without checkpoints if rounds are timed: each writes all clients that changed, 25 GB for 10,000 with CNN-5.
    given = scenario(work, rounds, os.cpu_count() or 1, folder, 10 if kill else 0)
    if memory_gb is not None:
        given["resources"]["memory_gb"] = memory_gb
    (folder / "scenario.yaml").write_text(yaml.safe_dump(given))
    ran = [watch(["launch", "scenario.yaml"], folder, rounds // 2 if kill else None)]
    (made,) = (folder / "runs").glob("*/*/scenario.yaml")
    if kill:
        ran.append(watch(["resume", str(made.parent)], folder))
    return ran, made.parent


def per_round_s(run: Path) -> float:
    """Return the median seconds from one round to the next, without the warm-up rounds."""
    return float(np.median(np.diff(read_rounds(run)["time/total_s"].to_numpy())[WARM_UP:]))


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=["w3", "w4"], nargs="?", default="w3")
    parser.add_argument("--clients", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--memory-gb", type=float)
    parser.add_argument("--data", default=data_folder(), help="folder of CIFAR-100 (default: RAYSIM_DATA)")
    given = parser.parse_args()
    work = {"w3": W3, "w4": W4}[given.workload]
    if work.dataset == "cifar100" and given.data:
        work = replace(work, root=str(Path(given.data).expanduser().resolve()))  # raysim runs in another folder
    work = replace(work, clients=given.clients or work.clients)
    rounds = given.rounds or ROUNDS[work.name]
    memory_gb = given.memory_gb or (8.0 if work.name == "w4" else None)
    small = replace(work, clients=min(SMALL[work.name], work.clients))
    with tempfile.TemporaryDirectory(prefix="raysim-bench-") as name:
        folder = Path(name)
        (first,), beside = run(small, rounds, folder / "small", None, kill=False)
        (killed, resumed), broken = run(work, rounds, folder / "killed", memory_gb, kill=True)
        os.sync()  # finish writing the killed run's checkpoints before the next run is timed
        (whole,), at_once = run(work, rounds, folder / "whole", memory_gb, kill=False)
        small_s, large_s = per_round_s(beside), per_round_s(at_once)
        digests = [read_summary(run)["state_digest"] for run in (broken, at_once)]
    bound = f"<= {memory_gb:g} GB of state" if memory_gb else "<= state + 2 GB"
    figures = [
        Figure(f"s per round: {small.clients:,} clients", "", f"{small_s:.2f}"),
        Figure(f"s per round: {work.clients:,} clients", "", f"{large_s:.2f}"),
        Figure("ratio", "<= 1.10" if work.name == "w3" else "<= 1.15", f"{large_s / small_s:.2f}"),
        Figure("s until round 0", "", f"{whole.start_s:.1f}"),
        Figure("peak PSS, GB: few clients", "", f"{first.peak_gb:.2f}"),
        Figure("peak PSS, GB", bound, f"{max(killed.peak_gb, whole.peak_gb):.2f}"),
        Figure("last round before the kill", "", f"{killed.last} of {rounds}"),
        Figure("s from resume to its first round", "<= 60", f"{resumed.start_s:.1f}"),
        Figure("digest after the kill", "equal", "equal" if digests[0] == digests[1] else "differs"),
    ]
    for figure in figures:
        print(f"{figure.name:36}{figure.target:24}{figure.measured:>12}")
    return digests[0] != digests[1]


if __name__ == "__main__":
    sys.exit(main())
