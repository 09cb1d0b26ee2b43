"""docs/results.md says what the measured runs beside it gave: each number of its tables follows from its CSV files."""

from __future__ import annotations

import csv
import importlib
import re
import runpy
import shlex
from collections.abc import Callable
from functools import partial
from math import comb
from pathlib import Path
from statistics import fmean

import matplotlib
import pytest
from scipy.stats import spearmanr

from raysim.algorithms.fedclassavg import FedClassAvg
from raysim.algorithms.fedssa import FedSSA
from raysim.algorithms.standalone import Standalone
from raysim.comparison.statistics import Estimate, estimate, holm, paired_difference, paired_p_value
from raysim.contract.trial import Trial
from raysim.core.algorithm import AnyAlgorithm
from raysim.core.state import digest
from raysim.sweeps.cells import chosen_cells
from raysim.sweeps.definition import load_sweep
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "results.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())
FOLDER = REPOSITORY / "docs" / "results"
HKS_AGAIN = FOLDER / "hks_all_again.csv"
CLASSES = " data.partition.classes_per_client="
ALONE = {
    "FedMD": "Standalone, five networks",
    "FedMD, transfer learning": "Standalone, five networks",
    "FedDF": "Standalone, five networks",
    "HeteroFL": "Standalone, three widths",
    "FedGKT": "Standalone, two ResNets",
}
"""Method -> the runs with the same networks that learn alone, where they are not called Standalone."""
NUMBERS = dict(
    enumerate(["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"], 2)
)
QUOTED = ("fedtgp", "fedclassavg", "fedkd", "fd")
"""Methods whose accuracies before and after tuning the text compares."""


def section(sweep: str) -> str:
    """The section that links to this sweep's file."""
    (found,) = [part for part in PAGE.split("\n## ") if f"(results/{sweep}.csv)" in part]
    return found


def table(sweep: str, number: int = 0) -> list[list[str]]:
    """The cells of a table in the sweep's section, without its header."""
    rows = re.findall(r"(?:^\| .*\n)+", section(sweep), re.MULTILINE)[number].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def values(path: Path, variant: str, measure: str) -> dict[str, float]:
    """Seed -> the measure, accuracies in per cent."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["variant"] == variant]
    assert rows, variant
    return {row["seed"]: float(row[measure]) * (1 if measure == "total_mib" else 100) for row in rows}


def variants(path: Path) -> list[str]:
    """The variants of a file, each once."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(dict.fromkeys(row["variant"] for row in csv.DictReader(file)))


def cell(found: Estimate | None, sign: str = "") -> str:
    assert found is not None
    half = "" if found.half_width is None else f" ± {found.half_width:.2f}"
    return f"{found.mean:{sign}.2f}{half}"


def expected(path: Path, variant: str, alone: str, measures: list[str]) -> list[str]:
    """Each measure, and what the first is above the runs alone."""
    cells = [cell(estimate(list(values(path, variant, measure).values()))) for measure in measures]
    if variant == alone:
        return [*cells, "-"]
    first = measures[0]
    return [*cells, cell(paired_difference(values(path, variant, first), values(path, alone, first)), "+")]


def test_digits() -> None:
    path = FOLDER / "digits.csv"
    found = table("digits")
    assert len(found) == 16
    for method, *cells in found:
        assert cells == [
            text
            for count in (2, 3, 5)
            for text in expected(path, f"{method}{CLASSES}{count}", f"standalone{CLASSES}{count}", ["last"])
        ]


def test_digits_after_correction() -> None:
    path = FOLDER / "digits.csv"
    compared = {
        f"{method} {count}": tuple(values(path, f"{name}{CLASSES}{count}", "last") for name in (method, "standalone"))
        for method, *_ in table("digits")
        if method != "standalone"
        for count in (2, 3, 5)
    }
    assert len(compared) == 45
    difference = {name: paired_difference(*pair) for name, pair in compared.items()}
    gains = {name for name, found in difference.items() if found and found.low is not None and found.low > 0}
    assert gains == {"fedgh 2", "fedapen 5", "fedcache 5", "dc_pfl 5"}
    p = holm({name: paired_p_value(*pair) or 0.0 for name, pair in compared.items()})
    assert min(p[name] for name in gains) >= 0.60 and "are 0.60 or more" in PAGE
    assert {name for name in p if p[name] < 0.05} == {"fedtgp 2", "fedtgp 3", "fedtgp 5", "fd 3", "fd 5"}
    assert "FedTGP's with 2, 3 and 5 classes, and FD's with 3 and 5" in PAGE


