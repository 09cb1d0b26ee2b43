"""Messages arrive as they were sent, in memory of their own, and weigh what their tensors do."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from raysim.core.messages import Weights, message, nonfinite, pack, unpack, weights, wire_size


@message
class Notify:
    """Everything a message may hold."""

    w: Weights
    pair: tuple[Tensor, float]
    count: int = 0
    maybe: Tensor | None = None


WIDTH = {
    torch.bool: 1, torch.uint8: 1, torch.int8: 1, torch.int16: 2, torch.int32: 4, torch.int64: 8,
    torch.bfloat16: 2, torch.float16: 2, torch.float32: 4, torch.float64: 8, torch.complex64: 8,
}  # fmt: skip


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any type, 0 to 4 dimensions of 0 to 3, random bits, sometimes transposed or channels last."""
    dtype = draw(st.sampled_from(list(WIDTH)))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    count = math.prod(shape)
    raw = draw(st.binary(min_size=count * WIDTH[dtype], max_size=count * WIDTH[dtype]))
    if dtype == torch.bool:
        raw = bytes(byte % 2 for byte in raw)
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if count else torch.empty(0, dtype=dtype)
    tensor = flat.clone().reshape(shape)
    layout = draw(st.sampled_from(["plain", "transposed", "channels_last"]))
    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, 1)
    if layout == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


@given(tensors(), tensors(), st.floats(allow_nan=False), st.integers(-(2**40), 2**40))
@settings(max_examples=150, deadline=None)
def test_pack_and_unpack_are_exact(one: Tensor, other: Tensor, number: float, count: int):
    sent = Notify({"a": one, "b": other}, (one, number), count)
    got = unpack(pickle.loads(pickle.dumps(pack(sent))))
    assert type(got) is Notify and (got.pair[1], got.count, got.maybe) == (number, count, None)
    for before, after in ((one, got.w["a"]), (other, got.w["b"]), (one, got.pair[0])):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert bits(after) == bits(before)
        assert after.is_contiguous()
    sizes = [t.numel() * WIDTH[t.dtype] for t in (one, other, one)]
    # The law: every tensor where it stands in the message, shared or not; each number 8 bytes; None nothing.
    assert wire_size(sent).bytes == wire_size(got).bytes == sum(sizes) + 16
    assert wire_size(sent).params == 2 * one.numel() + other.numel() + 2
    assert wire_size(sent).components == {"w": sizes[0] + sizes[1], "pair": sizes[2] + 8, "count": 8, "maybe": 0}


def test_packing_shares_no_memory_with_the_sender():
    w = torch.ones(3)
    packed = pack(Notify({"w": w}, (w, 0.0)))
    w.zero_()
    assert unpack(packed).w["w"].tolist() == [1.0, 1.0, 1.0]


def test_shared_storage_is_packed_once_and_stays_shared():
    w = torch.ones(1000)
    packed = pack([{"w": w}, {"w": w}, {"w": w[:]}, {"w": w.clone()}])
    assert packed[0]["w"] is packed[1]["w"] is packed[2]["w"]
    assert packed[3]["w"] is not packed[0]["w"]
    got = unpack(packed)
    assert got[0]["w"] is got[1]["w"]


def test_views_of_one_storage_that_differ_are_told_apart():
    w = torch.arange(4.0)
    packed = pack([w, w[:2], w.view(2, 2), w.view(2, 2).T, w.view(torch.int32)])
    assert len({id(part) for part in packed}) == 5
    assert unpack(packed[3]).tolist() == [[0.0, 2.0], [1.0, 3.0]]
    assert unpack(packed[4]).dtype == torch.int32


def test_a_tensor_in_training_is_packed_without_its_graph():
    w = torch.ones(2, requires_grad=True) * 2
    got = unpack(pack({"w": w}))["w"]
    assert got.tolist() == [2.0, 2.0] and not got.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nonfinite_sees_nan_and_infinity_anywhere(dtype: torch.dtype):
    fine = {"w": torch.ones(2, dtype=dtype), "n": torch.tensor([2**40]), "none": None, "f": 1.5, "i": 2**40, "b": True}
    assert not nonfinite(fine)
    for bad in (math.nan, math.inf, -math.inf):
        assert nonfinite(fine | {"x": (torch.tensor([0.0, bad], dtype=dtype),)})
        assert nonfinite(fine | {"x": bad})


def test_weights_are_a_detached_copy_with_buffers():
    layer = nn.BatchNorm1d(2)
    copied = weights(layer)
    layer.weight.data.zero_()
    assert sorted(copied) == ["bias", "num_batches_tracked", "running_mean", "running_var", "weight"]
    assert copied["weight"].tolist() == [1.0, 1.0] and not copied["weight"].requires_grad


def test_a_message_can_be_counted_in_the_basis_of_its_paper():
    @message
    class Covariance:
        factor_DR: Tensor

        def counted(self) -> Covariance:
            width = len(self.factor_DR)
            return Covariance(torch.empty(width * (width + 1) // 2, device="meta"))

    msg = Covariance(torch.ones(5, 2))
    assert wire_size(msg) == (60, 15, {"factor_DR": 60})  # 5 * 6 / 2 floats
    assert wire_size(unpack(pack(msg))).bytes == 60 and unpack(pack(msg)).factor_DR.shape == (5, 2)
