"""Methods side by side: the same data, models, budget and seeds, and one table from their run folders.

python benchmarks/methods.py [--dataset cifar100|fashion_mnist|digits] [--methods a,b,...] [--seeds 1,2,3]
                             [--rounds N] [--set KEY=VALUE ...] [--output FOLDER] [--json PATH]

Accuracies in per cent, mean and standard deviation over seeds: of all clients with their latest models after the last
round, the best of that over rounds, and the best of the round's participants (what the papers' codes report). Bytes are
per participant and round, in the last round; seconds are of a round. `paper` is every method's own default.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import ray

import raysim
from raysim.scenario.registry import algorithm_names

CIFAR = ("cnn1", "cnn2", "cnn3", "cnn4", "cnn5")
DIGITS = ("digits_mlp64", "digits_mlp128", "digits_cnn_s", "digits_cnn_m", "digits_resnet")
SETTINGS: dict[str, dict[str, Any]] = {
    "cifar100": {"classes": 10, "models": CIFAR, "rounds": 24},
    "fashion_mnist": {"classes": 2, "models": tuple(f"fmnist_{name}" for name in CIFAR), "rounds": 16},
    "digits": {"classes": 3, "models": DIGITS, "rounds": 20},
}
ONE_ARCHITECTURE = {"fedavg"}  # runs with the third of the models alone, and says so


@dataclass(frozen=True)
class Found:
    """One run's figures."""

    method: str
    seed: int
    accuracy: float  # fractions
    best: float
    best_participants: float
    up: float  # bytes per participant
    down: float
    flops: float  # of the clients and the server, whole run
    round_s: float  # median
    folder: str


def scenario(dataset: str, method: str, seed: int, rounds: int | None, output: Path) -> dict[str, Any]:
    """20 clients, half of them in each round, one local epoch, every data set with its classes per client."""
    setting = SETTINGS[dataset]
    models = list(setting["models"])
    return {
        "name": f"methods_{dataset}_{method}",
        "seed": seed,
        "rounds": rounds or setting["rounds"],
        "output": str(output),
        "algorithm": {"name": method},
        "data": {
            "name": dataset,
            "partition": {"name": "pathological", "classes_per_client": setting["classes"]},
        },
        "clients": {
            "count": 20,
            "participation": 0.5,
            "models": [models[2]] if method in ONE_ARCHITECTURE else models,
        },
        "training": {"epochs": 1, "batch_size": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-3, "clip": 50.0},
        "tracking": {"uri": f"sqlite:///{output.absolute() / 'mlflow.db'}", "experiment": f"methods_{dataset}"},
    }


def measure(given: dict[str, Any], sets: Sequence[str]) -> Found:
    """Run one scenario and read its folder."""
    result = raysim.run(raysim.load_scenario(given, sets), quiet=True)
    rounds = pq.read_table(result.folder / "rounds.parquet").to_pylist()
    clients = pq.read_table(result.folder / "clients.parquet").to_pylist()
    last = [row for row in clients if row["round"] == rounds[-1]["round"] and row["participated"]]
    return Found(
        method=given["algorithm"]["name"],
        seed=given["seed"],
        accuracy=rounds[-1]["accuracy/all"],
        best=rounds[-1]["accuracy/best"],
        best_participants=rounds[-1]["accuracy/best_participants"],
        up=statistics.mean(row["up_bytes"] for row in last),
        down=statistics.mean(row["down_bytes"] for row in last),
        flops=rounds[-1]["compute/total_flops"],
        round_s=statistics.median(row["time/round_s"] for row in rounds[1:]),
        folder=str(result.folder),
    )


def table(found: Sequence[Found]) -> list[tuple[str, ...]]:
    """One row per method, in the order given."""

    def percent(runs: Sequence[Found], name: str) -> str:
        values = [100 * getattr(run, name) for run in runs]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.2f}{spread}"

    rows: list[tuple[str, ...]] = [
        ("method", "accuracy/all", "best", "best, participants", "KB up", "KB down", "TFLOPs", "s/round")
    ]
    for method in dict.fromkeys(run.method for run in found):
        runs = [run for run in found if run.method == method]
        rows.append(
            (
                method,
                percent(runs, "accuracy"),
                percent(runs, "best"),
                percent(runs, "best_participants"),
                f"{statistics.mean(run.up for run in runs) / 1024:.2f}",
                f"{statistics.mean(run.down for run in runs) / 1024:.2f}",
                f"{statistics.mean(run.flops for run in runs) / 1e12:.2f}",
                f"{statistics.mean(run.round_s for run in runs):.2f}",
            )
        )
    return rows


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dataset", choices=SETTINGS, default="digits")
    parser.add_argument("--methods", default=",".join(algorithm_names()), help="default: all")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as of raysim launch; of all runs"
    )
    parser.add_argument("--output", type=Path, default=Path("runs"))
    parser.add_argument("--json", type=Path, help="write every run's figures to this file")
    return parser.parse_args()


def main() -> None:
    """Run what was asked for, method by method, and print the table."""
    given = _arguments()
    given.output.mkdir(parents=True, exist_ok=True)
    # One Ray for all runs: raysim joins the one that is there.
    ray.init(address="local", include_dashboard=False, logging_level="ERROR")
    found: list[Found] = []
    try:
        for method in given.methods.split(","):
            for seed in map(int, given.seeds.split(",")):
                run = scenario(given.dataset, method, seed, given.rounds, given.output)
                sets = [
                    item
                    for item in given.set
                    if not item.startswith("algorithm.") or item.startswith(f"algorithm.{method}.")
                ]
                sets = [item.replace(f"algorithm.{method}.", "algorithm.", 1) for item in sets]
                found.append(measure(run, sets))
                print(f"{method}, seed {seed}: {100 * found[-1].accuracy:.2f} %", file=sys.stderr, flush=True)
                if given.json:
                    given.json.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    finally:
        ray.shutdown()
    rows = table(found)
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, wide, strict=True)).rstrip())


if __name__ == "__main__":
    main()
