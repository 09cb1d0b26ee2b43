"""Every algorithm keeps every clause of the contract, and the contract notices algorithms that do not."""

from __future__ import annotations

import importlib.util
import random
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import broken_algorithms as broken
import numpy as np
import pytest
import torch

from raysim.contract import CLAUSES, ContractError, check_algorithm
from raysim.contract.running import MAX_ROUNDS
from raysim.contract.toy import Toy
from raysim.core.algorithm import Algorithm, AnyAlgorithm
from raysim.core.fields import settings_fields
from raysim.plugins.registry import algorithm_class, algorithm_names
from tests.engine.scenarios import TYPICAL
from tests.golden.record import stored


@pytest.fixture
def clean_globals() -> Iterator[None]:
    yield from broken.fresh_globals()


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


LARGE = pytest.mark.large

ONCE = {"defined", "frozen", "picklable", "documented", "fields_read", "imports", "connected"}
"""Clauses about an algorithm's class and file, which are the same whatever its fields say, and one that takes long."""

SHORT = {"runs"}
"""Clauses that `make test` checks for every choice of a field, and for every method; `make test-large` checks all."""

GUARDED = set(stored("methods")["cases"]) - TYPICAL
"""Methods with a recorded run, which `make test` repeats: a change of their results is noticed without the clauses. A
method that is new has no recorded run yet, so `make test` checks all clauses."""


def in_large(method: str, settings: dict[str, Any], clause: str) -> bool:
    """Whether `make test` leaves a case to `make test-large`: there are 2,000, of a tenth of a second each."""
    return clause not in SHORT if settings else clause not in SHORT | ONCE and method in GUARDED


CASES = [
    pytest.param(
        *case.values,
        clause,
        id=f"{case.id}-{clause}",
        marks=LARGE if in_large(case.id, case.values[1], clause) else (),
    )
    for case in variants()
    for clause in CLAUSES
    if not case.values[1] or clause not in ONCE
]


@pytest.mark.parametrize(("cls", "settings", "clause"), CASES)
def test_every_algorithm_keeps_every_clause(cls: Any, settings: dict[str, Any], clause: str):
    CLAUSES[clause](cls(**settings))


def test_there_is_something_to_check():
    assert set(algorithm_names()) >= {"fedavg", "fedgh", "lg_fedavg", "standalone"}
    ids = [variant.id for variant in variants()]
    assert "fedgh-server_mode=frozen_random" in ids and "fedavg-avg_bn_buffers=False" in ids
    assert len(ids) == len(set(ids))


