"""Files of a run folder that this version cannot read, and what its states may contain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from raysim.common.errors import ScenarioError
from raysim.core.state import Serialized, deserialize, serialize
from raysim.runs.identity import FORMAT, Identity
from raysim.study.sweep_card import SWEEP_CARD, SweepCard

RUN_ID = "20261121-101500-ab12"
FACTS: dict[str, Any] = {
    "run_id": RUN_ID,
    "tracking": "sqlite:////x/mlflow.db",
    "checkpoints": "checkpoints",
    "dataset_digest": "a",
    "partition_digest": "b",
    "versions": {},
    "code": {"files": {}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder as far as it is looked at before its scenario."""
    run = tmp_path / "runs" / "tiny" / RUN_ID
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(FACTS))
    return run


def test_a_folder_of_a_later_version_is_refused(folder: Path) -> None:
    assert Identity.of(folder).format == FORMAT
    (folder / "run.json").write_text(json.dumps({**FACTS, "format": FORMAT + 1, "unknown": 7}))
    with pytest.raises(ScenarioError, match=rf"run\.json has format {FORMAT + 1}"):
        Identity.of(folder)


def test_a_sweep_of_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / SWEEP_CARD).write_text(json.dumps({"format": 1000}))
    with pytest.raises(ScenarioError, match=r"sweep\.json has format 1000"):
        SweepCard.read(tmp_path)


@pytest.mark.parametrize(
    "tree",
    [
        ["named", "raysim.core.state:torch.Tensor", []],  # a module's import is not its own
        ["dataclass", "raysim.common.errors:RaysimError", []],
    ],
)
def test_a_servers_state_makes_no_other_objects(tree: Any) -> None:
    with pytest.raises(ValueError, match=tree[1]):
        deserialize(Serialized(tree, {}), None, ["raysim.algorithms.fedgh"])
    kept = serialize({"a": torch.ones(2)})
    assert torch.equal(deserialize(kept, None, [])["a"], torch.ones(2))
