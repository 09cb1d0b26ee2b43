"""Time training steps of CNN-1 to CNN-5 on a GPU, with and without CUDA graphs.

python benchmarks/gpu_step.py [MODEL ...] [--device cpu]

Each row is one architecture, trained by `Client.fit` on 480 images of 32 x 32 pixels with augmentation, 10 epochs of
batches of 64, as a client of `scenarios/cifar100_hetero.yaml` is. It shows the milliseconds per step in both ways, and
how long the GPU's kernels take in a step. Images and labels are random.
"""

from __future__ import annotations

import argparse
import copy
import time
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from raysim.core import accelerator
from raysim.core.data import Samples
from raysim.core.fit import FitJob, LocalTraining, fit_one
from raysim.core.ops import cross_entropy
from raysim.data.specs import DATASETS
from raysim.data.transform import ImageTransform
from raysim.models import build_model

IMAGES, CLASSES, EPOCHS, REPEATS = 480, 100, 10, 5
LOCAL = LocalTraining(EPOCHS, batch_size=64, lr=0.01, momentum=0.9, weight_decay=0.001, clip=50.0)
CIFAR100 = DATASETS["cifar100"]


def job_of(net: nn.Module, data: Samples, graphs: bool, epochs: int = EPOCHS) -> FitJob:
    """Make a client's training job on a copy of a network."""
    batches = data.shuffled(LOCAL.batch_size, epochs, torch.Generator().manual_seed(1))
    return FitJob(copy.deepcopy(net), cross_entropy, None, batches, replace(LOCAL, cuda_graphs=graphs), len(data))


def ms_per_step(net: nn.Module, data: Samples, graphs: bool) -> float:
    """Return the fastest of several trainings. `fit_one` waits for the device, since it returns the loss."""
    found = []
    for _ in range(REPEATS + 1):  # the first one also loads libraries
        job = job_of(net, data, graphs)
        start = time.perf_counter()
        fit_one(job)
        found.append((time.perf_counter() - start) / len(job.batches) * 1e3)
    return min(found[1:])


def kernel_ms_per_step(net: nn.Module, data: Samples) -> float:
    """Return the time of the device's kernels in a step; 0 on a CPU."""
    job = job_of(net, data, graphs=False, epochs=1)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        fit_one(job)
    kernels = [one for one in profiled.key_averages() if one.device_type.name == "CUDA"]
    return float(sum(one.self_device_time_total for one in kernels)) / len(job.batches) / 1e3


def main() -> None:
    """Print one row per architecture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[f"cnn{i}" for i in range(1, 6)])
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    device = torch.device(given.device)
    if device.type != "cpu":
        accelerator.use_deterministic_kernels()
        print(torch.cuda.get_device_name(), "torch", torch.__version__)
    torch.set_num_threads(1)
    raw_N = torch.randint(256, (IMAGES, 32, 32, 3), dtype=torch.uint8)
    data = Samples(raw_N, torch.randint(10, (IMAGES,)), ImageTransform.of(CIFAR100, augment=True)).to(device)
    print(f"{'model':8} {'ms/step recorded':>17} {'not':>11} {'ratio':>6} {'kernels':>8}")
    for name in given.models:
        net = build_model(name, num_classes=CLASSES, input_spec=CIFAR100.input_spec, feature_dim=500)
        net = net.to(memory_format=torch.channels_last).to(device)  # type: ignore[call-overload]
        with nullcontext() if device.type == "cpu" else device:  # as in a hook
            recorded, single = (ms_per_step(net, data, graphs) for graphs in (True, False))
            kernels = kernel_ms_per_step(net, data)
        print(f"{name:8} {recorded:17.2f} {single:11.2f} {recorded / single:6.2f} {kernels:8.2f}", flush=True)


if __name__ == "__main__":
    main()
