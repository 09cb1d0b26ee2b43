"""Test the two models of each client of finished FML, FedKD and FedAPEN runs: its own and the small one.

A client's copy of the small model in FML and FedAPEN is that after its last training; in FedKD, it is the one that the
client received last, because only the change is sent after training. Clients of FML and FedKD predict with their own
model, those of FedAPEN with the ensemble of both.

It wrote docs/results/small_model.csv, in about four minutes:

raysim sweep scenarios/sweeps/cifar100_published.yaml --only FML --only FedKD --only FedAPEN
python docs/results/small_model.py runs/cifar100_published/{FML,FedKD,FedAPEN}*/*/ > docs/results/small_model.csv
"""

from __future__ import annotations

import csv
import sys
from statistics import fmean

import torch

from raysim import Run
from raysim.runs.run import RunClient

OWN_AND_SMALL = {"FML": ("model", "small"), "FedKD": ("model", "small"), "FedAPEN": ("private", "shared")}
"""Variant -> the names of a client's own model and of the small model in its network."""


@torch.no_grad()
def accuracy(client: RunClient, model: str, received: bool = False) -> float:
    """Return the share of the client's test samples that one of its models classifies correctly."""
    net = client.current_network if received else client.network
    tests = client.data.test
    return float((getattr(net, model)(tests.x).argmax(1) == tests.y).float().mean())


def row(folder: str) -> dict[str, object]:
    """Return the mean test accuracies of all clients after the last round of a run, with each of the models."""
    run = Run(folder)
    clients = [run.client(k) for k in range(run.scenario.clients.count)]
    variant = run.scenario.tracking.tags["cell"].split(" seed=")[0]
    own, small = OWN_AND_SMALL[variant]
    return {
        "variant": variant,
        "seed": run.scenario.seed,
        "own": fmean(accuracy(client, own) for client in clients),
        "copies": fmean(accuracy(client, small) for client in clients),
        "averaged": fmean(accuracy(client, small, received=True) for client in clients),
        "digest": run.state_digest,
    }


if __name__ == "__main__":
    rows = [row(folder) for folder in sys.argv[1:]]
    writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
