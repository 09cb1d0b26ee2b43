"""FedAvg with logistic regression and 1,000 clients: raysim's time beside the times that FLUTE's authors report.

The work is FLUTE's experiment cv_lr_mnist: 1,000 clients, 10 per round, 100 rounds of 1 epoch, batches of 10, SGD with
learning rate 0.03, tests of the global model on all clients' test images every 20 rounds. On a CPU, FLUTE's README
(https://github.com/microsoft/msrflute) reports 3 min 20 s for FLUTE and 30 min 14 s for Flower 1.0.0, without naming
the machine: raysim's time is that of another machine.

    python benchmarks/beside_flute.py                                              # raysim: seconds of 100 rounds
    python benchmarks/beside_flute.py --theirs CHECKOUT                            # and FLUTE's, on this machine
    python benchmarks/beside_flute.py --theirs CHECKOUT --python VENV/bin/python   # with FLUTE's packages elsewhere

Both sides run as one process of one thread, with 1 round and with 101 rounds, alternately; printed is the difference,
the seconds of 100 rounds without starting and reading data. CPU seconds are those of the process and its children.

The model has 7,850 parameters: logits are the sigmoid of a linear function, as in FLUTE's experiment. What differs:

- Images are Fashion-MNIST's instead of MNIST's, because FLUTE downloads MNIST's in a file that is not published with
  its code. As for that file, a client has two classes; the number of its images is log-normal with mean 69 and standard
  deviation 106, at least 10, and a tenth of them are test images. Clients' images may overlap.
- FLUTE runs its own code except for three things that `beside_flute.py` writes: the module that downloads MNIST (here:
  reads the arrays above), an `azureml` package that records nothing, and the number of rounds in its configuration.
  Its arrays are NumPy's; those of the downloaded file are lists of Python numbers, which are slower.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from listed import write_listed
from numpy.typing import NDArray
from torch import Tensor, nn

from raysim.common.errors import RaysimError
from raysim.common.inputs import InputSpec
from raysim.data.datasets import load_dataset
from raysim.models.split import SplitNet

Ints = NDArray[np.int64]
CLIENTS, MEAN, DEVIATION, FEWEST = 1000, 69, 106, 10
REPORTED = {"FLUTE": 200, "Flower 1.0.0": 1814}
"""Seconds of 100 rounds on a CPU in FLUTE's README, section "Flower Comparison"."""
TASK = "cv_lr_mnist"

READ = '''"""Reads the clients' images that beside_flute.py wrote."""

import numpy as np


class MNIST:
    def __init__(self):
        self.trainset, self.testset = of("train"), of("test")


def of(part):
    arrays = np.load("images.npz")
    ends = np.cumsum(arrays[part + "_count"])[:-1]
    users = [str(k) for k in range(len(ends) + 1)]
    return {
        "users": users,
        "user_data": dict(zip(users, np.split(arrays[part + "_x"], ends))),
        "user_data_label": dict(zip(users, np.split(arrays[part + "_y"], ends))),
        "num_samples": arrays[part + "_count"].tolist(),
    }
'''
AZUREML = '''"""Stands for Azure's package: a run that records nothing."""


class Run:
    id = "local-beside-flute-0-0"

    @classmethod
    def get_context(cls):
        return cls()

    def log(self, *args, **kwargs):
        pass
'''


class Sigmoid(SplitNet):
    """Logistic regression whose logits are the sigmoid of a linear function of the pixels."""

    def __init__(self, num_classes: int, input_spec: InputSpec, feature_dim: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(input_spec.size, num_classes))

    def forward(self, x_B: Tensor) -> Tensor:
        """Return the logits [B, K]."""
        return torch.sigmoid(super().forward(x_B))