BROKEN: list[tuple[AnyAlgorithm, str, str]] = [
    (broken.Misspells(), "runs", "client_update of client 0 raises NameError in round 1 (name 'wieghts' is not"),
    (
        broken.SetsItself(),
        "frozen",
        "client_update changes a frozen object, such as the algorithm or a message (cannot assign to field 'rounds')",
    ),
    (broken.NotAFrozenDataclass(), "frozen", "is not a frozen dataclass"),
    (broken.StateOnSelf(), "frozen", "server_update changes self.rounds"),
    (broken.StateOnClass(), "frozen", "client_update changes StateOnClass.seen"),
    (broken.HoldsALambda(factor=lambda x: x), "picklable", "the algorithm cannot be pickled"),
    (broken.UnequalCopy(thing=broken.Opaque({})), "picklable", "the algorithm is not equal to its pickled copy"),
    (broken.SendsADict(), "messages", "client_update for client 0 has the type dict"),
    (broken.SendsASubclass(), "messages", "client_update for client 0 has the type Renamed; return a dataclass that"),
    (broken.SendsAPlainDataclass(), "messages", "client_update for client 0 has the type PlainDataclass"),
    (broken.SendsText(), "messages", "contains a value of type str"),
    (broken.SendsNaN(), "messages", "client_update for client 0 contains NaN or infinity, although"),
    (broken.LossReadsAGlobal(), "trained_together", "of client 0 depends on whether clients are trained together"),
    (
        broken.TrainsTheOthers(),
        "own_state_only",
        "client_update of client 0 changes the state of client 1; change only the state of client 0",
    ),
    (
        broken.ServerHookTouchesClients(),
        "own_state_only",
        "server_update changes the state of client 0; change only server.state",
    ),
    (broken.ChangesItsData(), "own_state_only", "changes the data of client 0"),
    (broken.ReceivesInPlace(), "down_untouched", "client_receive changes its argument `down` in place"),
    (broken.TrainsTheMessage(), "down_untouched", "client_update changes its argument `down` in place"),
    (broken.TrainsTheMessage(), "any_order", "the order in which clients run"),
    (broken.SumsInPlace(), "ups_untouched", "server_update changes its argument `ups` in place"),
    (broken.DrawsFromNumpy(), "deterministic", "differs when the run is repeated with the same seed"),
    (broken.DrawsFromPython(), "deterministic", "differs when the run is repeated with the same seed"),
    (
        broken.DrawsFromFreshNumpy(),
        "deterministic",
        "the return value of client_update for client 0 differs when the run",
    ),
    (
        broken.CountsForwardPasses(),
        "deterministic",
        "the return value of client_update for client 0 differs when the run",
    ),
    (broken.FollowsTheLast(), "any_order", "depends on the order in which clients run"),
    (
        broken.StateBesideTheNet(),
        "state_dict_is_all",
        "the network of client 0 has the new attribute rounds, but raysim",
    ),
    (
        broken.LeavesAForwardHook(),
        "state_dict_is_all",
        "a torch hook, such as a forward hook, remains on the network of client 0, but clients of one architecture",
    ),
    (broken.StateInTheModule(), "state_dict_is_all", "if the run restarts from the clients' state_dicts"),
    (broken.KeepsAViewOfItsState(), "server_state_visible", "at row and w.weight of the state share memory"),
    (broken.KeepsAnOptimizer(), "server_state_visible", "cannot be saved: the state contains a Adam at adam"),
    (broken.StateBesideServerState(), "runs", "server.latest cannot be set, because raysim would not keep it between"),
    (broken.StateBesideClientState(), "runs", "client.latest cannot be set, because raysim would not keep it between"),
    (broken.KeepsADefaultDict(), "server_state_visible", "the state contains a defaultdict at its top level; use a"),
    (broken.KeepsAGraph(), "server_state_visible", "at w of the state is connected to the tensors that it was"),
    (broken.AddsModulesLater(), "server_state_visible", "the state has a Linear at 1, where it had no module before"),
    (broken.KeepsAGenerator(), "server_state_visible", "the state contains a Generator at rng; use only tensors"),
    (broken.HiddenInAServerModule(), "server_state_visible", "WithHiddenTensor.secret"),
    (
        broken.ForwardGivesAPair(),
        "logits",
        "the network from client_model outputs a value of type tuple for a batch of size 1; return",
    ),
    (broken.TouchesTheAbsent(), "own_state_only", "server_update changes the state of client 2; change only"),
    (broken.ForgetsBatchMean(), "losses", "the loss function loss changes when a batch is padded"),
    (broken.LossPastItsNet(), "losses", "reads trained parameters from client.net instead of its argument"),
    (broken.TrainsNothing(), "learns", "in 8 rounds the loss must fall by more than 10% and"),
    (broken.ClimbsTheLoss(), "learns", "in 8 rounds the loss must fall by more than 10% and"),
    (broken.FedGHSlip(), "messages_move", "server_send returned the same values for client 0 in 4 rounds"),
    (broken.TypoInAHook(), "defined", "raysim never calls the method `server_updat`; did you mean `server_update`?"),
    (broken.AHookOfAnotherLibrary(), "defined", "because there is no hook of this name; use one of the hooks "),
    (
        broken.AHookWithAnUnderscore(),
        "defined",
        "raysim never calls the method `_client_receive`; did you mean `client_receive`?",
    ),
    (
        broken.ForgetsToReturn(),
        "defined",
        "but client_update never returns a message to upload; return",
    ),
    (
        broken.ForgetsToReturnTheFirstState(),
        "defined",
        "the hook `server_start` never returns a value; return the initial",
    ),
    (
        broken.FieldWithoutAnnotation(),
        "defined",
        "`gamma = 0.5` has no type annotation, so it is not a setting; write gamma: float",
    ),
    (broken.FieldKeepsItsOldDefault(), "defined", "`thing = 'else'` has no type annotation, so it is not a setting"),
    (broken.TypoInAnAttribute(), "defined", "so it is not a setting; did you mean `one_architecture`?"),
    (
        broken.TypoInADeclaredAttribute(),
        "defined",
        "raysim never reads the attribute `schedulled`; did you mean `scheduled`?",
    ),
    (
        broken.StaticByAMethod(),
        "defined",
        "so raysim always reads it as true; put @property above the method",
    ),
    (broken.NotAFrozenDataclass(), "defined", "is not decorated with @dataclass, so its attributes are not settings"),
    (broken.AsyncHook(), "defined", "raysim does not await the hook `server_update`, so it never runs"),
    (broken.GeneratorHook(), "defined", "`client_receive` contains `yield`, so its body never runs"),
    (broken.ClassmethodHook(), "defined", "`client_update` is a classmethod, which cannot read the settings"),
    (
        broken.PropertyHook(),
        "defined",
        "`client_receive` has the type property, but must be a method; write def client_receive(self",
    ),
    (broken.TooFewArguments(), "defined", "raysim calls it with (server, to); write def server_send(self, server, to)"),
    (broken.ArgumentsSwapped(), "defined", "`client_receive` takes (self, down: 'Header', client: 'Client')"),
    (
        broken.ReceivesWhatNobodySends(),
        "defined",
        "the class overrides client_receive but not server_send, so clients never",
    ),
    (broken.JoinsUnheard(), "defined", "the class overrides client_register but not server_start, so no hook"),
    (broken.UnreadField(), "fields_read", "no hook reads the field 'unheeded' in 24 rounds; use self.unheeded in a"),
    (
        broken.LossNeverFitted(),
        "fields_read",
        "no hook reads the field 'mu' in 24 rounds; use self.mu in a hook or in a loss",
    ),
    (broken.ReadByItsCheckAlone(), "fields_read", "no hook reads the field 'mu' in 24 rounds"),
    (broken.InheritsAnUnreadField(), "fields_read", "client.fit, or redeclare factor as a ClassVar, so that"),
    (broken.ForgetsToReturnSometimes(), "runs", "server_start assigns server.state but returns None"),
    (
        broken.ReturnsTheState(),
        "runs",
        "server_update returns a value of type Header, which raysim ignores; assign the new state to",
    ),
    (
        broken.UploadsFromReceive(),
        "runs",
        "client_receive returns a value of type Header, which raysim ignores; return uploads",
    ),
    (broken.AnotherNet(), "runs", "a hook of client 0 assigns a new network to client.net, but raysim ignores"),
    (broken.UploadsWhatItWas(), "messages_move", "client_update returned the same values for client 0 in 4 rounds"),
    (broken.UploadsNever(), "connected", "client_update returned no message in 24 rounds"),
    (broken.SendsNever(), "connected", "server_send is overridden, but returned no message in 24 rounds"),
    (
        broken.UploadsToNobody(),
        "connected",
        "client_update returns a message, but the class does not override server_update",
    ),
    (broken.NeverReceives(), "connected", "the values that server_send returns have no effect on any client"),
    (broken.AveragesIntoNothing(), "connected", "the values that client_update returns have no effect on the server"),
    (
        broken.FixesTheType(),
        "trained_together",
        "with float64 networks, in which this clause compares results, client_update of client 0 raises RuntimeError",
    ),
    (broken.NeedsTwoClients(), "one_client", "server_update raises ZeroDivisionError in round 1"),
    (broken.NeedsTwoSamples(), "single_samples", "client_update returns NaN or infinity for client 0 in round 1"),
    (broken.NeedsEveryClass(), "class_gap", "server.state contains NaN or infinity after round 1"),
    (
        broken.DeclaresTheChange(),
        "exposed",
        "the UpdateOf that `exposed` returns for client 0 does not hold the trained",
    ),
    (
        broken.DeclaresNothing(),
        "exposed",
        "the UpdateOf that `exposed` returns for client 0 does not hold the trained",
    ),
    (broken.DeclaresAnotherPart(), "exposed", "in `after`, map the name of each parameter of `part` to its value"),
    (broken.DeclaresACopy(), "exposed", "does not belong to client.net; set `part` to client.net or to one of its"),
    (
        broken.DeclaresAnotherOutput(),
        "exposed",
        "for client 0, `value` is not the output of `function`; set",
    ),
    (
        broken.DeclaresAText(),
        "exposed",
        "`exposed` returns a value of type str; return an UpdateOf, an OutputOf or an Unexposed",
    ),
]


