"""Test the small model of finished FML and FedKD runs: each client's copy, and the current one of the server.

A client's copy in FML is the small model after its last training; in FedKD, it is the one that the client received
last, because only the change is sent after training.

It wrote docs/results/small_model.csv, in about two minutes:

raysim sweep scenarios/sweeps/cifar100_published.yaml --only FML --only FedKD
python docs/results/small_model.py runs/cifar100_published/F[MK]*-seed-1-*/*/ > docs/results/small_model.csv
"""

from __future__ import annotations

import csv
import sys
from statistics import fmean

import torch

from raysim import Run
from raysim.runs.run import RunClient


@torch.no_grad()
def accuracy(client: RunClient, received: bool) -> float:
    """Return the share of the client's test samples that its small model classifies correctly."""
    net = client.current_network if received else client.network
    tests = client.data.test
    return float((net.small(tests.x).argmax(1) == tests.y).float().mean())


def row(folder: str) -> dict[str, object]:
    """Return the mean test accuracy of all clients after the last round of a run, with each of the two models."""
    run = Run(folder)
    clients = [run.client(k) for k in range(run.scenario.clients.count)]
    return {
        "variant": run.scenario.tracking.tags["cell"].split(" seed=")[0],
        "seed": run.scenario.seed,
        "copies": fmean(accuracy(client, received=False) for client in clients),
        "averaged": fmean(accuracy(client, received=True) for client in clients),
        "digest": run.state_digest,
    }


if __name__ == "__main__":
    rows = [row(folder) for folder in sys.argv[1:]]
    writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
