"""Golden runs: small fixed runs whose results are stored. `make golden` writes them anew, a reviewed act.

A run is made by `raysim.run`, as users make it. Stored are six metrics of each round, the digest of all state, the
digests of data set and partition, and a digest of each column of both Parquet files, except for times and memory.
Every file also has the type of the processor, the vector instructions that torch uses (see `tests/__init__.py`) and
torch's version. Where these are equal, everything must be identical. Elsewhere, sums may round differently: counts and
the digests of data and partition must be equal, accuracies and losses nearly so.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import raysim
from raysim.runs.code import processor
from tests.conftest import plain_runs
from tests.golden.cases import scenarios, study

FOLDER = Path(__file__).parent
GROUPS = ("methods", "features", "partitions", "readers", "continued", "tuned")
SHOWN = ("accuracy/all", "accuracy/participants", "loss/train", "loss/test", "comm/total_bytes", "compute/total_flops")
MEASURED = (
    "time/round",
    "time/train",
    "time/agg",
    "time/eval",
    "time/total",
    "memory/",
    "engine/",
    "train_s",
    "evaluate_s",
)
"""Columns that begin so are measured, or depend on the placement of clients."""
COMPARED = ["variant", "tuned", "measure", "n", "mean", "std", "difference", "pairs", "values"]
"""Columns of a comparison that do not depend on what it is compared with."""


def environment() -> dict[str, str]:
    """What may change how a sum is rounded. oneDNN and MKL also choose their kernels by the type of the processor."""
    return {
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "processor": processor(),
        "torch": str(torch.__version__),
    }


def column_digests(frame: pd.DataFrame) -> dict[str, str]:
    """Return eight hexadecimal digits for each column that has a value and was not measured."""
    columns = {str(name): values for name, values in frame.items() if not str(name).startswith(MEASURED)}
    return {name: column_digest(values) for name, values in columns.items() if values.notna().any()}


def column_digest(values: pd.Series[Any]) -> str:
    """Return eight hexadecimal digits of the SHA-256 of a column's values as text, which has all digits of a float."""
    texts = [
        "" if np.isscalar(value) and pd.isna(value) else str(list(value)) if np.ndim(value) else repr(value)
        for value in values.tolist()
    ]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:8]


def result(run: raysim.Run) -> dict[str, Any]:
    """Return everything that is stored of a run."""
    rounds = [{name: row[name] for name in SHOWN if pd.notna(row[name])} for row in run.rounds.to_dict("records")]
    return {
        "data": run.summary["dataset"]["digest"],
        "partition": run.summary["partition_digest"],
        "state": run.state_digest,
        "rounds": rounds,
        "rounds.parquet": column_digests(run.rounds),
        "clients.parquet": column_digests(run.clients),
    }


def continued() -> dict[str, Any]:
    """Return the results of a run that was resumed twice, and of one that begins with the state of the other."""
    scenario, sets = scenarios("features", Path())["best validation"]
    first = raysim.run(scenario, sets=[*sets, "rounds=2"], quiet=True)
    first.resume(["rounds=3"], quiet=True).resume(["rounds=5"], quiet=True)
    start = [f"init={{run: {first.folder}, round: best_val}}", "algorithm={name: fedproto}"]
    return {"resumed": result(first), "warm start": result(raysim.run(scenario, sets=start, quiet=True))}


def tuned(folder: Path) -> dict[str, Any]:
    """Return the trials of a tuned study, the chosen one of each method, and the comparison of its runs."""
    done = raysim.Study(study(folder)).run(parallel=2, quiet=True)
    compared = done.compare().frame
    trials = done.trials.drop(columns="state")
    return {
        "states": {name: run.state_digest for name, run in done.runs.items()},
        "trials": trials.to_csv(index=False).splitlines(),
        "comparison": compared[COMPARED].to_csv(index=False).splitlines(),
    }


def results(group: str, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run the cases of a group. folder: a place for small data sets."""
    if group in ("continued", "tuned"):
        yield from (continued() if group == "continued" else tuned(folder)).items()
        return
    for name, (scenario, sets) in scenarios(group, folder).items():
        yield name, result(raysim.run(scenario, sets=sets, quiet=True))


def stored(group: str) -> dict[str, Any]:
    """Return the file of a group: the environment in which it was recorded, and the result of each case."""
    found: dict[str, Any] = json.loads((FOLDER / f"{group}.json").read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Write the results of the groups that are named, or of all."""
    for group in sys.argv[1:] or GROUPS:
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as place:
            plain_runs(patch, f"sqlite:///{place}/mlflow.db")
            patch.chdir(place)
            cases = dict(results(group, Path(place)))
        text = json.dumps({"environment": environment(), "cases": cases}, indent=1) + "\n"
        (FOLDER / f"{group}.json").write_text(text, encoding="utf-8")
        print(f"{group}.json: {len(cases)} runs", flush=True)


if __name__ == "__main__":
    main()
