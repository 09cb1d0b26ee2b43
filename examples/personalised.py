"""Personalised methods of one architecture, or heterogeneous methods of several?

Twenty clients hold digits with skewed classes (Dirichlet, alpha 0.3). Weak devices can only run a small perceptron.
- One architecture: every client trains this perceptron, and a personalised method (FedPer, FedRep, Ditto) shares all
  or most of its weights. Plain FedAvg shares one model that is the same for all.
- Five architectures: every client trains the network that its device can run. A heterogeneous method (FedGH, FedProto,
  LG-FedAvg) shares headers or class means, which all architectures have in common.
`standalone` trains the same networks without sharing, so `gain` separates the effect of sharing from that of the
networks. All methods see the same clients with the same samples, seed by seed.

    python examples/personalised.py                        # 27 runs, about 2 minutes on one core
    python examples/personalised.py --rounds 2 --seeds 1   # a few seconds

It prints a table, and writes `personalised.png` and the run folders into `--folder`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

import raysim

ONE = ["digits_mlp64"]
FIVE = ["digits_mlp64", "digits_mlp128", "digits_cnn_s", "digits_cnn_m", "digits_resnet"]
METHODS = {
    "one": ["standalone", "fedavg", "fedper", "fedrep", "ditto"],
    "five": ["standalone", "lg_fedavg", "fedgh", "fedproto"],
}
SCENARIO: dict[str, Any] = {
    "name": "personalised",
    "backend": "in_process",  # without this line, clients train on Ray's actors, with the same result
    "data": {"name": "digits", "partition": {"name": "dirichlet", "alpha": 0.3}},
    "clients": {"count": 20, "participation": 0.5},
    "training": {"epochs": 2, "batch_size": 16, "lr": 0.05, "momentum": 0.9},
}


def main(rounds: int = 30, seeds: int = 3, folder: Path | str = "runs/personalised") -> pd.DataFrame:
    """Run the study, print its table, draw its figure, and return a row per run."""
    rows = []
    for seed in range(1, seeds + 1):
        for architectures, methods in METHODS.items():
            for method in methods:
                scenario = {
                    **SCENARIO,
                    "seed": seed,
                    "rounds": rounds,
                    "output": str(folder),
                    "algorithm": {"name": method},
                    "clients": {**SCENARIO["clients"], "models": ONE if architectures == "one" else FIVE},
                }
                run = raysim.run(scenario, quiet=True)
                last = run.rounds.iloc[-1]
                rows.append(
                    {
                        "architectures": architectures,
                        "method": method,
                        "seed": seed,
                        "accuracy": last["accuracy/all"],
                        "worst tenth": last["accuracy/worst_decile"],
                        "MiB sent": last["comm/total_bytes"] / 2**20,
                        "folder": run.folder,
                    }
                )
    runs = pd.DataFrame(rows)
    # The same seed means the same clients with the same samples, so differences are computed seed by seed.
    own = runs[runs["method"] == "standalone"].set_index(["architectures", "seed"])["accuracy"]
    runs["gain"] = runs["accuracy"] - [own[key] for key in zip(runs["architectures"], runs["seed"], strict=True)]

    groups = runs.groupby(["architectures", "method"], sort=False)
    table = groups[["accuracy", "gain", "worst tenth", "MiB sent"]].mean()
    print(f"accuracy after round {rounds}, mean over seeds 1 to {seeds}\n{table.round(3).to_string(sparsify=False)}")

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    for place, ((architectures, _), group) in enumerate(groups):
        colour = "#0072b2" if architectures == "one" else "#d55e00"
        axes.plot(place, 100 * group["accuracy"].mean(), "_", color=colour, markersize=24, markeredgewidth=3)
        axes.plot([place] * len(group), 100 * group["accuracy"], "k.", markersize=4)  # a point per seed
    axes.set_xticks(range(len(groups)), [f"{method}\n({number})" for number, method in table.index], fontsize=7)
    axes.set_ylabel("accuracy of all clients (%)")
    figure.savefig(Path(folder) / "personalised.png", dpi=150)
    return runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/personalised"))
    main(**vars(parser.parse_args()))