@pytest.mark.parametrize(
    ("algorithm", "clause", "problem"),
    [pytest.param(*case, id=f"{type(case[0]).__name__}-{case[1]}") for case in BROKEN],
)
def test_a_broken_algorithm_is_caught_by_its_clause(
    clean_globals: None, algorithm: AnyAlgorithm, clause: str, problem: str
):
    with pytest.raises(ContractError) as caught:
        CLAUSES[clause](algorithm)
    text = str(caught.value)
    assert problem in text
    assert text.startswith(f"{type(algorithm).__name__} breaks the clause {clause!r}: ")
    assert caught.value.clause == clause
    assert "\n" not in text


def test_every_clause_is_known_to_catch_something():
    in_files = {"documented", "imports", "losses"}
    assert {clause for _, clause, _ in BROKEN} | in_files == set(CLAUSES)


def test_the_slip_is_invisible_to_every_other_clause(clean_globals: None):
    """What makes these two worth their time: clients still learn locally, so nothing else notices."""
    for name, clause in CLAUSES.items():
        if name not in {"messages_move", "connected"}:
            clause(broken.FedGHSlip())


def test_a_true_declaration_keeps_the_clause(clean_globals: None):
    CLAUSES["exposed"](broken.Declares())
    CLAUSES["exposed"](broken.Sound())  # it declares nothing


