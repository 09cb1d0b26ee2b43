"""What raysim costs over a hand-written loop that does the same work, and what it holds in memory.

python benchmarks/overhead.py [--workload w1|w2|both|none] [--rounds N] [--processes P] [--data FOLDER]
                              [--memory] [--memory-rounds N] [--first-round] [--json PATH]

W1: CIFAR-100, 100 clients, 10 per round, five CNNs, one epoch of batch 64, LG-FedAvg: seconds per round.
W2: digits, 1,000 clients, 100 per round, a small perceptron, one batch each: client trainings per second.
Each runs hand-written, then on raysim, then hand-written again, over the same rounds (same clients, same order);
the ratio is the median over rounds of raysim's time to the mean of the two hand-written times of that round.
--memory: PSS of raysim's whole process tree on W1. --first-round: from command to first round, quickstart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from handwritten import Loop, Workload

import raysim
from raysim.core.results import ClientRow, RunCard, Status

REPOSITORY = Path(__file__).resolve().parents[1]
WARM_UP = 2
SAMPLE_EVERY_S = 5.0  # reading PSS takes the time of the process that is read
W1 = Workload(
    name="w1",
    dataset="cifar100",
    partition={"name": "pathological", "classes_per_client": 10},
    clients=100,
    participants=10,
    models=("cnn1", "cnn2", "cnn3", "cnn4", "cnn5"),
    batch_size=64,
)
W2 = Workload(
    name="w2",
    dataset="digits",
    partition={"name": "resample", "samples_per_client": 32},
    clients=1000,
    participants=100,
    models=("digits_mlp64",),
    batch_size=32,
)
ROUNDS = {"w1": 20, "w2": 100}  # timed ones, unless --rounds says otherwise


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    target: str
    measured: str


@dataclass
class Stopwatch:
    """A tracker that notes when each round was there for the user."""

    store: Path  # of MLflow, an SQLite file
    at_s: list[float] = field(default_factory=list)
    rows: list[list[ClientRow]] = field(default_factory=list)

    def open(self, card: RunCard) -> None:
        """Nothing to prepare."""

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Note round `t`, and hold up round 2 until MLflow, which is imported meanwhile, is no longer starting."""
        if t == 1:
            _wait_for_store(self.store)
        self.at_s.append(time.perf_counter())
        self.rows.append([row for row in clients if row.participated])

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Nothing to end."""


@dataclass
class MemorySampler:
    """A thread that notes the memory of this process tree now and then, with the round that was running."""

    stopwatch: Stopwatch
    every_s: float = SAMPLE_EVERY_S
    samples: list[tuple[int, float]] = field(default_factory=list)  # (rounds done, GB)

    def __enter__(self) -> MemorySampler:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._done.wait(self.every_s):
            self.samples.append((len(self.stopwatch.at_s) - 1, tree_pss_gb(os.getpid())))

    @property
    def peak_gb(self) -> float:
        """The greatest sample."""
        return max((gb for _, gb in self.samples), default=0.0)

    @property
    def slope_gb(self) -> float | None:
        """Growth per 100 rounds, by least squares over the second half of the rounds; None if there are too few."""
        last = max((t for t, _ in self.samples), default=0)
        late = np.array([sample for sample in self.samples if sample[0] > last / 2])
        if len({t for t, _ in late.tolist()}) < 3:
            return None
        return 100 * float(np.polyfit(late[:, 0], late[:, 1], 1)[0])


def scenario(work: Workload, rounds: int, processes: int, folder: Path) -> dict[str, Any]:
    """The workload as raysim is told it."""
    return {
        "name": f"bench_{work.name}",
        "seed": work.seed,
        "rounds": rounds,
        "output": str(folder / "runs"),
        "algorithm": {"name": "lg_fedavg"},
        "data": {
            "name": work.dataset,
            "root": work.root,
            "partition": dict(work.partition),
            "split": work.split,
        },
        "clients": {
            "count": work.clients,
            "participation": work.participants / work.clients,
            "models": list(work.models),
        },
        "training": {"epochs": 1, "batch_size": work.batch_size, "lr": work.lr},
        "resources": {"actors": processes, "gpus_per_actor": 0},
        "tracking": {"uri": f"sqlite:///{folder / 'mlflow.db'}"},
    }


def run_raysim(
    work: Workload, rounds: int, processes: int, folder: Path, stopwatch: Stopwatch
) -> raysim.Result:
    """Run the workload on raysim, on a Ray of its own."""
    loaded = raysim.load_scenario(scenario(work, rounds, processes, folder))
    return raysim.run(loaded, quiet=True, trackers=[stopwatch])


def compare(work: Workload, rounds: int, processes: int) -> dict[str, Any]:
    """Hand-written, raysim, hand-written; seconds of every timed round."""
    numbers = range(WARM_UP + 1, WARM_UP + rounds + 1)
    loop = Loop(work, processes)
    try:
        for t in range(1, WARM_UP + 1):
            loop.round(t)
        before_s = [_timed_round(loop, t) for t in numbers]
        with tempfile.TemporaryDirectory(prefix="raysim-bench-") as name:
            stopwatch = Stopwatch(Path(name) / "mlflow.db")
            begin = time.perf_counter()
            run_raysim(work, WARM_UP + rounds, processes, Path(name), stopwatch)
            end = time.perf_counter()
        after_s = [_timed_round(loop, t) for t in numbers]
    finally:
        loop.close()
    raysim_s = np.diff(stopwatch.at_s)[WARM_UP:]
    paired = raysim_s / ((np.array(before_s) + np.array(after_s)) / 2)
    return {
        "workload": work.name,
        "processes": processes,
        "participants": work.participants,
        "handwritten_before_s": before_s,
        "raysim_s": raysim_s.tolist(),
        "handwritten_after_s": after_s,
        "ratio": float(np.median(paired)),
        "raysim_start_s": stopwatch.at_s[0] - begin,
        "raysim_end_s": end - stopwatch.at_s[-1],
    }


def measure_memory(
    work: Workload, rounds: int, processes: int, every_s: float = SAMPLE_EVERY_S
) -> dict[str, Any]:
    """Memory of this process and all of Ray's while raysim runs the workload."""
    with tempfile.TemporaryDirectory(prefix="raysim-bench-") as name:
        stopwatch = Stopwatch(Path(name) / "mlflow.db")
        with MemorySampler(stopwatch, every_s) as sampler:
            run_raysim(work, rounds, processes, Path(name), stopwatch)
    return {
        "peak_gb": sampler.peak_gb,
        "slope_gb_per_100_rounds": sampler.slope_gb,
        "rounds": rounds,
        "samples": sampler.samples,
    }


