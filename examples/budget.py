"""Which method is most accurate for the same number of bytes?

Comparing methods after the same number of rounds favours those that send much per round. Here every method has a
communication budget in MiB, for both directions and all clients. The table has the accuracy after the last round that
fits into the budget. If all rounds of a method together cost less than the budget, this is the accuracy after its last
round.

The ten clients have five architectures. FD sends mean logits of each class, FedProto class means, FedGH class means and
headers, LG-FedAvg headers, and FML a small model that each client trains beside its own. `standalone` sends nothing: a
method with a lower accuracy is not worth its bytes.

    python examples/budget.py              # 6 runs, about a minute on one core
    python examples/budget.py --rounds 2   # a few seconds

It prints a table, and writes `budget.png` and the run folders into `--folder`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

import raysim

METHODS = ("standalone", "fd", "fedproto", "fedgh", "lg_fedavg", "fml")
BUDGETS_MIB = (0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
SCENARIO: dict[str, Any] = {
    "name": "budget",
    "seed": 1,
    "backend": "in_process",  # without this line, clients train on Ray's actors, with the same result
    "data": {"name": "digits", "partition": {"name": "pathological", "classes_per_client": 5}},
    "clients": {
        "count": 10,
        "models": ["digits_mlp64", "digits_mlp128", "digits_cnn_s", "digits_cnn_m", "digits_resnet"],
    },
    "training": {"epochs": 1, "batch_size": 16, "lr": 0.05, "momentum": 0.9},
}


def main(rounds: int = 60, methods: Sequence[str] = METHODS, folder: Path | str = "runs/budget") -> pd.DataFrame:
    """Run the study, print its table, draw its figure, and return a row per method with a column per budget."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    rows = []
    for method in methods:
        scenario = {**SCENARIO, "rounds": rounds, "output": str(folder), "algorithm": {"name": method}}
        run = raysim.run(scenario, quiet=True)
        curve = pd.DataFrame(
            {
                "mib": run.rounds["comm/total_bytes"].fillna(0) / 2**20,  # nothing is sent before round 1
                "accuracy": run.rounds["accuracy/all"],
            }
        )
        at_budget = {f"{budget:g} MiB": curve[curve["mib"] <= budget]["accuracy"].iloc[-1] for budget in BUDGETS_MIB}
        per_round_kib = 1024 * curve["mib"].iloc[-1] / rounds
        rows.append({"method": method, "KiB per round": per_round_kib, **at_budget, "folder": run.folder})
        if per_round_kib:
            axes.plot(curve["mib"][1:], 100 * curve["accuracy"][1:], label=method)
        else:
            axes.axhline(100 * curve["accuracy"].iloc[-1], color="black", linestyle=":", label=f"{method}, all rounds")
    table = pd.DataFrame(rows).set_index("method")
    print(f"accuracy within a budget, at most {rounds} rounds\n{table.drop(columns='folder').round(3).to_string()}")

    axes.set_xscale("log")
    axes.set_xlabel("sent in both directions by all clients (MiB)")
    axes.set_ylabel("accuracy of all clients (%)")
    axes.legend(fontsize=7)
    figure.savefig(Path(folder) / "budget.png", dpi=150)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--folder", type=Path, default=Path("runs/budget"))
    main(**vars(parser.parse_args()))
