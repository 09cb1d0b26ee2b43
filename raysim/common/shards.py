"""The assignment of a data set's samples to clients, by position in the data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Shards:
    """The samples of all clients for one purpose, such as training, as positions in the data set, client by client."""

    index: NDArray[np.int64]
    """Positions, ascending within a client."""
    offset: NDArray[np.int64]
    """[N+1]; client k has index[offset[k] : offset[k + 1]]."""

    def __len__(self) -> int:
        return len(self.offset) - 1

    def of(self, client: int) -> NDArray[np.int64]:
        """Return the positions of one client's samples, ascending."""
        return self.index[self.offset[client] : self.offset[client + 1]]

    @property
    def size_N(self) -> NDArray[np.int64]:
        """Number of samples of each client, [N]."""
        return np.diff(self.offset)

    @property
    def owner(self) -> NDArray[np.int64]:
        """Client id of each entry of `index`."""
        return np.repeat(np.arange(len(self)), self.size_N)
