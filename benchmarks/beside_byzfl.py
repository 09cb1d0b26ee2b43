"""Write what ByzFL computes for the robust rules to tests/core/byzfl.json, with which tests compare raysim's rules.

ByzFL is no dependency of raysim. Its package imports plotting libraries, so only its rules are loaded, from its wheel:

    pip download --no-deps byzfl==0.0.11 && python -m zipfile -e byzfl-0.0.11-py3-none-any.whl /tmp/byzfl
    python benchmarks/beside_byzfl.py /tmp/byzfl
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parent.parent / "tests" / "core" / "byzfl.json"


def main(folder: str) -> None:
    """Compute the rules for 9 uploads of 6 values, 2 of which are far away."""
    package = types.ModuleType("byzfl")
    package.__path__ = [f"{folder}/byzfl"]  # in place of its __init__.py
    sys.modules["byzfl"] = package
    from byzfl.aggregators import aggregators, preaggregators

    row_KP = np.random.default_rng(1).normal(size=(9, 6))
    row_KP[:2] += 10
    rules = {
        "median": aggregators.Median(),
        "trimmed_mean": aggregators.TrMean(f=2),
        "multi_krum": aggregators.MultiKrum(f=2),
        "krum": aggregators.Krum(f=2),
        "nearest_neighbour": preaggregators.NNM(f=2),
    }
    answers = {name: np.asarray(rule(row_KP.copy())).tolist() for name, rule in rules.items()}
    TARGET.write_text(json.dumps({"uploads": row_KP.tolist(), "malicious": 2, **answers}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
