"""Comparisons of run folders made by hand: groups, measures, differences, and what is said about unfair ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from raysim.common.errors import ScenarioError
from raysim.study.compare import Comparison, compare
from raysim.study.published import Published
from raysim.study.runs import find_runs
from raysim.study.sweep_card import CellCard, SweepCard
from raysim.study.tables import tasks_table, variants_table
from tests.study.runs import make_run, rows_of, variant_rows


def task_rows(comparison: Comparison) -> list[list[str]]:
    table = tasks_table(comparison)
    return [] if table is None else rows_of(table)[1:]


def of(comparison: Comparison, variant: str, measure: str) -> float | None:
    found = comparison.estimate(variant, measure)
    return found.mean if found else None


def test_the_measures_of_one_run(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    (run,) = find_runs([tmp_path])
    assert run.measures([0.3, 0.6, 0.9]) == pytest.approx(
        {
            "last": 0.5, "last_pooled": 0.49, "best": 0.6, "best_participants": 0.7, "worst_decile": 0.4, "std": 0.1,
            "up_mib": 1, "down_mib": 2, "both_mib": 3, "total_mib": 9, "gflop": 1, "total_gflop": 4.5,
            "rounds_to_0.3": 1, "mib_to_0.3": 3, "up_mib_to_0.3": 1, "gflop_to_0.3": 1.5,
            "rounds_to_0.6": 2, "mib_to_0.6": 6, "up_mib_to_0.6": 2, "gflop_to_0.6": 3,
        }
    )  # fmt: skip
    assert run.clients_of("last")["accuracy"].to_pylist() == pytest.approx([0.6, 0.4])


def test_clients_that_dropped_out_are_not_participants(tmp_path: Path) -> None:
    """Three rounds with 1 MiB of uploads each, from 4, 1 and 1 clients."""
    make_run(tmp_path / "a", accuracy=[0.1, 0.2, 0.4, 0.5])
    table = pq.read_table(tmp_path / "a" / "rounds.parquet").drop_columns("engine/participants")
    counted = table.append_column("engine/participants", pa.array([0, 4, 1, 1]))
    pq.write_table(counted, tmp_path / "a" / "rounds.parquet")
    (run,) = find_runs([tmp_path])
    measures = run.measures([0.4])
    assert (measures["up_mib"], measures["down_mib"], measures["gflop"]) == pytest.approx((3 / 6, 6 / 6, 3 / 6))
    assert measures["up_mib_to_0.4"] == pytest.approx(2 * 2 / 5)
    assert type(measures["up_mib"]) is float  # `repr` of a NumPy number would be in comparison.csv


def test_round_0_is_not_the_best(tmp_path: Path) -> None:
    """It is the test before training: a run that begins with the networks of another run may lose accuracy."""
    make_run(tmp_path / "a", accuracy=[0.9, 0.5, 0.7, 0.6], current=[0.9, 0.6, 0.8, 0.7])
    (record,) = find_runs([tmp_path])
    assert (record.measures([])["best"], record.measures([])["best_current"]) == (0.7, 0.8)
    assert record.clients_of("best")["accuracy"].to_pylist() == pytest.approx([0.8, 0.6])


def test_runs_that_differ_in_their_seed_are_one_variant(tmp_path: Path) -> None:
    for seed, last in ((1, 0.5), (2, 0.7), (3, 0.9)):
        make_run(tmp_path / f"s{seed}", seed=seed, accuracy=[0.1, last], resources={"actors": seed}, name=f"n{seed}")
    comparison = compare(tmp_path)
    (variant,) = comparison.variants
    assert variant.name == "fedgh" and not variant.keys
    found = comparison.estimate("fedgh", "last")
    assert found is not None and found.mean == pytest.approx(0.7)
    low, high = stats.t.interval(0.95, 2, loc=0.7, scale=0.2 / math.sqrt(3))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert comparison.notes == []


def test_variants_are_named_by_what_differs(tmp_path: Path) -> None:
    make_run(tmp_path / "a", algorithm={"header_lr": 0.01})
    make_run(tmp_path / "b", algorithm={"header_lr": 0.1})
    make_run(tmp_path / "c", method="standalone", algorithm={})
    names = [variant.name for variant in compare(tmp_path).variants]
    assert names == ["fedgh header_lr=0.01", "fedgh header_lr=0.1", "standalone"]


def test_differences_are_paired(tmp_path: Path) -> None:
    for seed, ours, theirs in ((1, 0.5, 0.4), (2, 0.7, 0.5), (3, 0.6, 0.5)):
        make_run(tmp_path / f"a{seed}", seed=seed, accuracy=[0, ours])
        make_run(tmp_path / f"b{seed}", "standalone", seed, accuracy=[0, theirs])
    comparison = compare(tmp_path, baseline="standalone")
    found = comparison.difference("fedgh", "last")
    test = stats.ttest_rel([0.5, 0.7, 0.6], [0.4, 0.5, 0.5]).confidence_interval(0.95)
    assert found is not None and found.mean == pytest.approx(0.4 / 3)
    assert (found.low, found.high) == (pytest.approx(test.low), pytest.approx(test.high))
    assert comparison.difference("standalone", "last") is None
    rows = comparison.frame.set_index(["variant", "measure"])
    assert rows.loc[("fedgh", "last"), "difference"] == pytest.approx(0.4 / 3)
    assert rows.loc[("fedgh", "last"), "seeds"] == "1 2 3"


def test_runs_on_other_data_are_no_pairs(tmp_path: Path) -> None:
    make_run(tmp_path / "a", partition="x")
    make_run(tmp_path / "b", "standalone", partition="x", data_digest="edited")
    comparison = compare(tmp_path, baseline="standalone")
    assert comparison.difference("fedgh", "last") is None


def test_what_is_unfair_is_said(tmp_path: Path) -> None:
    make_run(tmp_path / "a", seed=1)
    make_run(tmp_path / "b", "standalone", 1, accuracy=[0.1, 0.2], training={"epochs": 5})
    make_run(tmp_path / "b2", "standalone", 4, accuracy=[0.1, 0.2], training={"epochs": 5})
    make_run(tmp_path / "c", "standalone", 2, accuracy=[0.1, 0.2], done=0, training={"epochs": 5})
    make_run(tmp_path / "d", "standalone", 3, accuracy=[0.1, 0.2, 0.3], done=1, training={"epochs": 5})
    notes = "\n".join(compare(tmp_path).notes)
    assert "rounds is 3 (fedgh" in notes and "training.epochs is 1 (fedgh" in notes
    assert "1 of 2 rounds" in notes and "seed 3" in notes and "fewer than 3 seeds" in notes


def test_a_loss_that_is_not_finite_is_said(tmp_path: Path) -> None:
    make_run(tmp_path / "a", losses=[2.0, None, 1.0, 0.5])
    make_run(tmp_path / "b", "fd", losses=[2.0, None, float("nan"), float("inf")])
    (note,) = [note for note in compare(tmp_path).notes if "NaN" in note]
    assert "fd, seed 1" in note and "round 2" in note


def add_facts(folder: Path, **facts: Any) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def test_diverged_and_failed_clients_are_said(tmp_path: Path) -> None:
    add_facts(make_run(tmp_path / "a"), uploads=18, rejected_uploads=18, diverged_clients=6, failed_clients=2)
    add_facts(make_run(tmp_path / "b", "fd"), uploads=18, rejected_uploads=0, diverged_clients=0)
    diverged, failed = [note for note in compare(tmp_path).notes if note.startswith("fedgh, seed 1")]
    assert "6 clients diverged" in diverged and "failed 2 times" in failed


def test_the_last_of_two_runs_counts_in_every_measure(tmp_path: Path) -> None:
    for name, seed, accuracy in (("a", 1, [0.1, 0.9]), ("b", 2, [0.1, 0.9]), ("c", 2, [0.1, 0.2])):
        make_run(tmp_path / name, seed=seed, accuracy=accuracy, partition=f"p{seed}")
    comparison = compare(tmp_path, targets=[0.5, 0.5000001])
    assert comparison.targets == [0.5000001]  # of two that are printed alike, one
    measured = comparison.measured["fedgh"]
    assert measured["last"] == {(1, "d p1"): 0.9, (2, "d p2"): 0.2}
    assert measured["rounds_to_0.5"] == {(1, "d p1"): 1.0}


def test_several_data_sets(tmp_path: Path) -> None:
    for task, data in enumerate(({"name": "digits"}, {"name": "cifar10"})):
        for seed in (1, 2):
            make_run(tmp_path / f"a{task}{seed}", seed=seed, accuracy=[0, 0.5 + 0.1 * seed], data=data)
            make_run(tmp_path / f"b{task}{seed}", "standalone", seed, accuracy=[0, 0.6 + 0.1 * task], data=data)
    comparison = compare(tmp_path, baseline="standalone")
    frame = comparison.over_tasks()
    assert frame is not None
    by_method = frame.set_index("method")
    assert by_method.loc["fedgh", "iqm"] == pytest.approx(0.65)  # of 0.6, 0.6, 0.7, 0.7 the middle two
    assert by_method.loc["standalone", "iqm"] == pytest.approx(0.65)
    assert list(by_method["tasks"]) == [2, 2]
    # On digits both seeds are level or better (0.6 = 0.6 counts half, 0.7 > 0.6), on CIFAR-10 the reverse.
    assert by_method.loc["fedgh", "probability_of_improvement"] == pytest.approx((0.75 + 0.25) / 2)
    assert (tasks := tasks_table(comparison)) is not None and rows_of(tasks) == [
        ["method", "tasks", "IQM", "P(better than standalone)"],
        ["fedgh", "2", "65.00", "0.50"],
        ["standalone", "2", "65.00", "-"],
    ]
    found = comparison.difference("fedgh data.name=cifar10", "last")
    assert found is not None and found.mean == pytest.approx(-0.05)


def test_folders_without_runs(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no run found"):
        compare(tmp_path)
    with pytest.raises(ScenarioError, match="missing"):
        compare(tmp_path / "missing")


def sweep_of(folder: Path, **changes: Any) -> None:
    """Two cells, the second with other models, as a method asks for that needs one architecture."""
    accuracy = Published("X, Table 1", 2, "last", 0.52)
    for seed in (1, 2):
        make_run(folder / f"z-ours-{seed}" / "run", seed=seed, accuracy=[0, 0.5])
        fedavg = {"clients": {"count": 2, "participation": 0.5, "models": ["a"]}}
        make_run(folder / f"theirs-{seed}" / "run", "fedavg", seed, [0, 0.25], algorithm={}, **fedavg)
    cells = {f"z-ours-{seed}": CellCard("Ours", (accuracy,)) for seed in (1, 2)}
    cells |= {f"theirs-{seed}": CellCard("Theirs") for seed in (1, 2)}
    SweepCard("about it", cells, **{"baseline": "fedavg", "targets": [0.3], **changes}).write(folder)


def test_a_sweep_brings_names_baseline_targets_and_published_values(tmp_path: Path) -> None:
    sweep_of(tmp_path)
    comparison = compare(tmp_path)
    assert [variant.name for variant in comparison.variants] == ["Ours", "Theirs"]
    assert (comparison.baseline, list(comparison.targets)) == ("fedavg", [0.3])
    difference = comparison.difference("Ours", "last")
    assert difference is not None and (difference.mean, difference.n) == (0.25, 2)
    head, ours, theirs = variant_rows(comparison, ["last"], {"last"})
    assert head == ["variant", "n", "final accuracy", "published", "vs fedavg"]
    assert ours == ["Ours", "2", "50.00", "52.00", "+25.00"]
    assert theirs == ["Theirs", "2", "25.00", "-", "-"]
    assert comparison.frame.set_index(["variant", "measure"]).loc[("Ours", "last"), "published"] == 0.52
    assert any(
        note.startswith("unequal settings: clients.models is ") and "(fedavg)" in note for note in comparison.notes
    )


def test_a_sweep_says_whose_accuracy_must_reach_a_target(tmp_path: Path) -> None:
    sweep_of(tmp_path, targets=[0.55])  # all clients reach 0.5, a round's participants 0.1 more
    assert compare(tmp_path).estimate("Ours", "rounds_to_0.55") is None
    sweep_of(tmp_path / "same", targets=[0.55], targets_on="participants")
    comparison = compare(tmp_path / "same")
    reached = comparison.estimate("Ours", "rounds_to_0.55")
    assert reached is not None and (reached.mean, reached.n) == (1, 2)
    assert "accuracy/participants" in variants_table(comparison).legend


def test_cells_without_a_run_are_counted(tmp_path: Path) -> None:
    sweep_of(tmp_path / "s")
    assert not any("missing" in note for note in compare(tmp_path).notes)
    SweepCard("", {"x": CellCard("X"), "y-1": CellCard("Y"), "y-2": CellCard("Y")}).write(tmp_path / "s")
    (note,) = [note for note in compare(tmp_path).notes if "missing" in note]
    assert "3 of 7 cells" in note and note.endswith("X, Y")


def test_an_earlier_run_that_failed_is_not_reported_as_the_result(tmp_path: Path) -> None:
    make_run(tmp_path / "a" / "1", done=1)
    assert any("interrupted after 1 of 3 rounds" in note for note in compare(tmp_path).notes)
    make_run(tmp_path / "a" / "2")
    notes = compare(tmp_path).notes
    assert not any("interrupted" in note for note in notes)


def test_runs_of_one_seed_on_other_data_all_count(tmp_path: Path) -> None:
    make_run(tmp_path / "a", partition="x")
    make_run(tmp_path / "b", partition="y")
    make_run(tmp_path / "c", partition="x")
    comparison = compare(tmp_path)
    assert len(comparison.variants[0].counted) == 2
    assert any(note.startswith("no confidence intervals") for note in comparison.notes)
    make_run(tmp_path / "d", partition="z")
    three = compare(tmp_path)
    assert not any(note.startswith("no confidence intervals") for note in three.notes)
    assert (found := three.estimate("fedgh", "last")) is not None and found.low is not None


def test_a_later_run_that_failed_does_not_replace_a_finished_one(tmp_path: Path) -> None:
    make_run(tmp_path / "1", accuracy=[0.1, 0.5])
    make_run(tmp_path / "2", accuracy=[0.1, 0.2], done=1)
    assert of(compare(tmp_path), "fedgh", "last") == 0.5
    make_run(tmp_path / "3", accuracy=[0.1, 0.6])
    assert of(compare(tmp_path), "fedgh", "last") == 0.6


def test_a_baseline_whose_settings_are_told_is_found_by_its_short_name(tmp_path: Path) -> None:
    for method, rate in (("standalone", 0.1), ("fd", 0.1), ("fd", 9.0)):
        make_run(tmp_path / f"{method}{rate}", method, training={"epochs": 1, "batch_size": 8, "lr": rate})
    assert compare(tmp_path, baseline="standalone").baseline == "standalone lr=0.1"
    with pytest.raises(ScenarioError, match=r"--baseline: fd given; allowed: fd lr=0.1, fd lr=9.0, standalone lr=0.1"):
        compare(tmp_path, baseline="fd")


def test_p_values_are_corrected_for_all_variants(tmp_path: Path) -> None:
    """The differences of fd and fml are significant by themselves, that of fml no more for one of four."""
    against = [0.5, 0.6, 0.7]
    gains = {
        "fd": [0.05, 0.07, 0.06],
        "fedgh": [0.01, -0.02, 0.02],
        "hks": [0.03, 0.0, -0.01],
        "fml": [0.1, 0.16, 0.11],
    }
    for i, seed in enumerate((1, 2, 3)):
        make_run(tmp_path / f"s{seed}", "standalone", seed, [0, against[i]])
        for method, gain in gains.items():
            make_run(tmp_path / f"{method}{seed}", method, seed, [0, against[i] + gain[i]])
    comparison = compare(tmp_path, baseline="standalone")
    raw = {m: stats.ttest_1samp(gain, 0).pvalue for m, gain in gains.items()}
    assert sorted(raw, key=raw.__getitem__)[:2] == ["fd", "fml"] and raw["fml"] < 0.05
    found = comparison.p_values["last"]
    assert found == {
        "fd": pytest.approx(4 * raw["fd"]), "fml": pytest.approx(3 * raw["fml"]),
        "fedgh": pytest.approx(min(1, 2 * min(raw["fedgh"], raw["hks"]))),
        "hks": pytest.approx(min(1, 2 * min(raw["fedgh"], raw["hks"]))),
    }  # fmt: skip
    head, *body = variant_rows(comparison, ["last"], {"last"})
    assert head == ["variant", "n", "final accuracy", "vs standalone", "p (Holm)"]
    assert {row[0]: row[-1] for row in body} == {
        "fd": f"{4 * raw['fd']:.3f} *", "fml": f"{3 * raw['fml']:.3f}", "fedgh": "1.000", "hks": "1.000",
        "standalone": "-",
    }  # fmt: skip
    frame = comparison.frame.set_index(["variant", "measure"])
    assert frame.loc[("fml", "last"), "p_holm"] == pytest.approx(3 * raw["fml"])


def test_costs_to_a_target_that_some_runs_miss_have_no_mean(tmp_path: Path) -> None:
    """The one fast run of fd would make it look three times as fast as fedgh, whose runs all get there."""
    for seed, (slow, fast) in enumerate((([0, 0.1, 0.1, 0.6], [0, 0.6, 0.6, 0.6]), *[([0, 0, 0, 0.7], [0] * 4)] * 2)):
        make_run(tmp_path / f"a{seed}", "fedgh", seed, slow, virtual_s=2.0)
        make_run(tmp_path / f"b{seed}", "fd", seed, fast)
        make_run(tmp_path / f"c{seed}", "hks", seed, [0] * 4, virtual_s=2.0)
    comparison = compare(tmp_path, targets=[0.5], baseline="fd")
    costs = [f"{what}_to_0.5" for what in ("rounds", "mib", "virtual_s")]
    assert variant_rows(comparison, costs, ())[1:] == [
        ["fedgh", "3", "3", "9", "6"],
        ["fd", "3", "1 of 3", "1 of 3", "1 of 3"],
        ["hks", "3", "0 of 3", "0 of 3", "0 of 3"],
    ]
    assert comparison.reached("fd", "mib_to_0.5") == (1, 3)
    assert comparison.estimate("fd", "rounds_to_0.5") is None
    assert comparison.difference("fedgh", "rounds_to_0.5") is None
    frame = comparison.frame.set_index(["variant", "measure"])
    of_fd = frame.loc[("fd", "rounds_to_0.5")]
    assert (of_fd["n"], of_fd["runs"], of_fd["values"]) == (1, 3, "1.0") and of_fd["mean"] != of_fd["mean"]
    assert list(frame.loc[("hks", "rounds_to_0.5"), ["n", "runs"]]) == [0, 3]


def test_no_difference_of_a_cost_that_not_all_runs_of_either_have(tmp_path: Path) -> None:
    for seed, last in ((1, 0.6), (2, 0.6), (3, 0.4)):
        make_run(tmp_path / f"a{seed}", seed=seed, accuracy=[0, last])
        make_run(tmp_path / f"b{seed}", "standalone", seed, accuracy=[0, 0.6])
    for baseline, other in (("standalone", "fedgh"), ("fedgh", "standalone")):
        comparison = compare(tmp_path, targets=[0.5], baseline=baseline)
        assert comparison.difference(other, "rounds_to_0.5") is None
        assert other not in comparison.p_values["rounds_to_0.5"]


def test_own_methods_are_called_by_their_classes(tmp_path: Path) -> None:
    for seed in (1, 2):
        for called in ("Mine", "Other"):
            make_run(tmp_path / f"{called}{seed}", f"mine.py:{called}", seed, algorithm={}, called=called)
        make_run(tmp_path / f"b{seed}", "standalone", seed, algorithm={})
    assert [variant.name for variant in compare(tmp_path).variants] == ["Mine", "Other", "standalone"]
    for given in ("Mine", "mine.py:Mine", "./somewhere/mine.py:Mine"):
        comparison = compare(tmp_path, baseline=given)
        assert comparison.baseline == "Mine"
        assert [variant.is_baseline for variant in comparison.variants] == [True, False, False]
    with pytest.raises(ScenarioError, match=r"--baseline: mine\.py given; allowed: Mine, Other, standalone"):
        compare(tmp_path, baseline="mine.py")
    make_run(tmp_path / "twin", "twin.py", 1, algorithm={}, called="Mine")
    assert [variant.name for variant in compare(tmp_path).variants] == ["Mine", "Other", "standalone", "Mine-2"]


def test_a_run_that_ended_early_is_not_called_unfinished(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path / str(seed), seed=seed)
    early = make_run(tmp_path / "3", seed=3, done=2)
    summary = json.loads((early / "summary.json").read_text())
    reason = "accuracy/val reached 0.6 in round 2 (target 0.6)"
    (early / "summary.json").write_text(json.dumps({**summary, "status": "finished", "ended_early": reason}))
    (note,) = [note for note in compare(tmp_path).notes if "of 3 rounds" in note]
    assert note.endswith("seed 3: ended early after 2 of 3 rounds")


def test_the_mean_over_tasks_counts_the_seeds_that_a_method_has_on_every_task(tmp_path: Path) -> None:
    """Else a method whose runs on the hard task are not done yet would look better."""
    for data, level in (("digits", 0.9), ("cifar10", 0.3)):
        for seed in (1, 2, 3):
            make_run(tmp_path / f"b{data}{seed}", "standalone", seed, [0, level], data={"name": data})
            if data == "digits" or seed == 1:
                make_run(tmp_path / f"a{data}{seed}", "fedgh", seed, [0, level], data={"name": data})
    rows = task_rows(compare(tmp_path, baseline="standalone"))
    assert [row[2] for row in rows] == ["60.00", "60.00"]
    assert [row[3] for row in rows if row[0] == "fedgh"] == ["0.50"]  # of all runs


def test_clients_that_have_not_taken_part_are_counted(tmp_path: Path) -> None:
    make_run(tmp_path / "few", "fedgh", absent=1)
    make_run(tmp_path / "all", "fedavg")
    head, *rows = rows_of(variants_table(compare(tmp_path)))
    assert {row[0]: list(row[2:4]) for row in rows} == {"fedgh": ["50.00", "70.00"], "fedavg": ["50.00", "-"]}
    assert head[3] == "final, took part"
