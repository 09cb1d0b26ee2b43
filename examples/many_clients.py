"""What do 10,000 clients cost, if a handful of them takes part in each round?

Cross-device federations have many clients, of which few take part in a round. The study runs the same rounds of 50
participants with 100, 1,000 and 10,000 clients. Only participants compute, so a round of 10,000 clients should take
little longer than one of 100; memory grows by the state of each client that has trained. Each client draws 32 samples
of the digits (`resample`), because 10,000 clients cannot have disjoint shares of 1,797 images.

    python examples/many_clients.py                              # less than a minute on one core
    python examples/many_clients.py --rounds 3 --clients 50 500  # a few seconds

It prints a table, and writes `many_clients.png` and the run folders into `--folder`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

import raysim

PARTICIPANTS = 50
MODELS = ["digits_mlp64", "digits_mlp128"]
CLIENTS = (100, 1_000, 10_000)
SCENARIO: dict[str, Any] = {
    "name": "many_clients",
    "seed": 1,
    "backend": "in_process",
    "algorithm": {"name": "fedproto"},
    "data": {"name": "digits", "partition": {"name": "resample", "samples_per_client": 32}},
    "training": {"epochs": 1, "batch_size": 16, "lr": 0.05, "momentum": 0.9},
}


def main(rounds: int = 40, clients: Sequence[int] = CLIENTS, folder: Path | str = "runs/many_clients") -> pd.DataFrame:
    """Run the study, print its table, draw its figure, and return a row per number of clients."""
    rows = []
    for count in sorted(clients):  # all runs share this process, so the memory of the largest is measured last
        scenario = {
            **SCENARIO,
            "rounds": rounds,
            "output": str(folder),
            "clients": {"count": count, "participation": PARTICIPANTS / count, "models": MODELS},
        }
        begin = time.perf_counter()
        run = raysim.run(scenario, quiet=True)
        rows.append(
            {
                "clients": count,
                "trained clients": run.clients.query("participated")["client"].nunique(),
                "s per round": run.rounds["time/round_s"].median(),
                "s in all": time.perf_counter() - begin,  # with data, partition, all initial networks and results
                "memory, MiB": run.rounds["memory/host_mb"].iloc[-1],
                "folder": run.folder,
            }
        )
    table = pd.DataFrame(rows).set_index("clients")
    print(
        f"{PARTICIPANTS} participants in each of {rounds} rounds\n{table.drop(columns='folder').round(3).to_string()}"
    )

    figure = Figure(figsize=(6, 2.6), layout="constrained")
    for axes, column in zip(figure.subplots(1, 2), ["s per round", "memory, MiB"], strict=True):
        axes.plot(table.index, table[column], "o-")
        axes.set(xscale="log", xlabel="clients", ylabel=column, ylim=(0, 1.2 * table[column].max()))
    figure.savefig(Path(folder) / "many_clients.png", dpi=150)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--folder", type=Path, default=Path("runs/many_clients"))
    main(**vars(parser.parse_args()))
