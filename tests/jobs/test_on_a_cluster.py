"""A real cluster of two nodes: what is submitted runs there with the same bits, comes back, and ends when asked to."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import algorithms
from raysim.cli.main import main
from raysim.jobs.archive import listed
from raysim.jobs.cluster import connect, find_address
from raysim.jobs.fetch import fetch
from raysim.jobs.versions import Versions
from raysim.jobs.watch import follow
from raysim.launch.run import run
from raysim.scenario.load import load_scenario
from tests.conftest import REPOSITORY
from tests.jobs import add_commands

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning"),  # how Ray's client uses aiohttp
]

SMALL = ["rounds=2", "resources.actors=2", "algorithm.name=mine"]


@dataclass(frozen=True)
class Head:
    """A running head node and the home folder of its jobs."""

    address: str
    home: Path

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=10) as answer:
            return json.load(answer)

    def nodes_of_clients(self) -> set[str]:
        """Ids of the nodes that client actors live or lived on."""
        found = self.ask("/api/v0/actors?filter_keys=class_name&filter_predicates=%3D&filter_values=HostActor&detail=1")
        return {actor["node_id"] for actor in found["data"]["result"]["result"]}

    def alive_actors(self) -> list[str]:
        found = self.ask("/api/v0/actors?filter_keys=state&filter_predicates=%3D&filter_values=ALIVE")
        names = [actor["class_name"] for actor in found["data"]["result"]["result"]]
        return [name for name in names if name != "JobSupervisor"]


@contextmanager
def head_node(second: bool = False, **env: str) -> Iterator[Head]:
    """A Ray of its own on free ports of loopback, stopped by its process ids: `ray stop` would stop everybody's.

    second: with another node, which has an address of its own.
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
    environment |= {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **env}
    with (home / "out").open("w") as out:
        node = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    started = [node]
    head = Head(f"http://127.0.0.1:{ports['dashboard-port']}", home)
    try:
        wait_for(head, node)
        if second:
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
        psutil.wait_procs(family, timeout=10)
        for one in started:
            one.wait()
        shutil.rmtree(home, ignore_errors=True)


def join(port: int, environment: dict[str, str], home: Path) -> subprocess.Popen[bytes]:
    """A second node on 127.0.0.2."""
    names = (
        "dashboard-agent-listen-port",
        "dashboard-agent-grpc-port",
        "metrics-export-port",
        "runtime-env-agent-port",
    )
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address=127.0.0.1:{port}", "--block"]
    command += ["--num-cpus=2", "--node-ip-address=127.0.0.2", "--disable-usage-stats"]
    command += [f"--{name}={port}" for name, port in ports.items()]
    with (home / "out2").open("w") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)


def wait_for_nodes(head: Head, count: int) -> None:
    until = time.monotonic() + 60
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
    until = time.monotonic() + 60
    while True:
        assert node.poll() is None, (head.home / "out").read_text()
        assert time.monotonic() < until, "the head node does not come up"
        try:
            head.ask("/api/version")
        except urllib.error.HTTPError:
            return  # it wants a token
        except OSError:
            time.sleep(0.1)
        else:
            return


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with head_node(second=True, RAY_AUTH_MODE="disabled") as started:
        yield started


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that only this process knows, so that a job which knows it has got it from here."""
    own = tmp_path / "own"
    own.mkdir()
    shutil.copy(REPOSITORY / "algorithms" / "fedgh.py", own / "mine.py")
    monkeypatch.setattr(algorithms, "__path__", [str(own), *algorithms.__path__])


class Told(str):
    """What a command printed; `code` is its exit code."""

    code: int


@pytest.fixture
def raysim(head: Head, workplace: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs a command on the head node's cluster in an empty folder; returns what it printed."""
    add_commands()

    def command(*words: str, address: str = head.address) -> Told:
        try:
            main([*words, "--address", address])
            code: Any = 0
        except SystemExit as ended:
            code = ended.code or 0
        shown = capfd.readouterr()
        told = Told(shown.out + shown.err)
        told.code = code
        return told

    return command


def settings(*items: str) -> list[str]:
    return [word for item in items for word in ("--set", item)]


QUICKSTART = str(REPOSITORY / "scenarios" / "quickstart.yaml")


