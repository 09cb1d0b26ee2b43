"""Measure raysim's time and memory against a hand-written loop that does the same work.

python benchmarks/overhead.py [--workload w1|w2|both|none] [--rounds N] [--processes P] [--data FOLDER]
                              [--memory [w1|w2]] [--memory-rounds N] [--checkpoint] [--start] [--json PATH]

W1: CIFAR-100, 100 clients, 10 per round, five CNNs, one epoch of batch 64, LG-FedAvg: seconds per round.
W2: digits, 1,000 clients, 100 per round, a small perceptron, one batch each: client trainings per second.
raysim and the hand-written loop run alternately, in blocks of a few rounds, so that other load on the machine affects
both equally. Both do the same rounds (same clients, same steps), with P processes of one thread. The ratio is the
median over blocks.
--memory: PSS of raysim's whole process tree, by default on W1: the peak, compared with the hand-written loop's, and the
growth over rounds.
--checkpoint: time of W1 with checkpoints, at the default cadence and after every round, relative to W1 without; the
same rounds in six runs, alternately.
--start: seconds from the command to round 0 of W1, and to the first round and the end of the quickstart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import yaml
from handwritten import Loop, Score, Workload

import raysim
from raysim.common.results import ClientRow, RunCard, Status
from raysim.results.load import read_rounds

REPOSITORY = Path(__file__).resolve().parents[1]
WARM_UP = 2
NICENESS = 15  # Ray's default for its workers; with another value, other load would slow only one side
SAMPLE_EVERY_S = 5.0  # reading PSS slows down the process that is measured
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
ROUNDS = {"w1": 25, "w2": 200}  # timed rounds, by default
BLOCK = {"w1": 5, "w2": 20}


@dataclass(frozen=True)
class Figure:
    """A row of the table: a measured number and its target."""

    name: str
    target: str
    measured: str


@dataclass
class Arrivals:
    """A tracker that only records when results arrive, because its own growth would distort memory measurements."""

    arrived_s: list[float] = field(default_factory=list)  # times of rounds 0, 1, ...

    def open(self, card: RunCard) -> None:
        """Do nothing."""

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Record the time of round `t`."""
        self.arrived_s.append(time.perf_counter())

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Do nothing."""


@dataclass
class Notes(Arrivals):
    """A tracker that also records the participants' results."""

    rows: list[list[ClientRow]] = field(default_factory=list)  # per round, the participants' rows

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Record the time and the participants' rows of round `t`."""
        super().log(t, values, clients)
        self.rows.append([row for row in clients if row.participated])


