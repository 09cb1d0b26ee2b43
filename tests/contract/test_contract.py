"""Every algorithm keeps every clause of the contract, and each broken algorithm is caught by its clause."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import broken_algorithms as broken
import numpy as np
import pytest
import torch

from raysim.contract import CLAUSES, ContractError, check_algorithm, check_clause
from raysim.contract.definition import MAX_ROUNDS
from raysim.contract.trial import Trial
from raysim.core.algorithm import Algorithm, AnyAlgorithm
from raysim.core.fields import settings_fields
from raysim.plugins.registry import algorithm_class, algorithm_names
from tests.golden.record import stored

BESIDE: dict[tuple[str, str, str], dict[str, Any]] = {("fd", "distillation", "raw_logits"): {"gamma": 0.1}}
"""What is set beside a choice. FD's loss with raw logits has no lower bound: with a weight of 0.2 or more, the toy's
clients diverge, as docs/methods/fd.md says."""


def variants() -> Iterator[Any]:
    """Every algorithm in `algorithms/` with its defaults, and once more with every other choice of every field."""
    for name in algorithm_names():
        cls = algorithm_class(name)
        yield pytest.param(cls, {}, id=name)
        for info in settings_fields(cls):
            assert info.default is not MISSING, f"{name}.{info.name} needs a default to be checked"
            choices: tuple[Any, ...] = ()
            if info.hint is bool:
                choices = (True, False)
            elif get_origin(info.hint) is Literal:
                choices = get_args(info.hint)
            for choice in choices:
                if choice != info.default:
                    beside = BESIDE.get((name, info.name, str(choice)), {})
                    yield pytest.param(cls, {info.name: choice, **beside}, id=f"{name}-{info.name}={choice}")


GUARDED = set(stored("methods")["cases"]) - {"fedgh"}
"""Methods with a recorded run, which `make test` repeats: a change of their results is noticed without the clauses. A
method that is new has no recorded run yet, so `make test` checks all clauses."""

CASES = [
    pytest.param(*case.values, id=case.id, marks=pytest.mark.large if case.values[1] or case.id in GUARDED else ())
    for case in variants()
]


@pytest.mark.parametrize(("cls", "settings"), CASES)
def test_every_algorithm_keeps_every_clause(cls: Any, settings: dict[str, Any]):
    for name in CLAUSES:
        if name != "fields_read" or not settings:  # this clause tries other choices itself
            check_clause(name, cls(**settings))


BROKEN: list[tuple[AnyAlgorithm, str, str]] = [
    (broken.NearMiss(), "defined", "`server_update`"),
    (broken.AveragesElsewhere(), "averages", "server.mean"),
    (broken.OnlyFresh(), "stale_uploads", "round 2"),
    (broken.NotADataclass(), "defined", "@dataclass(frozen=True)"),
    (broken.HoldsAFunction(factor=lambda x: x), "picklable", "pickled"),
    (broken.StateOnClass(), "frozen", "StateOnClass.seen"),
    (broken.LossNeverFitted(), "fields_read", "'mu'"),
    (broken.NeedsClientZero(), "runs", "server_update"),
    (broken.SendsNaN(), "runs", "client_update"),
    (broken.SumsInPlace(), "runs", "clone"),
    (broken.ForwardReturnsAPair(), "logits", "(3, 4)"),
    (broken.DrawsFromNumpy(), "deterministic", "client.rng"),
    (broken.FollowsTheLast(), "any_order", "order"),
    (broken.StateBesideTheNet(), "resumable", "buffers"),
    (broken.DecaysByRounds(), "scheduled", "scheduled: ClassVar[bool] = True"),
    (broken.LossReadsAGlobal(), "trained_together", "`given`"),
    (broken.ForgetsBatchMean(), "trained_together", "batch.mean"),
    (broken.ClimbsTheLoss(), "learns", "sign"),
    (broken.FedGHSlip(), "messages_move", "server_send"),
    (broken.UploadsToNobody(), "connected", "server_update"),
    (broken.NeverReceives(), "connected", "server_send"),
    (broken.NeedsTwoClients(), "one_client", "ZeroDivisionError"),
    (broken.NeedsTwoSamples(), "single_samples", "NaN"),
    (broken.NeedsEveryClass(), "class_gap", "server.state"),
    (broken.DeclaresTheChange(), "exposed", "`after`"),
    (broken.DeclaresAnotherOutput(), "exposed", "`function`"),
]


@pytest.mark.parametrize(
    ("algorithm", "clause", "word"), [pytest.param(*case, id=f"{type(case[0]).__name__}-{case[1]}") for case in BROKEN]
)
def test_a_broken_algorithm_is_caught_by_its_clause(algorithm: AnyAlgorithm, clause: str, word: str):
    broken.clear_globals()
    with pytest.raises(ContractError) as caught:
        check_clause(clause, algorithm)
    assert caught.value.clause == clause
    assert type(algorithm).__name__ in str(caught.value) and word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_clause_is_known_to_catch_something():
    assert {clause for _, clause, _ in BROKEN} == set(CLAUSES)


def test_a_true_declaration_keeps_the_clause():
    check_clause("exposed", broken.Declares())


@pytest.mark.large
@pytest.mark.parametrize("name", algorithm_names())
def test_every_method_that_uploads_declares_what_that_exposes(name: str):
    algorithm = algorithm_class(name)()
    if type(algorithm).exposed is Algorithm.exposed:
        trial = Trial(algorithm).run(MAX_ROUNDS)
        assert not any(hook == "client_update" and up is not None for hook, _, up in trial.sent)


def test_an_algorithm_may_say_that_its_downlink_is_static():
    class Static(broken.FedGHSlip):
        static_downlink = True

    check_clause("messages_move", Static())


def test_the_sound_algorithm_passes_and_generators_are_left_as_they_were():
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def seed() -> None:
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)

    seed()
    expected = draws()
    seed()
    check_algorithm(broken.Sound())
    assert (draws(), torch.get_default_dtype()) == (expected, torch.float32)


def test_the_page_lists_every_clause_in_order():
    page = Path(__file__).parents[2] / "docs" / "contract.md"
    assert re.findall(r"^\| `(\w+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE) == list(CLAUSES)
