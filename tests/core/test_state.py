"""State as named tensors, and digests that tell states apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from raysim.core.state import check_shared, digest, state_tensors


@dataclass
class Kept:
    """State as an algorithm might keep it."""

    net: nn.Module
    latest: dict[int, Any]
    t: int = 0
    notify: str = "é"
    nothing: None = None


def kept() -> Kept:
    layer = nn.Linear(1, 1)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    return Kept(layer, {10: (torch.tensor([1.5]), 2.5), 9: [True]})


def test_every_tensor_and_number_has_a_dotted_path_in_a_fixed_order():
    found = state_tensors(kept())
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "net.weight": [[1.0]],
        "net.bias": [0.0],
        "latest.9.0": 1,
        "latest.10.0": [1.5],
        "latest.10.1": 2.5,
        "t": 0,
        "notify": [0xC3, 0xA9],
    }
    assert list(found)[2:5] == ["latest.9.0", "latest.10.0", "latest.10.1"]


def test_values_that_share_memory_are_named() -> None:
    """A restored state would have copies, so writing into one of the values would no longer change the other."""
    layer, matrix = nn.Linear(2, 2), torch.zeros(3, 2)
    for state, first, second in (
        ({"net": layer, "w": layer.weight}, "net", "w"),
        ({"net": layer, "copy": [layer]}, r"copy\.0", "net"),
        ({"all": matrix, "row": matrix[1]}, "all", "row"),
        ({"all": matrix, "same": matrix.detach()}, "all", "same"),
    ):
        with pytest.raises(TypeError, match=f"{first} and {second}"):
            check_shared(state)
    tied = nn.Sequential(layer, layer)
    check_shared({"net": tied, "one": matrix, "same": matrix, "rows": [*torch.zeros(3, 2)], "n": 1, "none": None})


def test_equal_states_have_equal_digests_whatever_the_insertion_order():
    one, other = kept(), kept()
    other.latest = {9: [True], 10: (torch.tensor([1.5]), 2.5)}
    assert digest(one) == digest(other)
    assert len(digest(one)) == 64


@pytest.mark.parametrize(
    "other",
    [
        {"v": torch.tensor([1.0, 2.0])},
        {"w": torch.tensor([[1.0, 2.0]])},
        {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"w": torch.tensor([1.0, 2.0000002])},
        {"w": torch.tensor([1.0, 2.0]).view(torch.int32)},
        {"w": torch.tensor([1.0, 2.0]), "x": 0},
    ],
    ids=["name", "shape", "type", "last bit", "same bits", "one more"],
)
def test_different_states_have_different_digests(other: Any):
    assert digest({"w": torch.tensor([1.0, 2.0])}) != digest(other)


def test_memory_layout_does_not_count():
    conv = nn.Conv2d(3, 4, 3)
    before = digest(conv)
    assert digest(conv.to(memory_format=torch.channels_last)) == before
    matrix = torch.arange(6.0).reshape(2, 3)
    assert digest(matrix.T.contiguous().T) == digest(matrix)


def test_a_golden_digest():
    # SHA-256 of b"w|torch.float32|(2,)|" and the bytes 0000803f 00000040, for good: results are compared by digest.
    expected = "0712daba6abf77f93b016a053db62c9971a079af1b399ac1028c41701bc60159"
    assert digest({"w": torch.tensor([1.0, 2.0])}) == expected
