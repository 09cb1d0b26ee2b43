"""FedAvg, FD, FedProto, APFL, Ditto and Standalone on Fashion-MNIST, beside PFLlib: accuracies and seconds per round.

The setting is PFLlib's default one: 20 clients, all in every round, its CNN of four layers, batches of 10, 1 local
epoch, plain SGD with learning rate 0.005. The 70,000 images are dealt as PFLlib deals them (NumPy seed 1): by a
Dirichlet distribution with parameter 0.1, or 2 classes per client; 75 % of a client's images are for training.

    python benchmarks/beside_pfllib.py --rounds 50                                  # raysim, beside published values
    python benchmarks/beside_pfllib.py --rounds 50 --theirs CHECKOUT                # and PFLlib, on the same images
    python benchmarks/beside_pfllib.py --rounds 3 --speed --theirs CHECKOUT         # seconds per round of both

CHECKOUT is a copy of https://github.com/TsingZ0/PFLlib, which needs torchvision and scikit-learn. After Ctrl-C, the
same command continues raysim's runs; it starts an interrupted run of PFLlib again.

Printed is the greatest pooled accuracy over rounds in per cent: correct test images of all clients / all test images,
each client tested with the model that PFLlib tests (FedAvg: the global model; APFL: the mixture; the others: its own
model, FedProto with the nearest of all global prototypes), before the training of a round. So N rounds give the
accuracies after 0, ..., N - 1 trainings. The published values are those of PFLlib's leaderboard after 2,000 rounds,
three trials. It has no value for Standalone, which exchanges nothing and so shows what the other methods gain.

The settings of raysim below mean the same as PFLlib's code of 2025-11-29, with these differences:

- PFLlib leaves out the last batch of an epoch if it is incomplete; raysim trains it.
- Initial weights and the order of batches come from other random numbers.
- FD: PFLlib changed its distillation loss. The method `fd` has the squared error of its code before 2024-04-22, and is
  printed beside the leaderboard's value. `fd_raw` has the loss of its code since 2025-11-29, cross-entropy with logits
  as targets, and is compared with the checkout. This loss has no lower bound: networks diverge on both sides, and
  PFLlib's process ends when scikit-learn refuses infinite outputs.
- FD and FedProto: in PFLlib, a client sends nothing for a class whose images are all in the batch that it leaves out.
  If no client sends a class, PFLlib's FD takes the client's own logits as targets; raysim leaves the loss out.
- Ditto: PFLlib's `mu` is `lambda_`. PFLlib's default is 0, with which every client trains alone, and the value behind
  the leaderboard is not published; here it is 1, raysim's default, on both sides. The rest is the same: both models are
  trained for 1 epoch, the personal one first.
- APFL: in PFLlib, too, alpha begins with 1, the default of its command line. PFLlib trains the personal model by its
  own loss and replaces it by the mixture after each round; raysim trains it by the loss of the mixture, as in the
  paper. PFLlib adds 0.02 alpha to alpha's gradient, which draws alpha below 1. It tests the mixture with the global
  model that the client trained last, raysim that with the global model just received.
- FedProto before the first training: PFLlib has no prototypes and reports 0; raysim uses the initial classifier.
- Tests: PFLlib also computes the loss on all training images and the AUC, and tests in batches of 10.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from alternate import alternating
from listed import dirichlet, write_listed
from numpy.typing import NDArray
from pfllib_process import EndedError, Theirs, write_images
from torch import nn

import raysim
from raysim.common.errors import RaysimError
from raysim.common.inputs import InputSpec
from raysim.data.datasets import load_dataset
from raysim.models.split import SplitNet

Ints = NDArray[np.int64]
CLIENTS, CLASSES, ALPHA, FEWEST = 20, 10, 0.1, 40
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "standalone": ("", {"name": "standalone"}),
    "fedavg": ("FedAvg", {"name": "fedavg"}),
    "fd": ("", {"name": "fd", "profile": "official", "distillation": "squared_error"}),
    "fd_raw": ("FD", {"name": "fd", "profile": "official", "distillation": "raw_logits"}),
    "fedproto": (
        "FedProto",
        {"name": "fedproto", "profile": "official", "inference": "nearest", "nearest": "all", "lambda_": 1.0},
    ),
    "apfl": ("APFL", {"name": "apfl", "alpha": 1.0, "agg": "weighted"}),
    "ditto": ("Ditto", {"name": "ditto", "lambda_": 1.0, "agg": "weighted"}),
}
"""Name -> PFLlib's name, empty if PFLlib's checkout is not run for it; section `algorithm` of the scenario."""
PUBLISHED = {
    ("dirichlet", "fedavg"): "85.85 ± 0.19",
    ("dirichlet", "fd"): "97.43 ± 0.04",
    ("dirichlet", "fedproto"): "97.40 ± 0.02",
    ("dirichlet", "apfl"): "97.25 ± 0.08",
    ("dirichlet", "ditto"): "97.47 ± 0.04",
    ("pathological", "fedavg"): "80.41 ± 0.08",
    ("pathological", "fd"): "99.51 ± 0.03",
    ("pathological", "fedproto"): "99.49 ± 0.04",
    ("pathological", "apfl"): "99.41 ± 0.02",
    ("pathological", "ditto"): "99.44 ± 0.06",
}
"""PFLlib's docs/benchmark.html, columns FMNIST; FD is FedDistill there."""
METRIC = "accuracy/participants_pooled"
"""All clients are participants, and are tested after receiving and before training, as in PFLlib."""


