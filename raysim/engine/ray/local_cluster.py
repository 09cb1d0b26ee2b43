"""The local Ray that a run starts: only this user can reach it, and only from this machine.

By default, Ray listens on every interface, keeps one token for all its clusters in a file that other users may read,
and makes its session folder and sockets writable for all users. Anyone with access can run code as the owner. So a
local Ray listens on loopback, has a separate token that exists only in the environment of its processes, and uses a
folder that only its owner can enter.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants, services, utils
from ray._private.node import Node
from ray._raylet import GcsClient  # type: ignore[attr-defined]

from raysim.common.errors import RunError, ScenarioError
from raysim.common.files import reason
from raysim.common.folders import LONGEST, folder_of_ray
from raysim.common.memory import without_collection

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable; with "0", Ray uses 127.0.0.1 as this machine's address, as it does by default on a Mac. Ray has
no other switch: it replaces `_node_ip_address="127.0.0.1"` by the address of the first interface."""

TASK_EVENTS = "RAY_task_events_report_interval_ms"
"""Environment variable; with "0", the GCS keeps no record of tasks: 2 MB per 100 rounds for an unused dashboard."""

QUICK = {"RAY_raylet_client_connect_timeout_milliseconds": "20", "RAY_raylet_client_num_connect_attempts": "500"}
"""Timeout in milliseconds and number of attempts with which Ray's processes connect to each other. By default they make
ten attempts of 1 s, and in every second start one process makes its first attempt too early."""

NODE_WAIT_S = 30.0
"""Seconds to wait for Ray's node to appear, before Ray's own wait reports the error."""

_before: dict[str, str | None] = {}  # the environment variables before `start`
_folder: Path | None = None  # of the running Ray


def start(**options: Any) -> None:
    """Start a new Ray by `ray.init` with these options. `stop` ends it and restores the environment.

    Raises `RunError` if Ray does not start.
    """
    global _folder
    # Only the owner can enter this folder; Ray makes a folder in it that is open to all users.
    place = folder_of_ray()
    try:
        if len(os.fsencode(place)) > LONGEST:
            raise OSError("its name is too long for sockets")
        _folder = Path(tempfile.mkdtemp(prefix="raysim-", dir=place))
    except OSError as error:
        raise ScenarioError(
            f"{place}: cannot create Ray's temporary folder here: {reason(error)}; set RAY_TMPDIR to a writable folder "
            f"whose name has at most {LONGEST} characters"
        ) from None
    variables = {LOOPBACK: "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    variables |= {name: os.environ.get(name, value) for name, value in {TASK_EVENTS: "0", **QUICK}.items()}
    _before.update({name: os.environ.get(name) for name in variables})
    set_environment(variables)
    ray_constants.ENABLE_RAY_CLUSTER = False  # set from `LOOPBACK` when Ray was imported
    try:
        with _replaced():
            ray.init(address="local", include_dashboard=False, _temp_dir=str(_folder / "ray"), **options)
    except BaseException as error:
        stop(remove_logs=True)
        if isinstance(error, Exception):
            raise RunError(
                f"Ray did not start on this machine: {[*str(error).splitlines(), ''][0]}; read all findings of "
                "`raysim doctor`, or run without Ray by --set backend=in_process"
            ) from error
        raise


def _nothing(*args: Any, **options: Any) -> None:
    """Do nothing."""


def _dashboard_missing() -> ImportError:
    """Report the packages of Ray's dashboard as missing."""
    return ImportError("a run's own Ray has no dashboard")


def _get_node(gcs_address: str, node_id: str) -> Any:
    """Wait for the new node; replaces Ray's function, which checks every second instead of every 20 ms."""
    with contextlib.suppress(Exception):  # if a release has another client, Ray's own wait follows
        gcs = GcsClient(address=gcs_address)
        until_s = time.monotonic() + NODE_WAIT_S
        while time.monotonic() < until_s and node_id not in {one.hex() for one in gcs.get_all_node_info(timeout=5.0)}:
            time.sleep(0.02)
    return _ray_get_node(gcs_address, node_id)


_ray_get_node = services.get_node
REPLACED: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (Node, "start_monitor", _nothing),
    (Node, "start_api_server", _nothing),
    (utils, "get_dashboard_dependency_error", _dashboard_missing),
    (services, "get_node", _get_node),
)
"""Steps of Ray's start without a switch, and their replacements: (owner, name, replacement). No run uses the autoscaler
and the dashboard's process, which `include_dashboard=False` starts without pages: each takes 0.4 to 0.8 s of CPU time
and 60 to 80 MB, and ending the autoscaler delays the end of a run by a second. Ray checks for the dashboard's packages
by importing them, which takes half a second. `ray.init` of Ray 2.60 has no argument for any of these; only `ray start`
has one for the autoscaler (`--no-monitor`). `tests/engine/ray/test_local_cluster.py` fails if Ray renames one."""


@contextlib.contextmanager
def _replaced() -> Iterator[None]:
    """Apply the replacements of `REPLACED` during a block."""
    with contextlib.ExitStack() as restored:
        for owner, name, instead in REPLACED:
            if hasattr(owner, name):
                restored.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, instead)
        yield


def is_running() -> bool:
    """Return whether this process runs a local Ray."""
    return _folder is not None


def stop(remove_logs: bool = False) -> None:
    """End the local Ray; safe to call twice.

    remove_logs: also remove its folder, which Ray itself never does; otherwise the folder stays permanently.
    """
    global _folder
    workers = _workers() if _folder is not None else []
    # Ray ends the whole process, with exit code 1, if another thread (MLflow's, for example) frees a reference to an
    # actor or an object during the shutdown; such references are in cycles that only the garbage collection frees.
    with without_collection(), contextlib.suppress(Exception):
        ray.shutdown()
    for process in workers:  # they outlive the raylet, with threads of user code for ever
        with contextlib.suppress(psutil.Error):
            process.kill()
    if _folder is not None and remove_logs:
        shutil.rmtree(_folder, ignore_errors=True)
    _folder = None
    ray_constants.ENABLE_RAY_CLUSTER = True
    set_environment(_before)
    _before.clear()


def _workers() -> list[psutil.Process]:
    """Return the processes that the raylet of the Ray in `_folder` has started, such as its actors.

    This process may also have started another Ray, which the user's own code still needs.
    """
    processes: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().children():
            if process.name() == "raylet" and any(str(_folder) in word for word in process.cmdline()):
                processes += process.children(recursive=True)
    return processes


def set_environment(values: Mapping[str, str | None]) -> None:
    """Set or remove environment variables, and make Ray, which read them at its import, read them again."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