def test_digits_tuned() -> None:
    path = FOLDER / "digits_tuned.csv"
    with path.open(encoding="utf-8", newline="") as file:
        chosen = {row["variant"]: row["tuned"] for row in csv.DictReader(file)}
    found = [row for number in range(3) for row in table("digits_tuned", number)]
    assert len(found) == len(chosen) == 48
    compared = {}
    for i, (method, tuned, *cells) in enumerate(found):
        count = (2, 3, 5)[i // 16]
        variant, alone = f"{method}{CLASSES}{count}", f"standalone{CLASSES}{count}"
        assert tuned.replace("\\_", "_") == chosen[variant].replace("training.", "").replace("algorithm.", "")
        assert cells == expected(path, variant, alone, ["last", "at_best_val"])
        if variant != alone:
            compared[f"{method} {count}"] = (values(path, variant, "last"), values(path, alone, "last"))
    p_values = {name: paired_p_value(*pair) or 0.0 for name, pair in compared.items()}
    of_2, of_3, of_5 = (holm({name: p for name, p in p_values.items() if name.endswith(count)}) for count in "235")
    assert [f"{of_2[name]:.2f}" for name in ("fedclassavg 2", "fedavg 2")] == ["0.61", "0.67"]
    assert "corrected for 15 comparisons, are 0.61 and 0.67" in WORDS
    assert f"{min(of_3.values()):.2f}" == "0.43" and "corrected for 15 comparisons, is 0.43" in WORDS
    assert [f"{of_5[name]:.3f}" for name in ("dc_pfl 5", "fedapen 5")] == ["0.018", "0.035"]
    assert f"{of_5['fedkd 5']:.2f}" == "0.60" and sorted(of_5.values())[2] == of_5["fedkd 5"]
    of_all = holm(p_values)
    assert [f"{of_all[name]:.3f}" for name in ("dc_pfl 5", "fedapen 5")] == ["0.053", "0.110"]
    assert sorted(of_all, key=of_all.__getitem__)[:2] == ["dc_pfl 5", "fedapen 5"]
    by_val = {
        name: paired_p_value(*(values(path, f"{one}{CLASSES}5", "at_best_val") for one in (name, "standalone"))) or 0.0
        for name in {row[0] for row in found} - {"standalone"}
    }
    chosen_round = [f"{holm(by_val)[name]:.3f}" for name in ("dc_pfl", "fedapen")]
    assert "The smallest p-values are 0.053 for DC-PFL and 0.110 for FedAPEN, both with 5 classes." in WORDS
    words = "they are 0.018 and 0.035, and with the accuracies in the round of greatest validation accuracy"
    assert f"{words} {chosen_round[0]} and {chosen_round[1]}." in WORDS
    ranks = []
    for count in (2, 3, 5):
        means = [
            [fmean(values(file, f"{row[0]}{CLASSES}{count}", "last").values()) for row in found[:16]]
            for file in (FOLDER / "digits.csv", path)
        ]
        ranks.append(spearmanr(*means).statistic)
    assert "before and after tuning is {:.2f}, {:.2f} and {:.2f} with 2, 3 and 5 classes".format(*ranks) in WORDS
    difference = {name: paired_difference(*pair) for name, pair in compared.items()}
    gains = {name for name, one in difference.items() if one and one.low is not None and one.low > 0}
    assert gains == {"fedclassavg 2", "dc_pfl 3", "dc_pfl 5", "fedapen 5", "fedkd 5"}
    assert [name for name, one in difference.items() if one and one.high is not None and one.high < 0] == ["fedavg 2"]
    assert len(difference) == 45 and "Only six of the 45 tuned differences to Standalone have an interval" in WORDS
    tuned_fd = [difference[f"fd {count}"] for count in (2, 3, 5)]
    assert all(one and one.mean >= 0 for one in tuned_fd) and "Tuned, FD is not below Standalone" in WORDS
    quoted = [
        f"{sum(one.values()) / len(one):.2f}"
        for count in (3, 5)
        for file in (FOLDER / "digits.csv", path)
        for one in (values(file, f"{name}{CLASSES}{count}", "last") for name in QUOTED)
    ]
    (section,) = [part for part in PAGE.split("\n## ") if part.startswith("Digits, tuned")]
    (claim,) = [line for line in section.replace("\n  ", " ").splitlines() if "**Tuning changes" in line]
    assert re.findall(r"\d\d\.\d\d", claim) == quoted


@pytest.mark.parametrize(
    ("sweep", "count", "measures"),
    [
        ("cifar100", 8, ["best_participants", "last", "at_best_val", "total_mib"]),
        ("cifar100_published", 12, ["best_participants", "last", "at_best_val", "total_mib"]),
        ("public", 8, ["last", "at_best_val", "total_mib"]),
    ],
)
def test_the_others(sweep: str, count: int, measures: list[str]) -> None:
    rows = table(sweep)
    assert len(rows) == count
    for variant, *cells in rows:
        alone = ALONE.get(variant, "Standalone" if not variant.startswith("Standalone") else variant)
        assert cells[: len(measures) + 1] == expected(FOLDER / f"{sweep}.csv", variant, alone, measures)


@pytest.mark.parametrize(
    ("sweep", "last"), [("cifar100", 500), ("cifar100_published", 200), ("cifar100_published_500", 500)]
)
def test_every_round(sweep: str, last: int) -> None:
    """The file with every round agrees with the file with the results."""
    rows = every_round(sweep)
    results = FOLDER / f"{sweep}.csv"
    assert list(dict.fromkeys(row["variant"] for row in rows)) == variants(results)
    for name in variants(results):
        mine = [row for row in rows if row["variant"] == name]
        assert [int(row["round"]) for row in mine] == list(range(1, last + 1))
        chosen = max(mine, key=lambda row: float(row["val"]))
        for measure, value in (
            ("last", mine[-1]["all"]),
            ("best_participants", max(row["participants"] for row in mine)),
            ("at_best_val", chosen["all"]),
        ):
            assert 100 * float(value) == pytest.approx(values(results, name, measure)["1"], abs=1e-4)


def test_500_rounds_of_10_epochs() -> None:
    name = "cifar100_published_500"
    words = " ".join(section(name).split())
    measures = ["best_participants", "last", "at_best_val", "total_mib"]
    for variant, *cells in table(name):
        assert cells[:4] == [f"{values(FOLDER / f'{name}.csv', variant, one)['1']:.2f}" for one in measures]
        command = "raysim sweep scenarios/sweeps/cifar100_published.yaml --set rounds=500"
        assert re.search(rf"{command}( --only \S+| \\)* --only {variant} ", words)
    of = {variant: [row for row in every_round(name) if row["variant"] == variant] for variant, *_ in table(name)}
    assert f"So far, {NUMBERS[len(of)]} of the twelve methods have been run" in words
    for variant, rows in of.items():
        short = [row for row in every_round("cifar100_published") if row["variant"] == variant]
        assert rows[:200] == short, "the text says that they are equal"
    early, late = ({variant: mean_of_all(rows[slice(*some)]) for variant, rows in of.items()}
                   for some in ((150, 200), (450, 500)))  # fmt: skip
    best_200, best = ({variant: best_round(rows[:count]) for variant, rows in of.items()} for count in (200, 500))
    for variant, *cells in table(name, 1):
        gains = [f"{mean[variant] - mean['Standalone']:+.2f}" for mean in (early, late)]
        assert cells == [
            f"{early[variant]:.2f}", f"{late[variant]:.2f}", *(gains if variant != "Standalone" else "--"),
            *("{:.2f} (round {})".format(*one[variant]) for one in (best_200, best)),
        ]  # fmt: skip
    assert [variant for variant, *_ in table(name, 1)] == list(of)
    rises = sorted(late[variant] - early[variant] for variant in of)
    assert f"**The means rise by {rises[0]:.1f} to {rises[-1]:.1f} points.**" in words
    of_best = {variant: best[variant][0] - best_200[variant][0] for variant in of}
    assert [variant for variant in of if of_best[variant] < late[variant] - early[variant]] == ["FedGH"]
    of_fedgh, *others = sorted(of_best.values())
    text = (
        f"rise more than their means**, by {others[0]:.1f} to {others[-1]:.1f} points; FedGH's rises by {of_fedgh:.1f}."
    )
    assert text in words and of_fedgh == of_best["FedGH"]
    assert f"So all {NUMBERS[len(of)]} are above all values that the papers print in this column" in words
    smaller = [variant for variant in of if late[variant] - late["Standalone"] < early[variant] - early["Standalone"]]
    assert smaller == ["FedSSA", "FedProto", "FedRAL"] and late["FedRAL"] < late["Standalone"]
    text = "The gains of FedSSA and FedProto over Standalone shrink, and FedRAL falls further behind; the gains of"
    assert f"{text} LG-FedAvg and FedGH do not shrink." in words
    assert best["FedGH"][0] < best["Standalone"][0] and late["FedGH"] > late["Standalone"]
    assert best_200["FedGH"][0] > best_200["Standalone"][0] and early["FedGH"] > early["Standalone"]
    below = [best["FedProto"][0] - best["FedSSA"][0], late["FedProto"] - late["FedSSA"]]
    assert "below FedProto** by {:.2f} points (best round) and {:.2f} (last 50 rounds)".format(*below) in words
    assert "{:.2f} and {:.2f} compared with FedProto |".format(*(-one for one in below)) in PAGE
    for variant in ("FedSSA", "FedRAL", "FedGH"):
        gap, end = best[variant][0] - best["Standalone"][0], late[variant] - late["Standalone"]
        summary = next(
            line for line in PAGE.splitlines() if line.startswith(f"| {variant} | ") and "above Standalone" in line
        )
        assert f"After 500 rounds of 10 epochs: {gap:+.2f} (best round) and {end:+.2f} (last 50 rounds)" in summary
    published = {variant: float(cells[-1]) for variant, *cells in table(name) if cells[-1] != "-"}
    above = sorted(best[variant][0] - value for variant, value in published.items())
    assert f"The best rounds are {above[0]:.1f} to {above[-1]:.1f} points above the published values." in words
    apart = sorted(100 * float(of[variant][-1]["all"]) - value for variant, value in published.items())
    text = f"are between {-apart[0]:.1f} points below and {apart[-1]:.1f} above them"
    assert f"The means of all clients after the last round {text}." in words
    highest = max(float(cells[-1]) for _, *cells in table("cifar100_published") if cells[-1] != "-")
    assert min(one for one, _ in best.values()) > highest == 58.70


def test_how_much_the_instructions_change() -> None:
    of = {(row["variant"], row["round"]): 100 * float(row["all"]) for row in every_round("cifar100_published")}
    apart: dict[str, list[float]] = {"Standalone": [], "FedSSA": []}
    for row in every_round("avx512"):
        apart[row["variant"]].append(abs(100 * float(row["all"]) - of[row["variant"], row["round"]]))
    assert [len(rounds) for rounds in apart.values()] == [126, 126]
    mean, most = ([f(rounds) for rounds in apart.values()] for f in (fmean, max))
    assert "differs by {:.2f} (Standalone) and {:.2f} points (FedSSA) on average".format(*mean) in WORDS
    assert "and by at most {:.2f} and {:.2f}.".format(*most) in WORDS


def test_fedtgp_falls() -> None:
    rows = every_round("cifar100_published")
    fedtgp = [(100 * float(row["all"]), row["round"]) for row in rows if row["variant"] == "FedTGP"]
    (highest, when), (last, end) = max(fedtgp), fedtgp[-1]
    assert f"is highest after round {when} ({highest:.2f}). After round {end}, it is {last:.2f}." in WORDS


def test_possible_causes_of_fedgh() -> None:
    of: dict[str, list[float]] = {}
    tried = every_round("cifar100_causes")
    for row in [*tried, *(row for row in every_round("cifar100") if int(row["round"]) <= 200)]:
        of.setdefault(row["variant"], []).append(100 * float(row["all"]))
    expected, means = [], []
    for name in ("FedGH", *dict.fromkeys(row["variant"] for row in tried)):
        away = [one - alone for one, alone in zip(of[name], of["Standalone"], strict=True)]
        means.append(fmean(away[100:]))
        setting = name.removeprefix("FedGH, 1 epoch, ") if "," in name else "default"
        expected.append([setting, f"{min(away):.2f}", str(1 + away.index(min(away))), f"{means[-1]:.2f}"])
        if "," in name:
            assert of[name][-1] == pytest.approx(values(FOLDER / "cifar100_causes.csv", name, "last")["1"], abs=1e-4)
    assert table("cifar100_causes") == expected
    assert f"it is {means[1] - means[0]:.2f} points smaller on average" in WORDS
    file = load_sweep(REPOSITORY / "scenarios" / "sweeps" / "cifar100_causes.yaml")
    assert {cell.label for cell in file.cells} - of.keys() == {"FedTGP, lambda_ 0.1", "Standalone, CNN-5"}


def test_readings_of_fedral() -> None:
    of: dict[str, list[float]] = {}
    for row in every_round("fedral_choices"):
        of.setdefault(row["variant"], []).append(100 * float(row["all"]))
    assert {len(rounds) for rounds in of.values()} == {30}
    ends = {}
    rows = table("fedral_choices")
    for name, *cells in rows:
        alone = of["Standalone, own first weights" if name == "own first weights" else "Standalone"]
        after, ends[name] = of[name][-1] - alone[-1], fmean(of[name][-10:]) - fmean(alone[-10:])
        assert cells == [f"{of[name][-1]:.2f}", f"{after:+.2f}", f"{ends[name]:+.2f}"], name
        assert of[name][-1] == pytest.approx(values(FOLDER / "fedral_choices.csv", name, "last")["1"], abs=1e-4)
    assert of.keys() == {*ends, "Standalone", "Standalone, own first weights"}
    own = ends.pop("own first weights")
    assert f"FedRAL is {-max(ends.values()):.2f} to {-min(ends.values()):.2f} points below Standalone over" in WORDS
    assert f"as the paper says, FedRAL is {own:.2f} above." in WORDS
    assert f"10 epochs and 30 rounds: {min(ends.values()):.2f} to {own:+.2f} |" in WORDS
    apart = abs(of["as chosen"][-1] - of["inference without a matrix"][-1])
    assert f"the clients differ by {apart:.2f} points after round 30" in WORDS
    with (FOLDER / "fedral_choices.csv").open(encoding="utf-8", newline="") as file:
        digests = {row["variant"]: row["digest"] for row in csv.DictReader(file)}
    assert digests["as chosen"] == digests["inference without a matrix"] and len(set(digests.values())) == 7
    file = load_sweep(REPOSITORY / "scenarios" / "papers" / "fedral" / "choices.yaml")
    named = {cell.name.partition(" seed=")[0] for cell in file.cells}
    assert named - of.keys() == {"different blocks, naive mean", "inference by own blocks"}


def test_late_starts() -> None:
    late, own = every_round("late_start"), every_round("cifar100_published")
    assert {int(row["round"]) for row in late} == set(range(1, 41))
    said = [
        f"{100 * float(late_row['all']):.2f} instead of {100 * float(row['all']):.2f} with {row['variant']}"
        for row in own
        for late_row in late
        if late_row["variant"] == f"{row['variant']}, late start" and late_row["round"] == row["round"] == "40"
    ]
    assert len(said) == 2 and all(sentence in WORDS for sentence in reversed(said))

    def gain(rows: list[dict[str, str]], kind: str, column: str, chosen: Callable[[list[float]], float]) -> float:
        one, other = (
            chosen([100 * float(row[column]) for row in rows if row["variant"] == f"{name}{kind}"][:40])
            for name in ("FedSSA", "Standalone")
        )
        return one - other

    both = (own, ""), (late, ", late start")
    words = "FedSSA's gain grows from {:.1f} to {:.1f} points".format(
        *(gain(*of, "all", lambda x: x[-1]) for of in both)
    )
    best = [gain(*of, "participants", max) for of in both]
    assert f"{words}. By the best of these 40 rounds, it is {best[1]:.1f} instead of {best[0]:.1f}" in WORDS


def test_how_the_gain_of_fedssa_and_the_accuracy_of_fml_change() -> None:
    of: dict[str, list[float]] = {}
    for row in every_round("cifar100_published"):
        of.setdefault(row["variant"], []).append(100 * float(row["all"]))
    early, end = (of["FedSSA"][t - 1] - of["Standalone"][t - 1] for t in (40, 200))
    assert f"by the mean of all clients, from {early:.1f} after round 40 to {end:.1f} after round 200" in WORDS
    assert (
        f"still rises: the mean of all clients by {of['FML'][199] - of['FML'][149]:.1f} points in the last 50" in WORDS
    )


def mean_of_all(rows: list[dict[str, str]]) -> float:
    """The mean accuracy of all clients over these rounds, in per cent."""
    return fmean(100 * float(row["all"]) for row in rows)


def best_round(rows: list[dict[str, str]]) -> tuple[float, str]:
    """The greatest mean accuracy of a round's participants, in per cent, and its round."""
    return max((100 * float(row["participants"]), row["round"]) for row in rows)


def last_50(sweep: str) -> dict[str, float]:
    """Method -> the mean accuracy of all clients over the last 50 rounds, in per cent."""
    found: dict[str, list[float]] = {}
    for row in every_round(sweep):
        found.setdefault(row["variant"], []).append(100 * float(row["all"]))
    return {name: fmean(accuracies[-50:]) for name, accuracies in found.items()}


def every_round(sweep: str) -> list[dict[str, str]]:
    """The rows of the file with every round."""
    with (FOLDER / "rounds" / f"{sweep}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def measured(sweep: str) -> dict[str, dict[str, float]]:
    """Method -> measure -> its value, of a sweep with one seed."""
    path = FOLDER / f"{sweep}.csv"
    return {
        name: {measure: values(path, name, measure)["1"] for measure in ("best_participants", "last", "total_mib")}
        for name in variants(path)
    }


@pytest.mark.parametrize("sweep", ["cifar100", "cifar100_published", "cifar100_published_500"])
def test_words_on_every_method(sweep: str) -> None:
    """The section of a sweep on CIFAR-100 says what each method gains, and how its order agrees with the papers'."""
    of, words = measured(sweep), " ".join(section(sweep).split())
    end = last_50(sweep)
    published = {name: float(cells[-1]) for name, *cells in table(sweep) if cells[-1] != "-"}
    shown = {row[0]: row[5:8] for row in table(sweep)}
    assert shown.pop("Standalone") == ["-", "-", "-"]
    for name, cells in shown.items():
        best = of[name]["best_participants"] - of["Standalone"]["best_participants"]
        late = end[name] - end["Standalone"]
        paper = f"{published[name] - published['Standalone']:+.2f}" if name in published else "-"
        assert cells == [f"{best:+.2f}", f"{late:+.2f}", paper]
    if len(published) < 4:
        return  # a correlation of so few values would say nothing
    rank, p = spearmanr(list(published.values()), [of[name]["best_participants"] for name in published])
    assert f"(p = {p:.2f})" in words or p > 0.3
    assert f"{NUMBERS[len(published)].capitalize()} methods have a published value." in words
    assert f"Spearman's rank correlation between these values and the best rounds is {rank:.2f}" in words
    rank = spearmanr(list(published.values()), [end[name] for name in published]).statistic
    assert f"Over the last 50 rounds, it is {rank:.2f}." in words


def test_words_on_one_epoch() -> None:
    of, words = measured("cifar100"), " ".join(section("cifar100").split())
    gains = {name: value["best_participants"] - of["Standalone"]["best_participants"] for name, value in of.items()}
    assert [name for name, gain in gains.items() if gain < 0] == ["LG-FedAvg"]
    assert max(gains["FedSSA"], gains["FedRAL"]) < gains["FedProto"]
    alone, long = of["Standalone"], measured("cifar100_published")["Standalone"]
    assert f"53.04, lies between the {alone['best_participants']:.2f} of this table" in words
    assert f"the {long['best_participants']:.2f} that Standalone has after 200 rounds" in words
    assert f"It sends {of['DC-PFL']['total_mib'] / of['FedSSA']['total_mib']:.0f} times as many bytes" in words
    end = last_50("cifar100")
    assert end["LG-FedAvg"] < end["Standalone"] and "LG-FedAvg is below Standalone by both measures" in WORDS
    assert max(end["FedSSA"], end["FedRAL"]) < end["Standalone"] < end["FedProto"]
    rows = every_round("cifar100")
    early = {row["variant"]: 100 * float(row["all"]) for row in rows if row["round"] == "150"}
    assert f"after 150 rounds, it is {early['Standalone'] - early['FedGH']:.1f} points below by the mean" in words
    of_all = {name: [float(row["all"]) for row in rows if row["variant"] == name] for name in ("FedGH", "Standalone")}
    below = sum(one < other for one, other in zip(of_all["FedGH"], of_all["Standalone"], strict=True))
    assert f"it is below Standalone in {below} of the 500 rounds" in words
    reached = {
        name: next(int(row["round"]) for row in every_round("cifar100_published")
                   if row["variant"] == name and float(row["participants"]) >= 0.5)
        for name in ("FedRAL", "FedTGP")
    }  # fmt: skip
    assert max(float(row["participants"]) for row in rows if row["variant"] == "FedRAL") < 0.5
    assert f"in round {reached['FedRAL']} with FedRAL and in round {reached['FedTGP']} with FedTGP" in words
    accuracy: dict[str, dict[str, float]] = {}
    for row in rows:
        accuracy.setdefault(row["variant"], {})[row["round"]] = float(row["participants"])
    assert [max(of_round, key=of_round.__getitem__) for of_round in accuracy.values()].count("459") == 4


def test_words_on_the_published_budget() -> None:
    of = measured("cifar100_published")
    assert f"with 10 local epochs and 200 rounds: {NUMBERS[len(of)]} methods" in WORDS
    other = FOLDER / "other_processor.csv"
    best, last = (
        [values(other, name, measure)["1"] for name in variants(other)] for measure in ("best_participants", "last")
    )
    words = "their best rounds reach {:.2f} and {:.2f}, and their last rounds {:.2f} and {:.2f}".format(*best, *last)
    assert words in WORDS
    changed = [
        max(abs(of[name][measure] - values(other, name, measure)["1"]) for name in variants(other))
        for measure in ("best_participants", "last")
    ]
    words = "the processor changes a best round by up to {:.1f} points, and a last round by up to {:.1f}"
    assert words.format(*changed) in WORDS
    assert f"On the other processor, the gain was {best[1] - best[0]:.1f} by the best round" in WORDS
    published = {name: float(cells[-1]) for name, *cells in table("cifar100_published") if cells[-1] != "-"}
    above = {name: of[name]["best_participants"] - value for name, value in published.items()}
    assert sum(gap > 0 for gap in above.values()) == 7 and len(above) == 8
    words = "Seven of the eight, Standalone included, are above their published value by their best round; FedRAL is"
    assert f"{words} {-above['FedRAL']:.2f} below" in WORDS
    of_participants: dict[str, list[float]] = {}
    for row in every_round("cifar100_published"):
        of_participants.setdefault(row["variant"], []).append(100 * float(row["participants"]))
    shown = []
    for name in ("Standalone", "FedSSA"):
        mean = fmean(of_participants[name][-50:])
        shown += [max(of_participants[name]) - mean, mean]
    words = "is {:.1f} points above the mean of its participants over the last 50 rounds ({:.2f}), FedSSA's {:.1f} "
    assert (words + "({:.2f}).").format(*shown) in WORDS
    over = [of["FedProto"][measure] - of["FedSSA"][measure] for measure in ("best_participants", "last")]
    assert "above FedSSA**, by {:.1f} points (best round) and {:.1f} (last round)".format(*over) in WORDS
    assert of["FedSSA"]["total_mib"] / of["FD"]["total_mib"] == pytest.approx(5, abs=0.5)
    assert "**FD** sends a fifth of FedSSA's bytes" in WORDS
    sole = comb(10, 1) * comb(90, 9) / comb(100, 10)  # one of 10 clients with the class, and 9 of 90 without
    assert f"with a probability of {100 * sole:.0f} % exactly one of the 10 participants has it" in WORDS
    assert f"sends {of['DC-PFL']['total_mib'] / of['FedSSA']['total_mib']:.0f} times as many bytes as FedSSA" in WORDS


def test_clients_with_what_they_receive() -> None:
    own, tested = FOLDER / "cifar100_published.csv", FOLDER / "received.csv"
    assert variants(tested) == variants(own)
    for name in variants(own):
        (last,), (received,) = (values(tested, name, measure).values() for measure in ("last", "received"))
        assert last == pytest.approx(values(own, name, "last")["1"]) and received >= last
        if name == "LG-FedAvg":
            assert f"LG-FedAvg has {received:.2f} instead of {last:.2f}" in WORDS
    assert f"None of the {NUMBERS[len(variants(own))]} methods is lower than with the clients' own networks" in WORDS


def test_the_averaged_small_models_of_fml_and_fedkd() -> None:
    names, of = ("FML", "FedKD"), measured("cifar100_published")
    own = [of[name]["last"] for name in names]
    averaged = [values(FOLDER / "small_model.csv", name, "averaged")["1"] for name in names]
    published = [float(cells[-1]) for name, *cells in table("cifar100_published") if name in names]
    words = "FML's averaged small model has an accuracy of {:.2f} on the clients' test samples, and FedKD's {:.2f}."
    assert words.format(*averaged) in WORDS
    words = "The published values, {:.2f} and {:.2f}, are closer to these than to the accuracies of the clients' own"
    apart = [abs(paper - small) for paper, small in zip(published, averaged, strict=True)]
    told = "but differ from them by {:.0f} and {:.0f} points in opposite directions".format(*apart)
    assert f"{words.format(*published)} networks, {own[0]:.2f} and {own[1]:.2f}, {told}" in WORDS
    assert published[0] < averaged[0] and published[1] > averaged[1]
    for paper, small, network in zip(published, averaged, own, strict=True):
        assert abs(paper - small) < abs(paper - network)


def test_the_two_models_of_fedapen_and_fml() -> None:
    path, last = FOLDER / "small_model.csv", measured("cifar100_published")["FedAPEN"]["last"]
    own, copies = ([values(path, name, which)["1"] for name in ("FedAPEN", "FML")] for which in ("own", "copies"))
    assert "have an accuracy of {:.2f} (FedAPEN) and {:.2f} (FML)".format(*copies) in WORDS
    assert "own networks have {:.2f} and {:.2f}.".format(*own) in WORDS
    assert f"ensemble of both models, which has {last:.2f}, is below its small models alone" in WORDS
    assert own[0] < last < copies[0]


@pytest.mark.parametrize("sweep", ["cifar100", "cifar100_published"])
def test_the_figure_shows_the_file(sweep: str, tmp_path: Path) -> None:
    """A figure that another release of Matplotlib drew has other bytes, so it is compared only with its own."""
    shown = FOLDER / "rounds" / f"{sweep}.svg"
    (release,) = set(re.findall(r"Matplotlib v([.0-9]+[0-9])", shown.read_text(encoding="utf-8")))
    if release != matplotlib.__version__:
        pytest.skip(f"the figure was drawn by Matplotlib {release}")
    draw = runpy.run_path(str(FOLDER / "rounds" / "draw.py"))["draw"]
    assert draw(sweep, tmp_path / "again.svg").read_bytes() == shown.read_bytes()


def test_what_is_reproduced() -> None:
    """The summary repeats numbers of the tables below it, which the other tests compute."""
    (section,) = [part for part in PAGE.split("\n## ") if part.startswith("What is reproduced")]
    row = {line.split(" | ")[0].strip("| "): line for line in section.splitlines() if line.startswith("| ")}
    short, tuned = FOLDER / "cifar100.csv", FOLDER / "digits_tuned.csv"

    def gap(path: Path, variant: str, other: str, measure: str) -> float:
        return values(path, variant, measure)["1"] - values(path, other, measure)["1"]

    published = FOLDER / "cifar100_published.csv"
    late = [last_50(sweep) for sweep in ("cifar100_published", "cifar100")]
    for name in ("FedSSA", "FedRAL", "FedGH", "DC-PFL"):
        best = [gap(path, name, "Standalone", "best_participants") for path in (published, short)]
        end = [of[name] - of["Standalone"] for of in late]
        assert "best round: {:+.2f} and {:+.2f}".format(*best) in row[name]
        assert "last 50 rounds: {:+.2f} and {:+.2f}".format(*end) in row[name]
    over = [gap(path, "FedSSA", "FedProto", "best_participants") for path in (published, short)]
    assert "{:+.2f} and {:+.2f} compared with FedProto".format(*over) in row["FedSSA"]
    highest = [max(variants(path), key=partial(gap, path, other="Standalone", measure="best_participants"))
               for path in (published, short)]  # fmt: skip
    assert highest == ["FedAPEN", "DC-PFL"] == [max(of, key=of.__getitem__) for of in late]
    higher = {measure: {name for name in variants(published) if gap(published, name, "DC-PFL", measure) > 0}
              for measure in ("best_participants", "last")}  # fmt: skip
    assert higher == {"best_participants": {"FedAPEN", "FedKD", "FedProto"}, "last": {"FedAPEN", "FedKD", "FML"}}
    over_it = [
        value
        for name in ("FedAPEN", "FedKD")
        for value in (gap(published, name, "DC-PFL", "best_participants"), late[0][name] - late[0]["DC-PFL"])
    ]
    words = (
        "FedAPEN is higher by {:.2f} in its best round and by {:.2f} over the last 50 rounds, and FedKD by {:.2f} and "
    )
    assert (words + "{:.2f}.").format(*over_it) in WORDS
    told = "FedKD, which is in its tables, is {2:.2f} higher in its best round, and FedAPEN {0:.2f}".format(*over_it)
    assert told in row["DC-PFL"]
    over_it = gap(published, "FedProto", "DC-PFL", "best_participants"), gap(published, "FML", "DC-PFL", "last")
    words = "FedProto's best round ({:.2f}) and FML's mean of all clients after the last round ({:.2f}) are also higher"
    assert words.format(*over_it) in WORDS
    assert not {"FedAPEN", "FedKD"} & {*variants(short)} and "these two have not been run with 1 epoch" in row["DC-PFL"]
    assert f"the highest of the {NUMBERS[len(variants(short))]} methods measured there" in row["DC-PFL"]
    size = {name: values(published, name, "total_mib")["1"] for name in variants(published)}
    assert size["FML"] == size["FedAPEN"] == max(size.values())
    assert f"**FedKD** sends {size['FedKD'] / size['FedSSA']:.0f} times as many bytes as FedSSA, but a third" in WORDS
    assert size["FedKD"] / size["DC-PFL"] == pytest.approx(2 / 3, abs=0.01)
    assert f"largest, {100 * (size['FML'] / size['DC-PFL'] - 1):.0f} % larger than DC-PFL's" in WORDS
    for name, method in (("FedGH", "fedgh"), ("DC-PFL", "dc_pfl")):
        over_it = []
        for count in "235":
            pair = [values(tuned, f"{one}{CLASSES}{count}", "last") for one in (method, "standalone")]
            over_it.append(cell(paired_difference(*pair), "+"))
        assert "with 2, 3 and 5 classes: {}, {} and {}".format(*over_it) in row[name]
    over = [of["FedSSA"] - of["FedProto"] for of in late]
    assert "{:+.2f} and {:+.2f} compared with FedProto. After".format(*over) in row["FedSSA"]
    long, end = FOLDER / "cifar100_published_500.csv", last_50("cifar100_published_500")
    best_500, end_500 = gap(long, "FedSSA", "Standalone", "best_participants"), end["FedSSA"] - end["Standalone"]
    assert f"10 epochs: {best_500:+.2f} (best round) and {end_500:+.2f} (last 50 rounds) compared" in row["FedSSA"]
    with (REPOSITORY / "scenarios" / "published_results.csv").open(encoding="utf-8", newline="") as file:
        printed = {
            (cells["paper"], cells["table"], cells["method"]): float(cells["value"])
            for cells in csv.DictReader(file)
            if cells["dataset"] == "CIFAR-100 (10/100)" and cells["metric"] in ("avg_test_acc_%", "test_acc_%")
            and cells["value"] != "-"
        }  # fmt: skip
    gain = printed["FedGH", "Table 3", "FedGH"] - printed["FedGH", "Table 3", "Standalone"]
    assert f"; {gain:.2f} with 10 clients and five architectures |" in row["FedGH"]
    gain = printed["DC-PFL", "Table 2", "DC-PFL"] - printed["DC-PFL", "Table 2", "Local-T"]
    assert f"; {gain:.2f} with five architectures (number of clients not printed) |" in row["DC-PFL"]
    gains = [gap(path, "DC-PFL", "Standalone", "best_participants") for path in (published, short)]
    gains += [of["DC-PFL"] - of["Standalone"] for of in late]
    assert f"gains of {min(gains):.1f} to {max(gains):.1f} (one seed)" in row["DC-PFL"]


def test_which_values_are_close_to_published_ones() -> None:
    """On one processor, only the two that the page's first sentences name lie within half a point."""
    close = set()
    for sweep in ("cifar100", "cifar100_published"):
        close |= {(name, cells[0], cells[-1]) for name, *cells in table(sweep)
                  if cells[-1] != "-" and abs(float(cells[0]) - float(cells[-1])) < 0.5}  # fmt: skip
    for name, *cells in table("hks_table1"):
        pairs = (cells[0], cells[2]), (cells[1], cells[3])
        close |= {(name, mine, paper) for mine, paper in pairs
                  if paper != "-" and abs(float(mine) - float(paper)) < 0.5}  # fmt: skip
    again = values(HKS_AGAIN, "HKS all on another processor", "best")["1"]
    assert abs(again - 89.38) < 0.5
    close.add(("HKS all", f"{again:.2f}", "89.38"))
    assert close == {("FedSSA", "57.70", "57.29"), ("HKS all", "89.44", "89.38")}
    words = (
        "FedSSA on CIFAR-100 (57.70; paper: 57.29) and that of HKS `all` on Fashion-MNIST (89.44; paper: 89.38). On "
    )
    other = [
        values(FOLDER / "other_processor.csv", "FedSSA", "best_participants")["1"],
        values(FOLDER / "hks_table1.csv", "HKS all", "best")["1"],
    ]
    assert words + "another type of processor, they are {:.2f} and {:.2f}.".format(*other) in WORDS
    sweeps = ("cifar100", "cifar100_published", "cifar100_published_500")
    beside = sum(cells[-1] != "-" for sweep in sweeps for cells in table(sweep))
    beside += sum(paper != "-" for _, *cells in table("hks_table1") for paper in cells[2:4])
    assert f"In all, the tables below show {beside} values beside those of papers." in WORDS


def test_hks_with_all_rounds() -> None:
    path, rows = FOLDER / "hks_table1.csv", {name: cells for name, *cells in table("hks_table1")}
    of = {name: [values(path, name, measure)["1"] for measure in ("best", "last_global")] for name in variants(path)}
    assert {name: cells[:2] for name, cells in rows.items()} == {
        name: [f"{value:.2f}" for value in pair] for name, pair in of.items()
    }
    assert f"with all 18 rounds: {NUMBERS[len(rows)]} rows" in WORDS
    assert f"of which {NUMBERS[len(rows) - 1]} rows, and Standalone, have been run with all 18 rounds" in WORDS
    with path.open(encoding="utf-8", newline="") as file:
        processors = {row["variant"]: row["processor"] for row in csv.DictReader(file)}
    assert all(processors[name].startswith(cells[4]) for name, cells in rows.items())
    paper = {name: [float(cell) for cell in cells[2:4]] for name, cells in rows.items() if cells[2] != "-"}
    with (REPOSITORY / "scenarios" / "published_results.csv").open(encoding="utf-8", newline="") as file:
        printed = {
            (row["method"], row["metric"]): float(row["value"])
            for row in csv.DictReader(file)
            if (row["paper"], row["table"]) == ("HKS", "Table I")
        }
    assert paper.keys() == rows.keys() - {"Standalone"}
    for name, pair in paper.items():
        assert pair == [printed[name, metric] for metric in ("MAUA_%", "global_test_acc_%")]
    of["again"] = [
        values(HKS_AGAIN, "HKS all on another processor", measure)["1"] for measure in ("best", "last_global")
    ]

    def over(name: str, other: list[float]) -> list[float]:
        return [mine - value for mine, value in zip(of[name], other, strict=True)]

    above = {name: over(name, pair) for name, pair in paper.items()}
    best, whole = ([pair[place] for pair in above.values()] for place in (0, 1))
    words = (
        f"by {min(best):.2f} (HKS `all`) to {max(best):.2f} points (HKS `top`) in the best round, and by "
        f"{min(whole):.2f} to {max(whole):.2f} on the whole test set"
    )
    assert words in WORDS and (above["HKS all"][0], above["HKS top"][0]) == (min(best), max(best))
    assert min(over("Standalone", paper["FedDistill"])) > 0
    words = "There, it has {:.2f} in the best round and {:.2f} on the whole test set."
    assert words.format(*of["again"]) in WORDS
    assert f"the processor alone changes its best round by {over('HKS all', of['again'])[0]:.2f} points" in WORDS
    of["own"] = [
        values(HKS_AGAIN, "HKS all with the data set's own constants", measure)["1"]
        for measure in ("best", "last_global")
    ]
    words = "HKS `all` has {:.2f} in the best round and {:.2f} on the whole test set on the AMD EPYC"
    assert words.format(*of["own"]) in WORDS
    more = [mine - value for mine, value in zip(of["own"], of["again"], strict=True)]
    assert "{:.2f} and {:.2f} more than with raysim's constants".format(*more) in WORDS
    of["T2"] = [values(HKS_AGAIN, "HKS all with T²", measure)["1"] for measure in ("best", "last_global")]
    gain, loss = over("T2", of["HKS all"])
    words = "HKS `all` has {:.2f} in the best round and {:.2f} on the whole test set (Intel Xeon, same file): "
    assert words.format(*of["T2"]) + f"{gain:.2f} above and {-loss:.2f} below the row of the table" in WORDS
    levels = [of[f"HKS {name}"] for name in ("top", "middle", "bottom", "all")]
    spread = [max(column) - min(column) for column in zip(*levels, strict=True)]
    words = (
        "variants differ by {:.2f} in the best round, which is less than the processor changes, and by {:.2f} on the"
    )
    assert words.format(*spread) in WORDS and spread[0] < over("HKS all", of["again"])[0]
    assert min(levels, key=lambda pair: pair[1]) == of["HKS top"]
    assert sorted(pair[1] for name, pair in paper.items() if name.startswith("HKS"))[-2] == paper["HKS top"][1]
    best, whole = over("again", of["FedDistill"])
    words = f"it is {best:.2f} above in the best round (paper: 2.71) and {whole:.2f} above on the whole test set"
    assert words in WORDS
    best_alone, whole_alone = over("again", of["Standalone"])
    words = (
        f"HKS `all` is {best_alone:.2f} above Standalone in the best round, and {whole_alone:.2f} above on the whole"
    )
    assert words in WORDS
    gain, loss = over("FedDistill", of["Standalone"])
    words = f"FD is {gain:.2f} above Standalone in the best round, and {-loss:.2f} below it on the whole test set."
    assert words in WORDS
    cache = over("HKS all", of["FedCache R=16"])
    cache_paper = [mine - value for mine, value in zip(paper["HKS all"], paper["FedCache R=16"], strict=True)]
    words = (
        f"In the best round, it is {cache[0]:.2f} above FedCache with R = 16 (paper: {cache_paper[0]:.2f}); on the "
        f"whole test set, it is {-cache[1]:.2f} below (paper: {cache_paper[1]:.2f} above)"
    )
    assert words in WORDS
    sent = {name: values(path, name, "total_mib")["1"] for name in ("FedCache R=16", "HKS all")}
    assert f"FedCache sends {sent['FedCache R=16'] / sent['HKS all']:.1f} times as many bytes" in WORDS
    words = (
        "`all` reaches {:.2f} (paper: 89.38), `top` {:.2f}, `middle` {:.2f} and `bottom` {:.2f} (paper: 86.96, 89.16"
    )
    assert words.format(*(of[f"HKS {name}"][0] for name in ("all", "top", "middle", "bottom"))) in WORDS
    words = f"`all` reaches {of['again'][0]:.2f}, {best:.2f} above FD and {best_alone:.2f} above Standalone"
    assert words in WORDS


def test_public_after_correction() -> None:
    path = FOLDER / "public.csv"
    p = holm({name: paired_p_value(values(path, name, "last"), values(path, alone, "last")) or 0.0
              for name, alone in ALONE.items()})  # fmt: skip
    rounded = [f"{p[name]:.2f}" for name in ("FedMD, transfer learning", "FedMD", "FedDF")]
    assert rounded == ["0.09", "0.02", "0.04"]
    assert "p is 0.09 for FedMD with transfer learning, 0.02 for FedMD without it and 0.04 for FedDF" in PAGE


def test_the_step_size_of_fedral() -> None:
    path = FOLDER / "step_size.csv"
    alone, fedral, large, frozen = (values(path, name, "last")["1"] for name in variants(path))
    words = f"Standalone {alone:.2f}, FedRAL {fedral:.2f}, FedRAL with a first matrix from N(0, 1) {large:.2f}, and "
    assert f"{words}the same with a matrix that is never trained {frozen:.2f}" in WORDS


def test_every_file_has_a_digest_for_every_run() -> None:
    for path in FOLDER.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            digests = [row["digest"] for row in csv.DictReader(file)]
        assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests)


def test_beside_niid_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")  # `runpy` does not add the folder of the script
    reported = runpy.run_path(str(REPOSITORY / "benchmarks" / "beside_niid_bench.py"))["REPORTED"]
    with (FOLDER / "beside_niid_bench.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    best = {row["partition"]: 100 * float(row["best"]) for row in rows}
    expected, beyond = [], []
    for row, name in zip(rows, ("IID", "Dirichlet(0.5)"), strict=True):
        mean, deviation = reported[row["partition"]]
        assert (float(row["reported"]), float(row["deviation"])) == (mean, deviation)
        away = best[row["partition"]] - mean
        beyond.append(abs(away) / deviation)
        accuracies = [f"{100 * float(row[measure]):.2f}" for measure in ("best", "last")]
        expected.append(
            [name, accuracies[0], row["round"], accuracies[1], f"{mean:.2f} ± {deviation:.2f}", f"{away:+.2f}"]
        )
    assert table("beside_niid_bench") == expected
    assert "by {:.1f} and {:.1f} of the reported deviations".format(*beyond) in WORDS
    cost, theirs = best["iid"] - best["dirichlet"], reported["iid"][0] - reported["dirichlet"][0]
    assert max(abs(best[name] - reported[name][0]) for name in best) < 0.8 and WORDS.count("within 0.8 points") == 2
    assert f"the Dirichlet partition costs {cost:.2f} points here, and {theirs:.2f} there" in WORDS


def test_beside_pfllib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    published = runpy.run_path(str(REPOSITORY / "benchmarks" / "beside_pfllib.py"))["PUBLISHED"]
    with (FOLDER / "beside_pfllib.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    best = {row["method"]: 100 * float(row["best"]) for row in rows}
    expected, away = [], []
    for row, name in zip(rows, ("Standalone", "FD", "FedProto"), strict=True):
        reported = published.get((row["partition"], row["method"]), "-")
        difference = "-"
        if reported != "-":
            assert reported == f"{row['reported']} ± {row['deviation']}"
            away.append(best[row["method"]] - float(row["reported"]))
            difference = f"{away[-1]:+.2f}"
        last = f"{100 * float(row['last']):.2f}"
        expected.append([name, f"{best[row['method']]:.2f}", row["round"], last, reported, difference])
    assert table("beside_pfllib") == expected
    assert max(map(abs, away)) < 0.05 and WORDS.count("within 0.05 points") == 2
    gains = [best[name] - best["standalone"] for name in ("fd", "fedproto")]
    words = "reaches {:.2f}: FD is {:.2f} points above it, and FedProto {:.2f}."
    assert words.format(best["standalone"], *gains) in WORDS
    assert "Standalone, without exchange, is {:.2f} and {:.2f} points below the two".format(*gains) in WORDS


def test_repeated_runs_have_the_same_digest() -> None:
    def digests(path: Path, variant: str, seed: str) -> list[str]:
        with path.open(encoding="utf-8", newline="") as file:
            return [row["digest"] for row in csv.DictReader(file) if (row["variant"], row["seed"]) == (variant, seed)]

    with (FOLDER / "repeated.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert digests(FOLDER / f"{row['sweep']}.csv", row["variant"], row["seed"]) == [row["digest"]]
    assert f"{row['variant']} was run again with {row['place']}" in " ".join(section(row["sweep"]).split())


def test_the_command_of_every_run_repeats_that_run() -> None:
    page = runpy.run_path(str(FOLDER.parent / "measured_runs.py"))
    sections = page["markdown"]().split("\n## ")[1:]
    assert [section.split("\n")[0] for section in sections] == list(page["SWEEPS"])
    for sweep, section in zip(page["SWEEPS"], sections, strict=True):
        rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
        assert len(rows) == len(list(csv.reader((FOLDER / f"{sweep}.csv").read_text().splitlines()))) - 1
        (line,) = [line for line in section.splitlines() if line.startswith("raysim sweep ")]
        _, _, file, _, first = shlex.split(line)
        cells = load_sweep(REPOSITORY / file)
        assert [first] == [cell.name for cell in chosen_cells(cells, [rows[0][0][2:]])]
        for name, *_ in rows:
            assert [name[2:]] == [cell.name for cell in chosen_cells(cells, [name[2:]])]


def test_the_watched_fedclassavg_is_fedclassavg() -> None:
    watched = runpy.run_path(str(FOLDER / "fedclassavg_gradients.py"))["Watched"]
    mine, original = (Trial(method).run(2) for method in (watched(), FedClassAvg()))
    assert digest(mine.states()) == digest(original.states())


def late_start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AnyAlgorithm]:
    """Import the method that begins late, as a module: the server's state contains objects of its classes."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("late_start").LateStart  # type: ignore[no-any-return]


def test_a_late_start_begins_with_the_last_model_of_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    late = late_start(monkeypatch)
    toy = Trial(late()).round(1, [0, 1]).round(2, [0, 3])
    assert toy.server.arch[0] == toy.server.arch[3]
    sent = [msg.model for hook, _, msg in toy.sent if hook == "server_send"]
    trained, *_ = [msg.model for hook, k, msg in toy.sent if (hook, k) == ("client_update", 0)]
    assert sent[:3] == [None, None, None], "in round 2, client 0 is not new"
    assert digest(sent[3]) == digest(trained)


def test_late_starts_train_as_their_methods_do(monkeypatch: pytest.MonkeyPatch) -> None:
    late = late_start(monkeypatch)
    for rows, method in ((True, FedSSA()), (False, Standalone())):
        mine, original = (Trial(one).run(2) for one in (late(rows=rows), method))
        states = (toy.states() for toy in (mine, original))
        mine_of, original_of = ({k: s for k, s in one.items() if "client" in k} for one in states)
        assert mine_of and mine_of == original_of
