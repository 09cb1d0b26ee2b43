"""The interface between engine and algorithms, in pure torch: independent of Ray, MLflow and YAML."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.common.errors import RaysimError, RunError, ScenarioError
    from raysim.core.adapters import Frozen, lora
    from raysim.core.algorithm import Algorithm, AnyAlgorithm, Client, ClientId, Server, SplitModel, Task
    from raysim.core.data import Batch, Samples, tensors
    from raysim.core.exposed import Exposed, OutputOf, Unexposed, UpdateOf
    from raysim.core.fields import Count, Fraction, NonNegative, NonNegativeInt, Positive, WarmupRounds
    from raysim.core.fit import LocalTraining
    from raysim.core.messages import Extractor, Header, Model, Weights, extractor_weights, message, weights

__all__ = [
    "Algorithm",
    "AnyAlgorithm",
    "Batch",
    "Client",
    "ClientId",
    "Count",
    "Exposed",
    "Extractor",
    "Fraction",
    "Frozen",
    "Header",
    "LocalTraining",
    "Model",
    "NonNegative",
    "NonNegativeInt",
    "OutputOf",
    "Positive",
    "RaysimError",
    "RunError",
    "Samples",
    "ScenarioError",
    "Server",
    "SplitModel",
    "Task",
    "Unexposed",
    "UpdateOf",
    "WarmupRounds",
    "Weights",
    "extractor_weights",
    "lora",
    "message",
    "tensors",
    "weights",
]

_MODULES = (
    "raysim.common.errors",
    *(f"{__name__}.{name}" for name in ("fields", "data", "fit", "messages", "exposed", "algorithm", "adapters")),
)


def __getattr__(name: str) -> Any:
    # Most of these modules import torch, which takes seconds, so they are imported when first used.
    for module in _MODULES if name in __all__ else ():
        loaded = importlib.import_module(module)
        if hasattr(loaded, name):
            return getattr(loaded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
