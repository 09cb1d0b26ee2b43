"""Only a process on this machine that holds the token reaches a run's own Ray."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.ray

# A network of its own, with a second address beside 127.0.0.1.
NETWORK = "ip link set lo up && ip addr add 192.0.2.1/24 dev lo"

PROBE = """
import gc, json, os, stat, subprocess, sys, threading, time
from pathlib import Path
import psutil, ray
from ray._common.usage.usage_lib import usage_stats_enabled
from ray._private.runtime_env import uv_runtime_env_hook
from raysim.engine.ray import local_cluster, session

# To set a constant that Ray does not read has no effect.
constants = "ENABLE_RAY_CLUSTER", "RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
renamed = [name for name in constants if not hasattr(ray._private.ray_constants, name)]
before = dict(os.environ)
# As below `uv run`, where Ray by default starts actors in a copy of the working directory: it looks at the ancestors.
uv_runtime_env_hook._get_uv_run_cmdline = lambda: ["uv", "run", "raysim"]
assert session.connect(1.0)
@ray.remote
class Worker:
    def pid(self): return os.getpid()
ray.get(Worker.remote().pid.remote())
children = psutil.Process().children(recursive=True)
found = {
    "ips": sorted({c.laddr.ip for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN}),
    "mode": stat.S_IMODE(local_cluster._folder.stat().st_mode),
    "renamed": renamed,
    "usage": usage_stats_enabled(),
    "runtime env": ray.get_runtime_context().get_runtime_env_string(),
    "tokens": [str(path) for path in Path.home().rglob("*token*")],
}
address = ray.get_runtime_context().gcs_address
join = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1]).get_all_node_info(timeout=30.0)"
clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
guess = {**clean, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
visits = {
    visitor: subprocess.Popen([sys.executable, "-c", join, address], env=environ, stdout=-1, stderr=-2, text=True)
    for visitor, environ in (("owner", dict(os.environ)), ("stranger", clean), ("guesser", guess))
}
for visitor, visit in visits.items():
    text, _ = visit.communicate()
    found[visitor] = [visit.returncode, text]
folder = local_cluster._folder
references, stopped = [ray.put(i) for i in range(10_000)], threading.Event()
def leave_cycles():  # as any thread may: only the garbage collection frees these references
    while not stopped.is_set():
        cycle = [references.pop()]
        cycle.append(cycle)
        time.sleep(0.0001)
thread = threading.Thread(target=leave_cycles)
thread.start()
gc.set_threshold(20)
local_cluster.stop(remove_logs=True)
stopped.set()
thread.join()
names = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", local_cluster.LOOPBACK
found["left"] = [name for name in names if os.environ.get(name) != before.get(name)]
found["removed"] = not folder.exists()
found["left alive"] = [p.pid for p in psutil.wait_procs(children, timeout=20)[1]]
print(json.dumps(found))
"""


@pytest.fixture
def namespace() -> list[str]:
    """The beginning of a command that runs in a network namespace with a second address."""
    command = ["unshare", "--net"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    if not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("no unshare or ip here to make a network of its own with")
    command += ["--", "bash", "-c", f'{NETWORK} && exec "$@"', "bash"]
    made = subprocess.run([*command, "true"], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
    return command


@pytest.mark.large
def test_only_the_owner_on_this_machine_gets_in(namespace: list[str], tmp_path: Path) -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"HOME": str(tmp_path)}
    done = subprocess.run(
        [*namespace, sys.executable, "-c", PROBE],
        capture_output=True,
        text=True,
        env=environ,
        cwd=REPOSITORY,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ips"] in (["127.0.0.1"], ["127.0.0.1", "::ffff:127.0.0.1"]), found["ips"]
    assert found["mode"] == 0o700
    assert found["renamed"] == []
    assert found["usage"] is False  # Ray reports nothing to its makers
    assert found["runtime env"] == "{}"  # actors use this environment
    assert found["tokens"] == []  # no file holds the token
    assert found["owner"][0] == 0, found["owner"][1]
    for visitor in ("stranger", "guesser"):
        code, text = found[visitor]
        assert code != 0, text
        assert "auth" in text.lower(), text
    assert found["left"] == []  # a later Ray of this process is as if there had been none
    assert found["removed"]
    assert found["left alive"] == []


def test_sockets_have_short_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from raysim.engine.ray import local_cluster

    folders: list[Path] = []
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # Python reads TMPDIR again
    monkeypatch.setattr(ray, "init", lambda _temp_dir, **options: folders.append(Path(_temp_dir)))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    local_cluster.start()
    longest = folders[0] / "session_2026-11-21_06-24-24_123456_4194304" / "sockets" / "plasma_store"
    assert len(str(longest)) <= 103  # macOS; Linux allows 107
    assert folders[0].parent.stat().st_mode & 0o077 == 0
    local_cluster.stop(remove_logs=True)
    assert not folders[0].parent.exists()
