"""How well does a method serve clients that never trained?

A fifth of the clients never takes part. After the last round, each of them receives the server's message, trains for
some epochs by the method's own local training, and is tested; everything that it learns is dropped. With 0 epochs, the
table shows what the message alone is worth to a new client; with more, how fast it catches up. The column `others` is
the accuracy of the clients that took part.

    python examples/new_clients.py              # 15 runs, 2 minutes on one core
    python examples/new_clients.py --rounds 2   # half a minute

It prints a table of accuracies, draws `new_clients.png`, and writes the run folders into `--folder`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

import raysim

METHODS = ("lg_fedavg", "fedgh", "fedproto", "fedrep", "ditto")
SCENARIO: dict[str, Any] = {
    "name": "new_clients",
    "backend": "in_process",  # without this line, clients train on Ray's actors, with the same result
    "data": {"name": "digits", "partition": {"name": "pathological", "classes_per_client": 3}},
    "clients": {"count": 20, "held_out": 0.2, "models": ["digits_cnn_s"]},
    "training": {"epochs": 2, "batch_size": 16, "lr": 0.05},
}


def main(
    methods: Sequence[str] = METHODS,
    epochs: Sequence[int] = (0, 2, 10),
    rounds: int = 15,
    seeds: int = 1,
    folder: Path | str = "runs/new_clients",
) -> pd.DataFrame:
    """Run the study, print its table, draw its figure, and return a row per method, number of epochs and seed."""

    def row(method: str, fine_tune: int, seed: int) -> dict[str, Any]:
        tests = {"clients": "all", "every": rounds, "fine_tune": fine_tune}
        given = {"algorithm": {"name": method}, "evaluation": tests, "rounds": rounds, "seed": seed}
        run = raysim.run({**SCENARIO, **given, "output": str(folder)}, quiet=True)
        final = run.summary["final"]
        accuracy, others = final["accuracy/held_out"], final["accuracy/all_current"]
        return {"method": method, "epochs": fine_tune, "seed": seed, "accuracy": accuracy, "others": others}

    rows = [row(method, one, seed) for method in methods for one in epochs for seed in range(1, seeds + 1)]
    table = pd.DataFrame(rows)
    means = table.pivot_table(values="accuracy", index="method", columns="epochs").loc[list(methods)]
    shown = means.assign(others=table.groupby("method")["others"].mean())
    print(f"accuracy of new clients by epochs of fine-tuning, round {rounds}\n{shown.round(3).to_string()}")
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    for method, accuracy in means.iterrows():
        axes.plot(means.columns, 100 * accuracy, marker="o", label=method)
    axes.set_xlabel("epochs of fine-tuning")
    axes.set_ylabel("accuracy of new clients (%)")
    axes.legend(fontsize=7)
    figure.savefig(Path(folder) / "new_clients.png", dpi=150)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--epochs", type=int, nargs="+", default=[0, 2, 10])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/new_clients"))
    main(**vars(parser.parse_args()))
