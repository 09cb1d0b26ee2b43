"""Chaos: runs of the quickstart whose client actors, server actor and driver are killed at random moments.

Every run must end with the state digest, the metrics and the client rows of one that nothing happened to, in one run
folder and one MLflow run, with every round once. `make chaos` kills a hundred times; the test suite a few.

    python -m tests.chaos --kills 100 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from raysim.report.load import read_clients, read_rounds, read_summary

REPOSITORY = Path(__file__).resolve().parent.parent
SCENARIO = REPOSITORY / "scenarios" / "quickstart.yaml"
KINDS = {"client actor": "ray::HostActor", "server actor": "ray::ServerActor", "driver": ""}
VARYING = ("time/", "memory/", "engine/")
PATIENCE_S = 300.0
PER_RUN = 12  # kills, at most


@dataclass
class Tally:
    """What was done."""

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    resumed: int = 0
    restarts: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of a {kind}" for kind, count in sorted(self.kills.items()))
        return (
            f"{sum(self.kills.values())} kills ({kills}) in {self.runs} runs, {self.resumed} resumptions, "
            f"{self.restarts} returns to a commit, {self.seconds:.0f} s: every result identical"
        )


@dataclass
class Chaos:
    """One scenario, run again and again."""

    folder: Path
    rounds: int
    seed: int
    say: Callable[[str], None] = print
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        reference = self.folder / "reference"
        reference.mkdir(parents=True)
        with (reference / "log.txt").open("w") as log:
            assert self.start(reference, log, "backend=in_process").wait(PATIENCE_S) == 0
        self.expected = results(run_folder(reference))

    def start(self, cwd: Path, log: IO[str], *sets: str) -> subprocess.Popen[str]:
        """`raysim launch`, or `raysim resume` if the run in `cwd` has begun."""
        known = run_folder(cwd)
        if known is not None and (known / "run.json").exists():
            self.tally.resumed += 1
            return raysim(cwd, log, "resume", str(known))
        always = [f"rounds={self.rounds}", "resources.actors=2", "checkpoint.every=2", "failure.max_attempts=1000"]
        return raysim(cwd, log, "launch", str(SCENARIO), *(part for s in (*always, *sets) for part in ("--set", s)))

    def run(self, victims: Iterator[str], pause_s: Callable[[], float]) -> None:
        """One run to its end, with a kill after every pause until `victims` ends; then compare."""
        cwd = self.folder / f"run{self.tally.runs}"
        cwd.mkdir()
        began = time.monotonic()
        with (cwd / "log.txt").open("w") as log:
            driver = self.start(cwd, log)
            try:
                for kind in victims:
                    if not self._strike(kind, driver, cwd, pause_s()):
                        break
                    if kind == "driver":
                        driver = self.start(cwd, log)
                code = driver.wait(PATIENCE_S)
            finally:
                end(driver)
        told = (cwd / "log.txt").read_text()
        assert code == 0, told[-3000:]
        folder = run_folder(cwd)
        compare(self.expected, results(folder))
        compare({"steps": list(range(self.rounds + 1))}, {"steps": mlflow_steps(cwd / "mlflow.db")})
        self.tally.runs += 1
        self.tally.restarts += read_summary(folder)["restarts"]
        self.tally.seconds += time.monotonic() - began
        self.say(f"run {self.tally.runs}: {sum(self.tally.kills.values())} kills so far, identical")

    def _strike(self, kind: str, driver: subprocess.Popen[str], cwd: Path, pause_s: float) -> bool:
        """Wait, then kill; False when the run ended before."""
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            if driver.poll() is not None:
                return False
            time.sleep(0.02)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if driver.poll() is not None:
                return False
            pids = self._pids(kind, driver.pid)
            if pids:
                break
            time.sleep(0.05)  # it is not up (again) yet
        pid = self.rng.choice(pids)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return driver.poll() is None
        self.tally.kills[kind] += 1
        if kind == "driver":
            driver.wait(30)
        return True

    def _pids(self, kind: str, driver: int) -> list[int]:
        if kind == "driver":
            return [driver]
        found = []
        try:
            for process in psutil.Process(driver).children(recursive=True):
                try:
                    if " ".join(process.cmdline()).startswith(KINDS[kind]):
                        found.append(process.pid)
                except psutil.Error:
                    continue
        except psutil.Error:
            return []
        return found


def raysim(cwd: Path, log: IO[str], *args: str) -> subprocess.Popen[str]:
    """The real command, in a folder and with a store of its own."""
    env = {k: v for k, v in os.environ.items() if k not in {"RAY_ADDRESS", "MLFLOW_TRACKING_URI"}}
    command = [sys.executable, "-c", "from raysim.cli.main import main; main()", *args]
    return subprocess.Popen(command, cwd=cwd, env=env, stdout=log, stderr=subprocess.STDOUT, text=True)


def run_folder(cwd: Path) -> Any:
    """The one run folder there; None before it is made."""
    found = sorted(cwd.glob("runs/*/*"))
    assert len(found) <= 1, found
    return found[0] if found else None


def results(folder: Path) -> dict[str, Any]:
    """All that must be the same, whatever happened."""
    rounds = read_rounds(folder)
    rounds = rounds.select([name for name in rounds.column_names if not name.startswith(VARYING)])
    clients = read_clients(folder)
    clients = clients.select([name for name in clients.column_names if not name.endswith("_s")])
    summary = read_summary(folder)
    kept = {name: summary[name] for name in ("status", "rounds", "state_digest", "best_round", "up_bytes_by_field")}
    return {"rounds": rounds.to_pylist(), "clients": clients.to_pylist(), **kept}


def compare(expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Raises `AssertionError` naming the first difference."""
    for name, value in expected.items():
        if found[name] != value:
            pairs = zip(value, found[name], strict=False) if isinstance(value, list) else [(value, found[name])]
            first = next((pair for pair in pairs if pair[0] != pair[1]), ("lengths", len(value), len(found[name])))
            raise AssertionError(f"{name} differ: {first}")


def mlflow_steps(database: Path) -> list[int]:
    """The rounds in the store's one run, as often as they are there."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as store:
        ((runs,),) = store.execute("select count(*) from runs").fetchall()
        assert runs == 1, f"{runs} runs in MLflow"
        found = store.execute("select step from metrics where key = 'accuracy/all' order by step").fetchall()
    return [step for (step,) in found]


def end(driver: subprocess.Popen[str]) -> None:
    """Leave nothing running, whatever went wrong."""
    if driver.poll() is None:
        family = psutil.Process(driver.pid).children(recursive=True)
        driver.kill()
        driver.wait()
        for process in family:
            try:
                process.kill()
            except psutil.Error:
                continue


def main() -> None:
    """Kill as often as asked, over as many runs as it takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=150)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raysim-chaos-") as folder:
        chaos = Chaos(Path(folder), args.rounds, args.seed, lambda text: print(text, flush=True))
        while sum(chaos.tally.kills.values()) < args.kills:
            left = args.kills - sum(chaos.tally.kills.values())
            weights = [5, 3, 2]
            victims = (chaos.rng.choices(list(KINDS), weights)[0] for _ in range(min(left, PER_RUN)))
            chaos.run(victims, lambda: chaos.rng.uniform(0.0, 10.0))
        print(chaos.tally)
        print(json.dumps({"kills": chaos.tally.kills, "runs": chaos.tally.runs, "seconds": chaos.tally.seconds}))


if __name__ == "__main__":
    main()
