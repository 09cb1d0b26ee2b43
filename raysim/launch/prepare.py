"""What a run needs before it starts: its data, who holds what, and what every process is told."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from raysim.common.errors import ScenarioError
from raysim.data.datasets import ImageData, load_dataset
from raysim.data.partition import make_partition
from raysim.data.shards import Partition
from raysim.data.transform import ImageTransform
from raysim.engine.checkpoint.storage import Storage, open_storage
from raysim.engine.policies.placement import ClusterResources, Plan
from raysim.engine.spec import RunSpec
from raysim.launch.check import Checked
from raysim.launch.signals import sigterm_kept


def attaches(checked: Checked) -> bool:
    """Whether the run joins a Ray that is already there, whose size is known only after joining."""
    if checked.loaded.scenario.backend != "ray":
        return False
    ray = sys.modules.get("ray")
    return bool(os.environ.get("RAY_ADDRESS")) or (ray is not None and ray.is_initialized())


@dataclass
class DatasetHandle:
    """A run's data set. Its images are given away: the backend holds them, once per node, and nobody else should.

    Whoever holds this, and not what is in it, does not keep 200 MB alive.
    """

    checked: Checked
    data: ImageData = field(init=False)  # without its images once they were given away

    def __post_init__(self) -> None:
        self.data = read_data(self.checked)

    def images(self) -> NDArray[np.uint8]:
        """All images [M, H, W, C]; read again if they were given away before."""
        images = self.data.image_MHWC
        if not len(images):
            return read_data(self.checked).image_MHWC
        self.data = replace(self.data, image_MHWC=np.zeros((0, *images.shape[1:]), dtype=np.uint8))
        return images


def read_data(checked: Checked) -> ImageData:
    """The scenario's images. Raises `ScenarioError` when they are not there or damaged."""
    given = checked.loaded.scenario.data
    return load_dataset(given.name, given.root, given.format)


def deal(checked: Checked, data: ImageData) -> Partition:
    """Who holds which image."""
    scenario = checked.loaded.scenario
    return make_partition(
        data.label_M,
        data.num_train,
        checked.dataset.num_classes,
        scenario.clients.count,
        checked.partition,
        checked.split,
        scenario.seed,
        data.name,
    )


def make_run_spec(checked: Checked, data: ImageData, partition: Partition, plan: Plan) -> RunSpec:
    """What every process of the run is told."""
    scenario = checked.loaded.scenario
    threads = dict.fromkeys(range(scenario.clients.count), 1)
    for group in plan.groups:
        threads |= dict.fromkeys(group.clients, group.threads)
    published = np.arange(data.num_train, len(data.label_M), dtype=np.int64)
    return RunSpec(
        algorithm=checked.loaded.algorithm,
        seed=scenario.seed,
        num_classes=checked.dataset.num_classes,
        feature_dim=checked.feature_dim,
        models=tuple(scenario.clients.models),
        build_model=checked.build,
        transform=ImageTransform.of(checked.dataset, scenario.data.augment),
        local=checked.local,
        train=partition.train,
        val=partition.val,
        test=partition.test,
        threads=tuple(threads[k] for k in range(scenario.clients.count)),
        global_test=published if scenario.evaluation.global_test else None,
        evaluate_when=scenario.evaluation.when,
        tolerates_failures=scenario.failure.max_failed_fraction > 0,
        client_timeout_s=scenario.failure.client_timeout_s,
        independent_init=scenario.clients.independent_init,
        num_rounds=scenario.rounds,
        labels=data.label_M,
        image_shape_HWC=tuple(data.image_MHWC.shape[1:]),
        encoder=checked.task.encoder,
    )


def check_local(checked: Checked) -> None:
    """Raises `ScenarioError` when no run of this scenario could be begun in this folder or on this machine."""
    try:
        str(Path.cwd()).encode()
    except OSError as error:
        raise ScenarioError(
            f"the current folder cannot be used ({error.strerror}); allowed: one that is there"
        ) from None
    except UnicodeEncodeError:
        here = os.fsencode(Path.cwd()).decode(errors="replace")
        raise ScenarioError(f"the current folder {here} has a name that is not UTF-8; allowed: one that is") from None
    has = psutil.virtual_memory().total
    with torch.device("meta"):  # shapes without memory
        size = {name: sum(p.nbytes for p in checked.build(name).parameters()) for name in checked.task.architectures}
    name = max(size, key=lambda name: size[name])
    if size[name] > has:
        given = checked.loaded.scenario.clients.feature_dim
        raise checked.loaded.origin.error(
            ("clients", "models") if given == "auto" else ("clients", "feature_dim"),
            f"{name if given == 'auto' else given} given, but one {name} then takes {size[name] / 2**30:.0f} GiB, more "
            f"than the {has / 2**30:.0f} GiB of this machine",
        )


def local_machine() -> ClusterResources:
    """This machine as a local Ray would share it out."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ClusterResources(float(os.cpu_count() or 1), float(gpus), oversubscribable=True)


def versions() -> dict[str, str]:
    """The versions that can change a number."""
    return {
        "raysim": metadata.version("raysim"),
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def checkpoint_storage(address: str) -> Storage:
    try:
        return open_storage(address)
    except OSError as error:
        raise ScenarioError(
            f"checkpoint.folder: {address} given, which cannot be used ({error.strerror}); allowed: a folder, or an "
            "address whose fsspec package is installed"
        ) from None


def try_storage(address: str) -> None:
    """See that checkpoints can be written there, before anything of the run is. Raises `ScenarioError`."""
    storage = checkpoint_storage(address)
    try:
        storage.make()
        storage.publish(".try", b"raysim")
        storage.remove(".try")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ScenarioError(
            f"checkpoint.folder: {address} cannot be written ({reason}); allowed: a folder, or an address that can be"
        ) from None


def joined(checked: Checked) -> bool:
    """Whether the run is on a Ray that was there before, which is joined now. Raises `ScenarioError`."""
    if not attaches(checked):
        return False
    from raysim.engine.ray import session

    with sigterm_kept():
        session.connect()
    return True
