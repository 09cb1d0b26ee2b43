"""Ward's clustering of many points, in memory that grows with their number and not with its square."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ward(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """The tree of Ward's clustering as `scipy.cluster.hierarchy.linkage(points, "ward")` gives it: [N-1, 4].

    The order among equal heights may be another. SciPy keeps the distances of all pairs and a copy of them, 28.8 GB for
    60,000 points; fastcluster computes them from the points whenever it needs them.
    """
    import fastcluster  # here: clients do not need it

    linkage: NDArray[np.float64] = fastcluster.linkage_vector(points, "ward")
    linkage[:, 2] = np.maximum.accumulate(linkage[:, 2])  # of equal points, rounding may put one merge below another
    return linkage
