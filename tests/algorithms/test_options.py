"""No option is ignored: any other value of any field of any method changes what clients, server or messages hold.

What each option computes is tested by hand in its method's own file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from hashlib import sha256
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from raysim.contract.trial import Trial
from raysim.core.state import digest
from raysim.plugins.registry import algorithm_class, algorithm_names

COHORTS = ([0, 1, 2, 3], [2], [0, 2, 3], [1, 3])
"""Of four rounds: some clients return, and the second lacks classes."""

NUMBERS: Mapping[str, Mapping[str, Any]] = {
    "apfl": {"alpha": 0.25},
    "dc_pfl": {"lambda_": 1.0, "header_lr": 0.1, "virtual_samples": 100, "refit_epochs": 2, "refit_lr": 0.1}
    | {"refit_batch": 8},
    "ditto": {"lambda_": 0.1, "personal_epochs": 2},
    "fd": {"gamma": 2.0},
    "fedala": {"upper": 1, "share_lr": 0.1, "data": 0.5, "first_epochs": 2},
    "fedapen": {"small": "norm", "adaptability": 0.5, "lambda_epochs": 40, "lambda_lr": 0.1},
    "fedbabu": {"fine_tune_epochs": 2},
    "fedcache": {"neighbours": 1, "alpha": 0.5, "temperature": 1.0},
    "fedclassavg": {"rho": 1.0, "temperature": 0.5, "base_temperature": 0.5},
    "feddbe": {"kappa": 1.0, "mu": 0.5},
    "feddf": {"distill_epochs": 2, "distill_lr": 0.01, "distill_batch": 4},
    "fedgen": {"alpha": 2.0, "beta": 1.0, "decay": 0.5, "diversity": 1.0, "noise_dim": 4, "hidden_dim": 8}
    | {"generator_steps": 5, "generator_batch": 16, "generator_lr": 0.01, "generator_decay": 0.1},
    "fedgh": {"header_lr": 0.1, "server_epochs": 3},
    "fedgkt": {"server_model": "short", "server_epochs": 2, "temperature": 1.0, "alpha": 0.5},
    "fedkd": {"small": "norm", "energy_start": 0.5, "energy_end": 0.6},
    "fedl2g": {"lambda_": 0.5, "server_lr": 1.0, "study_batches": 2, "quiz_batches": 2, "warmup": 1},
    "fedmd": {"scored": 5, "digest_epochs": 2, "transfer_epochs": 1},
    "fedmrl": {"small": "norm", "small_width": 0.5, "small_weight": 0.5, "own_weight": 0.5},
    "fedproto": {"lambda_": 2.0},
    "fedprox": {"mu": 1.0},
    "fedral": {"blocks": 4, "init_std": 0.5, "matrix_lr": 0.5},
    "fedrep": {"header_epochs": 2},
    "fedrolex": {"step": 2, "server_model": "broad"},
    "fedssa": {"mu0": 0.25, "t_stable": 4},
    "fedtgp": {"lambda_": 1.0, "server_epochs": 10, "tau": 0.01, "server_lr": 0.001, "server_batch": 2},
    "fml": {"a": 0.25, "b": 0.25, "small": "norm"},
    "hetlora": {"gamma": 0.5, "penalty": 1.0},
    "hks": {"alpha": 0.5, "temperature": 1.0, "warmup": 2},
    "protonorm": {"lambda_": 2.0, "scale": 2.0, "iterations": 5, "step": 0.5, "momentum": 0.5},
    "pfedmoe": {"small": "norm", "gate_inputs": 4, "gate_hidden": 2},
}
"""Another value of each field that is neither a choice nor a switch."""

WITH: Mapping[str, Mapping[str, Any]] = {
    "fedapen.lambda_epochs": {"adaptability": 0.5},
    "fedapen.lambda_lr": {"adaptability": 0.5},
    "fedproto.nearest": {"inference": "nearest"},
    "fedral.init_std": {"init": "normal"},
    "hetlora.penalty": {"gamma": 0.5},
    "hks": {"warmup": 1},
    "protonorm.nearest": {"inference": "nearest"},
    "hks.middle": {"granularity": "middle"},
}
"""Other fields without which a field, or any field of a method, does nothing in four rounds."""

UNSEEN: Mapping[str, str] = {
    "fedcache.encoder": "the toy task has one encoder",
    "hks.memory_gb": "decides how the tree is computed, not which",
}
"""Fields that nothing here can show, each with the reason."""


def alternatives() -> Iterator[tuple[str, str, Any]]:
    """(method, field, another value than the default), of every field."""
    for method in algorithm_names():
        cls = algorithm_class(method)
        hints = get_type_hints(cls)
        for field in fields(cls):
            name = field.name
            if f"{method}.{name}" in UNSEEN:
                continue
            if get_origin(hints[name]) is Literal:
                yield from ((method, name, value) for value in get_args(hints[name]) if value != field.default)
            elif hints[name] is bool:
                yield method, name, not field.default
            else:
                yield method, name, NUMBERS.get(method, {}).get(name)


TRIED = ("fedgh", "fedmd", "fedral", "fedssa")
"""Methods whose options `make test` tries, in a few seconds."""


@cache
def result(method: str, settings: tuple[tuple[str, Any], ...]) -> str:
    """A digest of all that four rounds leave and send."""
    toy = Trial(algorithm_class(method)(**dict(settings)))
    for t, cohort in enumerate(COHORTS, 1):
        toy.round(t, cohort)
    registered = [toy.algorithm.client_register(toy.client(k, 0)) for k in toy.samples]
    messages = [*registered, *(msg for _, _, msg in toy.sent)]
    found = repr((toy.states(), toy.score(), [digest(vars(msg)) if msg else None for msg in messages]))
    return sha256(found.encode()).hexdigest()


@pytest.mark.parametrize(
    ("method", "field", "value"),
    [pytest.param(*one, marks=() if one[0] in TRIED else pytest.mark.large) for one in alternatives()],
)
def test_no_option_is_ignored(method: str, field: str, value: Any) -> None:
    assert value is not None, f"NUMBERS needs another value of {method}.{field}"
    base = {**WITH.get(method, {}), **WITH.get(f"{method}.{field}", {})}
    assert result(method, tuple(base.items())) != result(method, tuple({**base, field: value}.items()))
