"""The local Ray that a run starts. Only this user can reach it, and only from this machine.

By default, Ray listens on every interface, keeps one token for all its clusters in a file that other users may read,
and makes its session folder and sockets writable for all users. Anyone with access can run code as the owner. So a
local Ray listens on loopback, has a separate token that exists only in the environment of its processes, and uses a
folder that only its owner can enter.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants

from raysim.common.errors import RunError
from raysim.common.folders import folder_of_ray

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable. If it is "0", Ray uses 127.0.0.1 as this machine's address, as it does by default on a Mac. Ray
has no other switch: it replaces `_node_ip_address="127.0.0.1"` by the address of the first interface."""

TASK_EVENTS = "RAY_task_events_report_interval_ms"
"""Environment variable. With "0", Ray's GCS records no tasks, which would take 2 MB per 100 rounds."""

_before: dict[str, str | None] = {}  # values of the environment variables before `start`
_folder: Path | None = None  # folder of the running Ray


def start(**options: Any) -> None:
    """Start a new Ray by `ray.init` with these options. `stop` ends it, and restores the environment.

    Raises `RunError` if Ray does not start.
    """
    global _folder
    variables = {LOOPBACK: "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    variables[TASK_EVENTS] = os.environ.get(TASK_EVENTS, "0")
    _before.update({name: os.environ.get(name) for name in variables})
    set_environment(variables)
    ray_constants.ENABLE_RAY_CLUSTER = False  # Ray set this at its import, when `LOOPBACK` had its old value
    try:
        # Only the owner can enter this folder. Ray creates a folder inside it, which other users could otherwise read.
        _folder = Path(tempfile.mkdtemp(prefix="raysim-", dir=folder_of_ray()))
        ray.init(address="local", include_dashboard=False, _temp_dir=str(_folder / "ray"), **options)
    except BaseException as error:
        stop(remove_logs=True)
        if isinstance(error, Exception):
            raise RunError(
                f"Ray did not start on this machine: {[*str(error).splitlines(), ''][0]}; read all findings of "
                "`raysim doctor`, set RAY_TMPDIR to a writable folder with a short name, or run without Ray by "
                "--set backend=in_process"
            ) from error
        raise


def is_running() -> bool:
    """Return whether this process runs a local Ray."""
    return _folder is not None


def stop(remove_logs: bool = False) -> None:
    """End the local Ray. Can be called twice.

    remove_logs: also remove its folder, which Ray itself never does; otherwise the folder stays permanently.
    """
    global _folder
    # If another thread, for example MLflow's, frees a reference to an actor or an object during the shutdown, Ray ends
    # the whole process with exit code 1. Such references are in cycles, which this garbage collection frees before.
    gc.disable()
    with contextlib.suppress(Exception):
        ray.shutdown()
    gc.enable()
    if _folder is not None and remove_logs:
        shutil.rmtree(_folder, ignore_errors=True)
    _folder = None
    ray_constants.ENABLE_RAY_CLUSTER = True
    set_environment(_before)
    _before.clear()


def set_environment(values: Mapping[str, str | None]) -> None:
    """Set or remove environment variables, and update the values that Ray read when it was imported."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
