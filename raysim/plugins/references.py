"""References from a scenario to user code: `./mine.py:Mine`, `package.module:Mine`, or an entry point."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.modules import PACKAGE
from raysim.plugins.calling import where


@dataclass(frozen=True)
class Reference:
    """A reference from a scenario to a class or function outside raysim."""

    place: str  # a file, which ends in .py, or a module
    attribute: str = ""  # a class or function in it; "": the only one of the required kind

    @classmethod
    def of(cls, name: str) -> Reference | None:
        """Parse a name from a scenario; None for a plain name, such as `fedgh`."""
        place, colon, attribute = name.rpartition(":") if ":" in name else (name, "", "")
        if place.endswith(".py") or (colon and place.replace(".", "").isidentifier()):
            return cls(place, attribute)
        return None

    @property
    def is_file(self) -> bool:
        """Whether the reference is to a file, not to an installed module."""
        return self.place.endswith(".py")

    @property
    def module(self) -> str:
        """The name under which the module is imported."""
        return f"{PACKAGE}.{Path(self.place).stem}" if self.is_file else self.place

    @property
    def name(self) -> str:
        """The reference without the folder of the file, as a run records it: `mine.py:Mine`."""
        place = Path(self.place).name if self.is_file else self.place
        return f"{place}:{self.attribute}" if self.attribute else place

    def load(self) -> ModuleType:
        """Import the module. Raises `ScenarioError` if that fails."""
        if not self.is_file and find_spec(self.place.partition(".")[0]) is None:
            file = f"./{self.place.replace('.', '/')}.py"
            raise ScenarioError(
                f"{self.place}: no installed package has this module; for a file of your own, give its path: "
                f"{file}:{self.attribute}"
            )
        return import_module(self.module, self.place)

    def get(self) -> Any:
        """Import and return the class or function. Raises `ScenarioError` if it does not exist."""
        if not self.attribute:
            raise ScenarioError(f"{self.place} given; add the name of the class or function: {self.place}:Name")
        member = getattr(self.load(), self.attribute, None)
        if not callable(member):
            raise ScenarioError(
                f"{self.place}: has no class or function {self.attribute!r}; correct the name after the colon"
            )
        return member


def import_module(module: str, place: str) -> ModuleType:
    """Import a module. place: its file, for the `ScenarioError` from the exception with which the import fails."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise ScenarioError(f"{place}: cannot be imported: {where(error)}") from error


def installed(kind: str) -> dict[str, Reference]:
    """Return the entry points `raysim.<kind>` of installed packages, by name."""
    references = {entry.name: Reference.of(entry.value) for entry in entry_points(group=f"raysim.{kind}")}
    return {name: reference for name, reference in references.items() if reference is not None}


def named(kind: str, name: str) -> Reference | None:
    """Return what a name refers to outside raysim, entry points included; None: a name of raysim itself."""
    return Reference.of(name) or installed(kind).get(name)
