"""The tables of measured and of published values, which the site's build makes from CSV files.

A comment such as `<!-- table: digits -->` in a page stands for the table of that name, `<!-- published: FedKD -->` for
the published values of the methods whose names match one of the patterns, `<!-- papers: sweep files -->` for the list
of the sweep files of papers, and `<!-- capabilities: all methods -->` for what each method runs with.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev

from raysim.study.statistics import Estimate, estimate, paired_difference

RESULTS = Path(__file__).parent / "results"
PUBLISHED = Path(__file__).parents[1] / "scenarios" / "published_results.csv"
PAPERS = Path(__file__).parents[1] / "scenarios" / "papers"
MARK = re.compile(r"^<!-- (table|published|papers|capabilities): (.+) -->$", re.MULTILINE)

Row = dict[str, str]

CIFAR100 = {
    ("FedSSA", "Table 2", "heterogeneous CNN-1..5;N=100;C=10%", "avg_test_acc_%"),
    ("FedRAL", "Table 3", "heterogeneous;N=100;pathological", "avg_test_acc_mean_%"),
}
"""The published columns of the setting with 100 clients; both papers print the same values of the other methods."""

BASELINES = {
    "FedMD": "Standalone, five networks",
    "FedMD, transfer learning": "Standalone, five networks",
    "FedDF": "Standalone, five networks",
    "HeteroFL": "Standalone, three widths",
    "FedGKT": "Standalone, two ResNets",
}
"""Method with public data, widths or stages -> the runs of Standalone with the same networks."""


def expand(page: str) -> str:
    """Return the text of a page with a table in place of each mark."""
    kinds: dict[str, Callable[[str], str]] = {
        "table": lambda name: TABLES[name](),
        "published": lambda names: published(names.split(", ")),
        "papers": lambda _: papers(),
        "capabilities": lambda _: capabilities(),
    }
    return MARK.sub(lambda mark: kinds[mark[1]](mark[2]), page)


def papers() -> str:
    """Return a row per sweep file of a paper: the first sentence of its comment, and the file."""
    lines = []
    for path in sorted(PAPERS.glob("*/*.yaml")):
        if path.stem != "base":
            comment = re.match(r"(?:# .*\n)+", path.read_text(encoding="utf-8"))
            assert comment, path
            sentence = re.split(r"[.;](?= |$)", comment[0].replace("\n# ", " ").removeprefix("# ").strip())[0]
            name = path.relative_to(PAPERS).as_posix()
            lines.append([sentence, f"[{name}](../scenarios/papers/{name})"])
    return markdown(["table or figure", "file"], lines)


def published(patterns: Sequence[str]) -> str:
    """Return the values that the papers print for some methods: a row per paper, table, setting, method and metric."""

    def key(row: Row) -> list[str]:
        return [row[name] for name in ("paper", "table", "setting", "method", "metric")]

    rows = [row for row in read(PUBLISHED) if any(fnmatchcase(row["method"], pattern) for pattern in patterns)]
    return markdown(
        ["paper", "table", "setting", "row", "metric", "values"],
        (
            [*names, "; ".join(f"{row['dataset']}: {row['value']}" for row in some)]
            for names, some in groupby(sorted(rows, key=key), key=key)
        ),
    )


def digits(name: str) -> str:
    """Return final accuracies of the sweeps on digits, and the paired differences to Standalone."""
    rows = read(RESULTS / f"{name}.csv")
    methods = dict.fromkeys(row["variant"].split()[0] for row in rows)
    lines = []
    for method in methods:
        cells = []
        for count in (2, 3, 5):
            mine, alone = (
                by_seed(rows, f"{one} data.partition.classes_per_client={count}", "last")
                for one in (method, "standalone")
            )
            cells += [shown(estimate(list(mine.values()))), difference(mine, alone) if method != "standalone" else "-"]
        lines.append([method, *cells])
    head = [text for count in (2, 3, 5) for text in (f"{count} classes", "minus Standalone")]
    return markdown(["method", *head], lines, right=range(1, 7))


def cifar100(name: str) -> str:
    """Return a sweep on CIFAR-100 with 100 clients beside the published values; "-" where there is none."""
    printed = {row["method"]: row["value"] for row in read(PUBLISHED) if _of_cifar100(row)}
    rows = read(RESULTS / f"{name}.csv")
    best = {row["variant"]: 100 * float(row["best_participants"]) for row in rows}
    end = {method: fmean(every_round(name, method, "all")[-50:]) for method in best}
    lines = []
    for row in rows:
        method, gains, paper = row["variant"], ["-", "-", "-"], printed.get(row["variant"], "-")
        if method != "Standalone":
            gains = [f"{of[method] - of['Standalone']:+.2f}" for of in (best, end)]
            gains.append("-" if paper == "-" else f"{float(paper) - float(printed['Standalone']):+.2f}")
        numbers = [f"{one:.2f}" for one in (best[method], end[method], float(row["total_mib"]))]
        lines.append([method, *numbers, *gains, paper])
    head = ["method", "best round", "last 50 rounds", "total MiB", "gain: best round", "gain: last 50 rounds"]
    return markdown([*head, "gain: paper", "paper"], lines, right=range(1, 8))


def _of_cifar100(row: Row) -> bool:
    key = (row["paper"], row["table"], row["setting"], row["metric"])
    return key in CIFAR100 and row["dataset"] == "CIFAR-100" and row["value"] != "-"


def fedral_choices() -> str:
    """Return other readings of FedRAL's paper, each minus Standalone with equally drawn first weights."""
    lines = []
    for variant in (row["variant"] for row in read(RESULTS / "fedral_choices.csv")):
        alone = "Standalone, own first weights" if variant == "own first weights" else "Standalone"
        if not variant.startswith("Standalone"):
            mine, other = (every_round("fedral_choices", one, "all") for one in (variant, alone))
            gains = (mine[-1] - other[-1], fmean(mine[-10:]) - fmean(other[-10:]))
            lines.append([variant, f"{mine[-1]:.2f}", *(f"{gain:+.2f}" for gain in gains)])
    head = ["reading", "after 30 rounds", "gain: after 30 rounds", "gain: last 10 rounds"]
    return markdown(head, lines, right=range(1, 4))


