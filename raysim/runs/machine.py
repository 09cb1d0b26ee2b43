"""What this machine or cluster offers a run, and the checks before a run begins on it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import torch

from raysim.common.errors import ScenarioError
from raysim.core import accelerator
from raysim.engine.policies.placement import ClusterResources, Layout
from raysim.models import MODELS
from raysim.runs.signals import sigterm_kept
from raysim.scenario.scenario import Scenario
from raysim.scenario.trackers import check_packages


def find_machine(scenario: Scenario) -> ClusterResources:
    """Return the resources for the run's actors, of the cluster that it attaches to or else of this machine.

    Raises `ScenarioError` when the cluster does not answer.
    """
    if not attach(scenario):
        kind = accelerator.available()
        # Actors get a GPU only if Ray counts it, and a Ray that raysim starts does not count every kind.
        usable = kind is not None and (scenario.backend == "in_process" or kind.type == "cuda")
        gpus = accelerator.count() if usable else 0
        return ClusterResources(float(os.cpu_count() or 1), float(gpus), oversubscribable=True)
    from raysim.engine.ray import session

    return session.machine(scenario.resources.head)


def attach(scenario: Scenario) -> bool:
    """Attach to the Ray cluster that RAY_ADDRESS names or that this process has started; False if there is none.

    Raises `ScenarioError` when the cluster does not answer.
    """
    ray = sys.modules.get("ray")
    if scenario.backend != "ray":
        return False
    if not os.environ.get("RAY_ADDRESS") and (ray is None or not ray.is_initialized()):
        return False
    from raysim.engine.ray import session

    with sigterm_kept():
        session.connect()
    return True


def refuse_float16_on_cpu(scenario: Scenario, layout: Layout) -> None:
    """Raise `ScenarioError` if clients would train in float16 without a GPU."""
    if scenario.training.precision == "float16" and not all(group.gpus_per_actor for group in layout.groups):
        # Measured: 65 to 125 times the time of float32 for a step of CNN-1 to CNN-5.
        raise scenario.origin.error(
            ("training", "precision"),
            "float16 given, but some or all clients train on the CPU, where it takes many times as long as float32; "
            "use bfloat16 or float32, or only actors with GPUs",
        )


def check_local(scenario: Scenario) -> None:
    """Raise `ScenarioError` if a run of this scenario cannot start in this folder or on this machine."""
    try:
        str(Path.cwd()).encode()
    except OSError as error:
        raise ScenarioError(
            f"cannot access the current working directory ({error.strerror}); change to an existing directory"
        ) from None
    except UnicodeEncodeError:
        here = os.fsencode(Path.cwd()).decode(errors="replace")
        raise ScenarioError(
            f"the current working directory {here} has a name that is not UTF-8; change to another directory"
        ) from None
    scenario.own_code.activate()  # since the scenario was loaded, another one may have been
    _ = scenario.algorithm  # raises if a user's own file cannot be imported
    check_packages(scenario)
    has = psutil.virtual_memory().total
    size = bytes_of_models(scenario)
    name = max(size, key=lambda name: size[name])
    if size[name] > has:
        given = scenario.clients.feature_dim
        raise scenario.origin.error(
            ("clients", "models") if given == "auto" else ("clients", "feature_dim"),
            f"{name if given == 'auto' else given} given, but the parameters of one {name} take "
            f"{size[name] / 2**30:.0f} GiB, and this machine has {has / 2**30:.0f} GiB of memory; give "
            f"{'a smaller model' if given == 'auto' else 'a smaller number'}",
        )


def bytes_of_models(scenario: Scenario) -> dict[str, int]:
    """Return the size of one model of each architecture."""
    size = {}
    for name in scenario.task.architectures:
        # raysim's own models have shapes without memory here. A custom model may read its weights from a file, which
        # is impossible on the meta device.
        with torch.random.fork_rng(devices=[]), torch.device("meta" if name in MODELS else "cpu"):
            size[name] = sum(p.nbytes for p in scenario.build(name).parameters())
    return size
