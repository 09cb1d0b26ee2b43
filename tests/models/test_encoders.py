"""Frozen encoders: their shapes, that they stay as they are, and where weights come from. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from raysim.common.errors import ScenarioError
from raysim.core.seeds import global_seed
from raysim.models.encoders import MobileNet, _mobilenet, build_encoder, weights_file


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty hub cache; the file that weights would have."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    _mobilenet.cache_clear()
    file = weights_file()
    assert file == tmp_path / "hub" / "checkpoints" / "mobilenet_v3_small-047dcff4.pth"
    yield file
    _mobilenet.cache_clear()


@pytest.fixture
def at_hand(hub: Path) -> Path:
    """Random weights in the hub cache."""
    from torchvision.models import mobilenet_v3_small

    hub.parent.mkdir(parents=True)
    with global_seed(1, "weights"):
        torch.save(mobilenet_v3_small(weights=None).state_dict(), hub)
    return hub


def images(count: int, channels: int = 3, side: int = 32) -> Tensor:
    x = torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(1))
    return x.contiguous(memory_format=torch.channels_last)


def test_pixels_are_the_image_less_its_mean():
    x = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]], [[[5.0, 5.0], [5.0, 5.0]]]])
    assert build_encoder("pixels")(x).tolist() == [[-2, -1, 0, 3], [0, 0, 0, 0]]
    assert build_encoder("pixels")(images(4)).shape == (4, 3072)
    assert build_encoder("pixels")(images(4, 1, 28)).shape == (4, 784)


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 8)])
def test_mobilenet_reads_every_image(at_hand: Path, channels: int, side: int):
    found = build_encoder("mobilenet_v3_small")(images(2, channels, side))
    assert found.shape == (2, 576) and found.dtype == torch.float32 and bool(found.isfinite().all())


def test_mobilenet_is_torchvisions_own_up_to_the_head(at_hand: Path):
    from torchvision.models import mobilenet_v3_small

    whole = mobilenet_v3_small(weights=None)
    whole.load_state_dict(torch.load(at_hand, weights_only=True))
    whole.classifier = torch.nn.Identity()
    x = images(3, 1, 28)
    with torch.no_grad():
        big = torch.nn.functional.interpolate(x.repeat(1, 3, 1, 1), (224, 224), mode="bilinear")
        expected = whole.eval()(big)
    torch.testing.assert_close(build_encoder("mobilenet_v3_small")(x), expected, atol=1e-5, rtol=1e-4)


def test_mobilenet_is_frozen_and_deterministic(at_hand: Path):
    encode = build_encoder("mobilenet_v3_small")
    assert isinstance(encode, MobileNet)
    random = torch.get_rng_state()
    x = images(40)  # more than one chunk
    first = encode(x)
    before = {name: value.clone() for name, value in encode.body.state_dict().items()}
    assert not any(parameter.requires_grad for parameter in encode.body.parameters())
    assert not any(module.training for module in encode.body.modules())
    assert not first.requires_grad and encode(x).equal(first)
    assert all(value.equal(before[name]) for name, value in encode.body.state_dict().items())
    assert torch.get_rng_state().equal(random)  # no other draws move
    torch.testing.assert_close(encode(x[35:]), first[35:])
    assert first[0].sub(first[1]).abs().max() > 0


def test_missing_weights_are_refused_at_once(hub: Path):
    with pytest.raises(ScenarioError, match=r"047dcff4\.pth"):
        build_encoder("mobilenet_v3_small")
