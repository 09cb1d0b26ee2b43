"""A real cluster of two nodes: what is submitted runs there with the same bits, comes back, and ends when asked to."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from raysim.cli.main import main
from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.runs.run import run
from raysim.scenario.parse import parse_scenario
from raysim.study.compare import compare
from tests.conftest import REPOSITORY

pytestmark = [
    pytest.mark.ray,
    pytest.mark.large,  # starting a cluster takes half a minute
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning"),  # how Ray's client uses aiohttp
]

SMALL = ["rounds=2", "resources.actors=2", "algorithm.name=./mine.py"]


@dataclass(frozen=True)
class Head:
    """A running head node and the home folder of its jobs."""

    address: str
    home: Path

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=10) as answer:
            return json.load(answer)

    def nodes_of(self, kind: str = "ClientActor") -> set[str]:
        """Ids of the nodes that actors of a class live or lived on."""
        found = self.ask(f"/api/v0/actors?filter_keys=class_name&filter_predicates=%3D&filter_values={kind}&detail=1")
        return {actor["node_id"] for actor in found["data"]["result"]["result"]}

    def nodes_of_tasks(self, function: str) -> set[str]:
        """Ids of the nodes that tasks with a function ran on."""
        query = f"filter_keys=func_or_class_name&filter_predicates=%3D&filter_values={function}"
        return {task["node_id"] for task in self.ask(f"/api/v0/tasks?{query}&detail=1")["data"]["result"]["result"]}

    def alive_actors(self) -> list[str]:
        found = self.ask("/api/v0/actors?filter_keys=state&filter_predicates=%3D&filter_values=ALIVE")
        names = [actor["class_name"] for actor in found["data"]["result"]["result"]]
        return [name for name in names if name != "JobSupervisor"]


@contextmanager
def head_node() -> Iterator[Head]:
    """A Ray of its own on free ports of loopback, stopped by its process ids: `ray stop` would stop every cluster.

    A second node has an address of its own and, where mounting is allowed, another disk for the jobs' results.
    """
    home = Path(tempfile.mkdtemp(prefix="rj-", dir="/tmp"))
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port")
    names += ("ray-client-server-port", "metrics-export-port", "runtime-env-agent-port")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--disable-usage-stats"]
    command += [f"--temp-dir={home}/t", *(f"--{name}={port}" for name, port in ports.items())]
    dropped = ("RAY_ADDRESS", "MLFLOW_TRACKING_URI")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment |= {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= {"RAY_AUTH_MODE": "disabled"}
    with (home / "out").open("w") as out:
        node = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    started = [node]
    head = Head(f"http://127.0.0.1:{ports['dashboard-port']}", home)
    try:
        wait_for(head, node)
        started.append(join(ports["port"], environment, home))
        wait_for_nodes(head, 2)
        yield head
    finally:
        family = [
            process
            for one in started
            for process in (psutil.Process(one.pid), *psutil.Process(one.pid).children(recursive=True))
        ]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=60)
        for one in started:
            one.wait()
        shutil.rmtree(home, ignore_errors=True)


def join(port: int, environment: dict[str, str], home: Path) -> subprocess.Popen[bytes]:
    """A second node on 127.0.0.2. It does not see the files that the head node writes to ~/raysim, and vice versa."""
    names = (
        "dashboard-agent-listen-port",
        "dashboard-agent-grpc-port",
        "metrics-export-port",
        "runtime-env-agent-port",
    )
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address=127.0.0.1:{port}", "--block"]
    command += ["--num-cpus=2", "--node-ip-address=127.0.0.2", "--disable-usage-stats"]
    command += [f"--temp-dir={home}/u"]  # a folder of its own, as on another machine: two nodes unpack jobs into theirs
    command += [f"--{name}={port}" for name, port in ports.items()]
    results = home / "raysim"
    results.mkdir(exist_ok=True)
    own_disk = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(results)]
    if subprocess.run([*own_disk, "true"], capture_output=True).returncode == 0:
        command = [*own_disk, *command]
    with (home / "out2").open("w") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)


def wait_for_nodes(head: Head, count: int) -> None:
    until = time.monotonic() + 240
    while len(head.ask("/api/v0/nodes")["data"]["result"]["result"]) < count:
        assert time.monotonic() < until, (head.home / "out2").read_text()
        time.sleep(0.2)


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def wait_for(head: Head, node: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 240
    while True:
        assert node.poll() is None, (head.home / "out").read_text()
        assert time.monotonic() < until, "the head node does not come up"
        try:
            head.ask("/api/version")
        except OSError:
            time.sleep(0.1)
        else:
            return


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with head_node() as started:
        yield started


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with a method in a file, which a job does not see: if it knows it, that has come with it."""
    own = tmp_path_factory.mktemp("own")
    shutil.copy(REPOSITORY / "algorithms" / "fedgh.py", own / "mine.py")
    return own


