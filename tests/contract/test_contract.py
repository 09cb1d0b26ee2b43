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
from raysim.plugins.class_check import class_mistake
from raysim.plugins.registry import algorithm_class, algorithm_names
from tests.engine.scenarios import TYPICAL
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


GUARDED = set(stored("methods")["cases"]) - TYPICAL
"""Methods with a recorded run, which `make test` repeats: a change of their results is noticed without the clauses. A
method that is new has no recorded run yet, so `make test` checks all clauses."""

CASES = [
    pytest.param(*case.values, id=case.id, marks=pytest.mark.large if case.values[1] or case.id in GUARDED else ())
    for case in variants()
]


@pytest.mark.parametrize(("cls", "settings"), CASES)
def test_every_algorithm_keeps_every_clause(cls: Any, settings: dict[str, Any]):
    check_algorithm(cls(**settings))


@pytest.mark.parametrize(("cls", "settings"), [*variants()])
def test_every_choice_runs(cls: Any, settings: dict[str, Any]):
    check_clause("runs", cls(**settings))


def test_there_is_something_to_check():
    ids = [variant.id for variant in variants()]
    assert "fedgh-server_mode=frozen_random" in ids and "fedavg-avg_bn_buffers=False" in ids
    assert len(ids) == len(set(ids))


BROKEN: list[tuple[AnyAlgorithm, str, str]] = [
    (broken.NearMiss(), "defined", "`server_update`"),
    (broken.AveragesElsewhere(), "averages", "server.mean"),
    (broken.NearMissAttribute(), "defined", "`scheduled`"),
    (broken.NotADataclass(), "defined", "@dataclass(frozen=True)"),
    (broken.ArgumentsSwapped(), "defined", "client_receive(self, client, down)"),
    (broken.HoldsAFunction(factor=lambda x: x), "picklable", "pickled"),
    (broken.StateOnClass(), "frozen", "StateOnClass.seen"),
    (broken.LossNeverFitted(), "fields_read", "'mu'"),
    (broken.NeedsClientZero(), "runs", "server_update"),
    (broken.SendsADict(), "runs", "@message"),
    (broken.SendsNaN(), "runs", "client_update"),
    (broken.ReceivesInPlace(), "runs", "client_receive"),
    (broken.SumsInPlace(), "runs", "clone"),
    (broken.KeepsAnOptimizer(), "runs", "state_dict"),
    (broken.ForwardReturnsAPair(), "logits", "(3, 4)"),
    (broken.DrawsFromNumpy(), "deterministic", "client.rng"),
    (broken.DrawsFromPython(), "deterministic", "server.rng"),
    (broken.FollowsTheLast(), "any_order", "order"),
    (broken.StateInTheModule(), "resumable", "client 0"),
    (broken.StateBesideTheNet(), "resumable", "buffers"),
    (broken.DecaysByRounds(), "scheduled", "scheduled: ClassVar[bool] = True"),
    (broken.LossReadsAGlobal(), "trained_together", "`given`"),
    (broken.ForgetsBatchMean(), "trained_together", "batch.mean"),
    (broken.FixesTheType(), "trained_together", "float64"),
    (broken.ClimbsTheLoss(), "learns", "sign"),
    (broken.FedGHSlip(), "messages_move", "server_send"),
    (broken.ForgetsToReturn(), "connected", "client_update"),
    (broken.UploadsToNobody(), "connected", "server_update"),
    (broken.NeverReceives(), "connected", "server_send"),
    (broken.AveragesIntoNothing(), "connected", "client_update"),
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


def test_the_slip_is_invisible_to_every_other_clause():
    """Clients still learn locally, so no other clause notices that the server does not learn."""
    for name in CLAUSES:
        if name not in {"messages_move", "connected"}:
            check_clause(name, broken.FedGHSlip())


def test_a_true_declaration_keeps_the_clause():
    check_clause("exposed", broken.Declares())


def test_a_private_helper_may_have_any_name():
    class Helped(broken.Sound):
        def _server_updates(self) -> None: ...

    mistake = class_mistake(Helped)
    assert mistake is not None and "@dataclass" in mistake  # which is its only mistake


@pytest.mark.large
@pytest.mark.parametrize("name", algorithm_names())
def test_every_method_that_uploads_declares_what_that_exposes(name: str):
    algorithm = algorithm_class(name)()
    if type(algorithm).exposed is Algorithm.exposed:
        trial = Trial(algorithm).run(MAX_ROUNDS)
        assert not any(hook == "client_update" and up is not None for hook, _, up in trial.sent)


@pytest.mark.parametrize("name", algorithm_names())
def test_every_method_names_its_paper_and_explains_its_settings(name: str):
    cls = algorithm_class(name)
    assert cls.paper and all(info.doc for info in settings_fields(cls))


def test_an_algorithm_may_say_that_its_downlink_is_static():
    class Static(broken.FedGHSlip):
        static_downlink = True

    check_clause("messages_move", Static())


def test_check_algorithm_asks_for_an_object():
    with pytest.raises(TypeError, match=r"Sound\(\)"):
        check_algorithm(broken.Sound)  # type: ignore[arg-type]


def test_the_sound_algorithm_passes_and_threads_and_generators_are_left_as_they_were():
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def seed() -> None:
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)

    seed()
    expected = draws()
    seed()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check_algorithm(broken.Sound())
        assert (draws(), torch.get_num_threads(), torch.get_default_dtype()) == (expected, 2, torch.float32)
    finally:
        torch.set_num_threads(threads)


def test_the_page_lists_every_clause_in_order():
    page = Path(__file__).parents[2] / "docs" / "contract.md"
    assert re.findall(r"^\| `(\w+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE) == list(CLAUSES)