@pytest.mark.parametrize("name", algorithm_names())
def test_every_method_that_uploads_declares_what_that_exposes(name: str):
    algorithm = algorithm_class(name)()
    if type(algorithm).exposed is Algorithm.exposed:
        toy = Toy(algorithm, "test").run(MAX_ROUNDS)
        assert not any(hook == "client_update" and up is not None for hook, _, up in toy.sent)


def test_an_algorithm_may_say_that_its_downlink_is_static(clean_globals: None):
    class Static(broken.FedGHSlip):
        static_downlink = True

    CLAUSES["messages_move"](Static())


def test_an_exception_in_the_task_of_another_clause_breaks_the_clause_runs(clean_globals: None):
    with pytest.raises(ContractError) as caught:
        CLAUSES["own_state_only"](broken.NeedsClientZero())
    assert str(caught.value).startswith(
        "NeedsClientZero breaks the clause 'runs': server_update raises AssertionError in round 3 (no client 0) "
        "with 2 of 4 clients: 1, 2; make the hook work on small tasks with any participants"
    )


def test_one_thread_computes_and_the_callers_setting_stays(
    clean_globals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    clauses = {"runs": lambda algorithm: seen.add(torch.get_num_threads())}
    monkeypatch.setattr("raysim.contract.CLAUSES", clauses)
    torch.set_num_threads(2)
    check_algorithm(broken.Sound())
    assert (seen, torch.get_num_threads()) == ({1}, 2)


def test_check_algorithm_raises_at_the_first_broken_clause(clean_globals: None):
    with pytest.raises(ContractError, match="breaks the clause 'ups_untouched'"):
        check_algorithm(broken.SumsInPlace())


@pytest.mark.parametrize("algorithm", [broken.Misspells(), broken.SetsItself(), broken.SendsNaN()])
def test_check_algorithm_names_what_is_wrong_and_not_what_it_came_upon_first(algorithm: AnyAlgorithm):
    (clause,) = [clause for one, clause, _ in BROKEN if type(one) is type(algorithm)]
    with pytest.raises(ContractError) as caught:
        check_algorithm(algorithm)
    assert caught.value.clause == clause


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            broken.Sound,
            "check_algorithm needs an algorithm, but was given the class Sound; pass an object, such as Sound()",
        ),
        (dict, "check_algorithm needs an algorithm, but was given the class dict; pass an object, such as MyMethod()"),
        (
            "fedgh",
            "check_algorithm needs an algorithm, but was given a value of type str; pass an object, such as MyMethod()",
        ),
    ],
)
def test_check_algorithm_asks_for_an_object(given: Any, sentence: str):
    with pytest.raises(TypeError) as caught:
        check_algorithm(given)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("kind", [broken.InPlace, broken.LiveUpload, broken.HelpersOfManyNames])
