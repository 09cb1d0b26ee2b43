"""FedAvg on Fashion-MNIST, beside the accuracies that Flower's baseline `niid_bench` reports for the same settings.

10 clients, all in every round, a LeNet, 50 rounds of 10 epochs. The training images are dealt as that baseline deals
them with the same seed. The script runs raysim only; the values of the baseline are those of its README:
https://github.com/adap/flower/tree/main/baselines/niid_bench

    python benchmarks/beside_niid_bench.py                  # both partitions, seed 42
    python benchmarks/beside_niid_bench.py --seeds 42..44 --folder FOLDER

Each of the two runs trains for 470,000 steps, of 15 ms each on a slow core. After Ctrl-C, the same command continues.
Printed is the greatest accuracy of the global model on the 10,000 published test images in any round, in per cent: the
number that the baseline reports, too.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import yaml
from listed import dirichlet, write_listed
from numpy.typing import NDArray

import raysim
from raysim.common.errors import RaysimError
from raysim.common.inputs import InputSpec
from raysim.data.datasets import load_dataset
from raysim.models.cnn import five_by_five_cnn
from raysim.models.split import SplitNet

CLIENTS, ALPHA, FEWEST = 10, 0.5, 10
REPORTED = {"dirichlet": (88.09, 0.29), "iid": (89.23, 0.45)}
"""Partition -> accuracy of FedAvg in per cent and its deviation, in the row FMNIST of the baseline's README."""

METRIC = "accuracy/all_current_pooled"
"""Every published test image belongs to one client, and every client tests the model that the server sends next. So the
share of all clients' test images that are classified correctly is the accuracy of the global model on all of them."""


def lenet(num_classes: int, input_spec: InputSpec, feature_dim: int) -> SplitNet:
    """Build the network of the baseline: 5x5 convolutions with 6 and 16 filters, and dense layers of 120 and D = 84."""
    return five_by_five_cnn(num_classes, input_spec, feature_dim, conv1=6, conv2=16, fc1=120)


def deal(partition: str, label_M: NDArray[np.integer], seed: int) -> list[NDArray[np.int64]]:
    """Deal M training images as the baseline does: the positions of each client's images.

    partition: "iid": a random order, cut into equal parts. "dirichlet": a Dirichlet draw divides each class among the
    clients that have fewer than a tenth of all images so far; repeated until every client has at least 10 images.
    """
    rng = np.random.default_rng(seed)
    if partition == "iid":
        order = rng.choice(len(label_M), len(label_M), replace=False)
        return [np.asarray(part, np.int64) for part in np.array_split(order, CLIENTS)]
    return dirichlet(label_M, CLIENTS, ALPHA, FEWEST, rng)


def write_lists(path: Path, train: list[NDArray[np.int64]], num_train: int, num_images: int) -> None:
    """Write the file of partition `listed`. The published test images are divided equally among the clients."""
    write_listed(path, train, np.array_split(np.arange(num_train, num_images), CLIENTS))


def study(folder: Path, partitions: list[str], seeds: list[int], rounds: int, root: str | None) -> raysim.Study:
    """Write the lists and a sweep file to a folder, and return the study of its cells."""
    data = load_dataset("fashion_mnist", root)
    folder.mkdir(parents=True, exist_ok=True)
    runs = {}
    for partition in partitions:
        for seed in seeds:
            path = folder / f"{partition}-{seed}.parquet"
            write_lists(path, deal(partition, data.label_M[: data.num_train], seed), data.num_train, len(data.label_M))
            runs[f"{partition} {seed}"] = [f"data.partition.path={path}", f"seed={seed}"]
    base = {
        "name": "beside_niid_bench",
        "rounds": rounds,
        "output": str(folder / "runs"),
        "algorithm": {"name": "fedavg"},
        "data": {
            "name": "fashion_mnist",
            "root": root,
            "partition": {"name": "listed", "path": str(path)},
            "normalise": {"mean": [0.0], "std": [1.0]},  # pixels from 0 to 1
        },
        "clients": {"count": CLIENTS, "participation": 1.0, "models": [f"{__file__}:lenet"], "feature_dim": 84},
        "training": {"epochs": 10, "batch_size": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 0.00001},
        "evaluation": {"every": 1, "clients": "all"},
        "tracking": {"uri": f"sqlite:///{folder / 'mlflow.db'}"},
    }
    sweep = folder / "sweep.yaml"
    sweep.write_text(yaml.safe_dump({"base": base, "runs": {"partition": runs}}, sort_keys=False), encoding="utf-8")
    return raysim.Study(sweep)


def main() -> None:
    """Run the cells that are not done, and print raysim's values beside the reported ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("partitions", nargs="*", metavar="PARTITION", help="dirichlet, iid; default: both")
    parser.add_argument("--seeds", default="42", help="such as 42 or 42..44; default: 42")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=Path("runs/beside_niid_bench"), help="for lists and runs")
    parser.add_argument("--root", default=os.environ.get("RAYSIM_DATA"), help="folder of the data sets")
    given = parser.parse_args()
    partitions = given.partitions or list(REPORTED)
    if unknown := set(partitions) - set(REPORTED):
        parser.error(f"unknown partition {min(unknown)}; choose from {', '.join(REPORTED)}")
    first, _, last = given.seeds.partition("..")
    seeds = list(range(int(first), int(last or first) + 1))
    of = study(given.folder.resolve(), partitions, seeds, given.rounds, given.root).run()
    print("partition  seed  raysim best  round  last   reported     digest")
    for name, run in of.runs.items():
        accuracy = 100 * run.rounds.set_index("round")[METRIC].dropna()
        partition, seed = name.split()[:2]
        mean, deviation = REPORTED[partition]
        print(
            f"{partition:9}  {seed:>4}  {accuracy.max():11.2f}  {accuracy.idxmax():5}  {accuracy.iloc[-1]:.2f}  "
            f"{mean:.2f} ± {deviation:.2f}  {run.summary['state_digest'][:12]}"
        )


if __name__ == "__main__":
    try:
        main()
    except RaysimError as error:
        sys.exit(f"beside_niid_bench: {error}")
