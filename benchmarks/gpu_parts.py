"""The parts of `on_a_gpu.py`: each measures, and writes a row of the CSV as soon as it has a number."""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
FIELDS = ("part", "case", "quantity", "value", "unit", "note")
OUTCOME = re.compile(
    r"^(?:\[gw\d+\] \[ *\d+%\] (?P<before>[A-Z]+) )?(?P<test>tests/gpu/\S+::.+?)(?: (?P<after>[A-Z]+)\b.*)?$"
)
"""A line of pytest's verbose output, with pytest-xdist or without it."""


@dataclass
class Context:
    """What a part may use, and where its rows go."""

    part: str
    device: str  # cuda, simulated or cpu
    quick: bool
    out: Path
    scratch: Path  # a folder that is removed at the end
    ends_s: float  # time.time() at which the part has to be over

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.ends_s - time.time()

    def add(self, case: str, quantity: str, value: float | str, unit: str = "", note: str = "") -> None:
        """Append a row to the CSV."""
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        path = self.out / "results.csv"
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(FIELDS)
            writer.writerow([self.part, case, quantity, text, unit, " ".join(note.split())])

    def skip(self, case: str, why: str) -> None:
        """Append the row of a case that is not measured."""
        self.add(case, "status", "skipped", note=why)


@dataclass
class Watched:
    """A process that ended, or was ended: `code` is None if it took too long."""

    code: int | None
    seconds: float
    gpu_mb: float = 0.0  # greatest memory of the GPU that was in use, less what was in use before
    host_gb: float = 0.0  # greatest proportional memory of the process and its descendants


