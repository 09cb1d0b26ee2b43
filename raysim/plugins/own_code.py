"""The user's own files, with the same content in every process of a run.

The files that a scenario names, and the files of their project that they import, travel as text with the scenario to
every process, so that all processes run the same code. Their modules are imported below the package `raysim_own`, so
they do not replace a module that the user imported under the same name. No code runs before `Reference.load`.
"""

from __future__ import annotations

import builtins
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.modules import PACKAGE, plain_module

CODE = "code"
"""Name of the folder for the user's own files that a run's scenario names. It is next to that scenario."""

JOB_CODE = "raysim_job_code"
"""Name of the folder with the user's own files next to a job's scenario. The job uses these copies, even if the head
node has another file at the path that the scenario names."""


@dataclass(frozen=True)
class SourceFile:
    """A Python file of the user: its path and its content."""

    path: str  # path from which it was read, which other machines may lack
    text: bytes
    decides: bool = True  # whether a result may depend on it; False if only trackers use it

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex."""
        return hashlib.sha256(self.text).hexdigest()


@dataclass(frozen=True)
class OwnCode:
    """The files that a scenario names, and files that these import. Unpickling this object makes them importable."""

    # name, such as "mine.py" or "helpers/__init__.py" -> file
    files: Mapping[str, SourceFile] = field(default_factory=dict)

    @classmethod
    def merged(cls, codes: Iterable[OwnCode]) -> OwnCode:
        """Merge several objects. Raises `ScenarioError` if they have different files with the same name."""
        files: dict[str, SourceFile] = {}
        for name, file in (item for code in codes for item in code.files.items()):
            other = files.get(name, file)
            if other.text != file.text:
                raise ScenarioError(
                    f"{file.path}: another file {other.path} has the same name {name}; rename one of them"
                )
            files[name] = replace(other, decides=other.decides or file.decides)
        return cls(files)

    def write(self, folder: Path) -> None:
        """Write the files to a folder. Raises `OSError` if that fails."""
        for name, file in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(file.text)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (dict(self.files),)

    @property
    def digests(self) -> dict[str, str]:
        """Name -> SHA-256, for files that decide a result."""
        return {name: file.digest for name, file in self.files.items() if file.decides}

    @property
    def paths(self) -> list[str]:
        """The path from which each file was read."""
        return [file.path for file in self.files.values()]

    def module(self, name: str) -> SourceFile | None:
        """Return the file of a module; None if it is not one of these files."""
        place = name.replace(".", "/")
        return self.files.get(f"{place}/__init__.py") or self.files.get(f"{place}.py")  # Python searches in this order

    def is_folder(self, name: str) -> bool:
        """Return whether a module is a folder with some of these files, but without an `__init__.py`."""
        place = name.replace(".", "/")
        return self.module(name) is None and any(file.startswith(f"{place}/") for file in self.files)

    def holds(self, other: OwnCode) -> bool:
        """Return whether these files include all files of `other`, with the same content."""
        return all(name in self.files and self.files[name].text == file.text for name, file in other.files.items())

    def activate(self) -> None:
        """Make these files importable as modules below `raysim_own` in this process."""
        known = _FINDER.code.files
        if all(known.get(name, file).text == file.text for name, file in self.files.items()):
            _FINDER.code = OwnCode({**known, **self.files})
        else:
            # A known file has this name but another content. All modules are put aside, because they may have imported
            # it.
            modules = {name: module for name, module in sys.modules.items() if _is_own(module)}
            for name in modules:
                del sys.modules[name]
            _aside.append((_FINDER.code, modules))
            # If an earlier run had the same files, its modules are used again, so that its objects keep their classes.
            found = next((one for one in reversed(_aside) if one[0].holds(self)), (self, {}))
            _aside[:] = [one for one in _aside if one is not found]
            _FINDER.code = found[0]
            sys.modules.update(found[1])
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)


def _arrived(files: Mapping[str, SourceFile]) -> OwnCode:
    code = OwnCode(files)
    code.activate()
    return code


def _is_own(module: ModuleType) -> bool:
    return isinstance(getattr(module, "__loader__", None), _Loader)


class _Loader(InspectLoader):
    def __init__(self, file: SourceFile) -> None:
        self.file = file

    def get_source(self, fullname: str) -> str:
        return self.file.text.decode()

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.file.text, self.file.path)

    def is_package(self, fullname: str) -> bool:
        return Path(self.file.path).name == "__init__.py"

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Replace `__import__` in the user's code, so that the name of a user's file imports this file."""
    first = name.partition(".")[0]
    if level or (_FINDER.code.module(first) is None and not _FINDER.code.is_folder(first)):
        return __import__(name, globals, locals, fromlist or (), level)
    module = __import__(f"{PACKAGE}.{name}", globals, locals, fromlist or ())
    return module if fromlist else sys.modules[f"{PACKAGE}.{first}"]


class _Finder(MetaPathFinder):
    code = OwnCode()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname == PACKAGE:
            return ModuleSpec(PACKAGE, None, is_package=True)
        if not fullname.startswith(f"{PACKAGE}."):
            return None
        if self.code.is_folder(plain_module(fullname)):
            return ModuleSpec(fullname, None, is_package=True)
        file = self.code.module(plain_module(fullname))
        if file is None:
            return None
        spec = spec_from_loader(fullname, _Loader(file), origin=file.path)
        if spec is not None:
            spec.has_location = True  # lets tracebacks and debuggers show the user's file
        return spec


_FINDER = _Finder()

_aside: list[tuple[OwnCode, dict[str, ModuleType]]] = []
"""The code of other runs in this process, and its modules, which are at present not in `sys.modules`."""


def active_paths() -> list[str]:
    """Return the paths of the user's files that can be imported in this process."""
    return _FINDER.code.paths
