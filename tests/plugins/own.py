"""A user's files for tests: a method, models and a scenario, and the command that uses them."""

from __future__ import annotations

import sys

import pytest

from raysim.cli.main import main
from raysim.plugins import own_code
from raysim.plugins.own_code import OwnCode
from tests.conftest import REPOSITORY

MINE = (REPOSITORY / "algorithms" / "fedgh.py").read_text().replace("class FedGH", "class Mine")
HELPED = MINE.replace("from typing", "from my_helper import SCALE\nfrom typing", 1)
NETS = """
from torch import nn
from raysim import SplitNet

class Small(SplitNet):
    def __init__(self, num_classes, input_spec, feature_dim):
        body = nn.Sequential(nn.Flatten(), nn.Linear(input_spec.size, feature_dim), nn.ReLU())
        super().__init__(body, nn.Linear(feature_dim, num_classes))

def narrow(num_classes, input_spec, feature_dim):
    return Small(num_classes, input_spec, feature_dim - 1)

def deep(num_classes, input_spec, feature_dim):
    net = Small(num_classes, input_spec, feature_dim)
    net.header = nn.Sequential(net.header)
    return net

def other(num_classes, input_spec, feature_dim):
    return nn.Linear(2, 2)
"""
NAMES = ("mine", "nets", "my_helper", "evil")
SCENARIO = """
name: mine
rounds: 2
backend: in_process
algorithm: {name: ./mine.py}
data: {name: digits, partition: {name: pathological, classes_per_client: 2}}
clients: {count: 4, models: [digits_mlp64, "./nets.py:Small"]}
"""


def forget_own_code() -> None:
    own_code._FINDER.code = OwnCode()
    for name in [name for name in sys.modules if name.startswith(own_code.PACKAGE) or name in NAMES]:
        del sys.modules[name]


def ran(*words: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """What the command prints on stderr."""
    with pytest.raises(SystemExit) as ended:
        main([*words])
        raise SystemExit(0)
    shown = capsys.readouterr()
    assert ended.value.code == code, shown.err
    return " ".join(shown.err.split())
