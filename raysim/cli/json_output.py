"""The option `--json`, which prints a command's result for programs, and the schema of these results."""

from __future__ import annotations

import json
from typing import Any

import click

JSON = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the same content as JSON, for programs. `raysim schema commands` prints the schema of the output.",
)


def print_json(kind: Any, value: object) -> None:
    """Print a value as JSON. kind: its type, whose schema is in `commands_schema`."""
    from pydantic import TypeAdapter

    click.echo(json.dumps(TypeAdapter(kind).dump_python(value, mode="json"), indent=2))


def commands_schema() -> dict[str, Any]:
    """Return a JSON schema (draft 2020-12) whose `$defs` contains the `--json` output of each command by its name."""
    from pydantic import TypeAdapter

    from raysim.cli.description import Entry
    from raysim.cli.jobs import JobStatus
    from raysim.cli.main import Validation
    from raysim.comparison.frame import ComparisonData
    from raysim.runs.doctor import Finding
    from raysim.sweeps.status import SweepStatus

    outputs: dict[str, Any] = {
        "compare": ComparisonData,
        "doctor": list[Finding],
        "list": dict[str, list[Entry]],
        "status": JobStatus,
        "sweep": SweepStatus,  # with the option `--status`
        "validate": Validation,
    }
    kinds: list[tuple[str, Any, TypeAdapter[Any]]] = [
        (name, "serialization", TypeAdapter(kind)) for name, kind in outputs.items()
    ]
    schemas, shared = TypeAdapter.json_schemas(kinds)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Output of raysim's commands with --json",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in outputs],
        "$defs": {**{name: schema for (name, _), schema in schemas.items()}, **shared["$defs"]},
    }
