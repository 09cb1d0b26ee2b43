"""The benchmark compares like with like, and reads memory right. Nothing here looks at a clock."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import handwritten
import overhead
import pytest

import raysim

TINY = replace(
    overhead.W2,
    name="tiny",
    clients=20,
    participants=10,
    models=("digits_mlp64", "digits_mlp128"),
    partition={"name": "resample", "samples_per_client": 70},  # two full batches and a short one
    lr=0.5,
)
ROUNDS = 3


@pytest.mark.large
def test_handwritten_loop_and_raysim_do_the_same_steps(workplace: Path) -> None:
    """The same clients train on as many samples and come out with the same models.

    Both draw the same numbers and take the same steps, so scores agree but for the last bits of a header,
    which are summed in another order: one of the few test samples may fall the other way, losses may not
    differ by more than rounding. A step too many or another batch would move them in the second digit.
    """
    loop = handwritten.Loop(TINY, processes=2)
    try:
        ours = [score for t in range(1, ROUNDS + 1) for score in loop.round(t)]
    finally:
        loop.close()
    told = overhead.scenario(TINY, ROUNDS, 1, workplace) | {"backend": "in_process"}
    del told["resources"], told["tracking"]
    notes = overhead.Notes()
    raysim.run(raysim.Scenario.load(told), quiet=True, trackers=[notes])
    rows = [row for round_rows in notes.rows for row in round_rows]

    def counted(value: int | None) -> int:
        assert value is not None
        return value

    assert [score.client for score in ours] == [row.client for row in rows]
    assert [score.samples for score in ours] == [row.train_samples for row in rows]
    assert [score.tested for score in ours] == [row.total for row in rows]
    assert [score.train_loss for score in ours] == pytest.approx([row.train_loss for row in rows], rel=1e-4)
    mean = [score.test_loss / score.tested for score in ours]
    assert mean == pytest.approx([row.loss for row in rows], rel=1e-4)
    assert all(abs(score.correct - counted(row.correct)) <= 1 for score, row in zip(ours, rows, strict=True))
    assert all(abs(score.val_correct - counted(row.val_correct)) <= 1 for score, row in zip(ours, rows, strict=True))
    # And they learn: rounds 1 and 3 have other participants, but share a header.
    k = TINY.participants
    assert sum(score.train_loss for score in ours[-k:]) < 0.9 * sum(score.train_loss for score in ours[:k])


@pytest.mark.large
def test_pss_counts_descendants() -> None:
    alone = overhead.tree_pss_gb(os.getpid())
    assert 0.01 < alone < 50
    # 300 MB that is written to, so that it is resident.
    code = "held = b'x' * 300_000_000; print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        with_child = overhead.tree_pss_gb(os.getpid())
        child.communicate("\n")
    assert 0.25 < with_child - alone < 0.5
    assert overhead.tree_pss_gb(child.pid) == 0.0  # gone, and no error


def test_slope_is_per_hundred_rounds_between_the_start_and_the_end() -> None:
    sampler = overhead.MemorySampler(overhead.Arrivals())
    sampler.samples = [(t, 1.0 if t < 40 else 2.0 + 0.001 * t) for t in range(0, 100, 10)]
    sampler.samples.append((100, 0.5))  # actors have ended
    assert sampler.slope_gb == pytest.approx((0.1, 0.0))
    assert sampler.peak_gb == pytest.approx(2.09)
    # By hand: errors 1/3, -2/3 and 1/3 leave a variance of 2/3 at one degree of freedom; 10² + 10² = 200 in rounds.
    sampler.samples = [(20, 1.0), (30, 0.0), (40, 1.0), (50, 9.0)]
    assert sampler.slope_gb == pytest.approx((0.0, 100 * 12.7062 * (2 / 3 / 200) ** 0.5), rel=1e-4, abs=1e-9)
    sampler.samples = []
    assert sampler.slope_gb is None
