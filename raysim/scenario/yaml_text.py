"""A scenario's text: YAML as people write it, read safely, and values as they would stand in it.

PyYAML follows YAML 1.1: 1e3 is text, 010 is 8, 1:30 is 90, and of a key that is given twice the last value counts.
`ruamel.yaml` would replace the 30 lines that correct this. It would be one more dependency beside PyYAML, which Ray and
MLflow bring along, and the rest would stay: a limit for aliases, which `ruamel.yaml` lacks, and values without secrets.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from raysim.common.errors import ScenarioError
from raysim.common.files import refuse_special
from raysim.common.text import redacted

MOST_ENTRIES = 1_000_000
"""Values in a scenario, each alias counted as what it stands for."""

UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)
"""What PyYAML raises on text that is no YAML; all but the first are its own slips, on `!!int ''` for example."""


class Loader(yaml.SafeLoader):
    """Safe YAML whose numbers are as people write them, and which refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key if isinstance(key, str | int | float) else id(key))
        return super().construct_mapping(node, deep)


class Dumper(yaml.SafeDumper):
    """Safe YAML with quotes around all text that `Loader`, or another reader, would take for something else."""


INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
# Decimal numbers only. YAML 1.1 also knows octal (010 is 8), base 60 (1:30 is 90) and 1_000, which no scenario means.
NUMBERS = {
    INT: re.compile(r"^[-+]?(0|[1-9][0-9]*)$"),
    FLOAT: re.compile(
        r"^[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
    ),
}
Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in NUMBERS.items():
    Loader.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))
    Dumper.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))


def read_text(path: Path) -> str:
    """A scenario file's text. Raises `ScenarioError`."""
    refuse_special(path)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ScenarioError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ScenarioError(f"{path}: this is a folder; give a scenario file (.yaml)") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ScenarioError(f"{path}: cannot be read: {reason}") from None


def opening_comment(text: str) -> str:
    """The comment that opens a file, without its signs and without what it says to editors."""
    opening = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line.removeprefix("#").removeprefix(" ") for line in opening if "yaml-language-server" not in line]
    return "\n".join(lines).strip()


def parse(text: str, file: str) -> dict[str, Any]:
    """The mapping that a scenario is. Raises `ScenarioError`, which calls it `file`."""
    try:
        raw = load_value(text)
    except UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).split("\n")[0] or type(error).__name__
        raise ScenarioError(f"{file}{where}: not valid YAML: {problem}") from None
    if raw is None:
        raise ScenarioError(f"{file}: the file is empty; a scenario is a mapping of keys and values")
    if not isinstance(raw, dict):
        raise ScenarioError(f"{file}: a scenario is a mapping of keys and values, not {shown(raw)}")
    return raw


def load_value(text: str) -> Any:
    """YAML as plain values. Raises one of `UNREADABLE`, also when aliases stand for more than memory holds."""
    value = yaml.load(text, Loader)  # a SafeLoader: it makes no objects
    sizes: dict[int, int] = {}  # entries of each list and mapping, by identity

    def size(node: Any) -> int:
        if isinstance(node, str):
            node.encode()  # raises where it holds half of a character, such as "\ud800", which no file can
        if not isinstance(node, dict | list):
            return 1
        if id(node) not in sizes:
            sizes[id(node)] = MOST_ENTRIES  # a node inside itself never ends
            inner = [*node.keys(), *node.values()] if isinstance(node, dict) else node
            sizes[id(node)] = 1 + sum(map(size, inner))
        return sizes[id(node)]

    if size(value) > MOST_ENTRIES:
        raise ValueError(f"its aliases stand for more than {MOST_ENTRIES:,} entries")
    return value


def node_at(text: str, key: Sequence[str]) -> yaml.Node | None:
    """What text that `load_value` can read has at a key, or None."""
    node = yaml.compose(text, Loader)
    for part in key:
        if isinstance(node, yaml.MappingNode):
            node = next((value for name, value in node.value if name.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
        else:
            return None
    return node


def shown(value: Any) -> str:
    """A value as the user writes it, in YAML; text in quotes."""
    if isinstance(value, str):
        text = repr(value)
    else:
        try:
            text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=10**6).removesuffix("...\n")
        except (RecursionError, ValueError):  # too deep, or a number of more digits than Python writes
            text = f"a {type(value).__name__}"
        text = " ".join(text.split())
    return short(text)


def short(text: str) -> str:
    """Text that fits into a sentence, without the secrets that an address may hold."""
    text = redacted(text)
    return text if len(text) <= 80 else text[:77] + "..."
