"""Is it the method or the step size?

A method that changes the gradients of a network also changes how far one step goes. It then gains over Standalone
without any knowledge of other clients, and Standalone gains the same with another learning rate. So this study runs a
method beside two controls: Standalone at several learning rates, and the method with its shared part frozen, which
carries nothing from client to client.

The method is FedRAL, whose clients add R A to each representation R and share the square matrix A. The left figure
shows the accuracy by learning rate, the right one how large R A is beside R after each round. For another method,
change `VARIANTS`, and replace `share_of_matrix`.

    python examples/step_size.py              # 23 runs, 5 minutes on one core
    python examples/step_size.py --rounds 4   # a minute

It prints the accuracies, draws `step_size.png`, and writes the run folders into `--folder`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure

import raysim

SCENARIO: dict[str, Any] = {
    "name": "step_size",
    "backend": "in_process",  # without this line, clients train on Ray's actors, with the same result
    "data": {"name": "digits", "partition": {"name": "pathological", "classes_per_client": 5}},
    "clients": {"count": 20, "participation": 0.25, "models": ["digits_cnn_s"], "feature_dim": 50},
    "training": {"epochs": 2, "batch_size": 16, "momentum": 0.0},
}
WIDE = {"name": "fedral", "init": "normal", "init_std": 1.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "Standalone": {"name": "standalone"},
    "FedRAL": {"name": "fedral"},
    "FedRAL, N(0, 1)": WIDE,
    "FedRAL, N(0, 1), matrix not trained": {**WIDE, "train_matrix": False},
}


def main(
    rates: Sequence[float] = (0.005, 0.01, 0.02, 0.05, 0.1),
    rounds: int = 15,
    seeds: int = 1,
    folder: Path | str = "runs/step_size",
    variants: Mapping[str, Mapping[str, Any]] = VARIANTS,
) -> pd.DataFrame:
    """Run the study, print its table, draw its figure, and return a row per variant, learning rate and seed."""

    def given(name: str, rate: float, seed: int) -> dict[str, Any]:
        training = {**SCENARIO["training"], "lr": rate}
        return {**SCENARIO, "algorithm": variants[name], "training": training, "seed": seed, "output": str(folder)}

    def row(name: str, rate: float, seed: int) -> dict[str, Any]:
        tests = {"clients": "all", "every": rounds}
        run = raysim.run({**given(name, rate, seed), "rounds": rounds, "evaluation": tests}, quiet=True)
        return {"variant": name, "lr": rate, "seed": seed, "accuracy": run.summary["final"]["accuracy/all"]}

    table = pd.DataFrame([row(name, rate, seed) for name in variants for rate in rates for seed in range(1, seeds + 1)])
    means = table.pivot_table(values="accuracy", index="variant", columns="lr").loc[list(variants)]
    print(f"accuracy of all clients after round {rounds}, by learning rate\n{means.round(3).to_string()}")

    figure = Figure(figsize=(9, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, accuracy in means.iterrows():
        left.plot(means.columns, 100 * accuracy, marker="o", label=name)
    left.set(xscale="log", xlabel="learning rate", ylabel="accuracy (%)")
    left.legend(fontsize=7)
    for name in list(variants)[1:]:
        shares = shares_of_matrix(given(name, rates[0], 1), rounds)
        right.plot(range(1, rounds + 1), shares, marker="o", label=name)
        print(f"|RA| / |R| at lr {rates[0]}, {name}: {shares[0]:.2f} after round 1, {shares[-1]:.2f} after {rounds}")
    right.set(yscale="log", xlabel="round", ylabel="|RA| / |R|")
    right.legend(fontsize=7)
    figure.savefig(Path(folder) / "step_size.png", dpi=150)
    return table


def shares_of_matrix(scenario: Mapping[str, Any], rounds: int) -> list[float]:
    """Run a scenario round by round, and return |RA| / |R| after each, as the mean over the clients."""
    run = raysim.run({**scenario, "rounds": 1}, quiet=True)
    shares = [share_of_matrix(run)]
    for t in range(2, rounds + 1):
        run.resume([f"rounds={t}"], quiet=True)
        shares.append(share_of_matrix(run))
    return shares


def share_of_matrix(run: raysim.Run) -> float:
    """Return |RA| / |R| of each client's test samples after the latest round, as the mean over the participants."""
    shares = []
    latest = run.clients[run.clients["round"] == run.summary["rounds"]]
    for k in latest.loc[latest["participated"], "client"]:
        client = run.client(int(k))
        network: Any = client.network
        with torch.no_grad():
            r_BD = network.features(client.data.test.x)
            shares.append(float((r_BD @ network.matrix_DD).norm() / r_BD.norm()))
    return sum(shares) / len(shares)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.005, 0.01, 0.02, 0.05, 0.1])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/step_size"))
    main(**vars(parser.parse_args()))