@dataclass
class Alternating:
    """Runs the same rounds alternately on raysim and on the hand-written loop, a block at a time.

    A tracker could not do this, because trackers receive a round while the next one runs. So raysim is paused at the
    beginning of a round. Its blocks are timed there too, from the beginning of the first round to the beginning of the
    round after the last, including everything that raysim does in between.
    """

    loop: Loop
    storage: Path  # MLflow's SQLite file
    size: int  # rounds per block
    blocks: int
    handwritten_s: list[float] = field(default_factory=list)  # seconds per round, for each block
    raysim_s: list[float] = field(default_factory=list)
    handwritten_cpu_s: float = 0.0  # sum over all blocks
    raysim_cpu_s: float = 0.0
    scores: list[list[Score]] = field(default_factory=list)  # for rounds 1, 2, ...
    _own_s: float = 0.0  # CPU seconds of this process for the loop

    @property
    def rounds(self) -> int:
        """The number of rounds to run on raysim; the last block ends at the beginning of one more round."""
        return WARM_UP + self.size * self.blocks + 1

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Run the hand-written loop whenever raysim is about to begin a block."""
        from raysim.engine.ray.backend import RayBackend

        send = RayBackend.send  # a round begins with it

        def begin(backend: RayBackend, t: int, participants: Any) -> Any:
            self._before(t)
            return send(backend, t, participants)

        with mock.patch.object(RayBackend, "send", begin):
            yield

    def _before(self, t: int) -> None:
        """Time blocks, and run the hand-written loop, when raysim is about to begin round `t`."""
        if t <= WARM_UP:
            self._run([t])
        elif t == WARM_UP + 1:
            # MLflow starts during the first round; once it writes, it is in its steady state.
            _wait_for_store(self.storage)
            self._cpu(-1)
            self._begin_s = time.perf_counter()
        elif (t - WARM_UP - 1) % self.size == 0:
            self.raysim_s.append((time.perf_counter() - self._begin_s) / self.size)
            self.handwritten_s.append(self._run(range(t - self.size, t)) / self.size)
            if t == self.rounds:
                self._cpu(1)
            self._begin_s = time.perf_counter()

    def _run(self, numbers: Iterable[int]) -> float:
        begin_s, own_s = time.perf_counter(), time.thread_time()
        self.scores += [self.loop.round(t) for t in numbers]
        self._own_s += time.thread_time() - own_s
        return time.perf_counter() - begin_s

    def _cpu(self, sign: int) -> None:
        ours = {worker.pid for worker in self.loop.workers}
        self.handwritten_cpu_s += sign * (_cpu_s(ours) + self._own_s)
        self.raysim_cpu_s += sign * (_cpu_s(_tree(os.getpid()) - ours) - self._own_s)


@dataclass
class MemorySampler:
    """A thread that samples the memory of this process tree, with the number of rounds done."""

    notes: Arrivals
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
            self.samples.append((len(self.notes.arrived_s) - 1, tree_pss_gb(os.getpid())))

    @property
    def peak_gb(self) -> float:
        """The greatest sample, in GB."""
        return max((gb for _, gb in self.samples), default=0.0)

    @property
    def slope_gb(self) -> tuple[float, float] | None:
        """Growth in GB per 100 rounds over the last two thirds of the rounds, and half its 95 % interval.

        None if there are too few samples. The fit by least squares assumes independent errors; they are not quite
        independent, so the interval is a little too narrow.
        """
        from scipy import stats  # imported here, to keep it out of the memory that is measured

        last = max((t for t, _ in self.samples), default=0)
        # Without samples after the last round, when actors end.
        late = np.array([sample for sample in self.samples if last / 3 < sample[0] < last])
        if len({t for t, _ in late.tolist()}) < 3:
            return None
        line = stats.linregress(late[:, 0], late[:, 1])
        return 100 * float(line.slope), 100 * float(line.stderr * stats.t.ppf(0.975, len(late) - 2))


def scenario(
    work: Workload, rounds: int, processes: int, folder: Path, checkpoint: int | str = "auto"
) -> dict[str, Any]:
    """Return the workload as the content of a scenario."""
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
        "checkpoint": {"every": checkpoint},
    }


def run_raysim(work: Workload, rounds: int, processes: int, folder: Path, notes: Arrivals) -> raysim.Run:
    """Run the workload on raysim, which starts its own Ray."""
    loaded = raysim.Scenario.load(scenario(work, rounds, processes, folder))
    return raysim.run(loaded, quiet=True, trackers=[notes])


def compare(work: Workload, rounds: int, processes: int) -> dict[str, Any]:
    """Measure seconds per round on both sides, for each block, and CPU seconds of all blocks."""
    loop = Loop(work, processes, NICENESS)
    notes = Notes()
    try:
        with tempfile.TemporaryDirectory(prefix="raysim-bench-") as name:
            size = BLOCK[work.name]
            sides = Alternating(loop, Path(name) / "mlflow.db", size, max(1, round(rounds / size)))
            begin = time.perf_counter()
            with sides.watching():
                run_raysim(work, sides.rounds, processes, Path(name), notes)
            end = time.perf_counter()
    finally:
        loop.close()
    return {
        "workload": work.name,
        "processes": processes,
        "participants": work.participants,
        "rounds_per_block": size,
        "handwritten_s": sides.handwritten_s,
        "raysim_s": sides.raysim_s,
        "ratio": float(np.median(np.array(sides.raysim_s) / sides.handwritten_s)),
        "handwritten_cpu_s": sides.handwritten_cpu_s,
        "raysim_cpu_s": sides.raysim_cpu_s,
        "raysim_start_s": notes.arrived_s[0] - begin,
        "raysim_end_s": end - notes.arrived_s[-1],
    }


def measure_memory(work: Workload, rounds: int, processes: int, every_s: float = SAMPLE_EVERY_S) -> dict[str, Any]:
    """Measure the memory of this process and all of Ray's while raysim runs the workload."""
    with tempfile.TemporaryDirectory(prefix="raysim-bench-") as name:
        notes = Arrivals()
        with MemorySampler(notes, every_s) as sampler:
            run_raysim(work, rounds, processes, Path(name), notes)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:  # a fresh process
        handwritten_gb = apart.submit(_handwritten_gb, work, rounds, processes, every_s).result()
    return {
        "workload": work.name,
        "peak_gb": sampler.peak_gb,
        "handwritten_peak_gb": handwritten_gb,
        "slope_gb_per_100_rounds": sampler.slope_gb,
        "rounds": rounds,
        "samples": sampler.samples,
    }


def _handwritten_gb(work: Workload, rounds: int, processes: int, every_s: float) -> float:
    """Return the peak PSS of the hand-written loop over the same number of rounds, in GB."""
    with MemorySampler(Arrivals(), every_s) as sampler:
        loop = Loop(work, processes, NICENESS)
        for t in range(1, rounds + 1):
            loop.round(t)
        loop.close()
    return sampler.peak_gb