@pytest.mark.usefixtures("mine")
def test_a_job_runs_as_it_would_here_and_comes_back(head: Head, raysim: Any, tracking_store: str) -> None:
    store = f"MLFLOW_TRACKING_URI={tracking_store}"
    told = raysim("submit", QUICKSTART, *settings(*SMALL), "--wait", "--id", "first", "--env", store)
    assert told.code == 0, told
    assert "round 2/2" in told
    assert "raysim-job" not in told  # marks are not for people
    # Ray may give the head another address of the machine than it was told.
    assert len(set(re.findall(r"^node ([\d.]+): 1 client actors", told, re.MULTILINE))) == 2
    assert len(head.nodes_of_clients()) == 2
    local = run(load_scenario(QUICKSTART, [*SMALL, "backend=in_process"]), quiet=True)

    # Through Ray, as from another machine.
    there = connect(find_address(head.address))
    folder, count = fetch(there, "first", None, False, through_ray=True)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["state_digest"] == local.state_digest
    assert Path(summary["folder"]).is_relative_to(head.home / "raysim" / "runs" / "quickstart")
    assert tracking_store in summary["mlflow"]
    assert count == len(listed(Path(summary["folder"]), checkpoints=False))
    for name in ("rounds.parquet", "plots/accuracy.png"):
        assert (folder / name).read_bytes() == (Path(summary["folder"]) / name).read_bytes()
    assert [job.submission_id for job in there.call("list_jobs") if job.submission_id] == ["first"]

    status = raysim("status", "first")
    assert "SUCCEEDED" in status
    assert local.state_digest[:12] in status
    table = raysim("jobs")
    assert "first" in table
    assert "mine" in table
    assert "first: there is no such" not in raysim("logs", "first")


def test_an_unknown_id(raysim: Any) -> None:
    told = raysim("status", "frist")
    assert told.code == 2
    assert "frist: there is no such job" in told
    assert told.count("\n") == 1


def test_a_cluster_that_does_not_fit(raysim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Versions.here()
    monkeypatch.setattr(Versions, "here", lambda: Versions("2.7", here.ray, here.torch, here.raysim))
    told = raysim("submit", QUICKSTART, "--wait")
    assert told.code == 2, told
    sentence = f"raysim: the cluster has Python {here.python}, but the job comes from 2.7: use the same on both"
    assert sentence in told.splitlines()


def test_stop(head: Head, raysim: Any, tracking_store: str) -> None:
    words = settings("rounds=100000", "resources.actors=1", f"tracking.uri={tracking_store}")
    assert raysim("submit", QUICKSTART, *words, "--id", "endless").code == 0
    shown: list[str] = []
    rounds, ended = threading.Event(), []

    def write(text: str) -> None:
        shown.append(text)
        if "round      1/100000" in text:
            rounds.set()

    there = connect(find_address(head.address))
    follower = threading.Thread(target=lambda: ended.append(follow(there, "endless", write).state), daemon=True)
    follower.start()
    until = time.monotonic() + 90
    while not rounds.wait(0.2):
        assert follower.is_alive() and time.monotonic() < until, "".join(shown)
    assert "progress   round" in raysim("status", "endless")
    assert sorted(head.alive_actors()) == ["HostActor", "ServerActor"]
    began = time.monotonic()
    told = raysim("stop", "endless")
    assert time.monotonic() - began < 15
    assert told.code == 0, told
    assert "endless: STOPPED" in told
    assert "are kept in" in told
    assert head.alive_actors() == []
    follower.join(15)
    assert ended == ["STOPPED"]
    (folder,) = (folder for folder in (head.home / "raysim" / "runs" / "quickstart").iterdir() if str(folder) in told)
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"


def test_a_cluster_with_a_token(raysim: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # where Ray may have left a token of its own
    with head_node(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0123456789abcdef" * 4) as guarded:
        refused = raysim("jobs", address=guarded.address)
        assert (refused.code, refused.count("\n")) == (2, 1)
        assert "asks for a token and none was found" in refused
        monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
        assert "refuses the token in RAY_AUTH_TOKEN" in raysim("jobs", address=guarded.address)
        monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
        assert raysim("jobs", address=guarded.address) == "no jobs\n"