def test_what_only_looks_wrong_passes(clean_globals: None, kind: type[AnyAlgorithm]):
    for name in ("defined", "runs", "fields_read", "messages", "deterministic", "messages_move", "connected"):
        CLAUSES[name](kind())


def test_a_field_may_be_read_in_one_mode_and_late():
    CLAUSES["fields_read"](broken.ReadsInOneMode())


def test_a_class_variable_replaces_an_inherited_field():
    CLAUSES["fields_read"](broken.FixesAnInheritedField())
    assert not settings_fields(broken.FixesAnInheritedField)


@pytest.mark.parametrize("name", algorithm_names())
def test_any_bundled_method_can_be_subclassed(tmp_path: Path, name: str):
    base = algorithm_class(name)
    text = SUBCLASS.replace("FedAvg", base.__name__).replace("raysim.algorithms.fedavg", base.__module__)
    algorithm = method_of(tmp_path, text)
    for clause in ("defined", "documented", "imports"):
        CLAUSES[clause](algorithm)


def test_the_files_of_base_classes_are_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "base_on_a_gpu.py").write_text(GOOD.replace("client.fit(", "client.net.cuda()\n        client.fit("))
    monkeypatch.syspath_prepend(tmp_path)
    text = SUBCLASS.replace("FedAvg", "Method").replace("raysim.algorithms.fedavg", "base_on_a_gpu")
    with pytest.raises(ContractError, match=r"the file of its base class Method uses \.cuda in line 18"):
        CLAUSES["imports"](method_of(tmp_path, text))


def test_a_draw_from_the_generator_of_a_client_is_on_the_cpu(tmp_path: Path):
    """On a GPU torch refuses this generator for any other device."""
    draw = "import torch; torch.rand(3, generator=client.rng, device={})\n        client.fit("
    CLAUSES["imports"](method_of(tmp_path, GOOD.replace("client.fit(", draw.format("'cpu'"))))
    with pytest.raises(ContractError, match="uses device= in line 18"):
        CLAUSES["imports"](method_of(tmp_path, GOOD.replace("client.fit(", draw.format("'mps'"))))


def test_another_bundled_method_is_no_library(tmp_path: Path):
    text = SUBCLASS.replace("from typing", "from raysim.algorithms import fedgh\nfrom typing")
    with pytest.raises(ContractError, match=r"imports raysim\.algorithms\.fedgh in line 7"):
        CLAUSES["imports"](method_of(tmp_path, text))


def test_the_sound_algorithm_passes_and_every_generator_is_left_as_it_was(clean_globals: None):
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    expected = (random.random(), float(np.random.rand()), float(torch.rand(())))
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    check_algorithm(broken.Sound())
    assert (random.random(), float(np.random.rand()), float(torch.rand(()))) == expected


# -- clauses that read the source --------------------------------------------------------------------

GOOD = '''"""A method that trains alone."""
from dataclasses import dataclass
from typing import ClassVar

from raysim.core import Algorithm, Client, Count
from raysim.core.ops import cross_entropy


@dataclass(frozen=True)
class Method(Algorithm[None, None, None]):
    """Trains alone."""

    paper: ClassVar[str] = "none"
    passes: Count = 1
    """How often."""

    def client_update(self, client: Client, down: None) -> None:
        client.fit(self.loss)

    def loss(self, net, batch, given):
        return cross_entropy(net, batch, given)
'''


SUBCLASS = '''"""FedProx: FedAvg with a proximal term.

Li et al. MLSys 2020. https://arxiv.org/abs/1812.06127
"""

from dataclasses import dataclass
from typing import ClassVar

from raysim.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class Method(FedAvg):
    """Local training stays near the server's model."""

    paper: ClassVar[str] = "Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127"
'''


def method(folder: Path, old: str = "", new: str = "") -> AnyAlgorithm:
    """The algorithm of a file that differs from GOOD in one place."""
    assert old in GOOD
    return method_of(folder, GOOD.replace(old, new, 1) if old else GOOD)


