"""Checks of a scenario's architectures: each exists, accepts the samples, and has the width that all share."""

from __future__ import annotations

from functools import partial
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.common.text import quoted
from raysim.data.specs import DatasetSpec
from raysim.models import MODELS, build_model, common_feature_dim, incompatibility
from raysim.plugins.calling import failing
from raysim.plugins.registry import named
from raysim.scenario.parse import ParsedScenario


def builder(dataset: DatasetSpec, feature_dim: int) -> Any:
    return partial(build_model, num_classes=dataset.num_classes, input_spec=dataset.input_spec, feature_dim=feature_dim)


def feature_dim_of(parsed: ParsedScenario, dataset: DatasetSpec) -> int:
    """Return the representation width of all models, after checking that each model exists and accepts the samples.

    Raises `ScenarioError`.
    """
    clients, origin = parsed.clients, parsed.origin
    fitting = [name for name in MODELS if incompatibility(name, dataset.input_spec) is None]
    for i, name in enumerate(clients.models):
        key = ("clients", "models", str(i))
        if name not in MODELS and named("models", name) is None:
            raise origin.error(
                key, f"unknown model {name!r}{suggest(name, MODELS)} (models that fit the data: {', '.join(fitting)})"
            )
        reason = incompatibility(name, dataset.input_spec)
        if reason:
            raise origin.error(
                key,
                f"{reason}, but {dataset.name} has {dataset.input_spec}; allowed: {', '.join(fitting)}",
                cause=("data", "name"),
            )
    try:
        auto = clients.feature_dim == "auto"
        feature_dim = common_feature_dim(clients.models) if auto else int(clients.feature_dim)
        for name in dict.fromkeys(clients.models):
            if name not in MODELS:
                parsed.own_code.activate()
                _try_model(name, dataset, feature_dim)
    except ScenarioError as error:
        raise origin.error(("clients", "models"), error.reason) from None
    return feature_dim


def _built(name: str, dataset: DatasetSpec, feature_dim: int) -> Any:
    """Return a network of a custom model. Raises `ScenarioError` if its weights ignore the seed of torch's generator.

    Every process builds a client's network by itself, so the network must be the same everywhere.
    """
    import torch
    from torch.nn.parameter import is_lazy

    nets = []
    for _ in range(2):
        torch.default_generator.manual_seed(0)
        nets.append(builder(dataset, feature_dim)(name))
    first, second = (net.state_dict() for net in nets)
    for key, value in first.items():
        if is_lazy(value):
            raise ScenarioError(
                f"{name}: {key} has no shape before the first batch, because its layer is lazy; use a layer with a "
                "given size, or pass the network a batch at the end of its constructor"
            )
        if isinstance(value, torch.Tensor) and not torch.equal(value, second[key]):
            raise ScenarioError(
                f"{name}: {key} differs between two networks that are built with the same seed; draw its values with "
                "torch only, and leave none uninitialised"
            )
    return nets[0]


def _try_model(name: str, dataset: DatasetSpec, feature_dim: int) -> None:
    """Check that a custom model can be built, and that its outputs and header fit. Raises `ScenarioError`."""
    import torch

    from raysim.models.split import example

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        net = _built(name, dataset, feature_dim)
        x_B = example(dataset.input_spec, 2)
        parts = (("representation", "features", feature_dim), ("logits", "header", dataset.num_classes))
        for what, part, width in parts:
            with failing(f"{name}: fails on two samples of {dataset.input_spec}"):
                x_B = getattr(net.eval(), part)(x_B)
            if not isinstance(x_B, torch.Tensor) or x_B.shape != (2, width):
                given = f"one of shape {tuple(x_B.shape)}" if isinstance(x_B, torch.Tensor) else quoted(x_B)
                raise ScenarioError(
                    f"{name}: the {what} of two samples must be a tensor of shape {(2, width)}, but the model returned "
                    f"{given}"
                )
    if not isinstance(net.header, torch.nn.Linear):
        raise ScenarioError(
            f"{name}: its header is a {type(net.header).__name__}; it must be a torch.nn.Linear, because methods "
            "exchange its weight and bias. Put the other layers into the extractor"
        )
