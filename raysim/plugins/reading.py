"""Read the user's own files, and the files of their project that they import, without running them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from importlib.util import resolve_name
from pathlib import Path

from raysim.common.errors import ScenarioError
from raysim.common.modules import imports_of
from raysim.plugins.calling import where
from raysim.plugins.own_code import CODE, JOB_CODE, OwnCode, SourceFile


def read_own_code(paths: Iterable[Path]) -> OwnCode:
    """Read files, and the files that they import from their own folder, their project or the current folder.

    Raises `ScenarioError` if a file cannot be read or parsed, two have the same name, or a module of that name is
    installed.
    """
    return OwnCode.merged(map(_read, paths))


def _read(path: Path) -> OwnCode:
    if not path.stem.isidentifier():
        raise ScenarioError(
            f"{path}: {path.stem!r} is not a valid module name; use letters, digits and _, and do not begin with "
            "a digit"
        )
    if _is_installed(path.stem, path):
        raise ScenarioError(f"{path}: an installed module also has the name {path.stem!r}; rename the file")
    return OwnCode(dict(_with_imports(path)))


def _roots(entry: Path) -> list[Path]:
    """Return the folders that are searched for the modules that a file imports, as Python searches `sys.path`.

    These are the folder of the file, the folder of its project (the nearest with `.git` or `pyproject.toml`), and the
    current folder. For a copy in a run folder or a job, it is only the folder of the copy, which has all modules.
    """
    folder = entry.parent
    if folder.name == JOB_CODE or (folder.name == CODE and (folder.parent / "run.json").exists()):
        return [folder]
    project = [one for one in entry.parents if (one / ".git").exists() or (one / "pyproject.toml").exists()]
    return list(dict.fromkeys([folder, *project[:1], Path.cwd().resolve()]))


def _with_imports(entry: Path) -> Iterator[tuple[str, SourceFile]]:
    """Yield a file and the files that it imports, by their paths in the folder in which the import found them."""
    roots, seen, rest = _roots(entry), set(), [(entry.parent, entry)]
    while rest:
        root, path = rest.pop()
        relative = path.relative_to(root)
        if relative in seen:
            continue
        seen.add(relative)
        try:
            text = path.read_bytes()
            tree = ast.parse(text, str(path))
        except OSError as error:
            raise ScenarioError(f"{path}: cannot be read ({error.strerror})") from None
        except SyntaxError as error:
            raise ScenarioError(f"{path}: cannot be imported: {where(error)}") from error
        yield relative.as_posix(), SourceFile(str(path), text)
        package = ".".join(relative.parent.parts)
        for one in imports_of(tree):
            if one.module.startswith(".") and not package:
                raise ScenarioError(
                    f"{path}: line {one.line}: the import is relative; use `import name` for a file in the same folder"
                )
            module = resolve_name(one.module, package)
            names = (module, *(f"{module}.{name}" for name in one.names))
            # The first folder that has one of the modules, as for `sys.path`.
            found = ([(root, file) for name in names for file in _files(root, name)] for root in roots)
            rest += next(filter(None, found), [])


def _files(root: Path, module: str) -> Iterator[Path]:
    """Yield the files in a folder that an import of the module runs."""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:depth])
        path = next((one for one in (place / "__init__.py", place.with_suffix(".py")) if one.is_file()), place)
        if path == place and not place.is_dir():  # a folder needs no __init__.py
            return
        if depth == 1 and _is_installed(parts[0], path):
            return
        if path != place:
            yield path


def _is_installed(module: str, path: Path) -> bool:
    """Return whether Python or an installed package has a module of this name; files beside a script do not count."""
    if module in sys.stdlib_module_names or module == "raysim":
        return True
    spec = PathFinder.find_spec(module)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() == path.resolve():
        return False
    return bool(
        spec.origin in ("built-in", "frozen") or {"site-packages", "dist-packages"} & set(Path(spec.origin).parts)
    )
