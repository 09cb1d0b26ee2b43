"""Test the clients of finished runs with their own networks, and with what the server would send them next.

It wrote docs/results/received.csv, about half a minute a run:

raysim sweep scenarios/sweeps/cifar100_published.yaml
python docs/results/received.py runs/cifar100_published/*-seed-1-*/*/ > docs/results/received.csv
"""

from __future__ import annotations

import csv
import sys
from statistics import fmean

from raysim import Run
from raysim.runs.run import RunClient


def accuracy(client: RunClient, received: bool) -> float:
    """Return the share of the client's test samples that its network classifies correctly."""
    tests = client.predictions("test", current=received)
    return float((tests["label"] == tests["predicted"]).mean())


def row(folder: str) -> dict[str, object]:
    """Return the mean test accuracy of all clients after the last round of a run, with each of the two networks."""
    run = Run(folder)
    clients = [run.client(k) for k in range(run.scenario.clients.count)]
    return {
        "variant": run.scenario.tracking.tags["cell"].split(" seed=")[0],
        "seed": run.scenario.seed,
        "last": fmean(accuracy(client, received=False) for client in clients),
        "received": fmean(accuracy(client, received=True) for client in clients),
        "digest": run.state_digest,
    }


if __name__ == "__main__":
    rows = [row(folder) for folder in sys.argv[1:]]
    writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