def fedavg_cnn(num_classes: int, input_spec: InputSpec, feature_dim: int) -> SplitNet:
    """Build PFLlib's FedAvgCNN: 5x5 convolutions with 32 and 64 filters, a dense layer of D = 512, a linear header."""
    channels, height, width = input_spec.shape
    flat = 64 * ((height - 12) // 4) * ((width - 12) // 4)
    convs = [nn.Conv2d(channels, 32, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU()]
    extractor = nn.Sequential(*convs, nn.Flatten(), nn.Linear(flat, feature_dim), nn.ReLU())
    return SplitNet(extractor, nn.Linear(feature_dim, num_classes))


def deal(partition: str, label_M: NDArray[np.integer]) -> list[tuple[Ints, Ints]]:
    """Deal M images as PFLlib does with NumPy's seed 1: the positions of each client's training and test images."""
    rng = np.random.RandomState(1)
    held = dirichlet(label_M, CLIENTS, ALPHA, FEWEST, rng) if partition == "dirichlet" else _two_classes(label_M, rng)
    parts = []
    for mine in held:
        order, num_train = mine[rng.permutation(len(mine))], len(mine) * 3 // 4
        parts.append((order[len(mine) - num_train :], order[: len(mine) - num_train]))
    return parts


def _two_classes(label_M: NDArray[np.integer], rng: np.random.RandomState) -> list[Ints]:
    """Give classes 2i and 2i + 1 to clients 4i to 4i + 3; the first three get random numbers of images of a class."""
    held: list[Ints] = [np.empty(0, np.int64)] * CLIENTS
    receivers = 2 * CLIENTS // CLASSES
    for label in range(CLASSES):
        images = np.flatnonzero(label_M == label)
        most = len(images) / receivers
        count = rng.randint(max(most / 10, FEWEST / CLASSES), most, receivers - 1)
        first = label // 2 * receivers
        for k, new in enumerate(np.split(images, np.cumsum(count)), first):
            held[k] = np.append(held[k], new)
    return held


def scenario(given: argparse.Namespace) -> dict[str, Any]:
    """Return the scenario that all methods share."""
    return {
        "name": "beside_pfllib",
        "rounds": given.rounds,
        "output": str(given.folder / "runs"),
        "algorithm": {"name": "fedavg"},
        "data": {
            "name": "fashion_mnist",
            "root": given.root,
            "partition": {"name": "listed", "path": str(given.lists / "lists.parquet")},
            "normalise": {"mean": [0.5], "std": [0.5]},
        },
        "clients": {"count": CLIENTS, "models": [f"{__file__}:fedavg_cnn"], "feature_dim": 512},
        "training": {"batch_size": 10, "lr": 0.005},
        "evaluation": {"every": given.every, "when": "after_receive"},
        "tracking": {"uri": f"sqlite:///{given.folder / 'mlflow.db'}"},
    }


def study(given: argparse.Namespace) -> raysim.Study:
    """Write a sweep file with a cell for each method, and return its study."""
    runs = {name: [f"algorithm.{key}={value}" for key, value in METHODS[name][1].items()] for name in given.methods}
    sweep = given.lists / "beside_pfllib.yaml"
    content = {"base": scenario(given), "runs": {"method": runs}}
    sweep.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return raysim.Study(sweep)


def their_accuracies(given: argparse.Namespace, method: str) -> list[float]:
    """Return PFLlib's accuracies, of an earlier run with as many rounds or of a new run."""
    done = given.lists / f"{method}-{given.rounds}-{given.every}.json"
    if not done.exists():
        theirs = Theirs(given.theirs, given.lists, METHODS[method][0], given.threads, given.every)
        found = []
        try:
            for _ in range(given.rounds):
                found.append(theirs.iteration()["accuracy"])
        except EndedError as error:
            print(f"{method}: {error}")
        theirs.close()
        done.write_text(json.dumps([accuracy for accuracy in found if accuracy is not None]))
    accuracies: list[float] = json.loads(done.read_text())
    return accuracies


def compare_accuracies(given: argparse.Namespace) -> None:
    """Run the cells that are not done, and print raysim's greatest accuracies beside PFLlib's."""
    runs = study(given).run().runs
    print("partition     method    rounds  raysim  at round  PFLlib here  published")
    for name, run in runs.items():
        method = next(word for word in name.split() if word in METHODS)
        accuracy = 100 * run.rounds.set_index("round")[METRIC].dropna()
        here = "-"
        if given.theirs and METHODS[method][0]:
            here = f"{100 * max(their_accuracies(given, method)):.2f}"
        published = PUBLISHED.get((given.partition, method), "-")
        print(
            f"{given.partition:12}  {method:8}  {given.rounds:6}  {accuracy.max():6.2f}  {accuracy.idxmax():8}  "
            f"{here:>11}  {published:>9}"
        )


def compare_seconds(given: argparse.Namespace, method: str) -> None:
    """Run the same rounds on both sides, alternately, and print accuracies and seconds of each round."""
    content = scenario(given) | {"algorithm": METHODS[method][1], "rounds": given.rounds + 1}
    if given.threads == 1:
        content["backend"] = "in_process"
    else:
        content["resources"] = {"actors": given.threads, "gpus_per_actor": 0}
    theirs = Theirs(given.theirs, given.lists, METHODS[method][0], given.threads, given.every)
    other: list[dict[str, Any]] = []
    with alternating(
        given.threads == 1, given.rounds, lambda: other.append(theirs.iteration()), theirs.process.pid
    ) as ours:
        run = raysim.run(raysim.Scenario.load(content), quiet=True)
    theirs.close()
    accuracy = run.rounds.set_index("round")[METRIC]
    print(
        f"{given.partition}, {method}, {given.images} images, {given.threads} threads, tests every {given.every} rounds"
    )
    print("round  accuracy: raysim  PFLlib  seconds: raysim  PFLlib  CPU seconds: raysim  PFLlib  of which test")
    for t, ((seconds, cpu), its) in enumerate(zip(ours, other, strict=True), 1):
        here = "-" if its["accuracy"] is None else f"{100 * its['accuracy']:.2f}"
        print(
            f"{t:5}  {100 * accuracy.get(t, np.nan):16.2f}  {here:>6}  {seconds:15.1f}  {its['wall_s']:6.1f}  "
            f"{cpu:19.1f}  {its['cpu_s']:6.1f}  {its['test_cpu_s']:13.1f}"
        )
    later = list(zip(ours, other, strict=True))[given.rounds > 1 :]  # the first round warms up
    wall, cpu = (np.median([o[i] / its[key] for o, its in later]) for i, key in ((0, "wall_s"), (1, "cpu_s")))
    print(f"raysim / PFLlib, median of {len(later)} rounds: seconds {wall:.2f}, CPU seconds {cpu:.2f}", flush=True)


def main() -> None:
    """Read the arguments, write the lists of images, and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="default: all")
    parser.add_argument("--partition", choices=("dirichlet", "pathological"), default="dirichlet")
    parser.add_argument("--rounds", type=int, default=50, help="default: 50; PFLlib's leaderboard: 2000")
    parser.add_argument("--every", type=int, default=1, help="rounds between tests; default: 1")
    parser.add_argument("--images", type=int, default=70_000, help="deal this many random images only; default: 70000")
    parser.add_argument("--theirs", type=Path, metavar="CHECKOUT", help="also run PFLlib from this folder")
    parser.add_argument("--speed", action="store_true", help="compare seconds; needs --theirs")
    parser.add_argument(
        "--threads", type=int, default=1, help="PFLlib: threads; raysim: actors of one thread, or none if 1 (default)"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/beside_pfllib"), help="for lists and runs")
    parser.add_argument("--root", default=os.environ.get("RAYSIM_DATA"), help="folder of the data sets")
    given = parser.parse_args()
    if given.theirs and not (given.theirs / "system" / "flcore").is_dir():
        parser.error(f"--theirs {given.theirs}: no checkout of PFLlib, because it has no folder system/flcore")
    if given.speed and not given.theirs:
        parser.error("--speed compares with PFLlib: give its checkout with --theirs")
    given.folder = given.folder.resolve()
    data = load_dataset("fashion_mnist", given.root)
    images = np.sort(np.random.default_rng(0).permutation(len(data.label_M))[: given.images])
    parts = [(images[train], images[test]) for train, test in deal(given.partition, data.label_M[images])]
    given.lists = given.folder / f"{given.partition}-{len(images)}"
    given.lists.mkdir(parents=True, exist_ok=True)
    write_listed(given.lists / "lists.parquet", *zip(*parts, strict=True))
    if given.theirs:
        write_images(given.lists, data.raw_M, data.label_M, parts)
    if given.speed:
        for method in given.methods:
            if METHODS[method][0]:
                compare_seconds(given, method)
    else:
        compare_accuracies(given)


if __name__ == "__main__":
    try:
        main()
    except RaysimError as error:
        sys.exit(f"beside_pfllib: {error}")
    except KeyboardInterrupt:
        sys.exit(130)  # raysim has said that the sweep was interrupted
