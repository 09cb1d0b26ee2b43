"""On a CUDA device: the same bits twice, close to the CPU's numbers, and memory within the share."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from raysim.core.meter import flops_of
from raysim.core.torch_workarounds import countable
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.run import state_digest
from raysim.plugins.registry import algorithm_names
from raysim.results.in_memory import MemoryTracker
from raysim.runs.plan import make_plan
from raysim.scenario.scenario import Scenario
from tests.engine.scenarios import all_rounds, digits, loaded, of_method

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def on(device: str, method: str, *sets: str) -> tuple[str, list[float]]:
    """State digest and test losses of three rounds."""
    place = "resources.gpus_per_actor=" + ("0" if device == "cpu" else "auto")
    checked = Scenario.of(loaded(*of_method(method), place, *sets))
    plan, data = make_plan(checked)
    backend, memory = InProcessBackend(device), MemoryTracker()
    all_rounds(plan, backend, data.raw, memory)
    digest = state_digest(backend)
    backend.close()
    return digest, [float(v) for v in memory.series("loss/test")]


@pytest.mark.parametrize("method", algorithm_names())
def test_gpu_repeats_itself_and_agrees_with_the_cpu(method: str) -> None:
    first, losses = on("cuda", method)
    again, _ = on("cuda", method)
    assert first == again
    _, expected = on("cpu", method)
    assert losses == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("method", algorithm_names())
def test_replayed_steps_give_the_bits_of_steps_one_by_one(method: str, replays: list[int]) -> None:
    sets = ("training.epochs=4", "rounds=2")
    recorded, losses = on("cuda", method, *sets)
    assert replays
    replays.clear()
    assert (recorded, losses) == on("cuda", method, "training.cuda_graphs=false", *sets)
    assert not replays


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("method", ["fedgh", "hks", "fedkd"])
def test_lower_precision_repeats_itself(method: str, precision: str) -> None:
    first, losses = on("cuda", method, f"training.precision={precision}")
    again, _ = on("cuda", method, f"training.precision={precision}")
    assert first == again
    _, expected = on("cuda", method)
    assert losses == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("model", ["digits_mlp64", "digits_cnn_s"])
def test_clients_trained_together_repeat_themselves_and_agree_with_one_by_one(model: str) -> None:
    sets = (f"clients.models=[{model}]", "clients.participation=1.0")
    first, losses = on("cuda", "lg_fedavg", *sets, "training.together=4")
    again, _ = on("cuda", "lg_fedavg", *sets, "training.together=4")
    assert first == again
    _, expected = on("cuda", "lg_fedavg", *sets, "training.together=1")
    assert losses == pytest.approx(expected, rel=0.05)


def test_several_actors_share_a_gpu(tmp_path: Path) -> None:
    """`raysim verify` on quarters of a GPU: one, two and four actors, and four with one killed, give the same bits."""
    pytest.importorskip("ray")  # `benchmarks/on_a_gpu.py` may run this file without Ray and MLflow
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(digits(backend="ray", resources={"gpus_per_actor": 0.25})))
    command = ["verify", str(scenario), "--actors", "1,2,4", "--kill"]
    done = subprocess.run([sys.executable, "-m", "raysim", *command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("identical") >= 4


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_attention_repeats_itself(precision: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "mine.npz", x=rng.integers(0, 255, (160, 64, 64, 3), dtype=np.uint8), y=np.arange(160) % 4)
    data = f"data={{name: numpy, path: {tmp_path / 'mine.npz'}, partition: {{name: iid}}}}"
    clients = "clients={count: 2, models: [vit_small], feature_dim: 16}"
    sets = (data, clients, f"training.precision={precision}", "training.epochs=4")
    assert on("cuda", "standalone", *sets) == on("cuda", "standalone", *sets)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_operations_of_recurrent_layers_are_those_on_the_cpu(kind: type[nn.Module]) -> None:
    layer, x_BLE = kind(8, 16, batch_first=True), torch.randn(3, 5, 8)

    def counted(device: str) -> int:
        net, given = copy.deepcopy(layer).to(device), x_BLE.to(device)
        with countable(net):
            return flops_of(lambda: net(given)[0].sum().backward())

    assert counted("cuda") == counted("cpu") > 0
