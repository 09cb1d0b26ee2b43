"""A user's own selection policies, data and partitions."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import raysim
from raysim.runs.plan import make_plan
from tests.plugins.own import ran

SELECTS = """import numpy as np
from dataclasses import dataclass

KEPT = []

@dataclass(frozen=True)
class Mine:
    def select(self, candidates, size, rng):
        return {returned}
"""


class TestSelection:
    @pytest.mark.parametrize(
        ("returned", "sentence"), [("[9, 9]", "[9, 9]"), ("[3, len(KEPT.append(0) or KEPT) % 2]", "again")]
    )
    def test_refused_before_the_run(
        self, returned: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "evil.py").write_text(SELECTS.format(returned=returned))
        sets = ["clients.participation=0.5", "clients.selection={name: './evil.py:Mine'}", "algorithm.name=fedgh"]
        said = ran(
            "launch", str(folder / "s.yaml"), *(w for one in sets for w in ("--set", one)), capsys=capsys, code=2
        )
        assert "Mine.select" in said and sentence in said
        assert not Path("runs").exists()

    def test_ones_own(self, folder: Path) -> None:
        (folder / "evil.py").write_text(
            "from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Last:\n    skip: int = 0\n\n"
            "    def select(self, candidates, size, rng):\n"
            "        ids = sorted(candidates.ids)[: len(candidates.ids) - self.skip]\n        return ids[-size:]\n"
        )
        sets = ["clients.participation=0.5", "clients.selection={name: './evil.py:Last', skip: 1}"]
        result = raysim.run(folder / "s.yaml", sets=[*sets, "algorithm.name=fedgh"], quiet=True)
        assert set(result.clients[result.clients.participated].client) == {1, 2}
        assert "evil.py" in result.summary["code"]["files"]


OWN_PARTITION = """
from dataclasses import dataclass
import numpy as np

@dataclass(frozen=True)
class Halves:
    \"\"\"The first clients hold the even classes, the others the odd ones.\"\"\"

    first: int = 2
    wrong: str = ""

    def shares(self, class_count_C, num_clients, rng):
        odd_C = np.arange(len(class_count_C)) % 2
        later_N = np.arange(num_clients) >= self.first
        share_NC = (later_N[:, None] == odd_C[None, :]).astype(float)
        if self.wrong == "shape":
            return share_NC[1:]
        if self.wrong == "random":
            return share_NC * 0 + np.random.dirichlet(np.ones(num_clients))[:, None]
        return share_NC
"""


OWN_DATA = """
import numpy as np

def load():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)).astype("float32")
    return {"x": x, "y": (x[:, 0] > 0).astype(int), "user": np.arange(200) % 5, "num_train": 150}

def no_labels():
    return {"x": [1.0]}
"""


class TestData:
    def test_a_function_of_ones_own(self, folder: Path) -> None:
        (folder / "evil.py").write_text(OWN_DATA)
        data = "data={name: './evil.py:load', partition: {name: natural, by: user}}"
        sets = [data, "clients={count: auto, models: [mlp_s, mlp_m]}", "algorithm.name=fedgh"]
        result = raysim.run(folder / "s.yaml", sets=sets, quiet=True)
        table = pq.read_table(result.folder / "partition.parquet").to_pandas()
        assert {k: set(rows["sample"] % 5) for k, rows in table.groupby("client")} == {k: {k} for k in range(5)}
        assert result.summary["dataset"]["name"] == "evil.py:load"
        _, published = make_plan(raysim.Scenario.load(folder / "s.yaml", [*sets, "data.split=published"]))
        assert len(published.partition.test.index) == 50
        (folder / "evil.py").write_text(OWN_DATA.replace("default_rng(0)", "default_rng(1)"))
        other = raysim.run(folder / "s.yaml", sets=sets, quiet=True)
        assert other.summary["dataset"]["digest"] != result.summary["dataset"]["digest"]

    def test_a_function_without_labels(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "evil.py").write_text(OWN_DATA)
        item = "data={name: './evil.py:no_labels', partition: {name: iid}}"
        words = ["--set", item, "--set", "clients.models=[mlp_s]"]
        assert "x and y" in ran("launch", str(folder / "s.yaml"), *words, capsys=capsys, code=2)


class TestPartition:
    def test_ones_own(self, folder: Path) -> None:
        (folder / "evil.py").write_text(OWN_PARTITION)
        result = raysim.run(
            folder / "s.yaml",
            sets=["data.partition={name: './evil.py:Halves', first: 1}", "algorithm.name=fedgh"],
            quiet=True,
        )
        table = pq.read_table(result.folder / "partition.parquet").to_pandas()
        classes = {k: sorted(set(rows.label)) for k, rows in table.groupby("client")}
        assert classes == {0: [0, 2, 4, 6, 8], **{k: [1, 3, 5, 7, 9] for k in (1, 2, 3)}}
        assert len(table) == 1797
        assert "evil.py" in result.summary["code"]["files"]
        assert "first: 1" in (result.folder / "resolved.yaml").read_text()

    @pytest.mark.parametrize(("wrong", "sentence"), [("shape", "(3, 10)"), ("random", "again")])
    def test_shares_that_are_none(
        self, wrong: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "evil.py").write_text(OWN_PARTITION)
        words = ["--set", f"data.partition={{name: './evil.py:Halves', wrong: {wrong}}}"]
        said = ran("launch", str(folder / "s.yaml"), *words, capsys=capsys, code=2)
        assert "Halves.shares" in said and sentence in said


PRETRAINED = """
import pathlib, torch
from torch import nn
from raysim import SplitNet

def pretrained(num_classes, input_spec, feature_dim):
    body = nn.Sequential(nn.Flatten(), nn.Linear(input_spec.size, feature_dim), nn.ReLU())
    if torch.empty(0).is_meta:
        raise RuntimeError("weights cannot be loaded here")  # as `from_pretrained` of transformers does
    body.load_state_dict(torch.load(pathlib.Path(FOLDER) / "body.pt"))
    return SplitNet(body, nn.Linear(feature_dim, num_classes))
"""


def test_a_pretrained_model(folder: Path) -> None:
    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU())
    torch.save(body.state_dict(), folder / "body.pt")
    (folder / "evil.py").write_text(PRETRAINED.replace("FOLDER", repr(str(folder))))
    before = torch.get_rng_state()
    sets = ["clients.models=['./evil.py:pretrained']", "clients.feature_dim=32", "algorithm.name=standalone"]
    result = raysim.run(folder / "s.yaml", sets=[*sets, "training.lr=1e-30", "rounds=1"], quiet=True)
    weight = result.client(0).network.state_dict()["extractor.1.weight"]
    assert torch.allclose(weight, body.state_dict()["1.weight"])
    assert torch.get_rng_state().equal(before)
