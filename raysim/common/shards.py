"""Which samples of a data set each client has, as positions in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Shards:
    """One part (say, training) of every client: positions in the data set, client after client."""

    index: NDArray[np.int64]
    """Positions, ascending within a client."""
    offset: NDArray[np.int64]
    """[N+1]; client k has index[offset[k] : offset[k + 1]]."""

    def __len__(self) -> int:
        return len(self.offset) - 1

    def of(self, client: int) -> NDArray[np.int64]:
        """Positions of one client's samples, ascending."""
        return self.index[self.offset[client] : self.offset[client + 1]]

    @property
    def size_N(self) -> NDArray[np.int64]:
        """How many samples each client has."""
        return np.diff(self.offset)

    @property
    def owner(self) -> NDArray[np.int64]:
        """The client of every entry of `index`."""
        return np.repeat(np.arange(len(self)), self.size_N)
