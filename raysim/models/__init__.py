"""The architectures of clients, by their names in scenario files.

To add an architecture, write a builder that returns a `SplitNet` and add an entry to `_SPECS`; the shape tests include
it automatically. Builders are imported when a model is built, so names and required inputs are known without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from raysim.common.errors import ScenarioError
from raysim.common.inputs import InputSpec, Kind, image
from raysim.common.suggestions import suggest
from raysim.plugins.calling import failing
from raysim.plugins.registry import Reference, named

if TYPE_CHECKING:
    from raysim.models.split import SplitNet

TOGETHER = 32
"""Default number of clients that one call trains. More gain little, and leave fewer calls for the actors."""

SMALL = 30_000
"""Maximum number of parameters of perceptrons that train faster by one call than one by one on a CPU. The stacked
parameters of larger ones exceed its cache. `benchmarks/together.py` measures this."""


@dataclass(frozen=True)
class ModelSpec:
    """An architecture: its description, the samples that it accepts, and its builder.

    Batch norm cannot train on a single sample with a 1x1 feature map (torch raises ValueError): with 32x32 images,
    resnet10 to resnet152 need batches of two or more.
    """

    name: str
    summary: str  # one line for `raysim list models`
    native_dim: int | None  # representation width D in its paper; None: the paper has none
    build: Callable[[int, InputSpec, int], SplitNet]  # function of (num_classes, input_spec, feature_dim)
    reads: Kind | InputSpec = "image"  # accepted samples: a kind, with images limited as below, or one exact shape
    channels: tuple[int, ...] = (1, 3)
    min_size: int = 8  # minimum H and W
    patch: int | None = None  # images must be square, and this must divide their side
    stacks: Callable[[InputSpec, int, int, int], bool] = lambda *task: False
    """(input_spec, feature_dim, num_classes, batch size) -> whether several clients train faster by one call than one
    by one on a CPU. `training.together: auto` uses it."""


def _builder(place: str, **settings: Any) -> Callable[..., SplitNet]:
    """Return the function called "module.name" in this folder, with these keyword arguments bound."""
    return partial(_build, *place.split("."), **settings)


def _build(module: str, name: str, *task: Any, **settings: Any) -> SplitNet:
    net: SplitNet = getattr(import_module(f"{__name__}.{module}"), name)(*task, **settings)
    return net


def _small_perceptron(
    hidden: tuple[int, ...], input_spec: InputSpec, feature_dim: int, num_classes: int, batch_size: int
) -> bool:
    widths = (math.prod(input_spec.shape), *hidden, feature_dim, num_classes)
    return sum((wide + 1) * narrow for wide, narrow in pairwise(widths)) <= SMALL


def _batches_up_to(most: int, input_spec: InputSpec, feature_dim: int, num_classes: int, batch_size: int) -> bool:
    return batch_size <= most


_CIFAR, _FASHION, _DIGITS = image(3, 32, 32), image(1, 28, 28), image(1, 8, 8)


def _cifar_cnn(name: str, conv2: int, fc1: int) -> ModelSpec:
    summary = f"two 5x5 convolutions (16, {conv2}), fc {fc1}; for CIFAR (FedGH, FedSSA, FedRAL)"
    build = _builder("cnn.five_by_five_cnn", conv1=16, conv2=conv2, fc1=fc1)
    return ModelSpec(name, summary, 500, build, _CIFAR)


def _fashion_cnn(name: str, fc1: int) -> ModelSpec:
    summary = f"two 5x5 convolutions (20, 20), fc {fc1}; for Fashion-MNIST (FedRAL)"
    build = _builder("cnn.five_by_five_cnn", conv1=20, conv2=20, fc1=fc1)
    return ModelSpec(name, summary, 50, build, _FASHION)


def _heterofl_cnn(level: str, share: int) -> ModelSpec:
    widths = tuple(width // share for width in (64, 128, 256, 512))
    summary = f"four 3x3 convolutions {widths}; level {level} of HeteroFL, for small images"
    return ModelSpec(f"heterofl_cnn_{level}", summary, 64, _builder("cnn.pooled_cnn", widths=widths))


def _hks_resnet(name: str, blocks: int) -> ModelSpec:
    each = "1 residual block" if blocks == 1 else f"{blocks} residual blocks"
    summary = f"3 stages of {each}, widths 16, 32 and 64; for small images (HKS)"
    build = _builder("resnet.small_image_resnet", widths=(16, 32, 64), blocks=(blocks,) * 3, kaiming=True)
    return ModelSpec(name, summary, 64, build)


def _resnet(name: str, blocks: tuple[int, ...], bottleneck: bool = False) -> ModelSpec:
    kind = "bottleneck" if bottleneck else "basic"
    summary = f"torchvision-style, {kind} blocks {list(blocks)}, 7x7/2 stem (FedRAL, Table 6)"
    return ModelSpec(name, summary, 500, _builder("backbones.imagenet_resnet", blocks=blocks, bottleneck=bottleneck))


def _lora(name: str, rank: int, reads: Kind | InputSpec) -> ModelSpec:
    read = "tokens" if reads == "tokens" else "8x8 digits"
    summary = f"frozen random transformer, width 64, depth 2, 4 heads, adapters of rank {rank}; for {read}"
    build = _builder("sequence.lora_transformer", rank=rank, patch=4, width=64, depth=2, heads=4)
    return ModelSpec(f"{name}_lora{rank}", summary, 64, build, reads)


def _mlp(name: str, widths: str, hidden: tuple[int, ...], native_dim: int, reads: Kind | InputSpec) -> ModelSpec:
    read = "features" if reads == "features" else "8x8 digits"
    build = _builder("cnn.mlp", hidden=hidden)
    summary, stacks = f"{widths} perceptron; for {read}", partial(_small_perceptron, hidden)
    return ModelSpec(name, summary, native_dim, build, reads, stacks=stacks)


_SPECS = (
    _cifar_cnn("cnn1", conv2=32, fc1=2000),
    _cifar_cnn("cnn2", conv2=16, fc1=2000),
    _cifar_cnn("cnn3", conv2=32, fc1=1000),
    _cifar_cnn("cnn4", conv2=32, fc1=800),
    _cifar_cnn("cnn5", conv2=32, fc1=500),
    _fashion_cnn("fmnist_cnn1", fc1=300),
    _fashion_cnn("fmnist_cnn2", fc1=200),
    _fashion_cnn("fmnist_cnn3", fc1=150),
    _fashion_cnn("fmnist_cnn4", fc1=100),
    _fashion_cnn("fmnist_cnn5", fc1=50),
    _mlp("digits_mlp64", "64-32-10", (), 32, _DIGITS),
    _mlp("digits_mlp128", "64-128-32-10", (128,), 32, _DIGITS),
    # One call makes the convolutions of several clients slower, so it saves time only if a training step is short.
    ModelSpec(
        "digits_cnn_s",
        "one 3x3 convolution (8); for 8x8 digits",
        32,
        _builder("cnn.small_cnn", filters=(8,)),
        _DIGITS,
        stacks=partial(_batches_up_to, 64),
    ),
    ModelSpec(
        "digits_cnn_m",
        "two 3x3 convolutions (16, 32), fc 64; for 8x8 digits",
        32,
        _builder("cnn.small_cnn", filters=(16, 32), hidden=(64,)),
        _DIGITS,
        stacks=partial(_batches_up_to, 16),
    ),
    ModelSpec(
        "digits_resnet",
        "two residual blocks (16, 32); for 8x8 digits",
        32,
        _builder("resnet.small_image_resnet", widths=(16, 32), blocks=(1, 1)),
        _DIGITS,
    ),
    _heterofl_cnn("a", share=1),
    _heterofl_cnn("b", share=2),
    _heterofl_cnn("c", share=4),
    _heterofl_cnn("d", share=8),
    _heterofl_cnn("e", share=16),
    _hks_resnet("hks_resnet8", blocks=1),
    _hks_resnet("hks_resnet16", blocks=2),
    _hks_resnet("hks_resnet20", blocks=3),
    ModelSpec(
        "resnet18_500",
        "ResNet-18 with the CIFAR stem and a linear layer; for small images (FedGH)",
        500,
        _builder("resnet.small_image_resnet", widths=(64, 128, 256, 512), blocks=(2, 2, 2, 2), always_project=True),
    ),
    _resnet("resnet4", (1,)),
    _resnet("resnet6", (1, 1)),
    _resnet("resnet8", (1, 1, 1)),
    _resnet("resnet10", (1, 1, 1, 1)),
    _resnet("resnet18", (2, 2, 2, 2)),
    _resnet("resnet34", (3, 4, 6, 3)),
    _resnet("resnet50", (3, 4, 6, 3), bottleneck=True),
    _resnet("resnet101", (3, 4, 23, 3), bottleneck=True),
    _resnet("resnet152", (3, 8, 36, 3), bottleneck=True),
    ModelSpec(
        "vit_small",
        "vision transformer, patch 4, width 192, depth 6, 3 heads (FedRAL, Table 6)",
        500,
        _builder("backbones.small_vit", patch=4, width=192, depth=6, heads=3),
        patch=4,
    ),
    ModelSpec(
        "mobilenet",
        "MobileNetV2-like, inverted residuals (16, 24, 32, 64); for small images",
        64,
        _builder("backbones.small_mobilenet", stages=((16, 1), (24, 2), (32, 2), (64, 2))),
    ),
    _mlp("mlp_s", "features-64-classes", (), 64, "features"),
    _mlp("mlp_m", "features-128-64-classes", (128,), 64, "features"),
    _mlp("mlp_l", "features-256-128-64-classes", (256, 128), 64, "features"),
    ModelSpec(
        "gru",
        "embedding 32, one GRU layer of width 128; for tokens",
        128,
        _builder("sequence.gru", width=32, hidden=128),
        "tokens",
    ),
    ModelSpec(
        "transformer",
        "transformer encoder, width 64, depth 2, 4 heads; tokens",
        128,
        _builder("sequence.transformer", width=64, depth=2, heads=4),
        "tokens",
    ),
    *(_lora("digits_vit", rank, _DIGITS) for rank in (2, 4, 8)),
    *(_lora("transformer", rank, "tokens") for rank in (2, 4, 8)),
)

MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}


def incompatibility(name: str, input_spec: InputSpec) -> str | None:
    """Return why the model cannot read these samples, for example "cnn1 needs 3x32x32 images"; None if it can.

    Raises ScenarioError (a ValueError) for an unknown name.
    """
    if name not in MODELS and named("models", name) is not None:
        return None  # a custom model is checked when it is built
    spec = _spec(name)
    if isinstance(spec.reads, InputSpec):
        return None if input_spec == spec.reads else f"{name} needs {spec.reads}"
    if input_spec.kind != spec.reads:
        return f"{name} needs {spec.reads.replace('image', 'images')}"
    if input_spec.kind != "image":
        return None
    channels, height, width = input_spec.shape
    if channels not in spec.channels:
        return f"{name} needs images of {' or '.join(map(str, spec.channels))} channels"
    if min(height, width) < spec.min_size:
        return f"{name} needs images of at least {spec.min_size}x{spec.min_size} pixels"
    if spec.patch is not None and (height != width or height % spec.patch):
        return f"{name} needs square images whose side is a multiple of {spec.patch}"
    return None


def build_model(name: str, *, num_classes: int, input_spec: InputSpec, feature_dim: int) -> SplitNet:
    """Build a new network on the CPU. Its weights depend on torch's global generator only.

    Raises ScenarioError (a ValueError) for an unknown name, or samples that do not fit.
    """
    spec = _spec(name)
    why = incompatibility(name, input_spec)
    if why is not None:
        raise ScenarioError(f"{why}, not {input_spec}")
    return spec.build(num_classes, input_spec, feature_dim)


def common_feature_dim(names: Iterable[str]) -> int:
    """Return the native representation width of all the named models.

    Raises ScenarioError (a ValueError) for an unknown name, or if native widths differ or no model has one.
    """
    width_of = {name: _spec(name).native_dim for name in names}
    widths = {width for width in width_of.values() if width is not None}
    if len(widths) == 1:
        return widths.pop()
    if not widths:
        raise ScenarioError(f"the representation width of {', '.join(width_of)} is unknown; set clients.feature_dim")
    listed = ", ".join(f"{name} {width}" for name, width in width_of.items() if width is not None)
    raise ScenarioError(
        f"the models' representations have different widths ({listed}); set clients.feature_dim to a common width"
    )


def _spec(name: str) -> ModelSpec:
    if name in MODELS:
        return MODELS[name]
    if (reference := named("models", name)) is not None:
        return ModelSpec(name, "a model of the user's own", None, partial(_own, reference))
    hint = suggest(name, MODELS) or "; `raysim list models` shows all models"
    raise ScenarioError(f"unknown model {name!r}{hint}")


def _own(reference: Reference, num_classes: int, input_spec: InputSpec, feature_dim: int) -> SplitNet:
    """Build a custom network by the user's class or function. Raises `ScenarioError` unless it is a `SplitNet`."""
    from raysim.models.split import SplitNet

    make = reference.get()
    with failing(f"{reference.name}: cannot be built"):
        net = make(num_classes, input_spec, feature_dim)
    if not isinstance(net, SplitNet):
        raise ScenarioError(f"{reference.name}: returns a {type(net).__name__}; it must return a raysim.SplitNet")
    return net