def measure_checkpoints(work: Workload, rounds: int, processes: int) -> dict[str, Any]:
    """Measure the seconds from one round to the next with each value of `checkpoint.every`, and their ratios."""
    found: dict[int | str, list[np.ndarray[Any, Any]]] = {"auto": [], 1: [], 0: []}
    for every in [*found, *found]:
        with tempfile.TemporaryDirectory(prefix="raysim-bench-") as name:
            loaded = raysim.Scenario.load(scenario(work, rounds, processes, Path(name), every))
            result = raysim.run(loaded, quiet=True)
            # Not time/round_s, because a round also waits for the previous round's checkpoint.
            total_s = read_rounds(result.folder)["time/total_s"].to_numpy()
            found[every].append(np.diff(total_s[1 + WARM_UP :]))
    default_s, each_s, none_s = (np.mean(seconds, axis=0) for seconds in found.values())
    return {
        "rounds": rounds,
        "default_s": default_s.tolist(),
        "each_s": each_s.tolist(),
        "none_s": none_s.tolist(),
        "default_ratio": float(default_s.sum() / none_s.sum()),  # ratio of sums, as few rounds have a checkpoint
        "each_ratio": float(np.median(each_s / none_s)),
    }


def measure_start(work: Workload, processes: int) -> dict[str, float | None]:
    """Measure seconds from `raysim launch` to round 0 of the workload, and to round 1 and the end of the quickstart."""
    with tempfile.TemporaryDirectory(prefix="raysim-bench-") as name:
        path = Path(name) / f"{work.name}.yaml"
        path.write_text(yaml.safe_dump(scenario(work, 1, processes, Path(name))))
        quickstart = str(REPOSITORY / "scenarios" / "quickstart.yaml")
        return {
            "w1_round_0_s": _seconds_until(r"round +0/", str(path)),
            "quickstart_round_1_s": _seconds_until(r"round +1/", quickstart, name),
            "quickstart_end_s": _seconds_until(None, quickstart, name),
        }


def _seconds_until(line: str | None, path: str, folder: str | None = None, timeout_s: float = 300.0) -> float | None:
    """Return the seconds from `raysim launch` to a line that matches, or to the end if `line` is None.

    None if no line matched, or the command failed.
    """
    command = [str(Path(sys.executable).with_name("raysim")), "launch", path]
    if folder is not None:
        command += ["--set", f"output={folder}/runs", "--set", f"tracking.uri=sqlite:///{folder}/mlflow.db"]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        assert process.stdout is not None
        seconds = None
        for text in process.stdout:
            if line is not None and seconds is None and re.match(line, text):
                seconds = time.perf_counter() - begin
                process.send_signal(signal.SIGTERM)  # the rest is not measured
        timer.cancel()
    if line is None and process.returncode == 0:
        seconds = time.perf_counter() - begin
    return seconds


def tree_pss_gb(root: int) -> float:
    """Return the proportional memory, in GB, of a process, its descendants and the Ray session that it started.

    Shared pages count once. In-memory files with clients' states are added, because no process maps them. Processes
    that end meanwhile, or that belong to another user, count as 0.
    """
    tree = _tree(root)
    files = {inode: size for pid in tree for inode, size in _memory_files(pid)}
    return (sum(_pss_kb(pid) for pid in tree) * 1024 + sum(files.values())) / 1e9


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
    # Ray may have detached some processes; their command lines contain the name of the session's folder.
    sessions = {name for pid in tree for name in re.findall(r"/session_[\d_-]+", command.get(pid, ""))}
    return below(tree | {pid for pid, text in command.items() if any(name in text for name in sessions)})


