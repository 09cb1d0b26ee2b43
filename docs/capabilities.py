"""Run every bundled method with every section that changes what the server gets, and write down what happens.

Each run has eight clients and three rounds on the digits, in process. A refusal is the sentence of the scenario's
check. It takes about six minutes on one core:

python docs/capabilities.py > docs/capabilities.csv

Methods that are named behind the command are run alone.
"""

from __future__ import annotations

import csv
import logging
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import raysim
from raysim.plugins.registry import algorithm_names

ONE = ["digits_mlp64"]
WIDTHS = ["heterofl_cnn_d", "heterofl_cnn_e"]
RANKS = ["digits_vit_lora2", "digits_vit_lora4"]
MODELS = {
    "heterofl": WIDTHS,
    "fedrolex": WIDTHS,
    "fedgkt": ["digits_resnet"],
    "hetlora": RANKS,
    "flexlora": RANKS,
    "raflora": RANKS,
}
DATA = {"fedmd": {"public": {"share": 0.2}}, "feddf": {"public": {"share": 0.2}}}
OWN = {"fedmd": {"scored": 100}, "hks": {"warmup": 1}}
"""What some methods need to run on the digits, besides their names."""

SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "attack": {"adversary": {"clients": 0.25, "attack": {"name": "sign_flip"}}},
    "rule": {"aggregator": {"rule": {"name": "median"}}},
    "noise at the server": {
        "privacy": {"clip": 1.0, "noise_multiplier": 1.0, "delta": 0.001},
        "clients": {"selection": {"name": "poisson"}},
    },
    "noise at clients": {"privacy": {"clip": 1.0, "noise_multiplier": 1.0, "noise_at": "client", "delta": 0.001}},
    "asynchronous": {"asynchronous": {"buffer": 2}, "system": {"flops_per_s": {"name": "log_normal", "median": 1e8}}},
    "new clients": {"clients": {"held_out": 0.25}, "evaluation": {"clients": "all", "every": 3, "fine_tune": 1}},
}


def outcome(method: str, changes: Mapping[str, Any], folder: str) -> str:
    """Return "" if a run of the method with these sections ends, else the sentence of the error."""
    scenario: dict[str, Any] = {
        "name": "capabilities",
        "rounds": 3,
        "backend": "in_process",
        "output": folder,
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db"},
        "algorithm": {"name": method, **OWN.get(method, {})},
        "data": {
            "name": "digits",
            "partition": {"name": "pathological", "classes_per_client": 3},
            **DATA.get(method, {}),
        },
        "training": {"batch_size": 32, "lr": 0.05},
        **changes,
        "clients": {
            "count": 8,
            "participation": 0.5,
            "models": MODELS.get(method, ONE),
            **changes.get("clients", {}),
        },
    }
    try:
        raysim.run(scenario, quiet=True)
    except raysim.RaysimError as error:
        return str(error).removeprefix("scenario: ")
    return ""


def main() -> None:
    """Write a row per method and section."""
    logging.disable(logging.WARNING)
    writer = csv.writer(sys.stdout)
    writer.writerow(["method", "section", "refused"])
    with tempfile.TemporaryDirectory() as folder:
        for method in sys.argv[1:] or algorithm_names():
            for section, changes in SECTIONS.items():
                writer.writerow([method, section, outcome(method, changes, folder)])
                sys.stdout.flush()


if __name__ == "__main__":
    main()
