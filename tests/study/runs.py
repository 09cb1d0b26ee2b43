"""Run folders made by hand, for comparisons whose numbers one can check."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from raysim.study.compare import Comparison
from raysim.study.tables import Table, columns, variants_table

SCENARIO: dict[str, Any] = {
    "name": "made",
    "seed": 1,
    "rounds": 3,
    "output": "runs",
    "algorithm": {"name": "fedgh", "header_lr": 0.01},
    "data": {"name": "digits", "partition": {"name": "iid"}},
    "clients": {"count": 2, "participation": 0.5, "models": ["a", "b"]},
    "training": {"epochs": 1, "batch_size": 8},
    "resources": {"actors": "auto"},
}


def make_run(
    folder: Path,
    method: str = "fedgh",
    seed: int = 1,
    accuracy: Sequence[float] = (0.1, 0.3, 0.6, 0.5),
    partition: str | None = None,
    data_digest: str = "d",
    version: str = "0.1.0",
    done: int | None = None,
    virtual_s: float | None = None,
    digest: str | None = None,
    losses: Sequence[float | None] = (),
    val: Sequence[float] = (),
    called: str | None = None,
    current: Sequence[float] = (),
    val_current: Sequence[float] = (),
    mib: int = 1,
    absent: int = 0,
    **changes: Any,
) -> Path:
    """A run of one participant per round, which sends 1 MiB and receives 2, and computes 10^9 operations.

    mib: what it sends per round instead of 1 MiB; it receives twice as much.
    virtual_s: of each round, in which then 2 clients drop out.
    called: the class's name of a method in a user's own file.
    val: validation accuracies in rounds 0, 1, ...; empty: no client has validation samples.
    current: test accuracies of current networks in rounds 0, 1, ..., of two clients 0.05 below and above it; empty: no
    round tested current networks. val_current: their validation accuracies, likewise.
    absent: how many clients have not taken part; the accuracy of the others is 0.2 greater.
    accuracy: of all clients, in rounds 0, 1, ...; two clients, 0.1 below and above it.
    """
    folder.mkdir(parents=True)
    rounds = list(range(len(accuracy)))
    scenario = {**SCENARIO, "seed": seed, "rounds": rounds[-1], **changes}
    scenario["algorithm"] = {"name": method, **changes.get("algorithm", {"header_lr": 0.01})}
    (folder / "resolved.yaml").write_text(yaml.safe_dump(scenario, sort_keys=False))
    table = {
        "round": rounds,
        "accuracy/all": list(accuracy),
        "accuracy/all_pooled": [value - 0.01 for value in accuracy],
        "accuracy/all_std": [0.1] * len(rounds),
        "accuracy/participants": [None, *[value + 0.1 for value in accuracy[1:]]],
        "accuracy/best": [max(accuracy[: t + 1]) for t in rounds],
        "accuracy/worst_decile": [value - 0.1 for value in accuracy],
        "comm/up_bytes": [0, *[mib * 2**20] * rounds[-1]],
        "comm/down_bytes": [0, *[mib * 2**21] * rounds[-1]],
        "comm/total_bytes": [3 * mib * 2**20 * t for t in rounds],
        "compute/flops": [0.0, *[1e9] * rounds[-1]],
        "compute/total_flops": [1.5e9 * t for t in rounds],
        "engine/participants": [0, *[1] * rounds[-1]],
    }
    if absent:
        table["engine/absent_clients"] = [absent] * len(rounds)
        table["accuracy/took_part"] = [value + 0.2 for value in accuracy]
    if val:
        best = [max(rounds[1 : t + 1], key=lambda one: val[one], default=None) for t in rounds]
        table["accuracy/val"] = list(val)
        table["accuracy/at_best_val"] = [None if t is None else accuracy[t] for t in best]
    if current:
        table["accuracy/all_current"] = list(current)
        table["accuracy/all_current_worst_decile"] = [value - 0.05 for value in current]
    if val_current:
        table["accuracy/val_current"] = list(val_current)
    if losses:
        table["loss/test"] = list(losses)
    if virtual_s is not None:
        table["time/virtual_total_s"] = [None, *[virtual_s * t for t in rounds[1:]]]
        table["engine/dropped_clients"] = [None, *[2] * rounds[-1]]
    pq.write_table(pa.table(table), folder / "rounds.parquet")
    clients = [
        {"round": t, "client": k, "model": "ab"[k], "participated": t > 0, "accuracy": accuracy[t] + (0.1, -0.1)[k]}
        | ({"current_accuracy": current[t] + (0.05, -0.05)[k]} if current else {})
        | ({"val_correct": int(val[t] * 1000 + 0.5), "val_total": 1000} if val and math.isfinite(val[t]) else {})
        for t in rounds
        for k in (0, 1)
    ]
    pq.write_table(pa.Table.from_pylist(clients), folder / "clients.parquet")
    summary = {
        **({"method": called} if called else {}),
        "seed": seed,
        "status": "finished" if done is None else "interrupted",
        "rounds": rounds[-1] if done is None else done,
        "participants_per_round": 1,
        "partition_digest": partition or f"p{seed}",
        "dataset": {"name": "digits", "source": "x", "digest": data_digest},
        "state_digest": digest or f"{folder}",
        "versions": {"raysim": version, "python": "3.11", "torch": "2", "numpy": "2"},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def rows_of(table: Table) -> list[list[str]]:
    """The titles of a table, and its rows."""
    return [list(table.frame.columns), *table.frame.to_numpy().tolist()]


def variant_rows(comparison: Comparison, measures: Sequence[str], differences: Collection[str]) -> list[list[str]]:
    """The table of these measures, see `columns`."""
    return rows_of(variants_table(comparison, columns(comparison, measures, differences)))
