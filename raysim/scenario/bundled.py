"""The scenarios and sweeps inside the raysim package, which are used by name, as in `raysim launch quickstart`."""

from __future__ import annotations

import os
from pathlib import Path

from raysim.common.suggestions import suggest

FOLDER = Path(__file__).resolve().parent.parent / "scenarios"


def bundled_names() -> list[str]:
    """Return the names of all bundled scenarios and sweeps, such as `quickstart` and `papers/fedssa/table2`."""
    return sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml"))


def scenario_file(given: Path | str) -> Path:
    """Return the file of a scenario or sweep, given by its path or by the name of a bundled one, without `.yaml`.

    The user's own file of this name goes first, but no folder, such as the one with the scenario's runs. A path of no
    file is returned as it is.
    """
    own = os.path.lexists(given) and not Path(given).is_dir()
    return Path(given) if own else bundled_file(given) or Path(given)


def bundled_file(name: Path | str) -> Path | None:
    """Return the file of a bundled scenario or sweep; None if no bundled one has this name."""
    return FOLDER / f"{name}.yaml" if str(name) in bundled_names() else None


def hint(missing: Path) -> str:
    """Return the end of a sentence that suggests a bundled scenario for the path of a missing file; "" if none fits."""
    names = bundled_names()
    return suggest(missing.as_posix().removeprefix("scenarios/").removesuffix(".yaml"), names)
