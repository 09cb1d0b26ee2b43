"""How much accuracy does privacy cost?

A hundred clients have samples of all classes, and each takes part in a round with a probability of a tenth. Uploads
are clipped, and Gaussian noise is added to their sum. More noise gives a smaller epsilon, which is the loss of privacy
after all rounds, and a less accurate network. The row without noise shows what clipping alone costs.

    python examples/privacy.py              # FedAvg: 4 runs, 2 minutes on one core
    python examples/privacy.py --seeds 3

It needs the extra `privacy`. It prints a table of epsilon and accuracy, draws `privacy.png`, and writes the run folders
into `--folder`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

import raysim

SCENARIO: dict[str, Any] = {
    "name": "privacy",
    "backend": "in_process",  # without this line, clients train on Ray's actors, with the same result
    "data": {"name": "digits", "partition": {"name": "iid"}},
    "clients": {"count": 100, "participation": 0.1, "selection": {"name": "poisson"}, "models": ["digits_cnn_s"]},
    "training": {"epochs": 5, "batch_size": 32, "lr": 0.1},
    "evaluation": {"every": 10, "clients": "all"},
}


def main(
    method: str = "fedavg",
    noise: Sequence[float] = (0.0, 0.3, 1.0),
    clip: float = 1.0,
    rounds: int = 60,
    seeds: int = 1,
    folder: Path | str = "runs/privacy",
) -> pd.DataFrame:
    """Run the study, print its table, draw its figure, and return a row per noise multiplier and seed."""

    def row(multiplier: float | None, seed: int) -> dict[str, Any]:
        privacy = None if multiplier is None else {"clip": clip, "noise_multiplier": multiplier, "delta": 0.001}
        given = {"algorithm": {"name": method}, "rounds": rounds, "seed": seed, "output": str(folder)}
        final = raysim.run({**SCENARIO, **given, "privacy": privacy}, quiet=True).summary["final"]
        return {
            "noise": "no section privacy" if multiplier is None else f"noise {multiplier}",
            "seed": seed,
            "epsilon": final.get("privacy/epsilon", float("inf")),
            "accuracy": final["accuracy/all_current_pooled"],
        }

    table = pd.DataFrame([row(one, seed) for one in (None, *noise) for seed in range(1, seeds + 1)])
    means = table.groupby("noise", sort=False)[["epsilon", "accuracy"]].mean()
    print(f"{method}, clip {clip}, delta 0.001, round {rounds}, mean over {seeds} seeds\n{means.round(3).to_string()}")
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    labels = [f"{name}\nepsilon {epsilon:.3g}" for name, epsilon in zip(means.index, means["epsilon"], strict=True)]
    axes.bar(labels, 100 * means["accuracy"])
    axes.set_ylabel("accuracy (%)")
    axes.tick_params(axis="x", labelsize=7)
    figure.savefig(Path(folder) / "privacy.png", dpi=150)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.3, 1.0])
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/privacy"))
    main(**vars(parser.parse_args()))
