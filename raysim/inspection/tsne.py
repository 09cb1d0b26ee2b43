"""t-SNE of clients' representations: do samples of one class lie together, across clients?

Shapes: N samples, D representation width.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from raysim.common.errors import ScenarioError
from raysim.common.names import picture
from raysim.core.algorithm import ClientId
from raysim.inspection.pictures import class_colours, make_figure
from raysim.report.figures import picture_file, save_picture
from raysim.runs.opened import OpenedRun, Representations, Round

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PERPLEXITY = 30.0
MARKERS = "os^Dv*PXp<>h"
LISTED = 30
"""The largest number of classes whose colours the legend names."""


def embed(value_ND: NDArray[np.float32], seed: int = 0) -> NDArray[np.float32]:
    """Embed representations in the plane, [N, 2], by scikit-learn's t-SNE, initialised with principal components.

    The same seed gives the same result. The perplexity is 30, or (N - 1) / 3 if that is less. Raises `ScenarioError`
    with fewer than four samples, or if a value is not finite.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if len(value_ND) < 4:
        raise ScenarioError(
            f"{len(value_ND)} samples given; t-SNE needs at least 4: choose more clients or another part"
        )
    if not np.isfinite(value_ND).all():
        raise ScenarioError(
            "the representations contain NaN or infinity, because the training of these clients diverged; choose other "
            "clients or an earlier round"
        )
    perplexity = min(PERPLEXITY, (len(value_ND) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=seed)
    # OpenMP's threads wait for each other in every step; on a busy machine that takes minutes instead of seconds.
    with threadpool_limits(1):
        plane_N2: NDArray[np.float32] = tsne.fit_transform(value_ND)
    return plane_N2


def draw_tsne(
    runs: Sequence[Path | str],
    clients: Sequence[ClientId],
    part: str,
    output: Path | str,
    seed: int = 0,
    round: Round = None,
) -> Path:
    """Draw one panel per run, side by side; colours are classes, markers are clients. Returns the file.

    round: the networks are those after this round; "best_val": the best by validation; default: the latest.
    Raises `ScenarioError` if a run, client or part does not exist, or the file cannot be written.
    """
    file = picture_file(output)
    if len(clients) > len(MARKERS):
        raise ScenarioError(f"--clients: {len(clients)} given; allowed: at most {len(MARKERS)}, one marker each")
    markers = dict(zip(clients, MARKERS, strict=False))
    opened = [OpenedRun.of(run) for run in runs]
    for run in opened[1:]:
        run.refuse_other_classes(opened[0])
    # Only once: while the panels are drawn, a run in progress may replace its checkpoints.
    rounds = [run.checkpoint(round).round for run in opened]
    representations = [run.representations(clients, part, t) for run, t in zip(opened, rounds, strict=True)]
    colours = class_colours(np.unique(np.concatenate([one.label_N for one in representations])))
    figure, panels = make_figure(1, len(representations), 5.0 * len(representations), 5.4)
    for axes, run, t, one in zip(panels[0], opened, rounds, representations, strict=True):
        axes.set_title(picture(fill(f"{run.name}, after round {t}", 64)), fontsize=8)
        axes.set(xticks=[], yticks=[])
        _panel(axes, one, embed(one.value_ND, seed), colours, markers)
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color="#555555", marker=marker, linestyle="", label=f"client {k}")
        for k, marker in markers.items()
    ]
    if len(colours) <= LISTED:
        names = opened[0].assembly.data.class_names
        for y, colour in colours.items():
            handles.append(Line2D([], [], color=colour, marker="o", linestyle="", label=picture(names[y])))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(8, len(handles)), fontsize=7, frameon=False)
    return save_picture(figure, file)


def _panel(
    axes: Axes,
    one: Representations,
    plane_N2: NDArray[np.float32],
    colours: dict[int, Any],
    markers: dict[ClientId, str],
) -> None:
    for k, marker in markers.items():
        (mine,) = np.nonzero(one.client_N == k)
        colour = [colours[y] for y in one.label_N[mine].tolist()]
        axes.scatter(plane_N2[mine, 0], plane_N2[mine, 1], c=colour, marker=marker, s=22, linewidths=0)