def method_of(folder: Path, text: str) -> AnyAlgorithm:
    """The algorithm of a file with this text."""
    path = folder / "toy_method.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"toy_method_{folder.name}".replace("-", "_"), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.Method()


def test_the_good_file_is_good(tmp_path: Path):
    algorithm = method(tmp_path)
    for clause in ("documented", "imports", "losses"):
        CLAUSES[clause](algorithm)


IN_FILES = [
    ("documented", '"""A method that trains alone."""', "", "the algorithm's file has no docstring"),
    ("documented", '    """Trains alone."""\n', "", "the class has no docstring"),
    ("documented", 'paper: ClassVar[str] = "none"', "pass", "the class names no paper"),
    ("documented", '    """How often."""\n', "", "the field passes has no docstring"),
    ("defined", "    def loss(", "def server_update(self, server, ups):\n    pass\n\n\nclass Other:\n    def loss(",
     "`server_update` in line 20 is defined outside the class Method; indent it into the class"),
    ("defined", "    def loss(", "        def server_update(self, server, ups):\n            pass\n\n    def loss(",
     "`server_update` in line 20 is defined inside `client_update`"),
    ("defined", "    def loss(", "    def client_update(self, client, down):\n        pass\n\n    def loss(",
     "`client_update` is defined twice, in lines 17 and 20, and Python ignores the first definition"),
    ("imports", "from typing", "import raysim.engine.spec\nfrom typing", "imports raysim.engine.spec in line 3"),
    ("imports", "from typing", "from raysim import engine\nfrom typing", "imports raysim.engine in line 3"),
    ("imports", "from typing", "import raysim.algorithms.fedgh\nfrom typing", "imports raysim.algorithms.fedgh"),
    ("imports", "client.fit(", "import ray\n        client.fit(", "imports ray in line 18"),
    ("imports", "client.fit(", "import mlflow.entities\n        client.fit(", "imports mlflow.entities"),
    ("imports", "from typing", "import pandas\nfrom typing", "imports pandas in line 3"),
    ("imports", "client.fit(self", "client.net.cuda()\n        client.fit(self", "uses .cuda in line 18"),
    ("imports", "return cross", "import torch; torch.device('cpu')\n        return cross", "uses torch.device"),
    ("imports", "return cross", "batch.x.to(device='cpu')\n        return cross", "uses device="),
    ("losses", "return cross_entropy(net, batch, given)",
     "value = cross_entropy(net, batch, given)\n        return value / max(value.item(), 1)",
     "the loss function loss calls .item() in line 22"),
]  # fmt: skip


@pytest.mark.parametrize(("clause", "old", "new", "problem"), IN_FILES, ids=[case[3] for case in IN_FILES])
def test_a_file_with_one_fault_is_caught(tmp_path: Path, clause: str, old: str, new: str, problem: str):
    if "pandas" in new or "import ray\n" in new or "mlflow" in new:
        # Only read, never imported: these lines would cost seconds or need not be installed.
        path = tmp_path / "toy_method.py"
        algorithm = method(tmp_path)
        path.write_text(GOOD.replace(old, new, 1))
    else:
        algorithm = method(tmp_path, old, new)
    with pytest.raises(ContractError, match=problem.replace("(", r"\(").replace(")", r"\)")):
        CLAUSES[clause](algorithm)


def test_an_algorithm_without_a_source_file_is_told_to_have_one(monkeypatch: pytest.MonkeyPatch):
    module = types.ModuleType("typed_in")
    monkeypatch.setitem(sys.modules, "typed_in", module)
    exec(GOOD, vars(module))
    with pytest.raises(ContractError, match="source code cannot be read; define the class in a Python file"):
        CLAUSES["imports"](vars(module)["Method"]())


def test_the_page_lists_every_clause_in_order():
    page = Path(__file__).parents[2] / "docs" / "contract.md"
    assert re.findall(r"^\| `(\w+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE) == list(CLAUSES)


def test_settings_that_are_too_slow_for_the_toy_task_are_a_possible_cause():
    with pytest.raises(ContractError, match=r"pass others, as in check_algorithm\(MyMethod\(rate=0\.1\)\)"):
        CLAUSES["learns"](broken.TrainsNothing())
