"""`tune:` of a sweep file: its keys, checked without the scenarios that they change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.scenario.deciding import DECIDING
from raysim.scenario.schema import decides
from raysim.scenario.sentences import unknown_key
from raysim.scenario.yaml_text import shown
from raysim.sweeps.halving import Halving
from raysim.sweeps.space import Range, Space, domain, number_of_points

KEYS: Mapping[str, type] = {
    "seeds": list,
    "trials": int,
    "space": dict,
    "methods": dict,
    "search": str,
    "seed": int,
    "halving": dict,
    "select": str,
}
"""The keys of `tune` and the types of their values. A range of seeds, such as 101..102, is a list by then."""

SEARCHES = ("grid", "random", "tpe")

METRICS = tuple(DECIDING)
"""Metrics that may choose: those that may end a run early."""

MOST_TRIALS = 1000


@dataclass(frozen=True)
class TuneSettings:
    """How values are chosen: the trials of every method and the metric that compares them."""

    seeds: tuple[int, ...]
    space: Space  # of every method
    methods: Mapping[str, Space]  # name in `runs` -> further keys
    search: str
    trials: int | None  # per method; None: every point of the grid
    seed: int  # of the draws
    halving: Halving | None
    select: str
    file: str  # the sweep file

    @classmethod
    def read(cls, raw: Mapping[str, Any], file: str) -> TuneSettings:
        """Parse the mapping `tune` of a sweep file, whose `seeds` is a list of integers. Raises `ScenarioError`."""
        for key, value in raw.items():
            if key not in KEYS:
                text = f"unknown key{suggest(str(key), KEYS)}; allowed: {', '.join(KEYS)}"
                raise ScenarioError(text, key=f"tune.{key}", origin=file)
            if not isinstance(value, KEYS[key]) or isinstance(value, bool):
                names = {str: "text", int: "an integer", dict: "a mapping", list: "a list"}
                text = f"{shown(value)} given; give {names[KEYS[key]]}{_example(key, value)}"
                raise ScenarioError(text, key=f"tune.{key}", origin=file)
        space = _space(raw.get("space", {}), "tune.space", file)
        methods = {}
        for name, keys in raw.get("methods", {}).items():
            if not isinstance(keys, dict) or not keys:
                text = f"{shown(keys)} given; give a mapping of keys to values"
                raise ScenarioError(text, key=f"tune.methods.{name}", origin=file)
            methods[str(name)] = _space(keys, f"tune.methods.{name}", file)
        if not space and not methods:
            raise ScenarioError("give `space`, `methods`, or both", key="tune", origin=file)
        search = raw.get("search", "random")
        _check_choice(search, SEARCHES, "tune.search", file)
        select = raw.get("select", "accuracy/val")
        _check_choice(select, METRICS, "tune.select", file)
        if search == "tpe" and find_spec("optuna") is None:
            text = "tpe given, but Optuna is not installed; run `pip install 'raysim[tune]'`, or use random"
            raise ScenarioError(text, key="tune.search", origin=file)
        trials = raw.get("trials")
        if trials is None and search != "grid":
            text = f"is missing; give the number of trials of each method, from 1 to {MOST_TRIALS}"
            raise ScenarioError(text, key="tune.trials", origin=file)
        if trials is not None and not 1 <= trials <= MOST_TRIALS:
            raise ScenarioError(f"{trials} given; allowed: 1 to {MOST_TRIALS}", key="tune.trials", origin=file)
        seeds = tuple(raw["seeds"])
        if len(set(seeds)) < len(seeds):
            raise ScenarioError(f"{shown(list(seeds))} given; give each seed once", key="tune.seeds", origin=file)
        halving = _halving(raw["halving"], file) if "halving" in raw else None
        if halving is not None and search == "tpe":
            text = "does not work with `search: tpe`, which learns from complete trials; set `search` to random or grid"
            raise ScenarioError(text, key="tune.halving", origin=file)
        return cls(seeds, space, methods, search, trials, raw.get("seed", 1), halving, select, file)

    def number_of_trials(self, space: Space, name: str) -> int:
        """The trials of a method with this space, called `name`. Raises `ScenarioError` if they do not fit."""
        size = number_of_points(space)
        if self.search == "grid":
            if ranges := [key for key, one in space.items() if isinstance(one, Range)]:
                text = f"grid needs lists of values, but {ranges[0]} of {name} is a range; use random, or give a list"
                raise ScenarioError(text, key="tune.search", origin=self.file)
            if size > MOST_TRIALS:
                text = f"the grid of {name} has {size:,} points, more than the maximum of {MOST_TRIALS}; use random"
                raise ScenarioError(text, key="tune.search", origin=self.file)
            if self.trials is not None and size > self.trials:
                text = (
                    f"{self.trials} given, but the grid of {name} has {size} points; set trials: {size}, "
                    "remove values, or use search: random"
                )
                raise ScenarioError(text, key="tune.trials", origin=self.file)
        if self.trials is not None and size < self.trials:
            text = (
                f"{self.trials} given, but the space of {name} has only {size:.0f} points; "
                f"set trials: {size:.0f}, add values, or widen ranges"
            )
            raise ScenarioError(text, key="tune.trials", origin=self.file)
        return self.trials if self.trials is not None else int(size)


def _space(raw: Mapping[str, Any], place: str, file: str) -> Space:
    """Parse the domain of each key. Raises `ScenarioError`."""
    for key in map(str, raw):
        why = ""
        if not decides(key):
            why = "cannot be tuned, because it does not affect results; remove this key"
        elif key.partition(".")[0] in ("seed", "seeds"):
            why = "seeds cannot be tuned; give the seeds of trials in `tune.seeds`, and those of final runs in `seeds`"
        elif key == "rounds":
            why = (
                "cannot be tuned, because trials of different lengths are not comparable; remove this key (to end bad "
                "trials early, set `tune.halving`)"
            )
        elif key.partition(".")[0] in ("evaluation", "stop"):
            why = (
                "cannot be tuned, because it changes how trials are measured or when they end, not how they learn; "
                "remove this key"
            )
        elif key == "algorithm.name":
            why = "cannot be tuned, because the final runs compare the methods; name the methods in `runs`"
        why = why or unknown_key(key)
        if why:
            raise ScenarioError(why, key=f"{place}.{key}", origin=file)
    return {str(key): domain(value, f"{place}.{key}", file) for key, value in raw.items()}


def _check_choice(value: str, allowed: tuple[str, ...], key: str, file: str) -> None:
    if value not in allowed:
        text = f"{value!r} given{suggest(value, allowed)}; allowed: {', '.join(allowed)}"
        raise ScenarioError(text, key=key, origin=file)


def _example(key: str, value: Any) -> str:
    """An example of the value of a key whose value has the wrong type; empty if it needs none."""
    if key == "halving":
        return f", such as {{rounds: {shown(value) if isinstance(value, list) and value else '[5, 20]'}}}"
    examples = {"space": "{training.lr: {log: [0.01, 1]}}", "methods": "{NAME: {KEY: [VALUE, VALUE]}}"}
    return f", such as {examples[key]}" if key in examples else ""


def _halving(raw: Mapping[str, Any], file: str) -> Halving:
    if unknown := [str(key) for key in raw if key not in ("rounds", "keep")]:
        text = f"unknown key{suggest(unknown[0], ('rounds', 'keep'))}; allowed: rounds, keep"
        raise ScenarioError(text, key=f"tune.halving.{unknown[0]}", origin=file)
    rounds = raw.get("rounds")
    numbers = rounds if isinstance(rounds, list) else []
    if not numbers or not all(isinstance(t, int) and not isinstance(t, bool) and t >= 1 for t in numbers):
        text = f"{shown(rounds)} given; give a list of rounds, such as [10, 30, 100]"
        raise ScenarioError(text, key="tune.halving.rounds", origin=file)
    if sorted(set(numbers)) != numbers:
        text = f"{shown(rounds)} given; give rounds in ascending order"
        raise ScenarioError(text, key="tune.halving.rounds", origin=file)
    given = raw.get("keep", "1/3")
    try:
        keep = Fraction(str(given)) if not isinstance(given, bool) else Fraction(0)
    except (ValueError, ZeroDivisionError):
        keep = Fraction(0)
    if not 0 < keep < 1:
        text = f"{shown(given)} given; give a share between 0 and 1, such as 1/3"
        raise ScenarioError(text, key="tune.halving.keep", origin=file)
    return Halving(tuple(numbers), keep)