def watched(command: Sequence[str], limit_s: float, log: Path, env: Mapping[str, str], memory: bool = False) -> Watched:
    """Run a command, and kill it and its descendants when its time is over. memory: also measure memory."""
    found, began, before_mb, sampled_s = Watched(None, 0.0), time.monotonic(), gpu_mb() if memory else 0.0, 0.0
    with log.open("a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=dict(env), cwd=REPOSITORY)
    while found.code is None and found.seconds < limit_s:
        with suppress(subprocess.TimeoutExpired):
            found.code = process.wait(0.3)
        found.seconds = time.monotonic() - began
        if memory:
            found.gpu_mb = max(found.gpu_mb, gpu_mb() - before_mb)
            if found.seconds - sampled_s > SAMPLE_EVERY_S:
                found.host_gb, sampled_s = max(found.host_gb, host_gb(process.pid)), found.seconds
    if found.code is None:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.wait()
    return found


def host_gb(pid: int) -> float:
    """Return the proportional memory of a process and its descendants, in GB."""
    from overhead import tree_pss_gb  # imports torch, which not every process here needs

    return tree_pss_gb(pid)


def gpu_mb() -> float:
    """Return the GPU's memory that is in use by all processes, in MiB; 0 if there is no NVIDIA GPU or no pynvml."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return float(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used) / 2**20
    except Exception:  # it has no common class of errors with the ImportError
        return 0.0


def machine(to: Context) -> None:
    """Describe the machine."""
    import torch

    to.add("", "device", to.device, note="tiny sizes, to try the script" if to.quick else "")
    to.add("", "python", platform.python_version())
    to.add("", "torch", torch.__version__)
    to.add("", "cpu cores", str(os.cpu_count()))
    for name in ("ray", "pynvml", "xdist"):
        to.add("", name, "present" if find_spec(name) else "missing")
    to.add("", "mps", shutil.which(Mps.COMMAND) or "missing")
    if to.device == "cuda":
        to.add("", "gpu", torch.cuda.get_device_name())
        to.add("", "gpu memory", torch.cuda.get_device_properties(0).total_memory / 2**30, "GiB")


def tests(to: Context) -> None:
    """Run tests/gpu: a row for each test function, and for each test that did not pass."""
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "-W", "default"]
    if find_spec("xdist") and not to.quick:
        command += ["-n", str(min(8, max(1, (os.cpu_count() or 1) // 2)))]
    log = to.out / "pytest.log"
    target = "tests/gpu/test_replay.py" if to.quick else "tests/gpu"
    ran = watched([*command, target], to.left_s - 5, log, os.environ)
    outcomes: dict[str, str] = {}
    for line in log.read_text(errors="replace").splitlines():
        if match := OUTCOME.match(line):
            test, outcome = match["test"].strip(), match["before"] or match["after"]
            outcomes[test] = outcome.lower() if outcome else outcomes.get(test, "unfinished")
    counts: dict[str, Counter[str]] = {}
    for test, outcome in outcomes.items():
        counts.setdefault(test.partition("[")[0].rpartition("::")[2], Counter())[outcome] += 1
        if outcome not in ("passed", "skipped"):
            to.add(test, "outcome", outcome, note="see pytest.log")
    for name, of_name in counts.items():
        for outcome, count in of_name.items():
            note = "no CUDA device" if outcome == "skipped" and to.device != "cuda" else ""
            to.add(name, outcome, str(count), "tests", note)
    to.add(
        "", "exit code", "none: it took too long" if ran.code is None else str(ran.code), note=f"{ran.seconds:.0f} s"
    )
    if ran.code != 0:
        raise RuntimeError(f"pytest did not pass; see {log}")


class Mps:
    """NVIDIA's Multi-Process Service, with which kernels of several processes run at the same time."""

    COMMAND = "nvidia-cuda-mps-control"
    FOLDER = Path(tempfile.gettempdir()) / "on-a-gpu-mps"
    VARIABLES: ClassVar[dict[str, str]] = {
        "CUDA_MPS_PIPE_DIRECTORY": str(FOLDER),
        "CUDA_MPS_LOG_DIRECTORY": str(FOLDER),
    }

    @classmethod
    def start(cls) -> str:
        """Start it; return why that is not possible, or an empty text."""
        if shutil.which(cls.COMMAND) is None:
            return f"{cls.COMMAND} is not installed"
        cls.FOLDER.mkdir(exist_ok=True)
        done = subprocess.run(
            [cls.COMMAND, "-d"], env={**os.environ, **cls.VARIABLES}, stdout=subprocess.DEVNULL, timeout=20
        )
        return f"{cls.COMMAND} -d ended with exit code {done.returncode}" if done.returncode else ""

    @classmethod
    def stop(cls) -> None:
        """Stop it, if it runs."""
        if cls.FOLDER.exists():
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    [cls.COMMAND], input="quit\n", text=True, env={**os.environ, **cls.VARIABLES}, timeout=20,
                    capture_output=True,
                )  # fmt: skip
            time.sleep(1.0)  # the daemon ends after its answer
            shutil.rmtree(cls.FOLDER, ignore_errors=True)


@dataclass(frozen=True)
class Case:
    """One way to run a scenario: in process (`workers` is 0), on several actors, or in several processes."""

    name: str
    workers: int = 0
    mps: bool = False
    processes: bool = False  # without Ray: processes that train a share of each round's clients, and exchange nothing
    cuda_graphs: bool = True


