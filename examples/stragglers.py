"""Should the server wait for slow clients?

Thirty clients have devices and connections of very different speed (log-normal). A round ends when its last participant
has finished, in virtual time, which raysim computes from each client's operations and bytes. Five servers are compared:
- wait: wait for all ten participants
- deadline: stop waiting after a deadline that three quarters of the client rounds of `wait` meet
- oversample: select 15 clients, and use the first 10 that finish
- fastest: draw 20 clients, and select the 10 fastest devices
- asynchronous: ten clients train at any time; a round ends with the first 4 uploads, and the others count later
With shorter rounds, the server learns from fewer clients. `never counted` is the number of clients whose training never
reached the server. `worst tenth` is the accuracy of the tenth of the clients with the lowest accuracies; these are
usually the clients that never counted.

    python examples/stragglers.py              # 5 runs, less than a minute on one core
    python examples/stragglers.py --rounds 3   # a few seconds

It prints a table, and writes `stragglers.png` and the run folders into `--folder`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

import raysim

TARGET = 0.8
CLIENTS: dict[str, Any] = {"count": 30, "participation": 1 / 3, "models": ["digits_mlp64", "digits_cnn_s"]}
SCENARIO: dict[str, Any] = {
    "name": "stragglers",
    "seed": 1,
    "backend": "in_process",  # without this line, clients train on Ray's actors, with the same result
    "algorithm": {"name": "fedgh"},
    "data": {"name": "digits", "partition": {"name": "pathological", "classes_per_client": 3}},
    "training": {"epochs": 2, "batch_size": 16, "lr": 0.05, "momentum": 0.9},
    "system": {
        "flops_per_s": {"name": "log_normal", "median": 1e7, "sigma": 1.5},
        "up_mbit_per_s": {"name": "log_normal", "median": 5, "sigma": 1},
        "down_mbit_per_s": 50,
        "latency_s": 0.05,
    },
}


def main(rounds: int = 40, folder: Path | str = "runs/stragglers") -> pd.DataFrame:
    """Run the study, print its table, draw its figure, and return a row per server."""

    def run(asynchronous: dict[str, Any] | None = None, rounds: int = rounds, **clients: Any) -> raysim.Run:
        given = {"rounds": rounds, "output": str(folder), "asynchronous": asynchronous}
        return raysim.run({**SCENARIO, **given, "clients": {**CLIENTS, **clients}}, quiet=True)

    wait = run()
    deadline_s = round(float(wait.clients["virtual_s"].quantile(0.75)), 2)
    runs = {
        "wait": wait,
        f"deadline {deadline_s:g} s": run(deadline_s=deadline_s),
        "oversample": run(oversample=1.5),
        "fastest": run(selection={"name": "fastest", "candidates": 2}),
        "asynchronous": run({"buffer": 4}, rounds=rounds * 10 // 4),  # as many uploads count as in the run `wait`
    }

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    rows = []
    for server, done in runs.items():
        time_s = done.rounds["time/virtual_total_s"].fillna(0)  # 0 before round 1
        accuracy = done.rounds["accuracy/all"]
        reached = time_s[accuracy >= TARGET]
        counted = done.clients.query("participated")["client"].nunique()
        rows.append(
            {
                "server": server,
                "accuracy": accuracy.iloc[-1],
                "worst tenth": done.rounds["accuracy/worst_decile"].iloc[-1],
                "virtual s": time_s.iloc[-1],
                f"virtual s to {TARGET:.0%}": reached.iloc[0] if len(reached) else float("nan"),
                "never counted": CLIENTS["count"] - counted,
                "folder": done.folder,
            }
        )
        axes.plot(time_s, 100 * accuracy, label=server)
    table = pd.DataFrame(rows).set_index("server")
    print(f"after {rounds} rounds, asynchronous after {rounds * 10 // 4}")
    print(table.drop(columns="folder").round(3).to_string(na_rep="not reached"))

    axes.set_xlabel("virtual time (s)")
    axes.set_ylabel("accuracy of all clients (%)")
    axes.legend(fontsize=7)
    figure.savefig(Path(folder) / "stragglers.png", dpi=150)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--folder", type=Path, default=Path("runs/stragglers"))
    main(**vars(parser.parse_args()))
