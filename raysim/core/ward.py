"""Ward's clustering, with memory that grows linearly with the number of points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ward(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the tree of Ward's clustering in the form of `scipy.cluster.hierarchy.linkage(points, "ward")`: [N-1, 4].

    Merges of equal height may come in another order. SciPy keeps the distances of all pairs and a copy of them, 28.8 GB
    for 60,000 points; fastcluster computes them from the points whenever it needs them.
    """
    import fastcluster  # imported here, because clients do not need it

    linkage: NDArray[np.float64] = fastcluster.linkage_vector(points, "ward")
    # For equal points, rounding errors may break the ascending order.
    linkage[:, 2] = np.maximum.accumulate(linkage[:, 2])
    return linkage
