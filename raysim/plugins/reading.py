"""Finds the files that Python code imports: the user's own files, and the modules of installed methods.

No file is run. The user's own files travel with a run; of all others, a run records digests.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path

from raysim.common.errors import ScenarioError
from raysim.common.modules import PACKAGE, Import, imports_of, plain_module
from raysim.plugins.calling import where
from raysim.plugins.own_code import CODE, JOB_CODE, OwnCode, SourceFile


def read_own_code(decides: Mapping[Path, bool]) -> OwnCode:
    """Read files, and the files that they import from their folder, their project or the current folder.

    decides: a file -> whether results may depend on it. Raises `ScenarioError` if a file cannot be read or parsed, if
    two files have the same name, and if a name contains a dot or is that of an installed module.
    """
    return OwnCode.merged(_read(path, one) for path, one in decides.items())


def _read(path: Path, decides: bool) -> OwnCode:
    if "." in path.stem or _is_installed(path.stem, path):
        raise ScenarioError(
            f"{path}: a module's name cannot be {path.stem!r}: it has a dot, or an installed module has this name; "
            "rename the file"
        )
    return OwnCode(dict(_with_imports(path, decides)))


def _roots(entry: Path) -> list[Path]:
    """Return the folders in which a file's imports are searched, in the order of `sys.path`.

    These are the folder of the file, the folder of its project (the nearest with `.git` or `pyproject.toml`), and the
    current folder. For a copy in a run folder or a job, it is only the folder of the copy, which has all modules.
    """
    folder = entry.parent
    if folder.name == JOB_CODE or (folder.name == CODE and (folder.parent / "run.json").exists()):
        return [folder]
    project = [one for one in entry.parents if (one / ".git").exists() or (one / "pyproject.toml").exists()]
    return list(dict.fromkeys([folder, *project[:1], Path.cwd().resolve()]))


def _with_imports(entry: Path, decides: bool) -> Iterator[tuple[str, SourceFile]]:
    """Yield a file and the files that it imports, with their paths relative to the folder in which they were found."""
    roots, seen, rest = _roots(entry), set(), [(entry.parent, entry)]
    while rest:
        root, path = rest.pop()
        relative = path.relative_to(root)
        if relative in seen:
            continue
        seen.add(relative)
        try:
            text = path.read_bytes()
            package = ".".join([PACKAGE, *relative.parent.parts])
            imports = [_names(one, package) for one in _imports(text, str(path))]
        except OSError as error:
            raise ScenarioError(f"{path}: cannot be read ({error.strerror})") from None
        except (SyntaxError, ImportError) as error:  # ImportError: a relative import of a module above all folders
            raise ScenarioError(f"{path}: cannot be imported: {where(error)}") from error
        yield relative.as_posix(), SourceFile(str(path), text, decides)
        for names in imports:
            # As with `sys.path`, the first folder with one of the modules counts.
            found = ([(root, file) for name in names for file in _files(root, plain_module(name))] for root in roots)
            rest += next(filter(None, found), [])


def _files(root: Path, module: str) -> Iterator[Path]:
    """Yield the files in a folder that Python runs when the module is imported."""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:depth])
        path = next((one for one in (place / "__init__.py", place.with_suffix(".py")) if one.is_file()), place)
        if path == place and not place.is_dir():  # a folder without an __init__.py is a package, too
            return
        if depth == 1 and _is_installed(parts[0], path):
            return
        if path != place:
            yield path


def _is_installed(module: str, path: Path) -> bool:
    """Return whether Python or an installed package has a module with this name. Files beside a script do not count."""
    if module in sys.stdlib_module_names or module == "raysim":
        return True
    spec = PathFinder.find_spec(module)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() == path.resolve():
        return False
    return spec.origin in ("built-in", "frozen") or _in_packages(spec.origin)


def own_modules(module: str) -> dict[str, Path]:
    """Return module name -> file, for a module and all modules that it imports.

    Left out are raysim (except its algorithms), the standard library and installed packages (in site-packages), except
    the package of the module itself.
    """
    return _reached([module], module.partition(".")[0])


def imported_by(source: bytes) -> dict[str, Path]:
    """Return module name -> file, for all modules that a file with this content imports by absolute names."""
    absolute = [one for one in _imports(source) if not one.module.startswith(".")]
    names = [name for one in absolute for name in _names(one, "")]
    return _reached(names, "raysim")  # raysim's algorithms count even if raysim is an installed package


def _reached(names: Sequence[str], package: str) -> dict[str, Path]:
    """Return module name -> file, for modules and all their imports. package: the only installed package to include."""
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
        rest.append(name.rpartition(".")[0])  # Python imports the package first
        if file.suffix == ".py":
            inside = name if file.stem == "__init__" else name.rpartition(".")[0]
            rest += [one for imported in _imports(file.read_bytes()) for one in _names(imported, inside)]
    return dict(sorted(files.items()))


def _file(name: str, installed: bool) -> Path | None:
    """Return the file of a module; None for built-in, missing, raysim's and (unless `installed`) installed modules."""
    root = name.partition(".")[0]
    of_raysim = root == "raysim" and not f"{name}.".startswith("raysim.algorithms.")
    if not root or of_raysim or root in sys.stdlib_module_names:
        return None
    try:
        # If the top-level package is installed, the search ends.
        for part in dict.fromkeys((root, name)):
            spec = find_spec(part)
            places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
            if not installed and any(map(_in_packages, places)):
                return None
    except (ImportError, AttributeError, ValueError):  # `name` is a function in a module, or the module is missing
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _names(one: Import, package: str) -> list[str]:
    """Return the modules that an import may run: `from a import b` may run `a` and `a.b`."""
    module = resolve_name(one.module, package)
    return [module, *(f"{module}.{name}" for name in one.names)]


@lru_cache(maxsize=256)  # each cell of a sweep asks for the same file
def _imports(source: bytes, file: str = "<unknown>") -> Sequence[Import]:
    """Return the imports in a file with this content. file: the path that a `SyntaxError` names."""
    return tuple(imports_of(ast.parse(source, file)))


def _in_packages(place: str) -> bool:
    """Return whether a file belongs to an installed package."""
    return bool({"site-packages", "dist-packages"} & set(Path(place).parts))
