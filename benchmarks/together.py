"""Compare training clients by one call with training them one by one, on one thread, to see if `together` pays off.

python benchmarks/together.py [MODEL ...]

Each row is one architecture and batch size. It shows the seconds of `Client.fit` per client, together divided by one by
one, for 8 and 32 clients with the same number of samples; and the choice of `training.together: auto`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from raysim.common.inputs import InputSpec, image
from raysim.core.data import tensors
from raysim.core.fit import FitJob, LocalTraining, fit_one
from raysim.core.meter import flops_of
from raysim.core.ops import cross_entropy
from raysim.grouped.together import fit_all
from raysim.models import MODELS, build_model
from raysim.models.split import example

CLASSES = 10
CASES: tuple[tuple[str, InputSpec], ...] = (
    ("digits_mlp64", image(1, 8, 8)),
    ("digits_mlp128", image(1, 8, 8)),
    ("mlp_s", InputSpec("features", (256,))),
    ("mlp_s", InputSpec("features", (512,))),
    ("mlp_s", InputSpec("features", (784,))),
    ("mlp_m", InputSpec("features", (784,))),
    ("mlp_l", InputSpec("features", (784,))),
    ("digits_cnn_s", image(1, 8, 8)),
    ("digits_cnn_m", image(1, 8, 8)),
    ("digits_resnet", image(1, 8, 8)),
    ("fmnist_cnn5", image(1, 28, 28)),
    ("cnn5", image(3, 32, 32)),
)
BATCHES = 4, 16, 64
STEPS = 4
REPEATS = 5


def jobs(name: str, reads: InputSpec, clients: int, batch_size: int) -> list[FitJob]:
    """Make each client's training job: `STEPS` full batches of random samples."""
    local, count = LocalTraining(batch_size=batch_size), STEPS * batch_size
    found = []
    for seed in range(clients):
        net = build_model(name, num_classes=CLASSES, input_spec=reads, feature_dim=width(name))
        data = tensors(example(reads, count), torch.randint(CLASSES, (count,)))
        batches = data.shuffled(batch_size, 1, torch.Generator().manual_seed(seed))
        found.append(FitJob(net.to(memory_format=torch.channels_last), cross_entropy, None, batches, local, count, {}))
    return found


def width(name: str) -> int:
    """Return the architecture's native representation width."""
    return MODELS[name].native_dim or 64


def least_s(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of several calls, after a warm-up call."""
    seconds = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def ratio(name: str, reads: InputSpec, clients: int, batch_size: int) -> float:
    """Return the time together over the time one by one. Raises `RuntimeError` if the clients cannot be grouped."""
    work = jobs(name, reads, clients, batch_size)
    if apart := [one for one in fit_all(work) if isinstance(one, str)]:
        raise RuntimeError(f"{name} is not trained together: {apart[0]}")
    return least_s(lambda: fit_all(work)) / least_s(lambda: [fit_one(job) for job in work])


def main() -> None:
    """Measure, and print a row per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="only these architectures")
    wanted = parser.parse_args().models
    torch.set_num_threads(1)
    print(f"{'model':14} {'reads':16} {'batch':>5} {'parameters':>11} {'MFLOP':>7} {'8':>6} {'32':>6}  auto")
    for name, reads in CASES:
        if wanted and name not in wanted:
            continue
        net = build_model(name, num_classes=CLASSES, input_spec=reads, feature_dim=width(name)).eval()
        parameters = sum(parameter.numel() for parameter in net.parameters())
        per_sample = flops_of(lambda net=net, reads=reads: net(example(reads, 2))) / 2
        for batch_size in BATCHES:
            few, many = (ratio(name, reads, clients, batch_size) for clients in (8, 32))
            auto = "together" if MODELS[name].stacks(reads, width(name), CLASSES, batch_size) else "one by one"
            print(
                f"{name:14} {reads.shape!s:16} {batch_size:5} {parameters:11,} {per_sample * batch_size / 1e6:7.2f} "
                f"{few:6.2f} {many:6.2f}  {auto}"
            )


if __name__ == "__main__":
    main()
