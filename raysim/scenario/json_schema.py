"""The JSON schema of scenario files, created from the classes that validate them and all classes that names choose.

Pydantic's discriminated unions could also write the alternatives of a named section. As types of `Settings` they would
make each command 0.07 s slower, and the loader would still need its code for custom names and for errors about names.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import cleandoc
from typing import Any

from raysim.plugins.registry import algorithm_class, algorithm_names
from raysim.scenario.named import PAPER, settings_model
from raysim.scenario.schema import Settings
from raysim.scenario.sentences import NAMED

CUSTOM = {"type": "string", "pattern": r"\.py(:|$)|^[A-Za-z_][A-Za-z0-9_.]*:"}
"""Pattern for the name of a custom class, in a file (./mine.py:Mine) or a module (package.module:Mine). The schema does
not contain the fields of custom classes."""

PROFILE = "Preset of the fields below: the values of the paper, or those of its authors' released code"


def scenario_schema() -> dict[str, Any]:
    """Return a JSON schema (draft 2020-12). For a section with a `name`, it contains the fields of every name."""
    schema = Settings.model_json_schema() | {"title": "Scenario"}
    definitions = schema["$defs"]
    algorithms = {name: algorithm_class(name) for name in algorithm_names()}
    schema["properties"]["algorithm"] = _choice(algorithms, "algorithm", definitions, schema["properties"]["algorithm"])
    for (section, kind), classes in NAMED.items():
        keys = definitions[section.capitalize()]["properties"]
        keys[kind] = _choice(classes, kind, definitions, keys[kind])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _choice(
    choices: Mapping[str, type], kind: str, definitions: dict[str, Any], before: dict[str, Any]
) -> dict[str, Any]:
    """Return the schema of a section whose `name` determines its other keys."""
    for name, cls in choices.items():
        section = settings_model(cls).model_json_schema()
        section["title"] = name
        doc = cleandoc(cls.__doc__ or "").split("\n")[0]
        section["description"] = doc
        names: dict[str, Any] = {"name": {"const": name, "description": doc}}
        if profiles := getattr(cls, "profiles", {}):
            names["profile"] = {"enum": [PAPER, *profiles], "default": PAPER, "description": PROFILE}
        section["properties"] = {**names, **section.get("properties", {})}
        section["required"] = ["name", *section.get("required", [])]
        definitions[f"{kind}.{name}"] = section
    kept: dict[str, Any] = {key: before[key] for key in ("description", "default") if key in before}
    return {
        **kept,
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"anyOf": [{"enum": list(choices)}, CUSTOM]}},
        "oneOf": [*({"$ref": f"#/$defs/{kind}.{name}"} for name in choices), {"properties": {"name": CUSTOM}}],
    }
