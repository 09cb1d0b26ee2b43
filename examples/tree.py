"""Which samples teach a sample in HKS?

In a run of HKS, the server clusters the clients' training samples by their logits, and a client learns from the mean
logits of clusters around each sample. This script clusters the logits of the clients' networks as the method does, and
shows the clusters around one sample, from its first merge to the top of the tree (HKS, Figure 3).

    python examples/tree.py RUN   # a run folder of HKS on images, with a checkpoint; a few seconds

It prints a table, and writes `tree.png` into the current folder: the sample, and below it a row per cluster with the
samples that join it there.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

import raysim

SHOWN = 10  # images per row


def main(run: raysim.Run | str, sample: int | None = None) -> pd.DataFrame:
    """Print and draw the clusters around a sample, and return a row per cluster.

    sample: its position in the data set, as in partition.parquet; default: the first training sample of client 0.
    """
    run = raysim.Run(run)
    held = run.partition.query("part == 'train'").sort_values(["client", "sample"]).reset_index(drop=True)
    data = {k: run.client(k).data.train for k in held["client"].unique()}
    with torch.no_grad():
        logits_NC = torch.cat([run.client(k).network(samples.x) for k, samples in data.items()])
    image_NHWC = torch.cat([samples.raw_N for samples in data.values()]).numpy()
    target = 0 if sample is None else int(held.index[held["sample"] == sample][0])

    method: Any = run.scenario.algorithm
    tree = method.tree(logits_NC, logits_NC.shape[1])
    distance_N = (logits_NC.double() - logits_NC[target].double()).square().sum(1).numpy()
    names = run.classes.set_index("class")["name"]
    below, rows, joining = np.array([target]), [], [np.array([target])]
    for node in path(tree.parent_V, target):
        inside = members(tree.parent_V, tree.num_samples, node)
        inside = inside[distance_N[inside].argsort(kind="stable")]  # the nearest logits first
        joining.append(np.setdiff1d(inside, below, assume_unique=True))
        below = inside
        predicted = int(logits_NC[inside].double().mean(0).argmax())
        labels = held["label"][inside].map(names).value_counts()
        rows.append(
            {
                "samples": len(inside),
                "clients": held["client"][inside].nunique(),
                "predicts": names[predicted],
                "classes": ", ".join(f"{count} x {name}" for name, count in labels.head(3).items()),
            }
        )
    table = pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1, name="cluster"))
    sample, client, label = held.loc[target, ["sample", "client", "label"]]
    print(f"sample {sample} of client {client}, class {names[label]}\n{table.to_string()}")

    figure = Figure(figsize=(SHOWN + 3, 1.1 * len(joining)), layout="constrained")
    for axes, places in zip(figure.subplots(len(joining), SHOWN, squeeze=False), joining, strict=True):
        for panel, place in zip(axes, places, strict=False):
            panel.imshow(image_NHWC[place].squeeze(), cmap="gray", vmin=0, vmax=255)
            panel.set_title(names[held["label"][place]], fontsize=7)
        for panel in axes:
            panel.set_axis_off()
    figure.suptitle("the samples that each level adds to the cluster of the first", fontsize=9)
    figure.savefig("tree.png", dpi=150)
    return table


def path(parent_V: np.ndarray, node: int) -> list[int]:
    """Return the clusters around a sample, from the smallest to the largest. parent_V: each node's parent, or -1."""
    clusters = []
    while (node := int(parent_V[node])) >= 0:
        clusters.append(node)
    return clusters


def members(parent_V: np.ndarray, num_samples: int, cluster: int) -> np.ndarray:
    """Return the samples of a cluster. Samples are the first nodes; a parent comes after its parts."""
    inside_V = np.zeros(len(parent_V), bool)
    inside_V[cluster] = True
    for node in range(cluster - 1, -1, -1):
        inside_V[node] = parent_V[node] >= 0 and inside_V[parent_V[node]]
    return np.flatnonzero(inside_V[:num_samples])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    main(parser.parse_args().run)
