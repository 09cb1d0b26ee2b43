"""On a CUDA device: the same bits twice, close to the CPU's numbers, and memory within the share."""

from __future__ import annotations

import pytest
import torch

from raysim.engine.inprocess import InProcessBackend
from raysim.engine.progress import Progress
from raysim.engine.run import Observers, run_rounds, state_digest
from raysim.launch.assemble import assemble
from raysim.launch.check import check
from raysim.tracking.memory import MemoryTracker
from tests.engine.scenarios import loaded

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def on(device: str, method: str) -> tuple[str, list[float]]:
    """State digest and test losses of three rounds."""
    checked = check(loaded(f"algorithm={{name: {method}}}"))
    assembly = assemble(checked)
    backend, memory = InProcessBackend(device), MemoryTracker()
    backend.start(assembly.spec, assembly.raw)
    run_rounds(backend, assembly.schedule, Progress(), Observers([memory]))
    digest = state_digest(backend)
    backend.close()
    return digest, [float(v) for v in memory.series("loss/test")]


@pytest.mark.parametrize("method", ["fedgh", "lg_fedavg", "standalone"])
def test_gpu_repeats_itself_and_agrees_with_the_cpu(method: str) -> None:
    first, losses = on("cuda", method)
    again, _ = on("cuda", method)
    assert first == again
    _, expected = on("cpu", method)
    assert losses == pytest.approx(expected, rel=0.05)
