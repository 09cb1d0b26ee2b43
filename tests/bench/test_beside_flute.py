"""The benchmark beside FLUTE deals images as its docstring says, and needs a checkout only to run FLUTE."""

from __future__ import annotations

import beside_flute
import numpy as np

LABELS = np.arange(70_000) % 10


def test_clients_have_two_classes_and_unequal_numbers_of_images() -> None:
    parts = beside_flute.deal(LABELS)
    sizes = np.array([len(train) + len(test) for train, test in parts])
    assert (len(parts), sizes.min()) == (1000, 10)
    assert 60 < sizes.mean() < 78
    assert 80 < sizes.std() < 135
    for k, (train, test) in enumerate(parts):
        mine = np.concatenate([train, test])
        assert set(LABELS[mine]) == {k % 10, (k + 1) % 10}
        assert len(set(mine.tolist())) == len(mine)
        assert len(test) == len(mine) // 10
