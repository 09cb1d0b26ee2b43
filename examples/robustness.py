"""Which methods bear malicious clients, and what does a robust rule cost without any?

Twenty clients have samples of similar classes (Dirichlet 1.0), and all take part in every round. In the rows of the
table, four or eight of them are malicious: `sign flip` sends the opposite of its step, five times as long; `inner
product` the opposite of the mean of all honest steps; `label flip` trains on wrong labels. In the columns, the server
combines uploads by the method's own mean, or by a rule of `aggregator`. Compare a rule with the mean in the row `none`
first: what is lost there is the price that is always paid.

    python examples/robustness.py              # FedAvg: 20 runs, 5 minutes on one core
    python examples/robustness.py --rounds 2   # 40 seconds

`--methods fedavg fedproto` compares methods. It prints a table of accuracies for each method, mean over the seeds,
draws `robustness.png`, and writes the run folders into `--folder`.
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
    "name": "robustness",
    "backend": "in_process",  # without this line, clients train on Ray's actors, with the same result
    "data": {"name": "digits", "partition": {"name": "dirichlet", "alpha": 1.0}},
    "clients": {"count": 20, "models": ["digits_cnn_s"]},
    "training": {"epochs": 5, "batch_size": 32, "lr": 0.1},
    "evaluation": {"clients": "all"},
}
SETTINGS: dict[str, dict[str, Any]] = {"fedproto": {"inference": "nearest"}}
"""Settings of methods besides their defaults: FedProto predicts with the prototypes, which are what clients share."""
ATTACKS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "sign flip": {"clients": 0.2, "attack": {"name": "sign_flip", "factor": 5.0}},
    "inner product": {"clients": 0.2, "attack": {"name": "inner_product", "factor": 5.0}},
    "label flip, 40%": {"clients": 0.4, "attack": {"name": "label_flip"}},
}
RULES: dict[str, dict[str, Any] | None] = {
    "mean": None,
    "median": {"rule": {"name": "median"}},
    "trimmed mean": {"rule": {"name": "trimmed_mean", "malicious": 4}},
    "multi-Krum": {"rule": {"name": "multi_krum", "malicious": 4}},
    "bucketing, median": {"rule": {"name": "median"}, "mixing": {"name": "bucketing", "size": 2}},
}


def main(
    methods: Sequence[str] = ("fedavg",),
    attacks: Sequence[str] = tuple(ATTACKS),
    rules: Sequence[str] = tuple(RULES),
    rounds: int = 20,
    seeds: int = 1,
    folder: Path | str = "runs/robustness",
) -> pd.DataFrame:
    """Run the study, print its tables, draw its figure, and return a row per method, attack, rule and seed."""

    def row(method: str, attack: str, rule: str, seed: int) -> dict[str, Any]:
        algorithm = {"name": method, **SETTINGS.get(method, {})}
        sections = {"adversary": ATTACKS[attack], "aggregator": RULES[rule]}
        given = {"algorithm": algorithm, "rounds": rounds, "seed": seed, "output": str(folder)}
        run = raysim.run({**SCENARIO, **given, **sections}, quiet=True)
        accuracy = run.summary["final"]["accuracy/all_current_pooled"]
        return {"method": method, "attack": attack, "rule": rule, "seed": seed, "accuracy": accuracy}

    rows = [
        row(method, attack, rule, seed)
        for method in methods
        for attack in attacks
        for rule in rules
        for seed in range(1, seeds + 1)
    ]
    table = pd.DataFrame(rows)
    figure = Figure(figsize=(6.4, 2.6 * len(methods)), layout="constrained")
    for axes, method in zip(figure.subplots(len(methods), squeeze=False)[:, 0], methods, strict=True):
        means = table[table["method"] == method].pivot_table(values="accuracy", index="attack", columns="rule")
        means = means.loc[list(attacks), list(rules)]
        print(f"{method}, accuracy after round {rounds}, mean over {seeds} seeds\n{means.round(3).to_string()}\n")
        (100 * means).plot.bar(ax=axes, rot=0, title=method, xlabel="", ylabel="accuracy (%)", legend=False)
    figure.axes[0].legend(fontsize=7, ncols=len(rules), loc="lower center")
    figure.savefig(Path(folder) / "robustness.png", dpi=150)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["fedavg"])
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/robustness"))
    main(**vars(parser.parse_args()))