def _pss_kb(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _memory_files(pid: int) -> Iterator[tuple[int, int]]:
    """Yield (inode, bytes) of the in-memory files that a process has open."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith("/memfd:raysim-states"):
                    found = link.stat()
                    yield found.st_ino, found.st_blocks * 512


def _cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds of these processes so far."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def _wait_for_store(storage: Path, timeout_s: float = 120.0) -> None:
    """Wait until MLflow has written round 0; from then on its writer is in its steady state."""
    begin = time.monotonic()
    while time.monotonic() - begin < timeout_s:
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(sqlite3.connect(f"file:{storage}?mode=ro", uri=True)) as connection,
        ):
            if connection.execute("select 1 from metrics limit 1").fetchone():
                return
        time.sleep(0.2)


def _figures(report: Mapping[str, Any]) -> list[Figure]:
    figures = []
    for name in ("w1", "w2"):
        if name not in report:
            continue
        found, title = report[name], name.upper()
        if name == "w1":
            ours, theirs = (float(np.median(found[side])) for side in ("raysim_s", "handwritten_s"))
            figures.append(Figure("W1 s/round: hand-written", "", f"{theirs:.2f}"))
            figures.append(Figure("W1 s/round: raysim", "", f"{ours:.2f}"))
        else:
            ours, theirs = (
                found["participants"] / float(np.median(found[side])) for side in ("raysim_s", "handwritten_s")
            )
            figures.append(Figure("W2 trainings/s: hand-written", "", f"{theirs:,.0f}"))
            figures.append(Figure("W2 trainings/s: raysim", ">= 1,000", f"{ours:,.0f}"))
        target = "<= 1.15" if name == "w1" else ""
        figures.append(Figure(f"{title} raysim / hand-written, time", target, f"{found['ratio']:.2f}"))
        cpu = found["raysim_cpu_s"] / found["handwritten_cpu_s"]
        figures.append(Figure(f"{title} raysim / hand-written, CPU time", "", f"{cpu:.2f}"))
        figures.append(Figure(f"{title} raysim: s until round 0", "", f"{found['raysim_start_s']:.1f}"))
        figures.append(Figure(f"{title} raysim: s after the last round", "", f"{found['raysim_end_s']:.1f}"))
    if "memory" in report:
        found = report["memory"]
        slope, title = found["slope_gb_per_100_rounds"], found["workload"].upper()
        figures.append(Figure(f"{title} raysim peak PSS, GB", "", f"{found['peak_gb']:.2f}"))
        more_gb = found["peak_gb"] - found["handwritten_peak_gb"]
        figures.append(Figure("... more than hand-written", "<= 0.8" if title == "W1" else "", f"{more_gb:.2f}"))
        growth = "too few rounds" if slope is None else f"{slope[0]:+.4f} +- {slope[1]:.4f}"
        figures.append(Figure(f"{title} raysim growth, GB per 100 of {found['rounds']} rounds", "0", growth))
    if "checkpoint" in report:
        found = report["checkpoint"]
        ratio, each = f"{found['default_ratio']:.3f}", f"{found['each_ratio']:.3f}"
        figures.append(Figure("W1 rounds with checkpoints at the default cadence / without", "<= 1.05", ratio))
        figures.append(Figure("W1 round with a checkpoint after each / without", "(none)", each))
    if "start" in report:
        found = report["start"]
        for key, name, target in (
            ("w1_round_0_s", "W1: s from command to round 0", "<= 8"),
            ("quickstart_round_1_s", "quickstart: s from command to first round", ""),
            ("quickstart_end_s", "quickstart: s from command to end", "<= 12"),
        ):
            figures.append(Figure(name, target, "none" if found[key] is None else f"{found[key]:.1f}"))
    return figures


def _print_table(figures: Sequence[Figure]) -> None:
    rows = [("figure", "target", "measured"), *((f.name, f.target, f.measured) for f in figures)]
    wide = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, wide, strict=True)).rstrip())


def data_folder() -> str | None:
    """Return the folder in which the benchmarks look for CIFAR-100; None: raysim's cache."""
    shared = REPOSITORY.parent / "shared" / "data"
    return os.environ.get("RAYSIM_DATA") or (str(shared) if shared.is_dir() else None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", choices=("w1", "w2", "both", "none"), default="both")
    parser.add_argument("--rounds", type=int, help="timed rounds (default: 25 of W1, 200 of W2)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one per core")
    parser.add_argument("--data", default=data_folder(), help="where CIFAR-100 is (default: RAYSIM_DATA)")
    parser.add_argument(
        "--memory",
        choices=("w1", "w2"),
        nargs="?",
        const="w1",
        help="also measure memory, on a run apart (default: W1)",
    )
    parser.add_argument("--memory-rounds", type=int, default=200)
    parser.add_argument(
        "--checkpoint", action="store_true", help="also measure what checkpoints cost, in W1 runs apart"
    )
    parser.add_argument("--checkpoint-rounds", type=int, default=60)
    parser.add_argument("--start", action="store_true", help="also time the start, in runs apart")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    return parser.parse_args()


def main() -> None:
    """Run the selected measurements and print the table."""
    given = _arguments()
    report: dict[str, Any] = {"cores": os.cpu_count(), "load_before": os.getloadavg()}
    w1 = replace(W1, root=given.data)
    if given.memory:  # first, while this process is small
        report["memory"] = measure_memory(W2 if given.memory == "w2" else w1, given.memory_rounds, processes=2)
    if given.checkpoint:
        report["checkpoint"] = measure_checkpoints(w1, given.checkpoint_rounds, processes=2)
    if given.start:
        report["start"] = measure_start(w1, processes=2)
    for work in (w1, W2):
        if given.workload in (work.name, "both"):
            report[work.name] = compare(work, given.rounds or ROUNDS[work.name], given.processes)
    report["load_after"] = os.getloadavg()
    _print_table(_figures(report))
    if given.json:
        given.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
