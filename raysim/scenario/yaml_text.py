"""The YAML text of scenarios: safe reading of numbers as people write them, and writing of values.

PyYAML follows YAML 1.1: 1e3 is text, 010 is 8, 1:30 is 90, and a repeated key takes its last value. `ruamel.yaml` would
replace the 30 lines that correct this, but it would be a dependency in addition to PyYAML, which Ray and MLflow need.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import yaml

from raysim.common.errors import ScenarioError
from raysim.common.files import reason
from raysim.common.text import cut
from raysim.scenario.bundled import hint

UNREADABLE = (yaml.YAMLError, ValueError)
"""Exceptions of PyYAML for invalid YAML. It raises `ValueError` for a date that does not exist."""


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml may be absent
    """Safe YAML loader that reads numbers as people write them and refuses repeated keys. It creates plain values."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            # PyYAML itself replaces `<<: *other` by the keys of `other`
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            if key.value in seen:
                problem = f"the key {key.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class Dumper(yaml.SafeDumper):
    """Safe dumper that quotes text which `Loader` or another reader would take for a number or another type."""


INT, FLOAT, MERGE = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:merge"
# Only decimal numbers are read as numbers. YAML 1.1 also has octal (010 is 8), base 60 (1:30 is 90) and 1_000, which no
# scenario intends.
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
    """Return the text of a scenario file. Raises `ScenarioError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ScenarioError(f"{path}: there is no such file{hint(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        problem = reason(error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ScenarioError(f"{path}: cannot be read ({problem}); give a scenario file (.yaml)") from None
    return text


def opening_comment(text: str) -> str:
    """Return the comment at the start of a file, without "#" and without lines for text editors."""
    opening = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line.removeprefix("#").removeprefix(" ") for line in opening if "yaml-language-server" not in line]
    return "\n".join(lines).strip()


def parse(text: str, file: str) -> dict[str, Any]:
    """Parse the text of a scenario as a mapping. Raises `ScenarioError` with the name `file`."""
    try:
        raw = load_value(text)
    except UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).split("\n")[0] or type(error).__name__
        raise ScenarioError(f"{file}{where}: not valid YAML: {problem}") from None
    if not isinstance(raw, dict):
        raise ScenarioError(f"{file}: a scenario must be a mapping of keys and values, but the file has {shown(raw)}")
    return raw


def load_value(text: str) -> Any:
    """Parse YAML into plain values. Raises one of `UNREADABLE`."""
    return yaml.load(text, Loader)


def shown(value: Any) -> str:
    """Return a value as users write it in YAML; text is in quotes."""
    if isinstance(value, str):
        return cut(repr(value))
    text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=10**6).removesuffix("...\n")
    return cut(" ".join(text.split()))


def written_value(value: Any, key: str) -> str:
    """Return a Python value as YAML. Raises `ScenarioError` if YAML has no such type, as for NumPy's numbers."""
    try:
        return yaml.dump(value, Dumper=Dumper, sort_keys=False)
    except yaml.representer.RepresenterError as error:
        raise ScenarioError(
            f"{cut(repr(error.args[-1]))} given, which YAML cannot contain; give text, numbers, true, false, null, "
            "lists or mappings, and your own class as text such as './mine.py:MyClass'",
            key=key,
        ) from None
