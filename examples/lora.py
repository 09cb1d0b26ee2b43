"""How should adapters of unequal ranks be combined?

Twelve clients have one frozen transformer, and train adapters (LoRA) and a header. In the first column, all adapters
have rank 2, in the last one rank 8, and in the middle column a third of the clients has rank 2, 4 and 8 each. The table
shows the accuracy of all clients with what the server would send them, and the kilobytes that a client sends per round.
The figure shows the share of the energy of the mean product that lies beyond rank 2: in FlexLoRA, clients of rank 2
count as zeros there, in raFLoRA they do not count.

    python examples/lora.py              # 9 runs, 8 minutes on one core
    python examples/lora.py --rounds 5

It draws `lora.png`, and writes the run folders into `--folder`.
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
    "name": "lora",
    "backend": "in_process",  # without this line, clients train on Ray's actors, with the same result
    "data": {"name": "digits", "partition": {"name": "dirichlet", "alpha": 1.0}},
    "clients": {"count": 12},
    "training": {"epochs": 2, "batch_size": 32, "lr": 0.05, "momentum": 0.9},
    "evaluation": {"every": 5, "clients": "all"},
}
RANKS: dict[str, list[int]] = {"2": [2], "2, 4, 8": [2, 4, 8], "8": [8]}
ENERGY = "server/energy_beyond_smallest_rank"


def main(
    methods: Sequence[str] = ("hetlora", "flexlora", "raflora"),
    ranks: Sequence[str] = tuple(RANKS),
    rounds: int = 20,
    seeds: int = 1,
    folder: Path | str = "runs/lora",
) -> pd.DataFrame:
    """Run the study, print its tables, draw its figure, and return a row per method, ranks and seed."""
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()

    def row(method: str, name: str, seed: int) -> dict[str, Any]:
        models = [f"digits_vit_lora{rank}" for rank in RANKS[name]]
        given = {"algorithm": {"name": method}, "rounds": rounds, "seed": seed, "output": str(folder)}
        run = raysim.run({**SCENARIO, **given, "clients": {**SCENARIO["clients"], "models": models}}, quiet=True)
        if len(models) > 1 and seed == 1 and ENERGY in run.rounds:
            axes.plot(run.rounds["round"], 100 * run.rounds[ENERGY], label=method)
        accuracy = run.summary["final"]["accuracy/all_current_pooled"]
        sent = run.clients.query("participated")["up_bytes"].mean() / 1000
        return {"method": method, "ranks": name, "seed": seed, "accuracy": accuracy, "KB": sent}

    table = pd.DataFrame(
        [row(method, name, seed) for method in methods for name in ranks for seed in range(1, seeds + 1)]
    )
    print(f"after round {rounds}, mean over {seeds} seeds")
    for value in ("accuracy", "KB"):
        means = table.pivot_table(values=value, index="method", columns="ranks")
        print(f"{value}\n{means.loc[list(methods), list(ranks)].round(3).to_string()}\n")
    axes.set(xlabel="round", ylabel="energy beyond rank 2 (%)", ylim=(0, None))
    axes.legend()
    figure.savefig(Path(folder) / "lora.png", dpi=150)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["hetlora", "flexlora", "raflora"])
    parser.add_argument("--ranks", nargs="+", choices=RANKS, default=list(RANKS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/lora"))
    main(**vars(parser.parse_args()))
