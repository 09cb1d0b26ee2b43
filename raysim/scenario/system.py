"""Participation in rounds: how clients are selected, and each client's device and connection (section `system`)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from raysim.common.files import reason
from raysim.core.fields import Range
from raysim.core.seeds import seed_for
from raysim.engine.policies.sampling import SELECTIONS, Fastest, Participation, cohort_size
from raysim.engine.policies.system import DISTRIBUTIONS, Devices, Floats
from raysim.scenario.named import named_settings
from raysim.scenario.origin import Key
from raysim.scenario.parse import ParsedScenario

PROPERTIES: Mapping[str, tuple[Range, float]] = {
    "flops_per_s": (Range(gt=0), math.inf),
    "up_mbit_per_s": (Range(gt=0), math.inf),
    "down_mbit_per_s": (Range(gt=0), math.inf),
    "latency_s": (Range(ge=0, lt=math.inf), 0.0),
    "availability": (Range(ge=0, le=1), 1.0),
    "dropout": (Range(ge=0, le=1), 0.0),
}
"""Key of the section -> the range of a client's value, and the value where the key is missing."""


def participation_of(parsed: ParsedScenario) -> tuple[Participation, dict[str, Any] | None]:
    """Return the rules of participation, and the section `system` with defaults and the trace's digest filled in."""
    clients, origin = parsed.clients, parsed.origin
    selection = named_settings(
        clients.selection, ("clients", "selection"), SELECTIONS, origin, parsed.own_code, "select"
    )
    system, section = read_system(parsed)
    needs: dict[Key, bool] = {
        ("clients", "deadline_s"): clients.deadline_s is not None,
        ("clients", "oversample"): clients.oversample > 1,
    }
    if system is None and (key := next((key for key, given in needs.items() if given), None)):
        raise origin.error(key, "needs virtual time; add the section `system`")
    if isinstance(selection, Fastest) and (system is None or np.isinf(system.flops_per_s).any()):
        name = clients.selection["name"]
        raise origin.error(("clients", "selection", "name"), f"{name!r} needs system.flops_per_s; set it")
    seed = parsed.seeds.cohorts
    return Participation(selection, seed, clients.oversample, clients.deadline_s, system), section


def count_participants(parsed: ParsedScenario) -> int:
    """Return K, the number of clients in a round. Raises `ScenarioError` if it is zero."""
    clients = parsed.clients
    participants = cohort_size(clients.participation, clients.number)
    if participants < 1:
        raise parsed.origin.error(
            ("clients", "participation"),
            f"{clients.participation:g} given, which selects no client of {clients.number}; "
            f"allowed: 1/{clients.number} to 1",
        )
    return participants


def read_system(parsed: ParsedScenario) -> tuple[Devices | None, dict[str, Any] | None]:
    """Return every client's device and connection, and the section with defaults and the trace's digest filled in.

    Both are None if the scenario has no section `system`. Raises `ScenarioError`, one sentence.
    """
    given, origin, count = parsed.system, parsed.origin, parsed.clients.number
    if given is None:
        return None, None
    section = {**parsed.resolved["system"]}
    trace: Mapping[str, Floats] = {}
    if given.trace is not None:
        trace, section["trace_sha256"] = _trace(parsed, given.trace, given.trace_sha256)
    properties: dict[str, Floats] = {}
    for name, (allowed, absent) in PROPERTIES.items():
        value, key = getattr(given, name), ("system", name)
        if name in trace:
            if value is not None:
                raise origin.error(
                    key, f"the file of system.trace also has the column {name}; remove this key or that column"
                )
            key = ("system", "trace")
        if isinstance(value, dict):
            distribution = named_settings(value, key, DISTRIBUTIONS, origin)
            section[name] = {"name": value["name"], **asdict(distribution)}
            seed = seed_for(parsed.seed_of("cohorts"), "system", name)
            each = distribution.draw(np.random.default_rng(seed), count)
        elif isinstance(value, list):
            each = np.resize(np.array(value, dtype=np.float64), count)
        else:
            each = trace.get(name, np.full(count, absent if value is None else value, dtype=np.float64))
        refused = [k for k in range(count) if not allowed.holds(each[k])]
        if refused:
            k = refused[0]
            raise origin.error(key, f"client {k} has the {name} {each[k]:g}; allowed: a number {allowed}")
        properties[name] = each
    return Devices(**properties), section


def _trace(parsed: ParsedScenario, name: str, digest: str | None) -> tuple[dict[str, Floats], str]:
    """Read a trace file: a mapping of properties to each client's value, and the file's SHA-256.

    digest: the SHA-256 that the scenario asks for.
    """
    origin, key, count = parsed.origin, ("system", "trace"), parsed.clients.number
    try:
        sha = hashlib.sha256(Path(name).read_bytes()).hexdigest()
        columns = _columns(Path(name), count)
    except (OSError, ValueError, KeyError) as error:
        wrong = reason(error) if isinstance(error, OSError) else " ".join(str(error).split())
        raise origin.error(
            key,
            f"{name} cannot be read ({wrong}); give a CSV or Parquet file with the column `client`, one row for each "
            f"client from 0 to {count - 1}, and numbers in one or more of the columns {', '.join(PROPERTIES)}",
        ) from None
    if digest not in (None, sha):
        raise origin.error(
            key,
            f"{name} has the SHA-256 {sha[:12]}, but system.trace_sha256 is {digest}; restore the file, or remove "
            "system.trace_sha256",
        )
    return columns, sha


def _columns(path: Path, count: int) -> dict[str, Floats]:
    """Return the columns of a trace file, with a row per client. Raises `ValueError` or `KeyError`."""
    if path.suffix == ".parquet":
        from raysim.common.parquet import read_parquet  # imports Arrow

        table = read_parquet(path)
    else:
        from pyarrow import csv

        table = csv.read_csv(path, csv.ReadOptions(use_threads=False))
    frame = table.to_pandas().set_index("client")
    if not frame.index.is_unique:
        raise ValueError("a client has several rows")
    if frame.columns.empty or not frame.columns.isin([*PROPERTIES]).all():
        raise ValueError(f"its columns are {', '.join(table.column_names)}")
    return {name: column.to_numpy(np.float64) for name, column in frame.loc[[*range(count)]].items()}
