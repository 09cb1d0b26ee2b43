"""The faster pooling gives the same bits as torch's pooling: outputs, gradients, and gradients of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from raysim.models import pooling
from raysim.models.pooling import MaxPool2x2

SHAPES = [(64, 16, 28, 28), (64, 32, 10, 10), (17, 5, 29, 31), (1, 2, 190, 190), (5000, 16, 2, 2), (70000, 1, 2, 2)]


def normal(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape)


def with_ties(shape: tuple[int, ...]) -> Tensor:
    """Return maps of few values, including both zeros, as a constant border of an image produces."""
    return torch.tensor([-1.0, -0.0, 0.0, 1.0])[torch.randint(4, shape)]


def with_special_numbers(shape: tuple[int, ...]) -> Tensor:
    return torch.tensor([-math.inf, math.inf, math.nan, -0.0, 1.0])[torch.randint(5, shape)]


def bits(values: Tensor) -> Tensor:
    return values.view(torch.int16 if values.dtype is torch.bfloat16 else torch.int32)


def results(pool: nn.Module, x_BCHW: Tensor) -> list[Tensor]:
    """Return the output, the gradient of a weighted sum of the output, and the gradient of that gradient's sum."""
    x_BCHW = x_BCHW.clone(memory_format=torch.preserve_format).requires_grad_()
    output = pool(x_BCHW)
    weight = torch.linspace(-1, 1, output.numel()).view_as(output).to(output.dtype).requires_grad_()
    (gradient,) = torch.autograd.grad((output * weight).sum(), x_BCHW, create_graph=True)
    (second,) = torch.autograd.grad((gradient * x_BCHW.detach().nan_to_num(1, 1, 1)).sum(), weight)
    return [output, gradient, second]


@pytest.mark.parametrize("make", [normal, with_ties, with_special_numbers])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_bits_as_torch(shape: tuple[int, ...], make: Callable[[tuple[int, ...]], Tensor]) -> None:
    torch.manual_seed(0)
    x_BCHW = make(shape)
    with patch.object(pooling, "_Pool", wraps=pooling._Pool) as used:
        faster = results(MaxPool2x2(), x_BCHW)
    assert used.apply.called
    for ours, theirs in zip(faster, results(nn.MaxPool2d(2), x_BCHW), strict=True):
        assert torch.equal(bits(ours), bits(theirs)) and ours.stride() == theirs.stride()


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.bfloat16(),
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.transpose(2, 3),
        lambda x: x[:, ::2],
    ],
    ids=["bfloat16", "channels last", "transposed", "strided"],
)
def test_other_dtypes_and_memory_formats(change: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    x_BCHW = change(with_ties((64, 16, 28, 28)))
    for ours, theirs in zip(results(MaxPool2x2(), x_BCHW), results(nn.MaxPool2d(2), x_BCHW), strict=True):
        assert torch.equal(bits(ours.contiguous()), bits(theirs.contiguous()))


def test_without_gradients() -> None:
    x_BCHW = normal((64, 16, 28, 28))
    with torch.no_grad():
        assert torch.equal(MaxPool2x2()(x_BCHW), nn.MaxPool2d(2)(x_BCHW))


def test_small_maps_and_clients_of_one_call_are_pooled_by_torch() -> None:
    small, many = normal((4, 2, 8, 8)), normal((3, 64, 16, 28, 28))
    with patch.object(pooling, "_Pool") as used:
        assert torch.equal(MaxPool2x2()(small), nn.MaxPool2d(2)(small))
        assert torch.equal(torch.func.vmap(MaxPool2x2())(many), torch.stack([nn.MaxPool2d(2)(one) for one in many]))
    assert not used.apply.called


@pytest.mark.parametrize(
    "transform",
    [
        lambda pool: torch.func.grad(lambda x: pool(x).square().sum()),
        lambda pool: torch.func.vmap(torch.func.grad(lambda x: pool(x[None]).square().sum())),
    ],
    ids=["grad", "vmap of grad"],
)
def test_transforms_of_torch_func(transform: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> None:
    x_BCHW = normal((64, 16, 28, 28))
    assert torch.equal(transform(MaxPool2x2())(x_BCHW), transform(nn.MaxPool2d(2))(x_BCHW))


def test_a_single_image() -> None:
    x_CHW = normal((16, 200, 200))
    assert torch.equal(MaxPool2x2()(x_CHW), nn.MaxPool2d(2)(x_CHW))


def test_a_change_of_the_input_before_the_gradient_is_an_error_as_in_torch() -> None:
    x_BCHW = normal((64, 16, 28, 28)).requires_grad_()
    for pool in (MaxPool2x2(), nn.MaxPool2d(2)):
        maps = x_BCHW * 1
        output = pool(maps)
        maps.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()
