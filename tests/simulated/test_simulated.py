"""Runs on a simulated accelerator give the CPU's bits, and a tensor on the wrong device is an error.

The device (`plugin/device.cpp`) has memory of its own, which the CPU cannot read, and the kernels of the CPU. Processes
that find `plugin` on PYTHONPATH have it, so Ray's actors do. It cannot show what depends on the kernels of a GPU, such
as their speed, memory and rounding; `tests/gpu` needs a real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from raysim.plugins.registry import algorithm_names
from tests.conftest import REPOSITORY
from tests.simulated.build import PLUGIN, compiler, library
from tests.simulated.runs import Found, in_process, resumed

MISPLACED, NOISY, CREATES = (Path(__file__).with_name(name) for name in ("misplaced.py", "noisy.py", "creates.py"))

TOGETHER = ["clients.models=[digits_cnn_s]", "clients.participation=1.0", "training.together=4"]
"""Clients of one architecture, which are trained and tested by one call."""


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment of a process that has the simulated device."""
    if compiler() is None:
        pytest.skip("no C++ compiler builds the simulated device; install g++")
    paths = [str(REPOSITORY), str(PLUGIN), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "RAYSIM_SIMULATED_LIBRARY": str(library()),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def simulated(environment: dict[str, str], mode: str, methods: str, *sets: str) -> dict[str, Found]:
    """What runs of these methods give on the simulated device: see `runs.py`."""
    command = [sys.executable, "-m", "tests.simulated.runs", mode, methods, *sets]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return {method: found for method, *found in map(json.loads, done.stdout.splitlines())}


def same(environment: dict[str, str], methods: list[str], *sets: str) -> None:
    """Assert that runs of the engine give on the simulated device what they give on the CPU."""
    found = simulated(environment, "engine", ",".join(methods), *sets)
    wrong = {method: found[method] for method in methods if found[method] != in_process("cpu", method, *sets)}
    assert not wrong, "\n".join(parts[0] for parts in wrong.values())


def on_device(found: dict[str, Found]) -> dict[str, Found]:
    """What runs on the CPU give, with the fact that they used an accelerator."""
    assert all(used == "[False, False]" for *_, used in found.values())
    return {method: [*same, "[True, True]"] for method, (*same, _) in found.items()}


@pytest.mark.large  # it compiles the device
def test_a_method_gives_the_digest_of_the_cpu_and_a_tensor_on_the_cpu_is_an_error(environment: dict[str, str]) -> None:
    """In one process, since its start takes longer than both runs."""
    found = simulated(environment, "engine", f"fedgh,{MISPLACED}")
    assert found["fedgh"] == in_process("cpu", "fedgh")
    assert len(in_process("cpu", str(MISPLACED))) == 3  # nothing is wrong with it on a CPU
    (error,) = found[str(MISPLACED)]
    assert "Misplaced.client_update of client 0 failed in round 1 (model digits_mlp64" in error
    assert "Expected all tensors to be on the same device, but found at least two devices, simulated:0 and cpu" in error


@pytest.mark.large
def test_every_method_gives_the_digest_of_the_cpu(environment: dict[str, str]) -> None:
    same(environment, algorithm_names())


@pytest.mark.large
@pytest.mark.parametrize(
    "sets",
    [
        [*TOGETHER, "training.precision=bfloat16"],
        [*TOGETHER, "evaluation={when: both, clients: all}"],
        ["failure={max_failed_fraction: 0.5}"],
        ["training.optimizer=adamw", "training.momentum=0.0", "data.augment=false"],
    ],
    ids=["together in bfloat16", "tested more often", "failures", "adamw"],
)
def test_settings_of_a_run(environment: dict[str, str], sets: list[str]) -> None:
    same(environment, ["fedgh", "lg_fedavg", "hks"], *sets)


@pytest.mark.large
@pytest.mark.parametrize("sets", [[], TOGETHER], ids=["one by one", "together"])
def test_draws_on_the_device_are_seeded_and_kept_as_on_the_cpu(environment: dict[str, str], sets: list[str]) -> None:
    same(environment, [str(NOISY)], *sets)


@pytest.mark.large
@pytest.mark.parametrize(
    ("kind", "models"),
    [("tokens", "[transformer]"), ("features", "[mlp_s, mlp_m]"), ("images", "[resnet10, vit_small]")],
)
def test_networks_for_other_samples(environment: dict[str, str], tmp_path: Path, kind: str, models: str) -> None:
    rng = np.random.default_rng(1)
    x = {
        "tokens": rng.integers(0, 20, (160, 12)),
        "features": rng.normal(size=(160, 7)).astype(np.float32),
        "images": rng.integers(0, 255, (160, 32, 32, 3), dtype=np.uint8),
    }[kind]
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(160) % 4)
    data = f"data={{name: numpy, path: {tmp_path / 'mine.npz'}, partition: {{name: iid}}}}"
    same(environment, ["fedproto"], data, f"clients={{count: 4, models: {models}, feature_dim: 16}}")


@pytest.mark.large
def test_a_run_on_the_device_is_resumed(environment: dict[str, str], workplace: Path) -> None:
    """As `raysim launch` runs it: on the accelerator that it finds."""
    methods, sets = ["fedgh", "fedcache"], ["resources.memory_gb=0.000001"]
    found = simulated(environment, "launch", ",".join(methods), *sets, "resources.gpus_per_actor=auto")
    assert found == on_device({method: resumed(method, *sets) for method in methods})


@pytest.mark.large
def test_a_run_on_actors_is_resumed(environment: dict[str, str], workplace: Path) -> None:
    """Three actors share the device; clients move between them, in memory and on disk."""
    methods = ["fedgh", "hks"]
    resources = "resources={actors: 3, gpus_per_actor: 0.25, memory_gb: 0.000001}"
    found = simulated(environment, "ray", ",".join(methods), "backend=ray", resources)
    assert found == on_device({method: resumed(method) for method in methods})


@pytest.mark.large
def test_a_network_may_create_tensors(environment: dict[str, str]) -> None:
    same(environment, ["standalone"], f"clients.models=[{CREATES}:creates]", "clients.feature_dim=16", *TOGETHER[1:])