class Output(str):
    """What a command printed; `code` is its exit code."""

    code: int


def command(*words: str, address: str | None) -> Output:
    """Run a command; returns what it printed."""
    shown = io.StringIO()
    code: Any = 0
    try:
        with redirect_stdout(shown), redirect_stderr(shown):
            main([*words, *(["--address", address] if address else [])])
    except SystemExit as ended:
        code = ended.code or 0
    output = Output(shown.getvalue())
    if "No available agent" in output:  # of a new cluster
        time.sleep(1)
        return command(*words, address=address)
    output.code = code
    return output


@pytest.fixture
def raysim(head: Head, mine: Path, workplace: Path) -> Any:
    """Runs a command on the head node's cluster in a folder with `mine` alone; returns what it printed."""
    shutil.copy(mine / "mine.py", workplace)
    return partial(command, address=head.address)


@pytest.fixture(scope="module")
def first(head: Head, mine: Path, tracking_store: str) -> Output:
    """What `submit` printed of a job that has run with two actors on the two nodes; its id is "first"."""
    store = f"MLFLOW_TRACKING_URI={tracking_store}"
    words = ["submit", QUICKSTART, *settings(*SMALL), "--wait", "--id", "first", "--env", store]
    with contextlib.chdir(mine):
        return command(*words, address=head.address)


def settings(*items: str) -> list[str]:
    return [word for item in items for word in ("--set", item)]


QUICKSTART = str(REPOSITORY / "scenarios" / "quickstart.yaml")


def facts(raysim: Any, job: str) -> Any:
    """The facts of `raysim status`."""
    return json.loads(raysim("status", job, "--json"))


def test_a_job_runs_as_it_would_here_and_comes_back(
    head: Head, first: Output, raysim: Any, tracking_store: str
) -> None:
    assert first.code == 0, first
    assert "round 2/2" in first
    assert "raysim-job" not in first  # machine-readable lines are not shown
    # Ray may give the head another address of the machine than the given one.
    assert len(set(re.findall(r"^node ([\d.]+): 1 client actors?$", first, re.MULTILINE))) == 2
    assert len(head.nodes_of()) == 2
    local = run(parse_scenario(QUICKSTART, [*SMALL, "backend=in_process"]), quiet=True)

    fetched = raysim("fetch", "first")
    assert fetched.code == 0, fetched
    folder = Path(fetched.partition(":")[0])
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["state_digest"] == local.state_digest
    there = Path(summary["folder"])
    assert there.is_relative_to(head.home / "raysim" / "runs" / "quickstart")
    assert folder == Path("runs", "quickstart", there.name)
    assert tracking_store in summary["mlflow"]
    for name in ("rounds.parquet", "plots/accuracy.png"):
        assert (folder / name).read_bytes() == (there / name).read_bytes()
    for _ in range(300):  # the helper empties its log once Ray has stopped it
        logs = [file.read_text() for file in head.home.glob("t/session_latest/logs/job-driver-raysim-fetch-*")]
        if not any("raysim-archive" in text for text in logs):
            break
        time.sleep(0.1)
    else:
        raise AssertionError("the log of the helper still has the archive")

    status = raysim("status", "first")
    assert "SUCCEEDED" in status
    assert local.state_digest[:12] in status
    table = raysim("jobs")
    assert "first" in table and "raysim-fetch" not in table
    assert summary["method"] == "FedGH" and "FedGH" in table  # the class in mine.py
    assert "round 2/2" in raysim("logs", "first")


