"""The declaration of a settings class or an algorithm: documentation, fields, messages and facts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.text import quoted
from raysim.core.fields import FieldInfo

FACTS = ("paper", "profiles", "scheduled", "one_architecture", "public_data", "two_views")
"""Class attributes of `Algorithm` that a declaration repeats."""

CHECKS = ("check", "__post_init__")
"""Methods of a class that may refuse values."""


@dataclass(frozen=True)
class MessageInfo:
    """The name and docstring of a message class."""

    name: str
    doc: str

    @property
    def words(self) -> str:
        """The class name in words, such as `class means` for `ClassMeans`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", self.name).lower()


Messages = tuple[MessageInfo, ...] | None
"""The message classes of one direction; empty: no messages; None: the class does not declare them."""


@dataclass(frozen=True, eq=False)
class Declaration:
    """The documentation, fields and facts of a settings class, as shown to users."""

    name: str
    doc: str
    file_doc: str
    fields: tuple[FieldInfo, ...]
    paper: str = ""  # see `Algorithm` for this and the next five
    profiles: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    scheduled: bool = False
    one_architecture: bool = False
    public_data: bool = False
    two_views: str = ""
    checks: bool = False  # True: the class has a method `check` or `__post_init__`, which may refuse values
    down: Messages = None  # server -> client
    up: Messages = None  # client -> server
    paper_of: str = ""  # the class that names the paper: this one, or the one that it inherits from

    def __post_init__(self) -> None:
        if any(field.name == "name" for field in self.fields):
            raise ScenarioError(
                f"{self.name}: the field `name` has the name of the key that chooses this class; rename the field"
            )
        presets = self.profiles.values() if isinstance(self.profiles, Mapping) else [None]
        if not all(isinstance(preset, Mapping) for preset in presets):
            given = quoted(self.profiles)
            raise ScenarioError(
                f"{self.name}: `profiles` is {given}; give each profile a mapping of fields to values, such as "
                "{'official': {'mu': 0.1}}"
            )

    @property
    def summary(self) -> str:
        """The first paragraph of the class's docstring, in one line."""
        return self.doc.split("\n\n")[0].replace("\n", " ")

    @property
    def year(self) -> str:
        """The year of the method's paper; empty if `paper` has no year before its address."""
        years = re.findall(r"\b(?:19|20)\d\d\b", self.paper.partition("http")[0])
        return years[-1] if years else ""

    @property
    def travels(self) -> str:
        """The messages of both directions, in words; empty if the class does not declare them."""
        if self.down is None or self.up is None:
            return ""
        down, up = (" or ".join(message.words for message in messages) for messages in (self.down, self.up))
        if not down and not up:
            return "no communication"
        if down == up:
            return f"{down} down and up"
        return ", ".join(f"{words} {way}" for words, way in ((down, "down"), (up, "up")) if words)