def deal(label_M: NDArray[np.integer]) -> list[tuple[Ints, Ints]]:
    """Return the positions of each client's training and test images; see the docstring of this file."""
    rng = np.random.default_rng(0)
    of_class = [np.flatnonzero(label_M == label) for label in range(10)]
    variance = np.log(1 + (DEVIATION / MEAN) ** 2)
    sizes = rng.lognormal(np.log(MEAN) - variance / 2, np.sqrt(variance), CLIENTS).astype(int).clip(FEWEST)
    parts = []
    for k, size in enumerate(sizes):
        first, second = of_class[k % 10], of_class[(k + 1) % 10]
        mine = np.append(
            rng.choice(first, size // 2, replace=False), rng.choice(second, size - size // 2, replace=False)
        )
        rng.shuffle(mine)
        parts.append((mine[size // 10 :], mine[: size // 10]))
    return parts


def write_raysim(folder: Path, parts: list[tuple[Ints, Ints]], root: str | None, rounds: int) -> list[str]:
    """Write raysim's scenario and list of images, and return the command that runs it."""
    write_listed(folder / "lists.parquet", *zip(*parts, strict=True))
    content = {
        "name": "beside_flute",
        "rounds": rounds,
        "backend": "in_process",
        "output": str(folder / "runs"),
        "algorithm": {"name": "fedavg"},
        "data": {
            "name": "fashion_mnist",
            "root": root,
            "partition": {"name": "listed", "path": str(folder / "lists.parquet")},
            "normalise": {"mean": [0.0], "std": [1.0]},  # pixels from 0 to 1
        },
        "clients": {"count": CLIENTS, "participation": 0.01, "models": [f"{__file__}:Sigmoid"], "feature_dim": 784},
        "training": {"batch_size": 10, "lr": 0.03},
        "evaluation": {"every": 20, "clients": "all"},
        "tracking": {"uri": f"sqlite:///{folder / f'mlflow-{rounds}.db'}"},
    }
    scenario = folder / f"rounds-{rounds}.yaml"
    scenario.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return [str(Path(sys.executable).with_name("raysim")), "launch", str(scenario)]


def write_flute(folder: Path, checkout: Path, python: str, rounds: int) -> list[str]:
    """Link FLUTE's code into a folder, write what the docstring of this file names, and return FLUTE's command."""
    for name in ("core", "utils", "extensions", "e2e_trainer.py"):
        link(folder / name, checkout / name)
    ours, its = folder / "experiments" / TASK, checkout / "experiments" / TASK
    (ours / "dataloaders").mkdir(parents=True, exist_ok=True)
    link(folder / "experiments" / "__init__.py", checkout / "experiments" / "__init__.py")
    for name in ("model.py", "dataloaders/dataloader.py", "dataloaders/dataset.py"):
        link(ours / name, its / name)
    (ours / "dataloaders" / "preprocessing.py").write_text(READ)
    (folder / "azureml").mkdir(exist_ok=True)
    (folder / "azureml" / "core.py").write_text(AZUREML)
    content = yaml.safe_load((its / "config.yaml").read_text())
    content["server_config"]["max_iteration"] = rounds
    config = folder / f"rounds-{rounds}.yaml"
    config.write_text(yaml.safe_dump(content))
    # Not FLUTE's own script: Python would import from the folder to which a link leads.
    (folder / "start.py").write_text("import runpy\n\nrunpy.run_path('e2e_trainer.py', run_name='__main__')\n")
    options = {"-config": config, "-outputPath": folder / "out", "-dataPath": folder, "-task": TASK, "-backend": "gloo"}
    words = ["-m", "torch.distributed.run", "--nproc_per_node=1", "start.py"]
    return [python, *words, *(str(word) for pair in options.items() for word in pair)]


def link(new: Path, target: Path) -> None:
    """Make a symbolic link, unless it exists."""
    if not new.exists():
        new.symlink_to(target.resolve())


def write_images(path: Path, pixels: NDArray[np.uint8], label_M: Ints, parts: list[tuple[Ints, Ints]]) -> None:
    """Write the clients' images for FLUTE."""
    arrays: dict[str, Any] = {}
    for name, of in (("train", 0), ("test", 1)):
        index = np.concatenate([both[of] for both in parts])
        arrays[f"{name}_x"] = pixels[index].reshape(-1, 784) / np.float32(255)
        arrays[f"{name}_y"] = label_M[index]
        arrays[f"{name}_count"] = np.array([len(both[of]) for both in parts])
    np.savez(path, **arrays)


def seconds(command: list[str], folder: Path, log: Path) -> tuple[float, float]:
    """Run a command, and return its seconds and CPU seconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    begin_s = time.perf_counter()
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"beside_flute: {command[0]} failed; its messages are in {log}")
    return time.perf_counter() - begin_s, used.ru_utime + used.ru_stime


def main() -> None:
    """Write both sides' files, run them, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rounds", type=int, default=100, help="default: 100")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each kind; the median difference is printed")
    parser.add_argument("--theirs", type=Path, metavar="CHECKOUT", help="also run FLUTE from this folder")
    parser.add_argument("--python", default=sys.executable, help="Python with FLUTE's packages; default: this one")
    parser.add_argument("--folder", type=Path, help="for both sides' files; default: a temporary folder")
    parser.add_argument("--root", default=os.environ.get("RAYSIM_DATA"), help="folder of the data sets")
    given = parser.parse_args()
    if given.theirs and not (given.theirs / "e2e_trainer.py").is_file():
        parser.error(f"--theirs {given.theirs}: no checkout of FLUTE, because it has no file e2e_trainer.py")
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="raysim-beside-flute-"))).resolve()
    data = load_dataset("fashion_mnist", given.root)
    parts = deal(data.label_M)
    commands: dict[str, list[list[str]]] = {}
    for name in ("raysim", *(["FLUTE"] if given.theirs else [])):
        (folder / name).mkdir(parents=True, exist_ok=True)
        commands[name] = [
            write_raysim(folder / name, parts, given.root, rounds)
            if name == "raysim"
            else write_flute(folder / name, given.theirs, given.python, rounds)
            for rounds in (1, 1 + given.rounds)
        ]
    if given.theirs:
        write_images(folder / "FLUTE" / "images.npz", data.raw_M, data.label_M, parts)
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(given.repeat):
        for name, (one, many) in commands.items():
            short, whole = (seconds(command, folder / name, folder / name / "log.txt") for command in (one, many))
            measured[name].append((whole[0] - short[0], whole[1] - short[1]))
            print(
                f"{name}: 1 round {short[0]:.1f} s ({short[1]:.1f} CPU), {1 + given.rounds} rounds {whole[0]:.1f} s",
                end="",
            )
            print(f" ({whole[1]:.1f} CPU)", flush=True)
    print(f"{given.rounds} rounds        seconds  CPU seconds")
    for name, found in measured.items():
        wall, cpu = (statistics.median(pair[i] for pair in found) for i in (0, 1))
        print(f"{name:17}  {wall:7.1f}  {cpu:11.1f}")
    for name, reported in REPORTED.items():
        print(f"{name:17}  {reported:7.1f}            -  reported for 100 rounds on another machine")


if __name__ == "__main__":
    try:
        main()
    except RaysimError as error:
        sys.exit(f"beside_flute: {error}")
