"""The public surface of raysim, as stored in public.json: what users, scripts and other packages may rely on.

A name, command, option, key or file that disappears or changes its form makes this test fail. It is then either a
mistake, or a change that CHANGELOG.md announces: `python -m tests.test_public` stores the surface anew.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

import click
import pandas as pd

import raysim
import raysim.core
from raysim.cli.main import cli
from tests.engine.scenarios import plain_digits

STORED = Path(__file__).with_name("public.json")


def signature(found: Any) -> str:
    """Return the names and defaults of the parameters of a function or class, without annotations."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # a type alias or a class without a signature of its own
        return ""
    texts = [str(one.replace(annotation=inspect.Parameter.empty)) for one in parameters]
    return re.sub(r" at 0x[0-9a-f]+", "", f"({', '.join(texts)})")  # of a default that is a function


def members(found: type) -> dict[str, str]:
    """Return the public methods of a class with their parameters, and its properties and fields."""
    fields = [field.name for field in dataclasses.fields(found)] if dataclasses.is_dataclass(found) else []
    fields += getattr(found, "model_fields", {})
    public = [name for name in [*vars(found), *fields] if not name.startswith(("_", "model_"))]  # model_: pydantic's
    named = {name: getattr(found, name, None) for name in public}
    return {name: signature(member) if callable(member) else "" for name, member in sorted(named.items())}


def names(module: Any) -> dict[str, Any]:
    """Return every public name of a module: the parameters of functions, the members of classes."""
    found = {name: getattr(module, name) for name in sorted(module.__all__)}
    return {
        name: {"()": signature(one), **members(one)} if inspect.isclass(one) else signature(one)
        for name, one in found.items()
    }


def commands(group: click.Group) -> dict[str, Any]:
    """Return every command of `raysim` with its arguments and options."""
    context = click.Context(group)
    found: dict[str, Any] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found[name] = commands(command)
        else:
            found[name] = sorted(" ".join(one.opts + one.secondary_opts) for one in command.params)
    return found


def keys(schema: Any, prefix: str = "") -> list[str]:
    """Return the dotted keys of a scenario from its JSON schema."""
    found = []
    for name, one in schema.get("properties", {}).items():
        found += [prefix + name, *keys(one, f"{prefix}{name}.")]
    return found


def of_run(run: raysim.Run) -> dict[str, list[str]]:
    """Return the files of a run folder, and the columns and keys of those that are read by program."""
    files = sorted(str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file())
    return {
        "files": [name for name in files if not name.startswith(("checkpoints/", "logs/"))],
        "rounds.parquet": list(pd.read_parquet(run.folder / "rounds.parquet").columns),
        "clients.parquet": list(pd.read_parquet(run.folder / "clients.parquet").columns),
        "partition.parquet": list(pd.read_parquet(run.folder / "partition.parquet").columns),
        "run.json": list(json.loads((run.folder / "run.json").read_text())),
        "summary.json": list(json.loads((run.folder / "summary.json").read_text())),
    }


def surface() -> dict[str, Any]:
    """Return the public surface as it is now; makes a run in the current folder."""
    schema = json.loads((Path(__file__).parent.parent / "scenarios" / "schema.json").read_text(encoding="utf-8"))
    definitions = schema.get("$defs", {})
    sections = {name: keys(one) for name, one in sorted(definitions.items())}
    return {
        "raysim": names(raysim),
        "raysim.core": names(raysim.core),
        "commands": commands(cli),
        "scenario": {"": keys(schema), **{name: one for name, one in sections.items() if one}},
        "run folder": of_run(raysim.run(plain_digits(rounds=1), quiet=True)),
    }


def test_the_public_surface_is_as_stored(workplace: Path) -> None:
    stored, found = json.loads(STORED.read_text(encoding="utf-8")), surface()
    for part, expected in stored.items():
        assert found[part] == expected, part


if __name__ == "__main__":
    STORED.write_text(json.dumps(surface(), indent=1) + "\n", encoding="utf-8")