def test_a_sweep(head: Head, raysim: Any, tracking_store: str, tmp_path: Path) -> None:
    """One job runs all cells, with the bits of runs by themselves; it comes back as a folder, twice into the same.

    Its nodes share no disk, and no address is given.
    """
    file = tmp_path / "few.yaml"
    file.write_text(f"base: {os.path.relpath(QUICKSTART, tmp_path)}\nseeds: [1, 2]\nset: [algorithm.name=./mine.py]\n")
    words = ["submit", str(file), "--set", "rounds=2", "--wait", "--env", f"MLFLOW_TRACKING_URI={tracking_store}"]
    ended = raysim(*words, "--id", "few")
    assert (ended.code, ended.count("done  ")) == (0, 4), ended  # as each ends, and in the closing list
    assert len(head.nodes_of_tasks("_work")) == 2
    assert raysim("fetch", "few").startswith("runs/few: ")
    assert raysim("fetch", "few").startswith("runs/few: ")
    listed = raysim("sweep", str(file), "--set", "rounds=2", "--status", address=None)  # a command without a cluster
    assert (listed.code, listed.splitlines()[-1]) == (0, "2 done"), listed
    assert [len(variant.runs) for variant in compare("runs/few").variants] == [2]
    for seed in (1, 2):
        (summary,) = Path("runs/few").glob(f"seed-{seed}-*/*/summary.json")
        alone = run(parse_scenario(QUICKSTART, [*SMALL, f"seed={seed}", "backend=in_process"]), quiet=True)
        assert json.loads(summary.read_text())["state_digest"] == alone.state_digest
    assert not list(Path("runs/few").rglob("checkpoints"))
    assert "SUCCEEDED" in raysim("status", "few")


def test_a_run_goes_on(head: Head, first: Output, raysim: Any, tracking_store: str) -> None:
    """Named by its job alone, to the bits of a run that was never interrupted."""
    folder = facts(raysim, "first")["folder"]
    output = raysim("submit", "--resume", "first", *settings("rounds=3"), "--wait", "--id", "second")
    assert output.code == 0, output
    assert "resuming after round 2" in output
    local = run(parse_scenario(QUICKSTART, ["rounds=3", *SMALL[1:], "backend=in_process"]), quiet=True)
    summary = facts(raysim, "second")["summary"]
    assert (summary["folder"], summary["rounds"]) == (folder, 3)
    assert summary["state_digest"] == local.state_digest


def test_stop(head: Head, raysim: Any, tracking_store: str) -> None:
    id_, long, line = "endless", "rounds=100000", "round      1/100000"
    words = settings(long, "resources.actors=1", f"tracking.uri={tracking_store}")
    assert raysim("submit", QUICKSTART, *words, "--id", id_).code == 0
    program = [Path(sys.executable).parent / "raysim", "logs", id_, "--follow", "--address", head.address]
    follower = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert follower.stdout is not None
    shown = ""
    while line not in shown:
        read = follower.stdout.readline()
        assert read, shown
        shown += read
    assert "progress   round" in raysim("status", id_)
    assert sorted(head.alive_actors()) == ["ClientActor", "ServerActor"]
    output = raysim("stop", id_)
    assert output.code == 0, output
    assert f"{id_}: STOPPED" in output
    assert "are kept in" in output
    assert head.alive_actors() == []
    shown += follower.communicate(timeout=60)[0]
    summary = facts(raysim, id_)["summary"]
    assert summary == json.loads((Path(summary["folder"]) / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert f"resume with:  raysim submit --resume {summary['folder']}" in shown
    checkpoint = CheckpointStore.open(
        open_storage(summary["checkpoint"]["folder"])
    ).latest()  # what `--resume` would go on from
    assert checkpoint is not None and summary["rounds"] == checkpoint.round
