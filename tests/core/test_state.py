"""State as named tensors, and digests that tell states apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from raysim.core.state import check_shared, combined_digest, digest, state_tensors


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


def test_a_bare_value_is_called_value():
    assert list(state_tensors(torch.zeros(1))) == ["value"]
    assert state_tensors(None) == {}


@pytest.mark.parametrize("strange", [{1, 2}, object(), lambda: 0], ids=["set", "object", "function"])
def test_what_cannot_be_stored_is_named(strange: Any):
    with pytest.raises(TypeError, match=r"the state contains a \w+ at latest\.10\.1; use only tensors"):
        state = kept()
        state.latest[10] = [0, strange]
        state_tensors(state)


def test_a_state_that_holds_itself_is_named():
    state: dict[str, Any] = {"a": torch.zeros(1)}
    state["b"] = [state]
    with pytest.raises(TypeError, match=r"^the state at b\.0\.b\.0\..* contains itself"):
        state_tensors(state)


def test_values_that_share_memory_are_named() -> None:
    """A restored state would have copies, so writing into one of the values would no longer change the other."""
    layer, matrix = nn.Linear(2, 2), torch.zeros(3, 2)
    for state, first, second in (
        ({"net": layer, "w": layer.weight}, "net", "w"),
        ({"net": layer, "copy": [layer]}, "net", r"copy\.0"),
        ({"all": matrix, "row": matrix[1]}, "all", "row"),
        ({"all": matrix, "same": matrix.detach()}, "all", "same"),
    ):
        with pytest.raises(TypeError, match=f"^the values at {first} and {second} of the state share memory"):
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
        {"w": torch.tensor([1.0, 2.0, 3.0])},
        {"v": torch.tensor([1.0, 2.0])},
        {"w": torch.tensor([[1.0, 2.0]])},
        {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"w": torch.tensor([1.0, 2.0000002])},
        {"w": torch.tensor([2.0, 1.0])},
        {"w": torch.tensor([1.0, 2.0]).view(torch.int32)},
        {"w": torch.tensor([1.0, 2.0]), "x": 0},
    ],
    ids=["longer", "name", "shape", "type", "last bit", "order", "same bits", "one more"],
)
def test_different_states_have_different_digests(other: Any):
    assert digest({"w": torch.tensor([1.0, 2.0])}) != digest(other)


def test_the_sign_of_zero_counts():
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


def test_memory_layout_does_not_count():
    conv = nn.Conv2d(3, 4, 3)
    before = digest(conv)
    assert digest(conv.to(memory_format=torch.channels_last)) == before
    matrix = torch.arange(6.0).reshape(2, 3)
    assert digest(matrix.T.contiguous().T) == digest(matrix)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int32])
def test_odd_tensors_have_a_digest(shape: tuple[int, ...], dtype: torch.dtype):
    assert digest(torch.zeros(shape, dtype=dtype)) == digest({"value": torch.zeros(shape, dtype=dtype)})


def test_a_golden_digest():
    # SHA-256 of b"w|torch.float32|(2,)|" and the bytes 0000803f 00000040, for good: results are compared by digest.
    expected = "0712daba6abf77f93b016a053db62c9971a079af1b399ac1028c41701bc60159"
    assert digest({"w": torch.tensor([1.0, 2.0])}) == expected


def test_combined_digest_is_by_key_not_by_order():
    assert combined_digest({"b": "2", "a": "1"}) == combined_digest({"a": "1", "b": "2"})
    assert combined_digest({"a": "1", "b": "2"}) != combined_digest({"a": "2", "b": "1"})
