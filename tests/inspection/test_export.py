"""`raysim export` as a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from raysim import InputSpec
from raysim.models import build_model
from raysim.runs.run import Run
from tests.cli.command import run

Runs = Callable[..., Run]


def test_export(capfd: pytest.CaptureFixture[str], runs: Runs, tmp_path: Path) -> None:
    result = runs("fedgh")
    code, out, error = run(capfd, "export", str(result.folder), "-o", str(tmp_path / "networks"))
    assert (code, out, error) == (0, f"{tmp_path / 'networks'}\n", "")
    count = len(set(result.partition["client"]))
    assert len(list((tmp_path / "networks").iterdir())) == count
    for k in (0, count - 1):
        with safe_open(tmp_path / "networks" / f"client-{k}.safetensors", "pt") as file:
            facts, found = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert (facts["client"], facts["round"], facts["num_classes"]) == (str(k), "3", "10")
        net = build_model(
            facts["architecture"],
            num_classes=10,
            input_spec=InputSpec("image", (1, 8, 8)),
            feature_dim=int(facts["feature_dim"]),
        )
        net.load_state_dict(found)
        x = result.client(k).data.test.x
        assert torch.equal(net.eval()(x), result.client(k).network(x))
