"""From a name in a scenario to the class it means: `fedgh` is the one Algorithm in algorithms/fedgh.py."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import traceback
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from raysim.common.errors import ScenarioError

if TYPE_CHECKING:
    from raysim.core.algorithm import AnyAlgorithm

ELSEWHERE = {
    "learning_rate": "lr",
    "local_epochs": "epochs",
    "num_clients": "count",
    "num_rounds": "rounds",
    "global_rounds": "rounds",
    "communication_rounds": "rounds",
    "join_ratio": "participation",
    "sample_fraction": "participation",
    "grad_clip": "clip",
}
"""What keys are called in other tools and in papers."""


def suggest(given: str, names: Iterable[str]) -> str:
    """The nearest name, whatever its case, as `; did you mean 'x'?`, or nothing when none is near."""
    known = {name.lower(): name for name in names}
    word = given.lower()
    near = [known[name] for name in (word, ELSEWHERE.get(word.replace("-", "_"))) if name in known]
    near += [known[name] for name in difflib.get_close_matches(word, known, n=1, cutoff=0.6)]
    if len(word) > 2:
        near += [name for lower, name in known.items() if lower.startswith(word)]
    return f"; did you mean {near[0]!r}?" if near else ""


def algorithm_names() -> list[str]:
    """Every file in `algorithms/`, in alphabetical order."""
    package = importlib.import_module("raysim.algorithms")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def algorithm_file(name: str) -> Path | None:
    """The file of an algorithm, which need not be one that can be imported; None where there is none."""
    spec = find_spec(f"raysim.algorithms.{name}") if name in algorithm_names() else None
    return Path(spec.origin) if spec and spec.origin else None


def algorithm_class(name: str) -> type[AnyAlgorithm]:
    """The algorithm of a file.

    Raises `ScenarioError` when there is no such file, it cannot be imported, holds not exactly one whole algorithm, or
    one in which a hook or a field is none.
    """
    names = algorithm_names()
    if name not in names:
        raise ScenarioError(
            f"algorithm.name: unknown algorithm {name!r}{suggest(name, names)} (there are: {', '.join(names)})"
        )
    from raysim.core.algorithm import Algorithm  # here: it imports torch
    from raysim.core.definition import first_slip

    try:
        module = importlib.import_module(f"raysim.algorithms.{name}")
    except Exception as error:
        raise ScenarioError(f"algorithms/{name}.py: cannot be imported: {_where(error)}") from error
    found = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Algorithm) and member.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise ScenarioError(f"algorithms/{name}.py: holds {len(found)} Algorithm classes; it must hold exactly one")
    (cls,) = found
    slip = first_slip(cls)
    if missing := sorted(cls.__abstractmethods__):
        why = f": {slip}" if slip else ""
        raise ScenarioError(f"algorithms/{name}.py: {cls.__name__} lacks {', '.join(missing)}{why}")
    if slip:
        raise ScenarioError(f"algorithms/{name}.py: {cls.__name__}: {slip}")
    return cls


def _where(error: Exception) -> str:
    """What is wrong with a file that was imported, and in which line."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} (line {error.lineno})"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
