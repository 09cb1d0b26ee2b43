"""Do samples of one class lie together, across clients?

Each client's own network computes representations of the client's own test samples, and scikit-learn's t-SNE embeds
all of them in the plane. Colours are classes, markers are clients. Distances between distant groups have no meaning:
look at whether the samples of a class form one group, although they come from several clients.

    python examples/tsne.py RUN   # a run folder with a checkpoint; a few seconds

It writes `tsne.png` into the current folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

import raysim

CLIENTS = (0, 1, 2)
MARKERS = "os^Dv*PXp<>h"  # of the clients, in their order


def main(run: raysim.Run | str, clients: Sequence[int] = CLIENTS, part: str = "test") -> np.ndarray:
    """Draw the representations of these clients' samples, and return their places in the plane, [N, 2]."""
    run = raysim.Run(run)
    value_ND, label_N, client_N = run.representations(clients, part)
    tsne = TSNE(perplexity=min(30, (len(value_ND) - 1) / 3), init="pca", random_state=0)
    # OpenMP's threads wait for each other in every step; on a busy machine that takes minutes instead of seconds.
    with threadpool_limits(1):
        plane_N2: np.ndarray = tsne.fit_transform(value_ND)

    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    classes = np.unique(label_N)
    colour_of = dict(zip(classes, colormaps["turbo"](np.linspace(0.05, 0.95, len(classes))), strict=True))
    for k, marker in zip(clients, MARKERS, strict=False):
        mine = client_N == k
        axes.scatter(
            plane_N2[mine, 0],
            plane_N2[mine, 1],
            c=[colour_of[y] for y in label_N[mine]],
            marker=marker,
            s=22,
            linewidths=0,
        )
    names = run.classes.set_index("class")["name"]
    handles = [
        Line2D([], [], color="black", marker=marker, linestyle="", label=f"client {k}")
        for k, marker in zip(clients, MARKERS, strict=False)
    ]
    handles += [
        Line2D([], [], color=colour, marker="o", linestyle="", label=names.get(y, y)) for y, colour in colour_of.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=7, fontsize=7, frameon=False)
    axes.set(xticks=[], yticks=[], title=run.folder.name)
    figure.savefig("tsne.png", dpi=150)
    return plane_N2


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    main(parser.parse_args().run)
