"""Frozen weights from a file: they are no part of messages and checkpoints, and all ranks have the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import raysim
from tests.engine.scenarios import digits

NETS = """
import torch
from torch import nn
from raysim import SplitNet
from raysim.core import lora

class Two(SplitNet):
    rank = 2

    def __init__(self, num_classes, input_spec, feature_dim):
        frozen = nn.Sequential(nn.Flatten(), nn.Linear(64, 4000), nn.ReLU(), nn.Linear(4000, 32), nn.ReLU())
        if {loads}:
            frozen.load_state_dict(torch.load("{file}", weights_only=True))
        super().__init__(lora(frozen, self.rank), nn.Linear(feature_dim, num_classes))

class Four(Two):
    rank = 4
"""
MODELS = ["./nets.py:Two", "./nets.py:Four"]


def scenario(folder: Path, method: str, loads: bool = True) -> dict[str, object]:
    file = folder / "weights.pt"
    torch.save(nn.Sequential(nn.Flatten(), nn.Linear(64, 4000), nn.ReLU(), nn.Linear(4000, 32)).state_dict(), file)
    (folder / "nets.py").write_text(NETS.format(file=file, loads=loads))
    clients = {"count": 16, "models": MODELS, "feature_dim": 32}
    return digits(algorithm={"name": method}, clients=clients, rounds=1, training={"lr": 0.05, "batch_size": 32})


def test_frozen_weights_are_neither_sent_nor_saved(workplace: Path) -> None:
    # Two layers of 64 x 4000 and 4000 x 32, and a header of 330 numbers.
    given = scenario(workplace, "raflora")
    run = raysim.run(given, sets=["training.together=8"], quiet=True)
    sent = run.clients.query("participated").groupby("client")["up_bytes"].sum()
    assert sent.to_dict() == {k: 4 * ((2 if k % 2 == 0 else 4) * (4064 + 4032) + 330) for k in range(16)}
    saved = sum(file.stat().st_size for file in (run.folder / "checkpoints").glob("*.safetensors"))
    assert saved < 1.1 * (sent.sum() + sent[0] + sent[1])  # 2 MB; the frozen weights of 16 clients have 25 MB
    alone = raysim.run(given, sets=["training.together=1"], quiet=True)
    assert run.rounds["loss/train"].iloc[-1] == pytest.approx(alone.rounds["loss/train"].iloc[-1], rel=1e-4)


def test_ranks_with_different_frozen_weights_are_refused(workplace: Path) -> None:
    with pytest.raises(raysim.ScenarioError, match="frozen"):
        raysim.run(scenario(workplace, "flexlora", loads=False), quiet=True)
