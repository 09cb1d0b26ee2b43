"""Robust rules against numbers worked out by hand, and against ByzFL's (`benchmarks/beside_byzfl.py`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nan
from torch.testing import assert_close

from raysim.core.algorithm import Server, Task
from raysim.core.messages import Model
from raysim.core.nested import mean_of_blocks
from raysim.core.robust import (
    Bucketing,
    Krum,
    Median,
    MultiKrum,
    NearestNeighbourMixing,
    NormClipping,
    RobustMean,
    TrimmedMean,
    krum_scores,
)

BYZFL = json.loads((Path(__file__).parent / "byzfl.json").read_text())
ROW_KP = torch.tensor(BYZFL["uploads"], dtype=torch.float64)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def server(robust: RobustMean | None, **given: object) -> Server[object]:
    task = Task(3, 1, ("norm",), lambda name: None)
    return Server(task, torch.Generator().manual_seed(1), robust=robust, **given)  # type: ignore[arg-type]


def test_values_by_hand() -> None:
    values = column(1, 2, 3, 10, 100)
    assert Median().combine(values).item() == 3
    assert Median().combine(values[:4]).item() == 2.5
    assert TrimmedMean(1).combine(values).item() == 5  # of 2, 3, 10
    assert TrimmedMean(9).combine(values[:4]).item() == 2.5  # of 2 and 3: at least one value is left
    # Scores with one neighbour each: 1, 1, 1, 49, 8100.
    assert krum_scores(values, 2).tolist() == [1, 1, 1, 49, 8100]
    assert Krum(2).combine(values).item() == 1
    assert MultiKrum(2).combine(values).item() == 2
    # Distances from the median: 2, 1, 0, 7, 97; their median is 2, so 10 counts as 5, and 100 as 5.
    assert NormClipping().combine(values).item() == pytest.approx((1 + 2 + 3 + 5 + 5) / 5)


def test_values_that_some_uploads_lack() -> None:
    values = column(1, nan, 3, 8, nan)
    assert Median().combine(values).item() == 3
    assert TrimmedMean(1).combine(values).item() == 3


def test_mixing_by_hand() -> None:
    near = NearestNeighbourMixing(1).mix(column(0, 2, 3), torch.Generator())
    assert near.flatten().tolist() == [1, 2.5, 2.5]
    buckets = Bucketing(2).mix(column(1, 2, 4), torch.Generator().manual_seed(1))
    assert len(buckets) == 2
    assert buckets.flatten().tolist() in ([1.5, 4], [2.5, 2], [3, 1])


def test_rules_equal_byzfl() -> None:
    malicious = BYZFL["malicious"]
    answers = {
        "median": Median().combine(ROW_KP),
        "trimmed_mean": TrimmedMean(malicious).combine(ROW_KP),
        "nearest_neighbour": NearestNeighbourMixing(malicious).mix(ROW_KP, torch.Generator()),
        # ByzFL sums over K - f - 1 neighbours, the paper over K - f - 2.
        "krum": Krum(malicious - 1).combine(ROW_KP),
        "multi_krum": ROW_KP[krum_scores(ROW_KP, malicious - 1).argsort()[: len(ROW_KP) - malicious]].mean(0),
    }
    for name, answer in answers.items():
        assert_close(answer, torch.tensor(BYZFL[name], dtype=torch.float64), rtol=0, atol=1e-6, msg=name)


def test_server_mean_with_a_rule() -> None:
    parts = {k: {"w": torch.tensor([[value]]), "n": torch.tensor(k)} for k, value in enumerate([1.0, 2.0, 30.0])}
    mean = server(RobustMean(Median())).mean(parts)
    assert mean["w"].tolist() == [[2.0]]
    assert mean["w"].dtype == torch.float32
    assert mean["n"].item() == 0  # of the first: counters are not combined
    plain = server(None, num_samples={0: 1, 1: 1, 2: 2})
    assert plain.mean(parts)["w"].item() == pytest.approx(63 / 4)
    assert plain.mean(parts, weighted=False)["w"].item() == pytest.approx(11)


def test_class_mean_with_and_without_a_rule() -> None:
    classes = {0: torch.tensor([0, 2]), 1: torch.tensor([2]), 2: torch.tensor([2])}
    rows = {0: torch.tensor([[1.0], [3.0]]), 1: torch.tensor([[5.0]]), 2: torch.tensor([[100.0]])}
    mean_CD, known_C = server(None, classes=classes).class_mean(rows)
    assert mean_CD.tolist() == [[1.0], [0.0], [36.0]]
    assert known_C.tolist() == [True, False, True]
    counts = {0: torch.tensor([7, 3]), 1: torch.tensor([1]), 2: torch.tensor([1])}
    assert server(None, classes=classes).class_mean(rows, counts)[0][2].item() == pytest.approx(114 / 5)
    assert server(RobustMean(Median()), classes=classes).class_mean(rows)[0].tolist() == [[1.0], [0.0], [5.0]]


def test_each_value_of_nested_networks_is_combined_over_the_clients_that_have_it() -> None:
    wide = {"w": torch.tensor([0.0, 0.0, 7.0])}
    ups = {0: Model({"w": torch.tensor([1.0, 5.0])}), 1: Model({"w": torch.tensor([2.0])})}
    ups |= {2: Model({"w": torch.tensor([30.0, 9.0])})}
    combine = server(RobustMean(Median())).combine_values
    mean = mean_of_blocks(wide, ups, dict.fromkeys(ups, 1), None, combine)
    assert mean["w"].tolist() == [2.0, 7.0, 7.0]  # no client has the third value, which stays