def hks_table1() -> str:
    """Return the rows of HKS's Table I that were run, beside the published values."""
    printed = {(row["method"], row["metric"]): row["value"] for row in read(PUBLISHED) if row["table"] == "Table I"}
    lines = [
        [
            row["variant"],
            *(f"{100 * float(row[measure]):.2f}" for measure in ("best", "last_global")),
            *(printed.get((row["variant"], metric), "-") for metric in ("MAUA_%", "global_test_acc_%")),
            row["processor"],
        ]
        for file in ("hks_table1", "hks_all_again")
        for row in read(RESULTS / f"{file}.csv")
    ]
    head = ["method", "best round", "whole test set", "paper: best round", "paper: whole test set", "processor"]
    return markdown(head, lines, right=range(1, 5))


def public() -> str:
    """Return the methods with public data, widths and stages, each minus Standalone with the same networks."""
    rows = read(RESULTS / "public.csv")
    lines = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        last = by_seed(rows, variant, "last")
        mib = fmean(float(row["total_mib"]) for row in rows if row["variant"] == variant)
        alone = BASELINES.get(variant)
        gain = difference(last, by_seed(rows, alone, "last")) if alone else "-"
        lines.append([variant, shown(estimate(list(last.values()))), f"{mib:.2f}", gain])
    return markdown(["method", "last", "total MiB", "minus Standalone"], lines, right=range(1, 4))


