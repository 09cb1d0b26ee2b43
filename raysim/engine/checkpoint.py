"""Snapshots of a run's state: what every client and the server hold after a round, as safetensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file

from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights


def write_snapshot(folder: Path, t: int, clients: Mapping[ClientId, Weights], server: Weights) -> Path:
    """Write `folder/round-<t>/` with `clients/<id>.safetensors`, `server.safetensors` and `snapshot.json`.

    Clients without a file are untouched: they still have their architecture's first weights. The folder appears whole
    or not at all. Returns its path; raises `OSError` when it cannot be written.
    """
    done = folder / f"round-{t:06d}"
    part = folder / f".round-{t:06d}.part"
    shutil.rmtree(part, ignore_errors=True)
    (part / "clients").mkdir(parents=True)
    for k, state in clients.items():
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, part / "clients" / f"{k}.safetensors")
    save_file({name: tensor.cpu().contiguous() for name, tensor in server.items()}, part / "server.safetensors")
    (part / "snapshot.json").write_text(json.dumps({"round": t, "clients": sorted(clients)}) + "\n", encoding="utf-8")
    part.replace(done)
    return done
