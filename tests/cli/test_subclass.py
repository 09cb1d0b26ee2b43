"""`raysim new algorithm NAME --from METHOD` writes a subclass, and a scenario and a test that suit the method."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

import raysim
from raysim.cli.main import main
from raysim.contract import CLAUSES
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.progress import Progress
from raysim.engine.run import Observers, run_rounds
from raysim.plugins.registry import algorithm_class
from raysim.runs.assembly import assemble
from raysim.scenario.declared import declaration_of
from tests.engine.scenarios import METHODS

TINY = ["rounds=1", "clients.count=4", "clients.participation=1", "training={epochs: 1, batch_size: 64}"]
OF_THE_FILE = ("defined", "documented", "frozen", "imports", "picklable")


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("name", METHODS)
def test_a_subclass_of_every_method_runs_in_its_scenario(name: str) -> None:
    main(["new", "algorithm", f"new_{name}", "--from", name])
    scenario = raysim.Scenario.load(f"new_{name}.yaml", [*TINY, "backend=in_process"])
    base = algorithm_class(name)
    assert type(scenario.algorithm).__mro__[1] is base and scenario.declared.fields == declaration_of(base).fields
    for clause in OF_THE_FILE:
        CLAUSES[clause](scenario.algorithm)
    assembly, backend, progress = assemble(scenario), InProcessBackend(), Progress()
    try:
        backend.start(assembly.spec, assembly.raw)
        run_rounds(backend, assembly.loop_settings, progress, Observers())
    finally:
        backend.close()
    assert progress.t == 1


@pytest.mark.parametrize(
    ("base", "lines"),
    [
        ("fedgh", ["  models: [digits_mlp64, digits_cnn_s, digits_resnet]"]),
        ("fedprox", ["  models: [digits_cnn_s]  # FedProx needs one architecture for all clients"]),
        ("fedrolex", ["  models: [heterofl_cnn_d, heterofl_cnn_e]  # FedRolex needs one network in several widths"]),
        ("fedgkt", ["  models: [digits_resnet]  # FedGKT needs networks with stages"]),
        ("fedmd", ["  public: {share: 0.2}  # FedMD needs public data"]),
    ],
)
def test_the_scenario_has_what_the_method_needs(base: str, lines: list[str]) -> None:
    main(["new", "algorithm", "mine", "--from", base])
    text = Path("mine.yaml").read_text()
    assert set(lines) <= set(text.splitlines())
    assert ("public" in text) == (base == "fedmd")
    assert f"--grid algorithm.name=./mine.py,{base},standalone --seeds 1..3" in text


def test_the_generated_test_passes(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main(["new", "algorithm", "a_new_prox", "--from", "fedprox"])
    monkeypatch.delitem(sys.modules, "a_new_prox", raising=False)
    module = importlib.import_module("test_a_new_prox")
    module.test_it_keeps_the_contract()
    real = raysim.run
    monkeypatch.setattr(raysim, "run", lambda *args, sets, **named: real(*args, sets=[*sets, *TINY[1:]], **named))
    module.test_it_runs(workplace, OwnStore())


class OwnStore:
    """Stands for the generated test's monkeypatch: this test has a store already, and making another takes seconds."""

    def setenv(self, name: str, value: str) -> None:
        assert name == "MLFLOW_TRACKING_URI" and value.endswith("mlflow.db")


def test_describe_shows_the_subclass_and_what_it_inherits(capsys: pytest.CaptureFixture[str]) -> None:
    main(["new", "algorithm", "my_prox", "--from", "fedprox"])
    main(["describe", "./my_prox.py"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "MyProx: FedProx with one change" in shown
    assert "Paper of FedProx, on which it is based: Li et al., MLSys 2020" in shown
    assert "mu 0.1 a number at least 0 Weight of the proximal term" in shown
    text = " ".join(Path("my_prox.py").read_text().split())
    assert "override any of server_start, server_send, client_receive, client_update, server_update, exposed." in text
    assert "def loss(self, net: Any, batch: Batch, given: Any) -> Any:" in text


def test_a_method_without_a_loss_of_its_clients_gets_their_update() -> None:
    """FedDF's `loss` is the server's: a subclass for another local training overrides `client_update`."""
    main(["new", "algorithm", "my_df", "--from", "feddf"])
    text = " ".join(Path("my_df.py").read_text().split())
    assert "def client_update(self, client: Client, down: Any) -> Any:" in text and "def loss" not in text
    assert "return its upload (model). down: the server's message (model)." in text


def test_a_class_of_the_bases_name_gets_another() -> None:
    main(["new", "algorithm", "standalone", "--from", "standalone"])
    text = Path("standalone.py").read_text()
    assert "class MyStandalone(Standalone):" in text and "override any" not in text
    assert "algorithm.name=./standalone.py,standalone --seeds" in Path("standalone.yaml").read_text()


def test_no_accuracies_that_an_edit_makes_wrong() -> None:
    for name, words in {"mine": ["--from", "fedavg"], "template": []}.items():
        main(["new", "algorithm", name, *words])
        text = Path(f"{name}.yaml").read_text()
        assert "%" not in text and not re.search(r"\d\d\.\d", text)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["algorithm", "mine", "--from", "fedproxx"],
            "--from: fedproxx is not a bundled method; did you mean 'fedprox'?",
        ),
        (["algorithm", "mine", "--from", "./mine.py"], "--from: ./mine.py is not a bundled method (`raysim list "),
        (
            ["model", "mine", "--from", "fedprox"],
            "--from works only for a new algorithm; leave out --from for a new model.",
        ),
    ],
)
def test_a_base_that_is_none(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["new", *words])
    assert sentence in capsys.readouterr().err
    assert not list(Path().iterdir())