def run_case(to: Context, case: Case, scenario: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a scenario in this way, and write rows about its memory; return what its processes report.

    If it is skipped, fails or takes too long, this is a row, and the list is empty.
    """
    if to.left_s < LEAST_S and not to.quick:
        to.skip(case.name, f"{max(0.0, to.left_s):.0f} s of this part's time are left")
        return []
    if case.mps and (why := Mps.start()):
        to.skip(case.name, why)
        return []
    ran, reports = run_scenarios(to, contents(to, case, scenario), Mps.VARIABLES if case.mps else {})
    Mps.stop()
    if not reports:
        why = f"stopped after {ran.seconds:.0f} s" if ran.code is None else f"exit code {ran.code}"
        to.add(case.name, "status", "failed", note=f"{why}; see {to.part}.log")
        return []
    to.add(case.name, "seconds with start", ran.seconds, "s")
    to.add(case.name, "host memory", ran.host_gb, "GB", "largest sample of the proportional memory of all processes")
    if to.device == "cuda":
        to.add(case.name, "gpu memory", ran.gpu_mb, "MiB", "of all processes, contexts included (NVML)")
        to.add(case.name, "gpu tensors", max(one["tensors_mb"] for one in reports), "MiB", "largest process")
    for text in {text for one in reports for text in one["warnings"]}:
        to.add(case.name, "warning", "", note=text)
    return reports


def contents(to: Context, case: Case, scenario: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the scenario of each process of a case."""
    apart, gpus = case.workers if case.processes else 1, 0.0 if to.device == "cpu" else 1.0
    actors = 0 if case.processes else case.workers
    participation = scenario["clients"]["participation"] / apart
    changes = {
        "backend": "ray" if actors else "in_process",
        "training": {**scenario["training"], "cuda_graphs": case.cuda_graphs},
        "resources": {"actors": actors, "gpus_per_actor": gpus / actors} if actors else {"gpus_per_actor": gpus},
        "clients": {**scenario["clients"], "participation": participation},
    }
    return [{**scenario, **changes, "seed": 1 + i} for i in range(apart)]


def run_scenarios(
    to: Context, scenarios: Sequence[dict[str, Any]], variables: Mapping[str, str]
) -> tuple[Watched, list[dict[str, Any]]]:
    """Run scenarios at the same time, each by `gpu_run.py`; return their reports, or none if one of them failed."""
    commands = []
    for i, content in enumerate(scenarios):
        given, report = to.scratch / f"{i}.in.json", to.scratch / f"{i}.out.json"
        given.write_text(json.dumps(content))
        report.unlink(missing_ok=True)
        program = str(REPOSITORY / "benchmarks" / "gpu_run.py")
        commands.append([sys.executable, program, str(given), str(report), "--device", to.device])
    env = {**os.environ, **variables, "RAYSIM_CACHE": str(to.scratch / "cache")}
    limit_s = min(CASE_S, to.left_s - 5)
    ran = watched([sys.executable, "-c", SEVERAL, json.dumps(commands)], limit_s, to.out / f"{to.part}.log", env, True)
    if ran.code != 0:
        return ran, []
    return ran, [json.loads((to.scratch / f"{i}.out.json").read_text()) for i in range(len(scenarios))]


SAMPLE_EVERY_S = 5.0  # reading the memory of processes slows them down
CASE_S, LEAST_S = 90.0, 20.0  # time limit of a case, and time without which it does not begin
SEVERAL = """
import json, subprocess, sys
started = [subprocess.Popen(command) for command in json.loads(sys.argv[1])]
sys.exit(max(abs(one.wait()) for one in started))
"""
"""A program that starts several commands at once and waits for them."""


def images(path: Path, count: int, classes: int) -> str:
    """Write random images with the shape of CIFAR's: they train as fast as real ones, and need no download."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    np.savez(path, x=x, y=np.arange(count) % classes)
    return str(path)


def scenario(name: str, algorithm: str, rounds: int, **sections: Any) -> dict[str, Any]:
    """Return the content of a scenario on random images."""
    data = {"name": "numpy", "normalise": {"mean": [0.5] * 3, "std": [0.25] * 3}, **sections.pop("data")}
    return {"name": name, "rounds": rounds, "algorithm": {"name": algorithm}, "data": data, **sections}


def parallel_cases(to: Context) -> list[Case]:
    """Return the cases with 1, 2, 4 and 8 workers, with and without MPS; write a row about those that cannot run."""
    processes = find_spec("ray") is None
    kind = "processes" if processes else "actors"
    counts = (2,) if to.quick else (8, 4, 2, 1)
    if to.device != "cuda":
        to.skip("MPS", "needs CUDA")
        return [Case(f"{n} {kind}", n, processes=processes) for n in counts]
    if why := Mps.start():
        to.skip("MPS", why)
    Mps.stop()
    return [
        Case(f"{n} {kind}{' with MPS' if mps else ''}", n, mps, processes)
        for mps in ([False] if why else [True, False])
        for n in counts
    ]


def clients(to: Context) -> None:
    """Measure clients per second with CNN-1 to CNN-5, beside one process that records no steps."""
    count, size, per_round, rounds = (16, 40, 8, 2) if to.quick else (100, 600, 40, 4)
    local = {"epochs": 1 if to.quick else 10, "batch_size": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 0.001}
    pixels = images(to.scratch / "cifar100.npz", count * size, 100)
    work = scenario(
        "clients",
        "lg_fedavg",
        rounds,
        data={"path": pixels, "augment": True, "partition": {"name": "iid"}},
        clients={"count": count, "participation": per_round / count, "models": [f"cnn{i}" for i in range(1, 6)]},
        training={**local, "clip": 50.0},
    )
    cases = [Case("one process, eager", cuda_graphs=False), *parallel_cases(to)]
    if to.device == "cuda":
        cases.insert(1, Case("one process, recorded"))
    else:
        to.skip("one process, recorded", "only CUDA records steps")
    eager_s, digest = 0.0, ""
    for case in cases:
        if not (reports := run_case(to, case, work)):
            if case.workers and not case.processes:  # Ray may not work on this machine
                cases.append(replace(case, name=case.name.replace("actors", "processes"), processes=True))
            continue
        # Round 1 is left out, because libraries are loaded in it.
        arrived = [one["arrived_s"] for one in reports]
        seconds = max(one[-1] for one in arrived) - min(one[1] for one in arrived)
        to.add(case.name, "clients per second", per_round * (rounds - 1) / seconds, "1/s", f"rounds 2 to {rounds}")
        if case is cases[0]:
            eager_s, digest = seconds, reports[0]["digest"]
        elif digest:
            to.add(case.name, "times one eager process", eager_s / seconds, "x", "goal: 10")
            if not case.processes:
                to.add(case.name, "same digest as eager", "yes" if reports[0]["digest"] == digest else "no")


def pfl(to: Context) -> None:
    """Measure the rounds of pfl-research's CIFAR-10 benchmark; see `on_a_gpu.py` for its setting."""
    count, per_round, rounds, every = (6, 2, 2, 1) if to.quick else (1000, 50, 30, 10)
    parts = [images(to.scratch / f"{part}.npz", count * size, 10) for part, size in (("train", 50), ("test", 10))]
    work = scenario(
        "pfl_cifar10",
        "fedavg",
        rounds,
        data={"path": parts, "split": "published", "partition": {"name": "iid"}},
        clients={"count": count, "participation": per_round / count, "models": [PFL_CNN], "feature_dim": 128},
        training={"epochs": 1, "batch_size": 10, "lr": 0.1, "together": 1},
        evaluation={"every": every, "clients": "all"},
    )
    without = {"clients": {**work["clients"], "models": [f"{PFL_CNN}_without_dropout"]}}
    together = {**work, **without, "training": {**work["training"], "together": per_round}}
    runs = [
        (Case("one process"), work),
        *((case, work) for case in parallel_cases(to) if case.workers == 8 and not case.processes),
        (Case("one process, no dropout, clients trained together"), together),
    ]
    for case, content in runs:
        if not (reports := run_case(to, case, content)):
            continue
        # The first rounds, up to a test of all clients, are left out, because libraries are loaded in them.
        arrived = reports[0]["arrived_s"]
        each_s = (arrived[-1] - arrived[every]) / (rounds - every)
        to.add(
            case.name, "round", each_s, "s", f"{rounds - every} rounds, with a test of all clients after every {every}"
        )
        if not to.quick:
            to.add(case.name, "1,500 rounds at this speed", each_s * 25, "min", "goal: 5; computed, not measured")
        to.add(case.name, "clients per second", per_round / each_s, "1/s")


PFL_CNN = f"{REPOSITORY / 'benchmarks' / 'pfl_cnn.py'}:simple_cnn"
