"""Gradient inversion by an honest-but-curious server: a client's image from its upload (DLG; FedRAL, Table 5).

Zhu, Liu, Han. Deep Leakage from Gradients. NeurIPS 2019. https://arxiv.org/abs/1906.08935
The attacker varies an image until its model of the client would send the upload that it observed; for methods that
send an update it varies a soft label too. The result is the PSNR of the reconstruction, reported beside the PSNR of
two unrelated images, the level without any information.

Shapes: H x W pixels, C channels, E observed numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, log10
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysim.common.errors import ScenarioError
from raysim.common.names import picture
from raysim.core.algorithm import ClientId
from raysim.core.seeds import seeded
from raysim.engine.spec import RunSpec
from raysim.inspection.pictures import Image, make_figure, pixels, show_image
from raysim.inspection.transmission import (
    Knowledge,
    Transmission,
    attack_spec,
    attackable,
    transmit,
)
from raysim.report.figures import picture_file, save_picture
from raysim.runs.opened import OpenedRun, Round

Convention = Literal["psnr", "pfllib"]

PAIRS, ROUND = 20, 10
OUTER, INNER = 100, 20
"""L-BFGS: the maximum number of calls, and of iterations per call."""
SOLVED = 1e-8
"""Stop early below this squared distance, relative to the squared norm of the observed numbers."""
STUCK = 0.9
"""Restart from a new random image if a call leaves at least this share of the distance."""
STRANGERS = 100
"""Pairs of unrelated images to average over for the level without information."""
SHOWN = 10
"""Images per row of the figure."""


def psnr(original: NDArray[Any], image: NDArray[Any], convention: Convention = "psnr") -> float:
    """Return the PSNR in dB, 10 log10(1 / MSE), over all pixels and channels in [0, 1]; infinite for equal images.

    convention: "pfllib" divides the MSE by 3, as PFLlib does, which adds 4.77 dB.
    """
    mse = float(np.square(np.asarray(original, np.float64) - np.asarray(image, np.float64)).mean())
    if convention == "pfllib":
        mse /= 3
    return 10 * log10(1 / mse) if mse else float("inf")


@dataclass(frozen=True)
class Attacked:
    """An image and its reconstruction by the attack."""

    client: ClientId
    sample: int  # position in the data set, as in partition.parquet
    original_HWC: Image  # in [0, 1]
    image_HWC: Image  # the reconstruction
    start_HWC: Image  # the random start of the attack
    distance: float  # squared distance of the observed and the attacker's numbers, over the squared norm of the former


@dataclass(frozen=True)
class Attack:
    """The result of an attack on a run."""

    run: str
    round: int  # the round that the clients trained in
    knowledge: Knowledge
    convention: Convention
    images: tuple[Attacked, ...]
    unrelated: float  # mean PSNR of two unrelated images of the run

    @cached_property
    def psnrs(self) -> list[float]:
        """The PSNR of each reconstruction."""
        return [psnr(one.original_HWC, one.image_HWC, self.convention) for one in self.images]

    @property
    def mean(self) -> float:
        """Mean PSNR of the reconstructions."""
        return float(np.mean(self.psnrs))

    @property
    def start(self) -> float:
        """Mean PSNR of the random starts."""
        return float(np.mean([psnr(one.original_HWC, one.start_HWC, self.convention) for one in self.images]))


def attack(
    run: Path | str,
    *,
    round: Round = None,
    pairs: int = PAIRS,
    knowledge: Knowledge = "white",
    convention: Convention = "psnr",
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Attack:
    """Attack the uploads of random clients of a run, each after training on one random image.

    round: the clients start from the state after this round; "best_val": the best by validation; default: 10 if the run
    kept it, else the latest.
    progress: called with the number of images done. Raises `ScenarioError` if the run's method does not declare what
    its uploads expose (`Algorithm.exposed`), or exposes no single image.
    """
    opened = OpenedRun.of(run)
    opened.check_images()
    checkpoint = opened.checkpoint(round)
    if round is None and ROUND in {kept.round for kept in opened.store.kept}:
        checkpoint = opened.checkpoint(ROUND)
    clients = attackable(opened, checkpoint)
    spec, rng = attack_spec(opened.spec), np.random.default_rng(seed)
    drawn = [
        (k := clients[int(rng.integers(len(clients)))], int(rng.integers(spec.num_samples[k]))) for _ in range(pairs)
    ]
    images: list[Attacked] = []
    with opened.backend({k for k, _ in drawn}, checkpoint, spec) as backend:
        for k, sample in drawn:
            seen = transmit(backend, checkpoint.round + 1, k, sample, knowledge)
            place = int(spec.train.of(k)[sample])
            start_HWC, image_HWC, distance = invert(seen, spec, opened.raw_M.shape[1:], seed + len(images))
            images.append(Attacked(k, place, pixels(opened.raw_M[place]), image_HWC, start_HWC, distance))
            progress(len(images))
    unrelated = _unrelated(opened.raw_M, spec.train.index, convention, rng)
    return Attack(opened.name, checkpoint.round + 1, knowledge, convention, tuple(images), unrelated)


def invert(seen: Transmission, spec: RunSpec, shape_HWC: tuple[int, ...], seed: int = 0) -> tuple[Image, Image, float]:
    """Find the image that would be sent most nearly as observed: (first random start, best image, its distance).

    Image and label start from N(0, 1) and pass through a sigmoid and a softmax, so that pixels are in [0, 1]. If
    L-BFGS gets stuck, it restarts; the image with the least distance, which the attacker knows, is the result.
    """
    rng = seeded(seed, "attack")
    scale = float(seen.seen_E.square().sum()) or 1.0
    descent = best = first = _Descent(seen, spec, shape_HWC, scale, rng)
    start = first.image_HWC
    for _ in range(OUTER):
        before = descent.least
        descent.step()
        if descent.least < best.least:
            best = descent
        if best.least < SOLVED:
            break
        if not descent.least < STUCK * before:
            descent = _Descent(seen, spec, shape_HWC, scale, rng)
    return start, best.image_HWC, best.least


class _Descent:
    """L-BFGS from one random start, and its best image so far."""

    def __init__(
        self, seen: Transmission, spec: RunSpec, shape_HWC: tuple[int, ...], scale: float, rng: torch.Generator
    ) -> None:
        self.seen, self.transform, self.scale = seen, spec.transform, scale
        self.image = torch.randn(1, *shape_HWC, generator=rng).requires_grad_()
        self.label = torch.randn(1, spec.num_classes, generator=rng).requires_grad_()
        self.varied = [self.image, self.label] if seen.uses_label else [self.image]
        self.optimizer = torch.optim.LBFGS(self.varied, max_iter=INNER)
        self.image_HWC: Image = self.image.detach().sigmoid()[0].numpy()
        self.least = float("inf")

    def step(self) -> None:
        """One call of the optimizer."""
        self.optimizer.step(self._closure)

    def _closure(self) -> float:
        x = self.transform.plain(255 * self.image.sigmoid())
        sent_E = self.seen.send(x, self.label.softmax(1))
        distance: Tensor = (sent_E - self.seen.seen_E).square().sum() / self.scale
        gradients = torch.autograd.grad(distance, self.varied)
        for one, gradient in zip(self.varied, gradients, strict=True):
            one.grad = gradient
        value = distance.item()
        if value < self.least:
            self.least, self.image_HWC = value, self.image.detach().sigmoid()[0].numpy()
        return value


def _unrelated(
    image_MHWC: NDArray[np.uint8], index: NDArray[np.int64], convention: Convention, rng: np.random.Generator
) -> float:
    """The mean PSNR of two random training images of clients."""
    if len(index) < 2:
        raise ScenarioError(
            "the clients of this run have fewer than two training images in total; choose a run with more"
        )
    pairs = [rng.choice(index, 2, replace=False) for _ in range(STRANGERS)]
    psnrs = [psnr(pixels(image_MHWC[a]), pixels(image_MHWC[b]), convention) for a, b in pairs]
    return float(np.mean([value for value in psnrs if isfinite(value)]))


def draw_attack(result: Attack, output: Path | str) -> Path:
    """Draw the originals, and below them the reconstructions with their PSNR. Returns the file."""
    file = picture_file(output)
    columns = min(SHOWN, len(result.images))
    rows = -(-len(result.images) // columns)
    figure, axes = make_figure(2 * rows, columns, max(1.1 * columns + 0.6, 4.5), 2.5 * rows + 0.8)
    for one in axes.flat:
        one.set_axis_off()
    for place, (image, value) in enumerate(zip(result.images, result.psnrs, strict=True)):
        row, column = divmod(place, columns)
        show_image(axes[2 * row, column], image.original_HWC, f"client {image.client}\nsample {image.sample}")
        show_image(axes[2 * row + 1, column], image.image_HWC, f"{value:.1f} dB")
    levels = f"{result.mean:.1f} dB; two unrelated images {result.unrelated:.1f} dB"
    when = f"round {result.round}, from the state after {result.round - 1}"
    title = f"{result.run}\n{when}, {result.knowledge} attacker: {levels}"
    figure.suptitle(picture(title, 200), fontsize=8, wrap=True)
    return save_picture(figure, file)
