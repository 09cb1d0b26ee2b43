"""A worker's access to the samples of all clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysim.core.data import Samples, shared
from raysim.engine.plan import Plan

Ints = NDArray[np.int64]


class ClientSamples:
    """The samples of a data set, by position. They are stored unchanged; returned samples are on the device."""

    def __init__(self, plan: Plan, raw_M: NDArray[Any], device: torch.device) -> None:
        self.raw_M, self.label_M = shared(raw_M), shared(plan.labels)
        self.transform, self.device = plan.transform, device

    def at(self, position_N: Ints) -> Samples:
        """Return the samples at these positions, in this order."""
        index_N = torch.tensor(position_N, device="cpu")
        raw_N = self.raw_M.index_select(0, index_N).to(self.device)
        return Samples(raw_N, self.label_M.index_select(0, index_N).to(self.device), self.transform)

    def each(self, positions: Sequence[Ints]) -> list[Samples]:
        """Return the samples of several clients, each in the order of its positions, by a single lookup."""
        sizes = [len(position_N) for position_N in positions]
        whole = self.at(np.concatenate(positions))
        parts = zip(whole.raw_N.split(sizes), whole.y.split(sizes), strict=True)
        return [Samples(raw_N, y, self.transform) for raw_N, y in parts]

    def labels(self, position_N: Ints) -> Tensor:
        """Return the class ids of the samples at these positions, int64."""
        return self.label_M.index_select(0, torch.from_numpy(position_N)).to(self.device)
