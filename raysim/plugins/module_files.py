"""The files of a module and of all modules that it imports."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from raysim.common.modules import Import, imports_of


def own_modules(module: str) -> dict[str, Path]:
    """Return the files of a module and of all modules that it imports, by module name.

    Left out are raysim (except its algorithms), the standard library and installed packages (in site-packages), except
    the package of the module itself.
    """
    return _reached([module], module.partition(".")[0])


def imported_by(source: bytes) -> dict[str, Path]:
    """Return the same for all modules that a file with this content imports by absolute names."""
    absolute = [one for one in _imports(source) if not one.module.startswith(".")]
    names = [name for one in absolute for name in (one.module, *(f"{one.module}.{part}" for part in one.names))]
    return _reached(names, "raysim")  # its algorithms, also where raysim is installed


def _reached(names: Sequence[str], package: str) -> dict[str, Path]:
    """Return the files of modules and of all modules that they import. package: the only installed one to include."""
    files: dict[str, Path] = {}
    seen: set[str] = set()
    rest = list(names)
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
    """Return the file of a module; None if it is built in, of raysim, not found, or installed (unless `installed`)."""
    root = name.partition(".")[0]
    of_raysim = root == "raysim" and not f"{name}.".startswith("raysim.algorithms.")
    if not root or of_raysim or root in sys.stdlib_module_names:
        return None
    try:
        # The root first: installed packages need no further search.
        for part in dict.fromkeys((root, name)):
            spec = importlib.util.find_spec(part)
            places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
            if not installed and any({"site-packages", "dist-packages"} & set(Path(place).parts) for place in places):
                return None
    except (ImportError, AttributeError, ValueError):  # a function of a module, or a missing module
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _imported(file: Path, package: str) -> Iterator[str]:
    """Yield the modules that a file may import anywhere: for `from a import b` both `a` and `a.b`."""
    for imported in _imports(file.read_bytes()):
        origin = importlib.util.resolve_name(imported.module, package)
        yield from (origin, *(f"{origin}.{name}" for name in imported.names))


@lru_cache(maxsize=256)  # every cell of a sweep asks for the imports of its method's file
def _imports(source: bytes) -> Sequence[Import]:
    """Return the imports of a file with this content."""
    return tuple(imports_of(ast.parse(source)))