def beside_standalone(name: str) -> str:
    """Return accuracies of methods, minus those of Standalone with the same networks."""
    lines = []
    for networks, group in groupby(read(RESULTS / f"{name}.csv"), lambda row: row["networks"]):
        rows = list(group)
        last = {row["method"]: by_seed(rows, row["method"], "last", "method") for row in rows}
        for method, value in last.items():
            settings = next(row["settings"] for row in rows if row["method"] == method)
            gain = "-" if method == "Standalone" else difference(value, last["Standalone"])
            lines.append([networks, method, settings, f"{fmean(value.values()):.2f}", gain])
    return markdown(["networks", "method", "settings", "last", "minus Standalone"], lines, right=(3, 4))


def robust_rules() -> str:
    """Return FedAvg's accuracy by attack and by rule, and what each rule costs without an attack."""
    rows = read(RESULTS / "robust_rules.csv")
    rules = dict.fromkeys(row["rule"] for row in rows)
    lines = []
    for attack in dict.fromkeys(row["attack"] for row in rows):
        last = {rule: by_seed([row for row in rows if row["attack"] == attack], rule, "last", "rule") for rule in rules}
        lines.append([attack, *(shown(estimate(list(of.values()))) for of in last.values())])
        if attack == "none":
            costs = [difference(of, last["mean"]) for rule, of in last.items() if rule != "mean"]
            lines.append(["none, minus the mean", "-", *costs])
    return markdown(["attack", *rules], lines, right=range(1, 5))


def step_size() -> str:
    """Return accuracies of FedRAL and Standalone by learning rate, minus those of Standalone: with 0.01, and tuned.

    Of the rates of a method, validation accuracy chooses: that of the best round, averaged over the seeds.
    """
    rows = read(RESULTS / "step_size.csv")
    tried = {(row["variant"], row["lr"]): [one for one in rows if _setting(one) == _setting(row)] for row in rows}
    val = {setting: fmean(100 * float(row["val"]) for row in mine) for setting, mine in tried.items()}
    tuned = {name: max((one for one in val if one[0] == name), key=val.__getitem__) for name, _ in val}
    last = {setting: by_seed(mine, setting[0], "last") for setting, mine in tried.items()}
    lines = []
    for setting, value in last.items():
        name, rate = setting
        chosen = " (chosen)" if tuned[name] == setting and sum(one == name for one, _ in val) > 1 else ""
        references = (("Standalone", "0.01"), tuned["Standalone"])
        gains = ["-" if setting == other else difference(value, last[other]) for other in references]
        lines.append([name, rate + chosen, f"{val[setting]:.2f}", shown(estimate(list(value.values()))), *gains])
    head = [
        "variant",
        "learning rate",
        "validation accuracy",
        "final accuracy",
        "minus Standalone",
        "minus tuned Standalone",
    ]
    return markdown(head, lines, right=range(2, 6))


def _setting(row: Row) -> tuple[str, str]:
    return row["variant"], row["lr"]


def beside_fluke() -> str:
    """Return accuracies of raysim and fluke-fl with their own batches, and the differences with the same batches."""
    rows = read(RESULTS / "beside_fluke.csv")
    lines = []
    for method, measure in dict.fromkeys((row["method"], row["measure"]) for row in rows):
        mine = [row for row in rows if (row["method"], row["measure"]) == (method, measure)]
        own, same = ([row for row in mine if row["batches"] == batches] for batches in ("own", "same"))
        sides = [_spread([float(row[side]) for row in own]) for side in ("raysim", "fluke")]
        apart = [_spread([float(row["raysim"]) - float(row["fluke"]) for row in some], "+") for some in (own, same)]
        weights = [float(row["weights"]) for row in same if row["weights"]]
        lines.append([method, measure, *sides, *apart, f"{max(weights):.0e}" if weights else "-"])
    head = ["method", "measure", "raysim", "fluke", "raysim minus fluke", "with the same batches", "weights"]
    return markdown(head, lines, right=range(2, 7))


