"""Chaos: runs of the quickstart whose client actors, server actor and driver are killed at random moments.

The driver also gets Ctrl-C and SIGTERM, and all three signals before and after every step of its closing. Every run
must end with the state digest, the metrics and the client rows of one that nothing happened to, in one run folder and
one MLflow run, with every round once, every file, and FINISHED. `make chaos` strikes a hundred times; the test suite a
few.

    python -m tests.chaos --kills 100 --seed 1
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlparse

import psutil

from raysim.results.load import read_clients, read_rounds, read_summary
from raysim.results.mlflow import ARTIFACTS

REPOSITORY = Path(__file__).resolve().parent.parent
SCENARIO = REPOSITORY / "scenarios" / "quickstart.yaml"
KINDS = {"client actor": "ray::ClientActor", "server actor": "ray::ServerActor"}
SIGNALS = {"driver": signal.SIGKILL, "driver by SIGTERM": signal.SIGTERM, "driver by Ctrl-C": signal.SIGINT}
WEIGHTS = {"client actor": 5, "server actor": 3, "driver": 2, "driver by SIGTERM": 1, "driver by Ctrl-C": 1}
STEPS = (
    "raysim.results.folder:RunFolder.end",
    "raysim.runs.execution:Execution._shut_down",
    "raysim.runs.execution:Execution._draw",
    "raysim.runs.execution:plot_accuracy",
    "raysim.results.mlflow:MlflowTracker._start",
    "raysim.results.mlflow:MlflowTracker._complete",
    "raysim.results.folder:RunFolder.mark_finished",
)
"""What a run that has all its rounds still does; MLflow is opened then by a run that is closed again."""
VARYING = ("time/", "memory/", "engine/")
TIMEOUT_S = 900.0  # much, for machines that are busy with other things
PER_RUN = 6  # strikes in its rounds, and as many in its closing
SAID = "chaos: "  # begins the lines of a driver that strikes


@dataclass(frozen=True)
class Strike:
    """A signal that a driver sends when it comes to a function, to itself or to an actor of its own."""

    number: int
    place: str  # module:function or module:class.method
    after: bool = False  # the function has returned, rather than before it is called
    nth: int = 1  # call
    whom: str = ""  # the beginning of a process's title; nothing: the driver

    def __str__(self) -> str:
        return f"{signal.Signals(self.number).name} {'after' if self.after else 'before'} {self.place.split(':')[1]}"

    def prepare(self) -> None:
        """In the driver: let the function strike, once."""
        module, path = self.place.split(":")
        *owners, name = path.split(".")
        owner: Any = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        original, calls = getattr(owner, name), itertools.count(1)

        def struck(*given: Any, **named: Any) -> Any:
            due = next(calls) == self.nth
            if due and not self.after:
                self._strike()
            result = original(*given, **named)
            if due and self.after:
                self._strike()
            return result

        setattr(owner, name, struck)

    def _strike(self) -> None:
        os.write(2, f"\n{SAID}{json.dumps(asdict(self))}\n".encode())
        os.kill(processes(os.getpid(), self.whom)[0] if self.whom else os.getpid(), self.number)


def driver() -> None:
    """The `raysim` command, with strikes."""
    for given in json.loads(os.environ["CHAOS"]):
        Strike(**given).prepare()
    from raysim.cli.main import main

    main()


def deck(rng: random.Random) -> Iterator[Strike]:
    """Every signal before and after every step of the closing, in another order every time."""
    cards = [
        Strike(int(number), place, after)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        for place in STEPS
        for after in (False, True)
    ]
    while True:
        rng.shuffle(cards)
        yield from cards


@dataclass
class Tally:
    """What was done."""

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    resumed: int = 0
    restarts: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        kills = ", ".join(f"{kind}: {count}" for kind, count in sorted(self.kills.items()))
        return (
            f"{sum(self.kills.values())} strikes ({kills}) in {self.runs} runs, {self.resumed} resumptions, "
            f"{self.restarts} returns to a checkpoint, {self.seconds:.0f} s: every result identical"
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
            assert self.start(reference, log, "backend=in_process").wait(TIMEOUT_S) == 0
        self.expected = results(run_folder(reference))
        self.deck = deck(self.rng)

    def start(self, cwd: Path, log: IO[str], *sets: str, strikes: Sequence[Strike] = ()) -> subprocess.Popen[str]:
        """`raysim launch`, or `raysim resume` if the run in `cwd` has begun."""
        known = run_folder(cwd)
        if known is not None and (known / "run.json").exists():
            self.tally.resumed += 1
            return raysim(cwd, log, "resume", str(known), strikes=strikes)
        always = [f"rounds={self.rounds}", "resources.actors=2", "checkpoint.every=2", "failure.max_attempts=1000"]
        words = [part for s in (*always, *sets) for part in ("--set", s)]
        return raysim(cwd, log, "launch", str(SCENARIO), *words, strikes=strikes)

    def run(self, victims: Iterator[str], pause_s: Callable[[], float], plans: Sequence[Sequence[Strike]] = ()) -> None:
        """One run to its end, with a kill after every pause until `victims` ends; then compare.

        plans: what the first driver strikes, then the one after it, and so on; a driver that `victims` ends passes its
        own on to the next.
        """
        left = deque(plans)
        cwd = self.folder / f"run{self.tally.runs}"
        cwd.mkdir()
        began = time.monotonic()
        with (cwd / "log.txt").open("w") as log:
            driver = self.start(cwd, log, strikes=left[0] if left else ())
            try:
                for kind in victims:
                    if not self._strike(kind, driver, cwd, pause_s()):
                        break
                    if kind in SIGNALS:
                        driver = self.start(cwd, log, strikes=left[0] if left else ())
                while (code := driver.wait(TIMEOUT_S)) != 0 and left:
                    # MLflow is opened while rounds are run, where SIGTERM ends a run, too.
                    codes = {
                        -signal.SIGKILL if strike["number"] == signal.SIGKILL else 130
                        for strike in struck(cwd)
                        if strike["number"] != signal.SIGTERM or strike["place"].endswith("_start")
                    }
                    assert code in codes, (cwd / "log.txt").read_text()[-3000:]
                    left.popleft()
                    driver = self.start(cwd, log, strikes=left[0] if left else ())
            finally:
                end(driver)
        told = (cwd / "log.txt").read_text()
        assert code == 0, told[-3000:]
        assert "*** SIG" not in told, told[-9000:]  # a stack of Ray's in C++
        folder = run_folder(cwd)
        compare(self.expected, results(folder))
        compare(
            {"steps": list(range(self.rounds + 1)), "status": "FINISHED", "files": files(folder)},
            mlflow_run(cwd / "mlflow.db", folder),
        )
        for strike in struck(cwd):
            self.tally.kills[strike["whom"] or str(Strike(**strike))] += 1
        self.tally.runs += 1
        self.tally.restarts += read_summary(folder)["restarts"]
        self.tally.seconds += time.monotonic() - began
        self.say(f"run {self.tally.runs}: {sum(self.tally.kills.values())} strikes so far, identical")

    def _strike(self, kind: str, driver: subprocess.Popen[str], cwd: Path, pause_s: float) -> bool:
        """Wait, then kill; False when the run ended before."""
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            if driver.poll() is not None:
                return False
            time.sleep(0.02)
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            if driver.poll() is not None:
                return False
            pids = [driver.pid] if kind in SIGNALS else processes(driver.pid, KINDS[kind])
            if pids:
                break
            time.sleep(0.05)  # it is not up (again) yet
        pid = self.rng.choice(pids)
        try:
            os.kill(pid, SIGNALS.get(kind, signal.SIGKILL))
        except ProcessLookupError:
            return driver.poll() is None
        self.tally.kills[kind] += 1
        # One that was asked to end may have been at the end, and go on; a kill there is the business of `plans`.
        return kind not in SIGNALS or driver.wait(TIMEOUT_S) != 0


def processes(driver: int, title: str) -> list[int]:
    """The living descendants of this driver whose title begins so."""
    found = []
    try:
        for process in psutil.Process(driver).children(recursive=True):
            try:
                if " ".join(process.cmdline()).startswith(title):
                    found.append(process.pid)
            except psutil.Error:
                continue
    except psutil.Error:
        return []
    return found


def raysim(cwd: Path, log: IO[str], *args: str, strikes: Sequence[Strike] = ()) -> subprocess.Popen[str]:
    """The real command, in a folder and with a store of its own."""
    env = {k: v for k, v in os.environ.items() if k not in {"RAY_ADDRESS", "MLFLOW_TRACKING_URI"}}
    env |= {"CHAOS": json.dumps([asdict(strike) for strike in strikes])}
    program = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from tests.chaos import driver; driver()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *args],
        cwd=cwd,
        env=env,
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # in the background of a script it is ignored
    )


def struck(cwd: Path) -> list[dict[str, Any]]:
    """The strikes of all drivers so far."""
    lines = (cwd / "log.txt").read_text().splitlines()
    return [json.loads(line.removeprefix(SAID)) for line in lines if line.startswith(SAID)]


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


def files(folder: Path) -> dict[str, str]:
    """The files of a run that MLflow has, too, with their SHA-256; of summary.json what it says."""
    paths = [path for name in ARTIFACTS for path in folder.glob(name)]
    found = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    return found | {"summary.json": json.dumps(read_summary(folder), sort_keys=True)}


def mlflow_run(database: Path, folder: Path) -> dict[str, Any]:
    """The store's one run: its rounds as often as they are there, its status, its files."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as store:
        ((status, artifacts),) = store.execute("select status, artifact_uri from runs").fetchall()
        found = store.execute("select step from metrics where key = 'accuracy/all' order by step").fetchall()
    return {"steps": [step for (step,) in found], "status": status, "files": files(Path(urlparse(artifacts).path))}


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
    parser.add_argument("--kills", type=int, default=100, help="strikes of any kind, at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=150)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raysim-chaos-") as folder:
        chaos = Chaos(Path(folder), args.rounds, args.seed, lambda text: print(text, flush=True))
        while sum(chaos.tally.kills.values()) < args.kills:
            victims = (chaos.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0] for _ in range(PER_RUN))
            plans = [list(itertools.islice(chaos.deck, 2)) for _ in range(PER_RUN // 2)]
            chaos.run(victims, lambda: chaos.rng.uniform(0.0, 10.0), plans)
        print(chaos.tally)
        print(json.dumps({"kills": chaos.tally.kills, "runs": chaos.tally.runs, "seconds": chaos.tally.seconds}))


if __name__ == "__main__":
    main()
