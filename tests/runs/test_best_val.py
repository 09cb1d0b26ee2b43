"""`checkpoint.keep: [last, best_val]`: the state after the best round by validation is kept, found and opened."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raysim.common.errors import ScenarioError
from raysim.results.client_rows import last_measured
from raysim.results.load import read_clients
from raysim.runs.run import Run, run
from raysim.runs.verify import verify
from tests.conftest import plain_runs
from tests.engine.checkpoint.test_best_val import PEAK
from tests.engine.scenarios import loaded
from tests.runs.test_resume import Cut

KEEP = (*PEAK, "rounds=8", "checkpoint={every: 1, keep: [last, best_val]}")
"""The best round by validation is round 4."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tracking_store: str) -> Run:
    """The run of `KEEP`, which must not be changed."""
    with pytest.MonkeyPatch.context() as patch:
        plain_runs(patch, tracking_store)
        patch.chdir(tmp_path_factory.mktemp("finished"))
        return run(loaded(*KEEP), quiet=True)


def states(of: Run) -> list[dict[str, torch.Tensor]]:
    return [of.client(k, round="best_val").network.state_dict() for k in range(8)]


def assert_same(ours: list[dict[str, torch.Tensor]], theirs: list[dict[str, torch.Tensor]]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_networks_after_the_best_round_are_opened(workplace: Path, finished: Run) -> None:
    kept = finished
    summary = kept.summary
    assert summary["best_val_round"] == summary["checkpoint"]["best_val_round"] == 4
    assert summary["best_val"] == kept.rounds["accuracy/val"][1:].max()
    assert kept.client(0).network.state_dict().keys() == states(kept)[0].keys()

    # The predictions are those that made `accuracy/val` of round 4.
    table = read_clients(kept.folder)
    measured = last_measured(table.filter([t <= 4 for t in table["round"].to_pylist()])).to_pylist()
    for row in measured:
        client = kept.client(row["client"], round="best_val")
        predictions = client.predictions("val")
        assert (predictions["predicted"] == predictions["label"]).sum() == row["val_correct"]
    assert repr(client).endswith(f".client({row['client']}, round='best_val')")
    ours, last = (kept.representations([1], "test", t).value_ND for t in ("best_val", None))
    assert (ours != last).any() and (ours == kept.representations([1], "test", 4).value_ND).all()


def test_a_kill_between_the_best_round_and_the_end_loses_nothing(workplace: Path, finished: Run) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(loaded(*KEEP, "checkpoint.every=3"), quiet=True, trackers=[Cut(7)])
    (folder,) = (workplace / "runs" / "tiny").iterdir()
    short = run(loaded(*PEAK, "rounds=4"), quiet=True)
    assert_same(states(finished), [short.client(k).network.state_dict() for k in range(8)])
    resumed = Run(folder).resume(quiet=True)
    assert resumed.state_digest == finished.state_digest
    assert (resumed.summary["best_val_round"], resumed.summary["best_val"]) == (4, finished.summary["best_val"])
    assert resumed.summary["checkpoint"]["best_val_round"] == 4
    assert_same(states(resumed), states(finished))


def test_a_best_round_that_is_not_kept_says_why(workplace: Path) -> None:
    plain = run(loaded(*PEAK, "rounds=6", "checkpoint.every=1"), quiet=True)
    with pytest.raises(ScenarioError, match=r"checkpoint\.keep"):
        _ = plain.client(0, round="best_val").network
    longer = plain.resume(["rounds=7", "checkpoint.keep=[last, best_val]"], quiet=True)  # too late for round 4
    assert longer.summary["checkpoint"]["best_val_round"] is None
    with pytest.raises(ScenarioError, match="round 4"):
        _ = longer.client(0, round="best_val").network


def test_a_run_without_validation_samples_has_no_best_round(workplace: Path) -> None:
    plain = run(loaded("rounds=1", "data.split=published", "data.partition={name: iid}"), quiet=True)
    assert plain.summary["best_val"] is None
    with pytest.raises(ScenarioError, match="best_val"):
        _ = plain.client(0, round="best_val").network


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_on_ray_the_kept_state_has_the_same_bits_also_after_a_death(workplace: Path) -> None:
    traces = verify(loaded(*PEAK, "rounds=6", "checkpoint.keep=[last, best_val]"), [2], kill=True)
    assert [trace.difference for trace in traces] == [None] * len(traces)
    assert traces[-1].restarts
    assert [trace.best_val for trace in traces] == [traces[0].best_val] * len(traces)
    assert traces[0].best_val is not None and traces[0].best_val[0] == 4