def _spread(values: Sequence[float], sign: str = "") -> str:
    mean = f"{fmean(values):{sign}.2f}"
    return f"{mean if float(mean) else '0.00'} ± {stdev(values):.2f}"


def reported(name: str, *labels: str) -> str:
    """Return best rounds beside the values that another project reports."""
    lines = []
    for row in read(RESULTS / f"{name}.csv"):
        best, last = (100 * float(row[measure]) for measure in ("best", "last"))
        theirs = ["-", "-"]
        if row["reported"]:
            theirs = [f"{row['reported']} ± {row['deviation']}", f"{best - float(row['reported']):+.2f}"]
        lines.append([*(row[label] for label in labels), f"{best:.2f}", row["round"], f"{last:.2f}", *theirs])
    head = [*labels, "best round", "round", "last", "reported", "raysim minus reported"]
    return markdown(head, lines, right=range(len(labels), len(head)))


def capabilities() -> str:
    """Return a row per method: with which sections it runs, and a list of the sentences with which it is refused."""
    rows = read(RESULTS.parent / "capabilities.csv")
    sections = list(dict.fromkeys(row["section"] for row in rows))
    refused = {(row["method"], row["section"]): row["refused"] for row in rows}
    methods = list(dict.fromkeys(row["method"] for row in rows))
    table = ([name, *("-" if refused[name, one] else "yes" for one in sections)] for name in methods)
    shown: dict[str, str] = {}
    for (name, section), sentence in refused.items():
        if sentence:
            shown.setdefault(f'{section}: "{sentence.replace(name, "METHOD")}"', name)
    return "\n".join([markdown(["method", *sections], table), "", *(f"- {text}" for text in shown)])


TABLES: dict[str, Callable[[], str]] = {
    "digits": partial(digits, "digits"),
    "digits_tuned": partial(digits, "digits_tuned"),
    "cifar100": partial(cifar100, "cifar100"),
    "cifar100_published": partial(cifar100, "cifar100_published"),
    "cifar100_published_500": partial(cifar100, "cifar100_published_500"),
    "fedral_choices": fedral_choices,
    "hks_table1": hks_table1,
    "public": public,
    "robust_rules": robust_rules,
    "step_size": step_size,
    "beside_fluke": beside_fluke,
    "beside_niid_bench": partial(reported, "beside_niid_bench", "partition"),
    "digits_more": partial(beside_standalone, "digits_more"),
    "digits_others": partial(beside_standalone, "digits_others"),
    "beside_pfllib": partial(reported, "beside_pfllib", "partition", "method"),
}


def read(path: Path) -> list[Row]:
    """Return the rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def by_seed(rows: Iterable[Row], variant: str, measure: str, column: str = "variant") -> dict[object, float]:
    """Return the measure of a variant, which is named in a column, by seed, in per cent."""
    return {row["seed"]: 100 * float(row[measure]) for row in rows if row[column] == variant}


def every_round(name: str, variant: str, measure: str) -> list[float]:
    """Return the measure of a variant after each round, in per cent."""
    rows = read(RESULTS / "rounds" / f"{name}.csv")
    return [100 * float(row[measure]) for row in rows if row["variant"] == variant]


def difference(mine: dict[object, float], other: dict[object, float]) -> str:
    """Return the difference between two variants, paired by seed."""
    found = paired_difference(mine, other)
    assert found
    return shown(found, "+")


def shown(found: Estimate, sign: str = "") -> str:
    """Return a mean with half of its 95 % interval, where there are enough seeds for one."""
    half = "" if found.half_width is None else f" ± {found.half_width:.2f}"
    return f"{found.mean:{sign}.2f}{half}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Return a table in Markdown. `right` lists the columns that are aligned to the right."""
    return "\n".join(_lines(head, rows, set(right)))


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]], right: set[int]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---:' if place in right else '---' for place in range(len(head)))} |"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
