"""The runs whose results are stored: a few rounds each, which together use every part of the engine.

Every case is a scenario and its `--set`s, and runs through `raysim.run` alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from raysim.plugins.registry import algorithm_names
from tests.data import layouts, own
from tests.engine.scenarios import digits, of_method, plain_digits

# One by one: how torch multiplies several networks at once is another sum with each of its versions.
METHODS = {name: [*of_method(name), "training.together=1"] for name in algorithm_names()}

_SYSTEM = (
    "system={flops_per_s: [1.0e9, 2.0e9, 4.0e9], up_mbit_per_s: [1, 10], latency_s: {name: uniform, low: 0, high: 0.1}}"
)
_EIGHT = "clients={count: 8, models: [digits_mlp64]}"

FEATURES: dict[str, list[str]] = {
    "groups": [*of_method("fedproto"), _EIGHT, "training.together=8"],
    "deadline": [_SYSTEM, "clients.deadline_s=0.08"],
    "oversample": [_SYSTEM, "clients.oversample=1.5"],
    "dropout": ["system={dropout: 0.4, availability: 0.7}"],
    "fastest": [_SYSTEM, "clients.selection={name: fastest, candidates: 2}"],
    "by_samples": ["clients.selection={name: by_samples}"],
    "stragglers": ["training.epochs=3", "training.stragglers={share: 0.5}"],
    "overrides": [
        "training.overrides=[{models: [digits_cnn_s], optimizer: adam, lr: 0.001}, {clients: 0-1, epochs: 2}]"
    ],
    "schedule": ["training.schedule={name: cosine, warmup: 1}", "rounds=4"],
    "adamw": ["training.optimizer=adamw", "training.lr=0.001", "training.weight_decay=0.01"],
    "nesterov": ["training.nesterov=true", "training.weight_decay=0.001"],
    "seeds": ["seeds={data: 7, weights: 8, cohorts: 9}", "clients.independent_init=true"],
    "width": ["clients.feature_dim=32"],
    "bfloat16": ["training.precision=bfloat16", _EIGHT],
    "all clients": [*of_method("fedavg"), "evaluation={clients: all, when: both, every: 2}", "rounds=4"],
    "global test": ["data.split=published", "evaluation={global_test: true}"],
    "public data": [*of_method("fedmd"), "data.public={share: 0.3, samples: 100}"],
    "early stop": ["rounds=9", "stop={metric: accuracy/val, patience: 1, min_rounds: 2}"],
    "best validation": ["rounds=5", "checkpoint.keep=[last, best_val]"],
}
"""Settings of the engine, on digits with FedGH unless a method is named."""

PARTITIONS: dict[str, list[str]] = {
    "iid": ["data.partition={name: iid}"],
    "pathological": ["data.partition={name: pathological, classes_per_client: 2}", "data.split=pfedhn"],
    "dirichlet": ["data.partition={name: dirichlet, alpha: 0.3}"],
    "dirichlet, refilled": ["data.partition={name: dirichlet, alpha: 0.01, max_retries: 2}"],
    "hks": ["data.partition={name: hks, alpha: 0.5}"],
    "resample": ["data.partition={name: resample, samples_per_client: 40}"],
}
"""Partitions of digits; `natural` and `listed` are among the readers."""


def readers(folder: Path) -> dict[str, dict[str, Any]]:
    """Return a scenario per reader, on small data sets that are written into `folder`."""
    own.table(folder / "one.csv")
    own.table(folder / "two" / "train.parquet")
    own.table(folder / "two" / "test.parquet", rows=24, seed=1)
    own.image_folder(folder / "images")
    layouts.fashion_parquet(folder / "parquet" / "fashion_mnist", train=40, test=20)
    layouts.idx(folder / "idx" / "fashion_mnist", train=40, test=20)
    for kind in ("femnist", "shakespeare"):
        own.leaf(folder / "leaf", kind, samples=12)
    small = {"training": {"batch_size": 8, "lr": 0.05}}
    found = {
        "csv": own.scenario({"name": "csv", "path": str(folder / "one.csv"), "features": ["a", "b"]}),
        "parquet, two parts": own.scenario(
            {"name": "parquet", "path": str(folder / "two"), "features": ["a", "b", "c"], "split": "published"}
        ),
        "parquet, natural": own.scenario(
            {"name": "parquet", "path": str(folder / "two"), "partition": {"name": "natural", "by": "user"}}
        ),
        "images": own.scenario({"name": "images", "path": str(folder / "images"), "size": 16}),
        "hub": own.scenario({"name": "fashion_mnist", "root": str(folder / "parquet")}),
        "idx": own.scenario({"name": "fashion_mnist", "root": str(folder / "idx")}),
        "femnist": own.scenario({"name": "femnist", "root": str(folder / "leaf"), "partition": {"name": "natural"}}),
        "shakespeare": own.scenario(
            {"name": "shakespeare", "root": str(folder / "leaf"), "partition": {"name": "natural"}}
        ),
    }
    found["shakespeare"]["clients"]["models"] = ["gru"]
    return {name: {**scenario, **small} for name, scenario in found.items()}


def scenarios(group: str, folder: Path) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Return the scenario and the `--set`s of each case of a group: methods, features, partitions or readers."""
    if group == "readers":
        return {name: (scenario, []) for name, scenario in readers(folder).items()}
    if group == "partitions":
        one_round = plain_digits(rounds=1)
        del one_round["data"]
        return {name: ({**one_round, "data": {"name": "digits"}}, sets) for name, sets in PARTITIONS.items()}
    cases = METHODS if group == "methods" else FEATURES
    return {name: (digits(), sets) for name, sets in cases.items()}


def study(folder: Path) -> Path:
    """Write and return a sweep file of two methods, two seeds and a tuned learning rate, with successive halving."""
    clients = {"count": 6, "participation": 0.5, "models": ["digits_mlp64"]}
    content = {
        "name": "tuned",
        "base": plain_digits(rounds=3, clients=clients, output=str(folder / "runs")),
        "seeds": "1..2",
        "runs": {"FedGH": [], "Alone": ["algorithm={name: standalone}"]},
        "tune": {
            "seeds": [101],
            "search": "random",
            "trials": 4,
            "space": {"training.lr": {"log": [0.001, 0.5]}},
            "halving": {"rounds": [1, 3], "keep": 0.5},
        },
        "baseline": "Alone",
    }
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file