def first_round(timeout_s: float = 300.0) -> float | None:
    """Seconds from `raysim launch` of the quickstart to the line of its first round; None if there was none."""
    with tempfile.TemporaryDirectory(prefix="raysim-bench-") as name:
        command = [
            str(Path(sys.executable).with_name("raysim")),
            "launch",
            str(REPOSITORY / "scenarios" / "quickstart.yaml"),
            *("--set", f"output={name}/runs", "--set", f"tracking.uri=sqlite:///{name}/mlflow.db"),
        ]
        begin = time.perf_counter()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            impatient = threading.Timer(timeout_s, process.kill)
            impatient.start()
            assert process.stdout is not None
            seconds = None
            for line in process.stdout:
                if seconds is None and re.match(r"round +1/", line):
                    seconds = time.perf_counter() - begin
                    process.send_signal(signal.SIGTERM)  # the rest is not measured
            impatient.cancel()
        return seconds


def tree_pss_gb(root: int) -> float:
    """Proportional memory, in GB, of a process, its descendants and all of the Ray session that it started.

    Shared pages count once in the sum. What ends, or is another user's, while being read counts as nothing.
    """
    return sum(_pss_kb(pid) for pid in _tree(root)) * 1024 / 1e9


def _tree(root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    command: dict[int, str] = {}
    for process in psutil.process_iter(["pid", "ppid", "cmdline"]):
        children.setdefault(process.info["ppid"], []).append(process.info["pid"])
        command[process.info["pid"]] = " ".join(process.info["cmdline"] or ())

    def below(start: set[int]) -> set[int]:
        found, left = set(start), list(start)
        while left:
            new = [pid for pid in children.get(left.pop(), ()) if pid not in found]
            found.update(new)
            left += new
        return found

    tree = below({root})
    # Ray may have detached some of its processes; they name the session's folder. Other sessions are not ours.
    sessions = {name for pid in tree for name in re.findall(r"/session_[\d_-]+", command.get(pid, ""))}
    return below(tree | {pid for pid, text in command.items() if any(name in text for name in sessions)})


def _pss_kb(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _timed_round(loop: Loop, t: int) -> float:
    begin = time.perf_counter()
    loop.round(t)
    return time.perf_counter() - begin


def _wait_for_store(store: Path, timeout_s: float = 120.0) -> None:
    """Until MLflow has taken round 0: from then on its writer is in its steady state too."""
    begin = time.monotonic()
    while time.monotonic() - begin < timeout_s:
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection,
        ):
            if connection.execute("select 1 from metrics limit 1").fetchone():
                return
        time.sleep(0.2)


def _figures(report: Mapping[str, Any]) -> list[Figure]:
    figures = []
    for name in ("w1", "w2"):
        if name not in report:
            continue
        found = report[name]
        sides = ("handwritten_before_s", "raysim_s", "handwritten_after_s")
        if name == "w1":
            a, b, c = (float(np.median(found[side])) for side in sides)
            figures.append(
                Figure("W1 s/round: hand-written, raysim, hand-written", "", f"{a:.2f}, {b:.2f}, {c:.2f}")
            )
            figures.append(Figure("W1 raysim / hand-written", "<= 1.15", f"{found['ratio']:.2f}"))
        else:
            # All rounds, not the median one: what happens every few rounds costs throughput as well.
            a, b, c = (found["participants"] * len(found[side]) / sum(found[side]) for side in sides)
            figures.append(Figure("W2 trainings/s: hand-written before, after", "", f"{a:,.0f}, {c:,.0f}"))
            figures.append(Figure("W2 trainings/s: raysim", ">= 1,000", f"{b:,.0f}"))
            figures.append(Figure("W2 raysim / hand-written, time", "", f"{found['ratio']:.2f}"))
        ends = f"{found['raysim_start_s']:.1f}, {found['raysim_end_s']:.1f}"
        figures.append(Figure(f"{name.upper()} raysim: s until round 0, after the last", "", ends))
    if "memory" in report:
        found = report["memory"]
        slope = found["slope_gb_per_100_rounds"]
        figures.append(Figure("W1 raysim peak PSS, GB", "<= 3.5", f"{found['peak_gb']:.2f}"))
        growth = "too few rounds" if slope is None else f"{slope:+.3f}"
        figures.append(Figure(f"W1 raysim growth, GB per 100 of {found['rounds']} rounds", "0", growth))
    if "first_round_s" in report:
        seconds = report["first_round_s"]
        shown = "no round 1" if seconds is None else f"{seconds:.1f}"
        figures.append(Figure("quickstart: s from command to first round", "<= 20", shown))
    return figures


def _print_table(figures: Sequence[Figure]) -> None:
    rows = [("figure", "target", "measured"), *((f.name, f.target, f.measured) for f in figures)]
    wide = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, wide, strict=True)).rstrip())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", choices=("w1", "w2", "both", "none"), default="both")
    parser.add_argument(
        "--rounds", type=int, help="timed rounds of each workload (default: 20 of W1, 100 of W2)"
    )
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="actors (default: one per core)"
    )
    shared = REPOSITORY.parent / "shared" / "data"
    data = os.environ.get("RAYSIM_DATA") or (str(shared) if shared.is_dir() else None)
    parser.add_argument(
        "--data", default=data, help="folder with CIFAR-100 (default: RAYSIM_DATA, ../shared/data)"
    )
    parser.add_argument(
        "--memory", action="store_true", help="also measure memory on W1, in a run of its own"
    )
    parser.add_argument("--memory-rounds", type=int, default=200)
    parser.add_argument("--first-round", action="store_true", help="also time the quickstart's first round")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    return parser.parse_args()


def main() -> None:
    """Measure what was asked for and print the table."""
    given = _arguments()
    report: dict[str, Any] = {"cores": os.cpu_count(), "load_before": os.getloadavg()}
    w1 = Workload(**{**W1.__dict__, "root": given.data})
    if given.memory:  # first, before this process holds anything else
        report["memory"] = measure_memory(w1, given.memory_rounds, processes=2)
    if given.first_round:
        report["first_round_s"] = first_round()
    for work in (w1, W2):
        if given.workload in (work.name, "both"):
            report[work.name] = compare(work, given.rounds or ROUNDS[work.name], given.processes)
    report["load_after"] = os.getloadavg()
    _print_table(_figures(report))
    if given.json:
        given.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
