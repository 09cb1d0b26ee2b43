"""Measure the overhead of a sweep over the work of its cells: the quickstart with sixteen methods and three seeds each.

python benchmarks/sweep.py [--methods N] [--seeds N] [--rounds N] [--parallel N] [--kill] [--nodes N [--deaths N]]

Runs `raysim sweep` in an empty folder, and compares its wall-clock time with the cells' seconds for training,
aggregation and evaluation, divided by the number of cores. The difference is the time for starting workers, reading
data, MLflow and files. Then `raysim compare` on the sweep is timed.
--kill: also check that a kill loses nothing. `kill -9` ends the driver once half of the cells are done, and the same
command runs the rest; the wall-clock time is the sum of both. Afterwards, every cell must have exactly one finished
run, cells that were done must not have run again, and three cells, drawn with a fixed seed, must have the same digest
as `raysim launch` of their scenario. Exit code 1: one of these checks failed.
--nodes: run on a simulated cluster of so many nodes with one CPU each. --deaths: so many of them die, at regular times
in the sweep, and the one command must run all cells; the checks are those of --kill, and no cell may have a second run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from raysim.results.load import read_rounds, read_summary
from raysim.study.definition import Sweep, load_sweep

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
RAYSIM = [sys.executable, "-m", "raysim"]
PHASES = ("train", "aggregate", "evaluate")
TARGET = 1.3
CHECKED = 3  # cells that `raysim launch` repeats


def write_sweep(folder: Path, methods: int | None, seeds: int, rounds: int | None) -> Path:
    """Write the sweep file. methods, rounds: None for all of them."""
    runs = yaml.safe_load((SCENARIOS / "sweeps" / "digits.yaml").read_text())["runs"]
    content: dict[str, Any] = {
        "base": str(SCENARIOS / "quickstart.yaml"),
        "seeds": f"1..{seeds}",
        "runs": dict(list(runs.items())[:methods]),
        "set": [] if rounds is None else [f"rounds={rounds}"],
    }
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def environment() -> dict[str, str]:
    """Return this process's environment, without variables that would redirect the runs."""
    return {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI")}


def finished_runs(sweep: Sweep) -> dict[str, list[Path]]:
    """Cell -> the folders of its finished runs."""
    found: dict[str, list[Path]] = {}
    for cell in sweep.cells:
        folders = [path.parent for path in sorted((sweep.output / cell.folder_name).glob("*/summary.json"))]
        found[cell.name] = [folder for folder in folders if read_summary(folder).get("status") == "finished"]
    return found


def work_s(sweep: Sweep) -> float:
    """Return the seconds that the cells spent on training, aggregation and evaluation."""
    summaries = [read_summary(folder) for folders in finished_runs(sweep).values() for folder in folders]
    return sum(float(summary["seconds"][phase]) for summary in summaries for phase in PHASES)


def run_until_half_done(command: list[str], folder: Path, sweep: Sweep) -> None:
    """Start the sweep and kill its driver once half of its cells are done."""
    with subprocess.Popen(command, cwd=folder, env=environment()) as process:
        while process.poll() is None:
            if sum(map(bool, finished_runs(sweep).values())) >= len(sweep.cells) // 2:
                process.kill()
            time.sleep(0.2)


@contextlib.contextmanager
def cluster_of(nodes: int) -> Iterator[tuple[str, list[Callable[[], None]]]]:
    """Yield the address of a simulated cluster, and a function per node that ends the node's processes."""
    # Before the import, at which Ray reads them. The cluster listens on this machine's address.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    added = [cluster.add_node(num_cpus=1) for _ in range(nodes)]
    try:
        yield cluster.address, [partial(cluster.remove_node, node, allow_graceful=False) for node in added]
    finally:
        cluster.shutdown()


def run_while_nodes_die(command: list[str], folder: Path, sweep: Sweep, ends: list[Callable[[], None]]) -> None:
    """Run the sweep, and end the nodes one by one while it runs. Raises `CalledProcessError`."""
    due = [len(sweep.cells) * (i + 1) // (len(ends) + 1) for i in range(len(ends))]
    with subprocess.Popen(command, cwd=folder, env=environment()) as process:
        while process.poll() is None:
            if due and sum(map(bool, finished_runs(sweep).values())) >= due[0]:
                ends.pop(0)()
                print(f"a node died with {due.pop(0)} of {len(sweep.cells)} cells done", flush=True)
            time.sleep(0.2)
    if process.returncode or due:
        raise subprocess.CalledProcessError(process.returncode, command)


def launch_digest(folder: Path, sets: tuple[str, ...]) -> str:
    """Return the digest of a single run with the same overrides."""
    options = [word for item in (*sets, f"output={folder / 'alone'}") for word in ("--set", item)]
    command = [*RAYSIM, "launch", str(SCENARIOS / "quickstart.yaml"), *options, "--quiet"]
    before = set(folder.glob("alone/*/*"))
    subprocess.run(command, cwd=folder, env=environment(), check=True, stdout=subprocess.DEVNULL)
    (run,) = set(folder.glob("alone/*/*")) - before
    return str(read_summary(run)["state_digest"])


def problems(sweep: Sweep, before: dict[str, list[Path]], folder: Path) -> list[str]:
    """Return failed checks, a sentence each. before: the runs that were finished when the driver was killed."""
    after = finished_runs(sweep)
    found = [f"{name}: {len(runs)} finished runs" for name, runs in after.items() if len(runs) != 1]
    found += [f"{name}: was done, and ran again" for name, runs in before.items() if runs and runs != after[name]]
    for cell in sweep.cells:
        runs = sorted((sweep.output / cell.folder_name).glob("*/run.json"))
        rounds = [read_rounds(run.parent)["round"].to_pylist() for run in runs]
        if rounds != [list(range(cell.rounds + 1))]:
            found.append(f"{cell.name}: the runs have the rounds {rounds}")
    for cell in random.Random(0).sample(sweep.cells, min(CHECKED, len(sweep.cells))):
        digests = {str(read_summary(run)["state_digest"]) for run in after[cell.name]}
        alone = launch_digest(folder, cell.sets)
        print(f"{cell.name}: {alone[:12]} by itself, {', '.join(one[:12] for one in digests)} in the sweep", flush=True)
        found += [] if digests == {alone} else [f"{cell.name}: another digest than by itself"]
    return found


def timed(command: list[str], folder: Path) -> float:
    """Run a command and return its seconds. Raises `CalledProcessError`."""
    begin_s = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment(), check=True)
    return time.perf_counter() - begin_s


def main() -> None:
    """Measure the overhead and, with --kill, check that a kill loses nothing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", type=int, help="the first so many, to try it; default: all sixteen")
    parser.add_argument("--seeds", type=int, default=3, help="default: 3")
    parser.add_argument("--rounds", type=int, help="default: the quickstart's")
    parser.add_argument("--parallel", type=int, help="cells at the same time; default: one per core")
    parser.add_argument(
        "--kill", action="store_true", help="kill the driver in the middle and see that nothing is lost"
    )
    parser.add_argument("--nodes", type=int, default=0, help="simulate a cluster of so many nodes with one CPU each")
    parser.add_argument("--deaths", type=int, default=0, help="so many of the nodes die while the sweep runs")
    given = parser.parse_args()
    if given.deaths and (given.deaths >= given.nodes or given.kill):
        parser.error("--deaths needs more --nodes, and no --kill")
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="raysim-bench-") as name, contextlib.ExitStack() as cleanup:
        folder = Path(name)
        file = write_sweep(folder, given.methods, given.seeds, given.rounds)
        sweep = load_sweep(file, sets=[f"output={folder / 'runs'}"])
        command = [*RAYSIM, "sweep", str(file), "--set", f"output={folder / 'runs'}"]
        command += [] if given.parallel is None else ["--parallel", str(given.parallel)]
        ends: list[Callable[[], None]] = []
        if given.nodes:
            address, ends = cleanup.enter_context(cluster_of(given.nodes))
            command = ["env", f"RAY_ADDRESS={address}", *command]  # only the sweep joins this cluster
        load, begin_s = os.getloadavg()[0], time.perf_counter()
        before: dict[str, list[Path]] = {}
        if given.kill:
            run_until_half_done(command, folder, sweep)
            before = finished_runs(sweep)
            print(f"killed with {sum(map(bool, before.values()))} of {len(sweep.cells)} cells done", flush=True)
        if given.deaths:
            run_while_nodes_die(command, folder, sweep, ends[: given.deaths])
        else:
            timed(command, folder)
        seconds, work = time.perf_counter() - begin_s, work_s(sweep)
        compare_s = timed([*RAYSIM, "compare", str(folder / "runs")], folder)
        print(f"{len(sweep.cells)} cells, {cores} cores, load before {load:.1f}")
        print(f"wall-clock {seconds:.1f} s, work {work:.1f} s, of which each core has {work / cores:.1f} s")
        print(f"wall-clock / work per core  {seconds / (work / cores):.2f}  (target: <= {TARGET})")
        print(f"raysim compare              {compare_s:.1f} s", flush=True)
        if given.kill or given.nodes:
            found = problems(sweep, before, folder)
            print(*(found or [f"all {len(sweep.cells)} cells are done, each once"]), sep="\n")
            sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
