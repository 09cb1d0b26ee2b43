"""Training steps of CNN-1 to CNN-5, with and without CUDA graphs: a part of `on_a_gpu.py`.

Each architecture is trained by `Client.fit` on 480 images of 32 x 32 pixels with augmentation, 10 epochs of batches of
64, as a client of `scenarios/cifar100_hetero.yaml` is. Images and labels are random.
"""

from __future__ import annotations

import copy
import time
from contextlib import nullcontext
from dataclasses import replace

import torch
from gpu_parts import Context
from torch import nn
from torch.profiler import ProfilerActivity, profile

from raysim.core import accelerator
from raysim.core.data import Samples
from raysim.core.fit import FitJob, LocalTraining, fit_one
from raysim.core.ops import cross_entropy
from raysim.data.specs import DATASETS
from raysim.data.transform import ImageTransform
from raysim.models import build_model

CLASSES = 100
LOCAL = LocalTraining(10, batch_size=64, lr=0.01, momentum=0.9, weight_decay=0.001, clip=50.0)
CIFAR100 = DATASETS["cifar100"]


def job_of(net: nn.Module, data: Samples, graphs: bool, epochs: int) -> FitJob:
    """Make a client's training job on a copy of a network."""
    batches = data.shuffled(LOCAL.batch_size, epochs, torch.Generator().manual_seed(1))
    return FitJob(copy.deepcopy(net), cross_entropy, None, batches, replace(LOCAL, cuda_graphs=graphs), len(data))


def ms_per_step(net: nn.Module, data: Samples, graphs: bool, epochs: int, repeats: int) -> float:
    """Return the fastest of several trainings. `fit_one` waits for the device, since it returns the loss."""
    found = []
    for _ in range(repeats + 1):  # the first one also loads libraries
        job = job_of(net, data, graphs, epochs)
        start = time.perf_counter()
        fit_one(job)
        found.append((time.perf_counter() - start) / len(job.batches) * 1e3)
    return min(found[1:])


def kernel_ms_per_step(net: nn.Module, data: Samples) -> float:
    """Return the time of the GPU's kernels in a step."""
    job = job_of(net, data, graphs=False, epochs=1)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        fit_one(job)
    kernels = [one for one in profiled.key_averages() if one.device_type.name == "CUDA"]
    return float(sum(one.self_device_time_total for one in kernels)) / len(job.batches) / 1e3


def steps(to: Context) -> None:
    """Write milliseconds per step and the memory of tensors: eager and recorded."""
    device, cuda = torch.device(to.device), to.device == "cuda"
    if device.type != "cpu":
        accelerator.use_deterministic_kernels()
    torch.set_num_threads(1)
    count, epochs, repeats = (64, 1, 1) if to.quick else (480, LOCAL.epochs, 5)
    raw_N = torch.randint(256, (count, 32, 32, 3), dtype=torch.uint8)
    data = Samples(raw_N, torch.randint(10, (count,)), ImageTransform.of(CIFAR100, augment=True)).to(device)
    if not cuda:
        to.skip("recorded", "only CUDA records steps")
        to.skip("kernels", "needs CUDA")
    for name in [f"cnn{i}" for i in range(1, 6)]:
        net = build_model(name, num_classes=CLASSES, input_spec=CIFAR100.input_spec, feature_dim=500)
        net = net.to(memory_format=torch.channels_last).to(device)  # type: ignore[call-overload]
        ms: list[float] = []
        with nullcontext() if device.type == "cpu" else device:  # as in a hook
            for graphs in (False, True) if cuda else (False,):
                case = f"{name} {'recorded' if graphs else 'eager'}"
                if cuda:
                    accelerator.release_memory(device)
                ms.append(ms_per_step(net, data, graphs, epochs, repeats))
                to.add(case, "step", ms[-1], "ms", f"fastest of {repeats} trainings")
                if cuda:
                    to.add(case, "gpu tensors", accelerator.peak_memory_mb(device), "MiB", "greatest allocation")
                    to.add(case, "gpu reserved", torch.cuda.max_memory_reserved() / 2**20, "MiB")
            if cuda:
                to.add(name, "eager / recorded", ms[0] / ms[1], "x")
                to.add(name, "kernels of a step", kernel_ms_per_step(net, data), "ms")
