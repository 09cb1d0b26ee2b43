"""The Ray that a run starts for itself: reachable by this user on this machine, and by no one else.

Ray by itself listens on every interface, keeps one token for all its clusters in a file that other users may read, and
makes its session folder with its sockets writable for everybody. Whoever gets in can run code as the owner. So a run's
own Ray listens on loopback, has a token of its own, which only the environment of its processes holds, and lives in a
folder that only its owner can enter.
"""

from __future__ import annotations

import contextlib
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

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With "0" in this variable Ray takes 127.0.0.1 for this machine's address, as it does by default on a Mac: its one
switch for that. Ray itself turns `_node_ip_address="127.0.0.1"` into the address of the first interface."""

MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"

_before: dict[str, str | None] = {}  # the environment variables as `start` found them
_folder: Path | None = None


def start(**options: Any) -> None:
    """`ray.init` of a new Ray with these options. `stop` ends it and puts the environment back.

    Raises `RunError` when it does not start.
    """
    global _folder
    # A fresh folder that only its owner can enter, and in it one that Ray may open to everybody, as it does.
    _folder = Path(tempfile.mkdtemp(prefix="raysim-", dir=os.environ.get("RAY_TMPDIR")))
    _set({LOOPBACK: "0", MODE: "token", TOKEN: secrets.token_hex(32)})
    ray_constants.ENABLE_RAY_CLUSTER = False  # what `LOOPBACK` said when Ray was imported
    try:
        ray.init(address="local", include_dashboard=False, _temp_dir=str(_folder / "ray"), **options)
    except BaseException as error:
        stop(remove_logs=True)
        if isinstance(error, Exception):
            raise RunError(f"Ray did not start on this machine: {[*str(error).splitlines(), ''][0]}") from error
        raise


def gcs_died() -> bool:
    """Whether the control store of a Ray that this process started has ended: nothing starts it again."""
    node = ray._private.worker._global_node
    return node is not None and any(kind == ray_constants.PROCESS_TYPE_GCS_SERVER for kind, _ in node.dead_processes())


def stop(remove_logs: bool = False) -> None:
    """End it. remove_logs: its folder, too, which Ray itself never removes."""
    with contextlib.suppress(Exception):
        ray.shutdown()
    if remove_logs and _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)
    ray_constants.ENABLE_RAY_CLUSTER = True
    _set(dict(_before))
    _before.clear()  # a second call has nothing to put back


def _set(values: Mapping[str, str | None]) -> None:
    """Set or remove environment variables, and let Ray, which read them when it was imported, read them again."""
    for name, value in values.items():
        _before[name] = os.environ.get(name)
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    # Older releases of Ray know no tokens.
    if loader := getattr(ray._raylet, "AuthenticationTokenLoader", None):
        ray._raylet.Config.initialize("")
        loader.instance().reset_cache()
