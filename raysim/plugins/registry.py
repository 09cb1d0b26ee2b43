"""What the names in a scenario refer to: raysim's algorithms, or the user's own classes and functions.

`fedgh` is the only Algorithm in algorithms/fedgh.py, `./mine.py` the only one in a user's file. `./mine.py:Mine` and
`package.module:Mine` are references; installed packages add names with entry points such as `raysim.algorithms`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from raysim.common.errors import ScenarioError
from raysim.common.modules import PACKAGE
from raysim.common.suggestions import suggest
from raysim.common.text import few
from raysim.plugins.calling import where

if TYPE_CHECKING:
    from raysim.core.algorithm import AnyAlgorithm


@dataclass(frozen=True)
class Reference:
    """A reference from a scenario to a class or function outside raysim."""

    place: str  # the path of a file, which ends in .py, or a module
    attribute: str = ""  # name of the class or function; "": the only class or function of the required kind

    @classmethod
    def of(cls, name: str) -> Reference | None:
        """Parse a name in a scenario; None for a plain name, such as `fedgh`."""
        place, colon, attribute = name.rpartition(":") if ":" in name else (name, "", "")
        if place.endswith(".py") or (colon and place.replace(".", "").isidentifier()):
            return cls(place, attribute)
        return None

    @property
    def is_file(self) -> bool:
        """Whether the reference names a file, not an installed module."""
        return self.place.endswith(".py")

    @property
    def module(self) -> str:
        """The name under which the module is imported."""
        return f"{PACKAGE}.{Path(self.place).stem}" if self.is_file else self.place

    @property
    def name(self) -> str:
        """The reference without the file's folder, as a run records it: `mine.py:Mine`."""
        place = Path(self.place).name if self.is_file else self.place
        return f"{place}:{self.attribute}" if self.attribute else place

    def load(self) -> ModuleType:
        """Import the module. Raises `ScenarioError` if that fails."""
        return import_module(self.module, self.place)

    def get(self) -> Any:
        """Import and return the class or function. Raises `ScenarioError` if it does not exist."""
        member = getattr(self.load(), self.attribute, None)
        if not callable(member):
            raise ScenarioError(
                f"{self.place}: has no class or function {self.attribute!r}; give its name as in {self.place}:Name"
            )
        return member


def import_module(module: str, place: str) -> ModuleType:
    """Import a module. place: its file, which the `ScenarioError` names if the import raises an exception."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise ScenarioError(f"{place}: cannot be imported: {where(error)}") from error


def installed(kind: str) -> dict[str, Reference]:
    """Return name -> entry point, for the entry points `raysim.<kind>` of installed packages."""
    entries = entry_points(group=f"raysim.{kind}")
    return {entry.name: Reference(entry.module, entry.attr) for entry in entries}


def named(kind: str, name: str) -> Reference | None:
    """Return the reference for a name or an entry point outside raysim; None for a name of raysim itself."""
    return Reference.of(name) or installed(kind).get(name)


def algorithm_names() -> list[str]:
    """Return the names of all files in `algorithms/` and of all entry points, in alphabetical order."""
    package = importlib.import_module("raysim.algorithms")
    built_in = {module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")}
    return sorted({*built_in, *installed("algorithms")})


def algorithm_class(name: str) -> type[AnyAlgorithm]:
    """Return the algorithm class for a name. For a class in a user's file, first call `OwnCode.activate`.

    Raises `ScenarioError` if the name is unknown, the file cannot be imported or does not contain exactly one complete
    algorithm (of that name), or the class has a mistake that makes a hook or a field ineffective.
    """
    if name.isidentifier() and not name.startswith("_") and find_spec(f"raysim.algorithms.{name}"):
        place, attribute = f"algorithms/{name}.py", ""
        module = import_module(f"raysim.algorithms.{name}", place)
    elif (reference := named("algorithms", name)) is not None:
        place, attribute = reference.place, reference.attribute
        module = reference.load()
    else:
        names = algorithm_names()
        beside = f" or ./{name}.py for a file" if name.isidentifier() else ""
        raise ScenarioError(
            f"unknown algorithm {name!r}{suggest(name, names)} (available: {', '.join(names)}{beside})",
            key="algorithm.name",
        )
    return _only_algorithm(module, place, attribute)


def _only_algorithm(module: ModuleType, place: str, attribute: str) -> type[AnyAlgorithm]:
    # Imported here, because these modules import torch.
    from raysim.core.algorithm import Algorithm
    from raysim.plugins.class_check import class_mistake

    found = inspect.getmembers(module, lambda one: inspect.isclass(one) and issubclass(one, Algorithm))
    own = {one: name for name, one in found if one.__module__ == module.__name__}
    classes = [one for name, one in found if name == attribute] if attribute else list(own)
    if len(classes) != 1:
        called = f" called {attribute}" if attribute else ""
        raise ScenarioError(
            f"{place}: contains {len(classes)} subclasses of raysim.Algorithm{called} "
            f"(all: {few([*own.values()]) or 'none'}); write {place}:Name to choose one"
        )
    (cls,) = classes
    mistake = class_mistake(cls)
    if missing := sorted(cls.__abstractmethods__):
        why = f": {mistake}" if mistake else ""
        raise ScenarioError(f"{place}: {cls.__name__} lacks {', '.join(missing)}{why}")
    if mistake:
        raise ScenarioError(f"{place}: {cls.__name__}: {mistake}")
    return cls
