"""The YAML text of scenarios: safe reading with numbers as people write them, and writing of values as YAML.

PyYAML follows YAML 1.1: 1e3 is text, 010 is 8, 1:30 is 90, and a repeated key takes its last value. `ruamel.yaml` would
replace the 30 lines that correct this. But it would be a dependency in addition to PyYAML, which Ray and MLflow need,
and the rest of this file would remain: the limit for aliases, which `ruamel.yaml` lacks, and the removal of secrets.
"""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import yaml

from raysim.common.errors import ScenarioError
from raysim.common.text import redacted
from raysim.scenario.bundled import hint

MOST_ENTRIES = 1_000_000
"""Maximum number of values in a scenario, including all values that aliases stand for."""

UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)
"""Exceptions that PyYAML raises for invalid YAML; all but the first are bugs of PyYAML, for example on `!!int ''`."""


class Loader(yaml.SafeLoader):
    """Safe YAML loader that reads numbers as people write them and refuses repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == MERGE:  # `<<: *other`, which PyYAML replaces by the keys of the other mapping
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key if isinstance(key, str | int | float) else id(key))
        return super().construct_mapping(node, deep)


class WrittenLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml may be absent
    """Safe loader for files that raysim wrote, such as resolved.yaml: 7 times as fast, but it accepts repeated keys."""


class Dumper(yaml.SafeDumper):
    """Safe YAML dumper that quotes text which `Loader` or another reader would take for a number or another type."""


INT, FLOAT, MERGE = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:merge"
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
WrittenLoader.yaml_implicit_resolvers = Loader.yaml_implicit_resolvers


def read_text(path: Path) -> str:
    """Return the text of a scenario file. Raises `ScenarioError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ScenarioError(f"{path}: there is no such file{hint(path)}") from None
    except IsADirectoryError:
        raise ScenarioError(f"{path}: this is a folder; give a scenario file (.yaml)") from None
    except (OSError, UnicodeDecodeError) as error:
        problem = "it is not UTF-8 text; save it as UTF-8"
        if isinstance(error, OSError):
            problem = f"{error.strerror}; give a readable file"
        raise ScenarioError(f"{path}: cannot be read: {problem}") from None
    if path.suffix == ".py":
        beside = path.with_suffix(".yaml")
        give = f"give its scenario, {beside}" if beside.is_file() else "give a scenario file (.yaml)"
        code = path if path.is_absolute() else f"./{path}"
        raise ScenarioError(
            f"{path}: this file is Python code, not a scenario; {give}, or add --set algorithm.name={code} to another "
            "scenario"
        )
    return text


_OVERRIDE = re.compile(r"[\w.]=[{\[]")
"""The beginning of a mapping or list in an override, such as `algorithm={name: fedgh}`."""


def opening_comment(text: str) -> str:
    """Return the comment at the start of a file, without "#" and without lines for editors."""
    opening = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line.removeprefix("#").removeprefix(" ") for line in opening if "yaml-language-server" not in line]
    return "\n".join(lines).strip()


def parse(text: str, file: str, loader: Any = Loader) -> dict[str, Any]:
    """Parse the text of a scenario as a mapping. Raises `ScenarioError`, which names `file`."""
    try:
        raw = copy.deepcopy(_loaded(text, loader))
    except UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).split("\n")[0] or type(error).__name__
        line = "".join(text.splitlines()[mark.line : mark.line + 1]) if mark else ""
        remedy = "; put quotes around an override that contains braces" if _OVERRIDE.search(line) else ""
        raise ScenarioError(f"{file}{where}: not valid YAML: {problem}{remedy}") from None
    if raw is None:
        raise ScenarioError(f"{file}: the file is empty; a scenario is a mapping of keys and values")
    if not isinstance(raw, dict):
        raise ScenarioError(f"{file}: a scenario must be a mapping of keys and values, but the file has {shown(raw)}")
    return raw


@functools.lru_cache(maxsize=8)
def _loaded(text: str, loader: Any) -> Any:
    """Parse YAML, once for all cells of a sweep, which begin with the same text. Do not change what this returns."""
    return load_value(text, loader)


def ends_in_comment(text: str) -> bool:
    """Whether YAML reads the end of a text as a comment. Raises one of `UNREADABLE`."""
    node = yaml.compose(text, Loader)
    return text[node.end_mark.index if node else 0 :].lstrip().startswith("#")


def load_value(text: str, loader: Any = Loader) -> Any:
    """Parse YAML into plain values. Raises one of `UNREADABLE`, also when aliases stand for too many entries."""
    value = yaml.load(text, loader)  # a SafeLoader: it creates no Python objects
    sizes: dict[int, int] = {}  # entries of each list and mapping, by identity

    def size(node: Any) -> int:
        if isinstance(node, str):
            node.encode()  # raises for half of a character, such as "\ud800", which no file can contain
        if not isinstance(node, dict | list):
            return 1
        if id(node) not in sizes:
            sizes[id(node)] = MOST_ENTRIES  # while it is counted: a node that contains itself is too large
            inner = [*node.keys(), *node.values()] if isinstance(node, dict) else node
            sizes[id(node)] = 1 + sum(map(size, inner))
        return sizes[id(node)]

    if size(value) > MOST_ENTRIES:
        raise ValueError(f"its aliases stand for more than {MOST_ENTRIES:,} entries")
    return value


def node_at(text: str, key: Sequence[str]) -> yaml.Node | None:
    """Return the YAML node at a key of text that `load_value` can read, or None."""
    node = yaml.compose(text, Loader)
    for part in key:
        if isinstance(node, yaml.MappingNode):
            node = next((value for name, value in node.value if name.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
            node = node.value[int(part)]
        else:
            return None
    return node


def shown(value: Any) -> str:
    """Return a value as a user would write it in YAML, with text in quotes."""
    if isinstance(value, str):
        text = repr(value)
    else:
        try:
            text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=10**6).removesuffix("...\n")
        except (RecursionError, ValueError):  # nested too deeply, or a number with more digits than Python prints
            text = f"a {type(value).__name__}"
        except yaml.representer.RepresenterError:  # from Python, such as an array
            text = repr(value)
        text = " ".join(text.split())
    return short(text)


def written_value(value: Any, key: str) -> str:
    """Return a value from Python as YAML. Raises `ScenarioError` for one that YAML cannot contain, such as NumPy's."""
    try:
        return yaml.dump(value, Dumper=Dumper, sort_keys=False)
    except yaml.representer.RepresenterError as error:
        refused = error.args[-1]
        how = (
            "use text, numbers, true, false, null, lists or mappings, such as the list that `tolist()` of NumPy returns"
        )
        if isinstance(refused, type) or is_dataclass(refused):
            how = "put your own class into a file, and give the file and the class as text, such as './mine.py:MyClass'"
        raise ScenarioError(f"{short(repr(refused))} given, which YAML cannot contain; {how}", key=key) from None


def short(text: str) -> str:
    """Return text without secrets in addresses, cut to at most 80 characters to fit into a sentence."""
    text = redacted(text)
    return text if len(text) <= 80 else text[:77] + "..."
