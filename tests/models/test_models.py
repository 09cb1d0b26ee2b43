"""Every network: its size, its shapes, its initialisation, and the sentences that refuse a wrong request."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from raysim.common.inputs import InputSpec, image
from raysim.core.meter import flops_of
from raysim.models import MODELS, ModelSpec, build_model, common_feature_dim, incompatibility
from raysim.models.split import SplitNet

CIFAR, FASHION, DIGITS = image(3, 32, 32), image(1, 28, 28), image(1, 8, 8)
FEATURES, TOKENS = InputSpec("features", (4, 5)), InputSpec("tokens", (12,), 30)

# Too slow for the tests that train.
LARGE = {"resnet18", "resnet18_500", "resnet34", "resnet50", "resnet101", "resnet152"}
SMALL = sorted(set(MODELS) - LARGE)


def input_spec(spec: ModelSpec) -> InputSpec:
    """The one shape of samples that the model reads, or a small one that it accepts."""
    if isinstance(spec.reads, InputSpec):
        return spec.reads
    if spec.reads != "image":
        return FEATURES if spec.reads == "features" else TOKENS
    patch = spec.patch or 1
    side = -(-max(16, spec.min_size) // patch) * patch
    return image(max(spec.channels), side, side)


def build(name: str, *, num_classes: int = 10, feature_dim: int | None = None, seed: int = 0) -> SplitNet:
    spec = MODELS[name]
    torch.manual_seed(seed)
    return build_model(
        name,
        num_classes=num_classes,
        input_spec=input_spec(spec),
        feature_dim=feature_dim or spec.native_dim or 7,
    )


def samples(reads: InputSpec, count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if reads.kind == "tokens":
        return torch.randint(reads.vocabulary, (count, *reads.shape), generator=generator)
    x_B = torch.randn(count, *reads.shape, generator=generator)
    return x_B.to(memory_format=torch.channels_last) if reads.kind == "image" else x_B


def channels_last(net: SplitNet) -> SplitNet:
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it


def count_params(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "params"),
    [
        ("cnn1", CIFAR, 10, 2_621_558),
        ("cnn2", CIFAR, 10, 1_815_142),
        ("cnn3", CIFAR, 10, 1_320_558),
        ("cnn4", CIFAR, 10, 1_060_358),
        ("cnn5", CIFAR, 10, 670_058),
        ("cnn5", CIFAR, 100, 715_148),
        ("fmnist_cnn1", FASHION, 10, 122_400),
        ("fmnist_cnn2", FASHION, 10, 85_300),
        ("fmnist_cnn3", FASHION, 10, 66_750),
        ("fmnist_cnn4", FASHION, 10, 48_200),
        ("fmnist_cnn5", FASHION, 10, 29_650),
        # Convolutions, batch norm, the projection to D = 64, the header.
        ("heterofl_cnn_a", CIFAR, 10, 1_792 + 73_856 + 295_168 + 1_180_160 + 2 * 960 + 512 * 64 + 64 + 650),
        ("heterofl_cnn_e", CIFAR, 10, 112 + 296 + 1_168 + 4_640 + 2 * 60 + 32 * 64 + 64 + 650),
        ("hks_resnet8", image(3, 28, 28), 10, 78_042),
        ("hks_resnet16", image(3, 28, 28), 10, 175_258),
        ("hks_resnet20", image(3, 28, 28), 10, 272_474),
        ("resnet18_500", CIFAR, 100, 11_475_432),
        ("digits_mlp64", DIGITS, 10, 64 * 32 + 32 + 32 * 10 + 10),
        ("mlp_m", FEATURES, 3, 20 * 128 + 128 + 128 * 64 + 64 + 64 * 3 + 3),
        ("gru", TOKENS, 30, 30 * 32 + 3 * (32 * 128 + 128 * 128 + 2 * 128) + 128 * 128 + 128 + 128 * 30 + 30),
        # Adapters of rank 2: patches; attention (in and out) and MLP of two layers; projection. Then the header.
        ("digits_vit_lora2", DIGITS, 10, 2 * (80 + 2 * (256 + 128 + 2 * 320) + 128) + 64 * 10 + 10),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, shape: InputSpec, num_classes: int, params: int) -> None:
    net = build_model(name, num_classes=num_classes, input_spec=shape, feature_dim=MODELS[name].native_dim or 0)
    assert count_params(net) == params


# The parameters of a basic block from `a` to `b` channels with another stride: three convolutions and batch norms.
STAGE = {
    64: 2 * (64 * 64 * 9 + 128),
    **{b: b // 2 * b * 9 + b * b * 9 + b // 2 * b + 3 * 2 * b for b in (128, 256, 512)},
}
STEM = 3 * 64 * 49 + 128


def inverted(a: int, b: int) -> int:
    """The parameters of an inverted residual: to 6a channels, a kernel for each, to b channels; a norm after each."""
    return a * 6 * a + 12 * a + 9 * 6 * a + 12 * a + 6 * a * b + 2 * b


def heterofl(*widths: int) -> int:
    """The parameters of 3x3 convolutions with a bias and a norm."""
    return sum(a * b * 9 + b + 2 * b for a, b in pairwise((3, *widths)))


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("resnet4", STEM + STAGE[64] + 64 * 500 + 500),
        ("resnet6", STEM + STAGE[64] + STAGE[128] + 128 * 500 + 500),
        ("resnet8", STEM + sum(STAGE[b] for b in (64, 128, 256)) + 256 * 500 + 500),
        ("resnet10", STEM + sum(STAGE.values()) + 512 * 500 + 500),
        # Patches of 4 x 4, a class token, 65 positions. A layer: two norms, attention, an MLP. Then a norm.
        (
            "vit_small",
            3 * 16 * 192 + 192 + 192 + 65 * 192 + 6 * (4 * 192 + 4 * (192 * 192 + 192) + 8 * 192 * 192 + 5 * 192)
            + 2 * 192 + 192 * 500 + 500,
        ),
        (
            "mobilenet",
            3 * 16 * 9 + 32 + inverted(16, 16) + inverted(16, 24) + inverted(24, 24) + inverted(24, 32)
            + inverted(32, 32) + inverted(32, 64) + inverted(64, 64) + 64 * 64 + 64,
        ),
        ("heterofl_cnn_b", heterofl(32, 64, 128, 256) + 256 * 64 + 64),
        ("heterofl_cnn_c", heterofl(16, 32, 64, 128) + 128 * 64 + 64),
        ("heterofl_cnn_d", heterofl(8, 16, 32, 64) + 64 * 64 + 64),
        ("digits_mlp128", 64 * 128 + 128 + 128 * 32 + 32),
        ("digits_cnn_s", 9 * 8 + 8 + 8 * 4 * 4 * 32 + 32),  # 8 maps of 4 x 4
        ("digits_cnn_m", 9 * 16 + 16 + 16 * 9 * 32 + 32 + 32 * 2 * 2 * 64 + 64 + 64 * 32 + 32),
        # A stem of 16, a block of 16, and one of 32 with a shortcut.
        ("digits_resnet", 9 * 16 + 32 + 2 * (16 * 16 * 9 + 32) + 16 * 32 * 9 + 32 * 32 * 9 + 16 * 32 + 3 * 64),
        # Tokens and positions; a layer: two norms, attention (in and out), an MLP of four times the width. Then a norm.
        ("transformer", 42 * 64 + 2 * (4 * 64 + 4 * (64 * 64 + 64) + 8 * 64 * 64 + 5 * 64) + 2 * 64 + 64 * 128 + 128),
        ("mlp_s", 20 * 64 + 64),
        ("mlp_l", 20 * 256 + 256 + 256 * 128 + 128 + 128 * 64 + 64),
    ],
)  # fmt: skip
def test_parameter_counts_by_hand(name: str, params: int) -> None:
    spec = MODELS[name]
    reads = CIFAR if spec.reads == "image" else input_spec(spec)
    width = spec.native_dim or 0
    net = build_model(name, num_classes=10, input_spec=reads, feature_dim=width)
    assert count_params(net) == params + width * 10 + 10


@pytest.mark.parametrize(
    ("name", "backbone_dim", "params"),
    [
        # Torchvision's published totals less its own 1000-class layer.
        ("resnet18", 512, 11_689_512 - 513_000),
        ("resnet34", 512, 21_797_672 - 513_000),
        ("resnet50", 2048, 25_557_032 - 2_049_000),
        ("resnet101", 2048, 44_549_160 - 2_049_000),
        ("resnet152", 2048, 60_192_808 - 2_049_000),
    ],
)
def test_deep_backbones_are_torchvisions(name: str, backbone_dim: int, params: int) -> None:
    with torch.device("meta"):
        net = build_model(name, num_classes=100, input_spec=CIFAR, feature_dim=500)
    assert count_params(net) == params + (backbone_dim * 500 + 500) + (500 * 100 + 100)


def test_forward_macs_of_the_cifar_cnns() -> None:
    for i, macs in enumerate((4_825_800, 3_385_800, 3_525_800, 3_265_800, 2_875_800), 1):
        assert flops_of(partial(build(f"cnn{i}"), samples(CIFAR, count=1))) == 2 * macs


def test_operations_of_the_vision_transformer_include_attention() -> None:
    net = build("vit_small", num_classes=5)
    pixels = samples(input_spec(MODELS["vit_small"]), count=2)
    patches, width, layers = (pixels.shape[2] // 4) ** 2, 192, 6
    tokens = patches + 1
    convolution = patches * 3 * 4 * 4 * width
    linear = layers * tokens * (3 + 1 + 4 + 4) * width * width + width * 500 + 500 * 5
    attention = layers * 2 * tokens * tokens * width  # each token with each, as key and as value
    forward = convolution + linear + attention
    # The pixels need no gradient. Attention computes its weights again, and the gradients of both products' factors.
    backward = convolution + 2 * linear + attention // 2 * 5
    with torch.no_grad():
        assert flops_of(lambda: net(pixels)) == 2 * 2 * forward
        assert flops_of(lambda: net.eval()(pixels)) == 2 * 2 * forward
    assert flops_of(lambda: net(pixels).sum().backward()) == 2 * 2 * (forward + backward)


@pytest.mark.parametrize("name", [*SMALL, "resnet18_500", "resnet50"])  # the other deep ones have the same parts
def test_shapes(name: str) -> None:
    net = channels_last(build(name, num_classes=7, feature_dim=24))
    x_BCHW = samples(input_spec(MODELS[name]))
    with torch.no_grad():
        features_BD = net.features(x_BCHW)
        logits_BK = net.eval()(x_BCHW)
        assert torch.equal(net.header(net.features(x_BCHW)), logits_BK)
    assert isinstance(net.header, nn.Linear)
    assert (net.header.in_features, net.header.out_features) == (24, 7)
    assert features_BD.shape == (2, 24)
    assert logits_BK.shape == (2, 7)
    assert features_BD.min() >= 0, "the representation comes after a ReLU"
    assert logits_BK.isfinite().all()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("heterofl_cnn_e", (32, 4, 4)),  # pooled three times, not after the last convolution
        ("hks_resnet20", (64, 8, 8)),  # halved twice
        ("resnet18_500", (512, 4, 4)),  # halved three times, after a stem that keeps the size
        ("mobilenet", (64, 4, 4)),  # halved three times
        ("resnet4", (64, 8, 8)),  # halved twice by the stem
        ("resnet10", (512, 1, 1)),  # and by the later stages
    ],
)
def test_the_last_maps_of_a_colour_image_of_32_pixels(name: str, shape: tuple[int, ...]) -> None:
    net = build_model(name, num_classes=10, input_spec=CIFAR, feature_dim=24).eval()
    (pool,) = (module for module in net.modules() if isinstance(module, nn.AdaptiveAvgPool2d))
    seen: list[torch.Size] = []
    pool.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    with torch.no_grad():
        net(samples(CIFAR, count=1))
    assert seen == [(1, *shape)]


@pytest.mark.parametrize("name", ["hks_resnet8", "digits_resnet"])
def test_without_a_projection_the_representation_is_not_negative_either(name: str) -> None:
    net = build(name)  # of its native width
    with torch.no_grad():
        assert net.features(samples(input_spec(MODELS[name]), count=8)).min() >= 0


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    net = channels_last(build(name))
    # Sixteen samples: with two, batch norm over a 1x1 map gives exact zeros.
    net(samples(input_spec(MODELS[name]), count=16)).logsumexp(1).sum().backward()
    missing = [key for key, parameter in net.named_parameters() if parameter.grad is None]
    assert missing == []
    # The B of an adapter is 0 at first, so A has no gradient in the first step.
    named = [(key, one) for key, one in net.extractor.named_parameters() if not key.endswith("lora_A")]
    first = next(parameter for _, parameter in named if parameter.dim() > 1)
    assert first.grad is not None and first.grad.isfinite().all() and first.grad.any()


def test_the_cifar_cnn_is_the_published_formula() -> None:
    """Pooling before ReLU, as we compute it, equals ReLU before pooling, as the papers write it."""
    net = build("cnn5")
    layer = dict(net.extractor.named_children())
    x_BCHW = samples(CIFAR)
    with torch.no_grad():
        maps = nn.functional.max_pool2d(layer["conv1"](x_BCHW).relu(), 2)
        maps = nn.functional.max_pool2d(layer["conv2"](maps).relu(), 2)
        features_BD = layer["fc2"](layer["fc1"](maps.flatten(1)).relu()).relu()
        torch.testing.assert_close(net.features(x_BCHW), features_BD)


def test_a_block_of_the_transformer_is_torchs_attention() -> None:
    block = build("transformer").extractor[0].blocks[0]
    assert block.heads == 4
    x_BLE = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        parts = [part.view(2, 5, 4, 16).transpose(1, 2) for part in block.qkv(block.norm1(x_BLE)).chunk(3, 2)]
        added = x_BLE + block.out(nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        torch.testing.assert_close(block(x_BLE), added + block.mlp(block.norm2(added)))
    layer = next(one for one in build("vit_small").modules() if isinstance(one, nn.MultiheadAttention))
    assert layer.num_heads == 3


def test_every_token_counts() -> None:
    for name in ("gru", "transformer"):
        net = build(name).eval()
        token_L = torch.arange(12)
        changed_LL = (token_L + 12 * torch.eye(12, dtype=torch.int64)).clamp(max=29)  # row i: another token i
        with torch.no_grad():
            moved_L = (net.features(changed_LL) - net.features(token_L[None])).abs().amax(1)
        assert moved_L.min() > 1e-5
    encoder = build("transformer").extractor[0]
    with torch.no_grad():
        value_BLE = encoder.blocks(encoder.embedding(token_L[None]) + encoder.position_LE)
        torch.testing.assert_close(encoder(token_L[None]), value_BLE.mean(1))


def test_hks_resnets_project_only_to_another_width() -> None:
    assert count_params(build("hks_resnet8", feature_dim=64)) == 78_042
    projected = build("hks_resnet8", feature_dim=50)
    assert count_params(projected) == 78_042 - (64 * 10 + 10) + (64 * 50 + 50) + (50 * 10 + 10)


def test_hks_resnets_start_from_kaiming_fan_out() -> None:
    convs = [module for module in build("hks_resnet20").modules() if isinstance(module, nn.Conv2d)]
    last = convs[-1].weight
    assert last.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)


@pytest.mark.parametrize(
    ("name", "shape", "fits"),
    [
        ("cnn1", FASHION, False),
        ("hks_resnet8", DIGITS, True),
        ("hks_resnet8", image(2, 28, 28), False),
        ("vit_small", image(3, 32, 28), False),
        ("gru", FEATURES, False),
    ],
)
def test_incompatibility(name: str, shape: InputSpec, fits: bool) -> None:
    assert (incompatibility(name, shape) is None) == fits


def test_common_feature_dim() -> None:
    assert common_feature_dim(["cnn1", "cnn5", "cnn1", "resnet18", "vit_small"]) == 500
    assert common_feature_dim(["hks_resnet8", "hks_resnet20"]) == 64
    with pytest.raises(ValueError, match=r"cnn1 500, hks_resnet8 64.*set clients\.feature_dim"):
        common_feature_dim(["cnn1", "hks_resnet8"])
