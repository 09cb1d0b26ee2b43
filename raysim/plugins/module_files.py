"""The files of an imported module and of all that it imports."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from raysim.common.modules import imports_of


def own_modules(module: str) -> dict[str, Path]:
    """The files of a module and of all that it imports, by their names.

    Left out are raysim, its algorithms apart, the standard library and what is installed (in site-packages), unless
    with the module itself.
    """
    package = module.partition(".")[0]
    files: dict[str, Path] = {}
    seen: set[str] = set()
    rest = [module]
    while rest:
        name = rest.pop()
        file = None if name in seen else _file(name, installed=name.partition(".")[0] == package)
        seen.add(name)
        if file is None:
            continue
        files[name] = file
        rest.append(name.rpartition(".")[0])  # the package is imported first
        if file.suffix == ".py":
            rest += _imported(file, name if file.stem == "__init__" else name.rpartition(".")[0])
    return dict(sorted(files.items()))


def _file(name: str, installed: bool) -> Path | None:
    """The file of a module; None if it is built in, raysim's, not found, or installed (unless `installed`)."""
    root = name.partition(".")[0]
    if not root or (root == "raysim" and f"{name}."[:18] != "raysim.algorithms.") or root in sys.stdlib_module_names:
        return None
    try:
        # The root first: what is installed need not be looked through.
        for part in dict.fromkeys((root, name)):
            spec = importlib.util.find_spec(part)
            places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
            if not installed and any({"site-packages", "dist-packages"} & set(Path(place).parts) for place in places):
                return None
    except (ImportError, AttributeError, ValueError):  # a function of a module, or not to be had here
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _imported(file: Path, package: str) -> Iterator[str]:
    """The modules that a file may import, wherever in it: of `from a import b` both `a` and `a.b`."""
    for imported in imports_of(ast.parse(file.read_bytes())):
        origin = importlib.util.resolve_name(imported.module, package)
        yield from (origin, *(f"{origin}.{name}" for name in imported.names))
