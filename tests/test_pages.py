"""The Python and YAML that pages show is executed here, except where the tests of a page's topic do it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import nn
from torchvision.models import resnet18

import raysim
from raysim.engine.stragglers import StragglerDraws
from raysim.scenario.scenario import Scenario
from raysim.study.definition import load_sweep
from tests.conftest import REPOSITORY
from tests.engine.scenarios import digits


def blocks(page: str, language: str) -> list[str]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_training_section_of_the_guide() -> None:
    first, text = blocks("docs/guide.md", "yaml")
    assert Scenario.load(yaml.safe_load(first)).rounds == 20
    clients = {"count": 12, "models": ["digits_cnn_s", "vit_small"], "feature_dim": 32}
    scenario = Scenario.load(digits(**yaml.safe_load(text), clients=clients))
    local = {k: scenario.own_local.get(k, scenario.local) for k in range(12)}
    assert [local[k].optimizer for k in range(12)] == ["sgd", "adamw"] * 6
    assert [(one.epochs, one.batch_size) for one in (local[0], local[1], local[10])] == [(2, 16), (5, 64), (5, 64)]
    assert scenario.local.precision == "bfloat16" and scenario.stragglers == StragglerDraws(0.5, scenario.seed)


@pytest.mark.large
def test_the_python_of_the_page_on_inspection(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, loading = blocks("docs/inspection.md", "python")
    run = raysim.run(digits(rounds=1, clients={"count": 10, "models": ["digits_mlp64"]}), quiet=True)
    names: dict[str, Any] = {}
    exec(re.sub(r'"runs/quickstart/[\w-]+"', repr(str(run.folder)), code), names)
    accuracy, *_ = capsys.readouterr().out.splitlines()
    row = run.clients.query("client == 3").iloc[-1]
    assert f"{row.accuracy:.4f}" in accuracy
    assert len(names["value_ND"]) == len(names["label_N"]) == len(names["client_N"])
    assert {*names["client_N"]} == {0, 5, 9}

    run.export("networks")
    own = raysim.SplitNet(resnet18(num_classes=10), nn.Linear(512, 10)).eval()
    own.extractor.fc = nn.Identity()
    Path("other_networks").mkdir()
    save_file(own.state_dict(), "other_networks/client-0.safetensors")
    exec(loading, names)
    assert "digits_mlp64" in capsys.readouterr().out
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(names["net"].eval()(x), own(x))


@pytest.mark.parametrize("block", blocks("docs/public_data.md", "yaml"))
def test_the_public_data_that_the_page_shows(block: str) -> None:
    keys = yaml.safe_load(block)
    # A data set of the shape of the public one, whose files this machine need not have.
    models = ["digits_mlp64"] if keys["data"]["name"] == "digits" else ["cnn5"]
    scenario = raysim.Scenario.load(digits(**keys, clients={"count": 8, "models": models}, algorithm={"name": "fedmd"}))
    assert scenario.public_size == {"digits": 287, "cifar100": 5000}[scenario.data.name]


def test_the_system_that_the_page_shows() -> None:
    (block,) = blocks("docs/system.md", "yaml")
    keys = yaml.safe_load(block)
    clients = {**digits()["clients"], **keys.pop("clients", {})}
    scenario = raysim.Scenario.load(digits(**keys, clients=clients))
    assert scenario.participation.system is not None


def test_the_malicious_clients_that_the_page_shows(workplace: Path) -> None:
    (block,), (attack,) = blocks("docs/adversary.md", "yaml"), blocks("docs/adversary.md", "python")
    Path("mine.py").write_text("from dataclasses import dataclass\n\nimport torch\n\n\n" + attack)
    keys = yaml.safe_load(block)
    clients = {"count": 10, "models": ["digits_mlp64"]}
    for given in (keys["adversary"]["attack"], {"name": "./mine.py:LittleIsEnough", "z": 1.5}):
        adversary = {**keys["adversary"], "attack": given}
        scenario = digits(**{**keys, "adversary": adversary}, clients=clients, algorithm={"name": "fedavg"})
        assert raysim.run(scenario, sets=["rounds=1"], quiet=True).status == "finished"


def test_the_examples_of_sweep_files(tmp_path: Path) -> None:
    variants, published = [yaml.safe_load(block) for block in blocks("docs/comparison.md", "yaml")]
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(yaml.safe_dump({"base": "quickstart", **variants}))
    assert len(load_sweep(sweep).cells) == 2
    (tmp_path / published["published"]["file"]).symlink_to(REPOSITORY / "scenarios" / "published_results.csv")
    runs = {"method": {"FedSSA": ["algorithm.name=fedssa"]}}
    published["published"]["rows"] |= {"setting": "*N=100*", "dataset": "CIFAR-100"}
    sweep.write_text(yaml.safe_dump({"base": "quickstart", "runs": runs, **published}))
    (cell,) = load_sweep(sweep).cells
    assert [(one.measure, one.value) for one in cell.published] == [("best_participants", 0.5729)]


@pytest.mark.large
def test_the_pretrained_models_that_the_page_shows(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of torchvision as a client's model; that of transformers with a stand-in for the library."""
    save, nets, bert, ranks = (
        code.replace("/home/me/weights/", "").replace('"IMAGENET1K_V1"', "None")
        for code in blocks("docs/pretrained.md", "python")
    )
    block, _ = blocks("docs/pretrained.md", "yaml")
    exec(save, {})
    Path("nets.py").write_text(nets)
    net = Scenario.load(digits(**yaml.safe_load(block))).build("./nets.py:Resnet18")
    assert net.extractor[0].bn1.weight.equal(torch.load("resnet18.pt")["bn1.weight"])

    class Body(nn.Module):
        config = SimpleNamespace(hidden_size=8)

        def __init__(self) -> None:
            super().__init__()
            self.words, self.query = nn.Embedding(20, 8), nn.Linear(8, 8)

        def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(last_hidden_state=self.query(self.words(input_ids)))

    auto = SimpleNamespace(from_pretrained=lambda folder, local_files_only: Body())
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoModel=auto))
    exec(bert, names := {})
    assert names["Bert"](4, None, 16)(torch.ones(3, 12)).shape == (3, 4)
    exec(ranks, names := {"__name__": "nets"})
    net = names["Rank8"](4, None, 8)
    assert net(torch.ones(3, 12)).shape == (3, 4)
    adapter = {name: list(w.shape) for name, w in net.state_dict().items() if "header" not in name}
    assert adapter == {"extractor.body.query.lora_A": [8, 8], "extractor.body.query.lora_B": [8, 8]}


IMPORTS = """from dataclasses import dataclass
from raysim.core import Model, NonNegative
from raysim.core.ops import cross_entropy
"""


def test_the_subclass_that_the_page_shows(workplace: Path) -> None:
    block, *_ = blocks("docs/own_code.md", "python")
    Path("nearby.py").write_text(IMPORTS + block)
    digests = [
        raysim.run(digits(algorithm=algorithm, clients={"count": 4, "models": ["digits_mlp64"]}, rounds=2), quiet=True)
        .state_digest
        for algorithm in ({"name": "fedavg"}, {"name": "./nearby.py", "mu": 0}, {"name": "./nearby.py", "mu": 1.0})
    ]  # fmt: skip
    assert digests[0] == digests[1] != digests[2]
