"""Code of the user's own: methods, models and more in files or packages that a scenario names.

`./mine.py:Mine` is a class or function of a file, `package.module:Mine` one of an installed module. The files that a
scenario names, and what they import from beside them, travel as text with the scenario to every process, so that all
run the same. Their modules are imported below the package `raysim_own`, so that a module that the user imported under
the same name stays what it is. None of it runs before `activate` or `Reference.load`, which announce it first.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib
import operator
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from importlib.util import resolve_name, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.files import refuse_special
from raysim.common.text import cause
from raysim.core.imports import imports_of

PACKAGE = "raysim_own"
"""The package of the modules that are made of the files that a scenario names."""

FAILURES = (Exception, SystemExit, GeneratorExit)
"""What the user's own code may raise: a function that calls `sys.exit()` fails, like any other."""


_LONGEST = 10_000_000
"""Bytes of one file: all of them travel to every process."""

BOOLEANS = ("bool", "torch.bool")
"""What NumPy and torch call the type of truth values."""


@dataclass(frozen=True)
class Reference:
    """What a scenario names outside of raysim."""

    place: str  # a file, which ends in .py, or a module
    attribute: str = ""  # a class or function in it; "": the only one of its kind

    @classmethod
    def of(cls, name: str) -> Reference | None:
        """None for a plain name, such as `fedgh`."""
        place, colon, attribute = name.rpartition(":") if ":" in name else (name, "", "")
        if place.endswith(".py") or (colon and place.replace(".", "").isidentifier()):
            return cls(place, attribute)
        return None

    @property
    def is_file(self) -> bool:
        """Whether it is a file, not an installed module."""
        return self.place.endswith(".py")

    @property
    def module(self) -> str:
        """The name under which it is imported."""
        return f"{PACKAGE}.{Path(self.place).stem}" if self.is_file else self.place

    @property
    def name(self) -> str:
        """As a run writes it, wherever the file lies: `mine.py:Mine`."""
        place = Path(self.place).name if self.is_file else self.place
        return f"{place}:{self.attribute}" if self.attribute else place

    def load(self) -> ModuleType:
        """Import the module. Raises `ScenarioError`, one sentence, when that fails."""
        if not self.is_file:
            _announce((self.place,))
        with failing(f"{self.place}: cannot be imported"):
            return importlib.import_module(self.module)

    def get(self) -> Any:
        """The class or function. Raises `ScenarioError` when there is none of that name."""
        if not self.attribute:
            raise ScenarioError(f"{self.place} given; add the name of the class or function: {self.place}:Name")
        member = getattr(self.load(), self.attribute, None)
        if not callable(member):
            raise ScenarioError(f"{self.place}: has no class or function {self.attribute!r}")
        return member


@contextmanager
def failing(sentence: str, key: str = "") -> Iterator[None]:
    """A block that calls the user's own code: its exception becomes a `ScenarioError`, this sentence and the cause."""
    try:
        yield
    except FAILURES as error:
        raise ScenarioError(f"{sentence}: {where(error)}", key=key) from error


def where(error: BaseException) -> str:
    """What is wrong with a file that was imported or called, and in which of its lines."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} (line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in _FINDER.code.paths]
    last = (own or frames)[-1]
    return f"{cause(error)} ({Path(last.filename).name}, line {last.lineno})"


def whole_number(value: object) -> int | None:
    """A whole number that own code returned, NumPy's and torch's included, as Python's; None: it is none, or a bool."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) in BOOLEANS:
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except FAILURES:
        return None


def real_number(value: object) -> float | None:
    """A number that own code returned, as a float; None: it is none, or text or a bool."""
    if isinstance(value, bool | str | bytes) or str(getattr(value, "dtype", "")) in BOOLEANS:
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except FAILURES:
        return None


def plain_module(name: str) -> str:
    """The name of a module as its file has it: `mine` for `raysim_own.mine`."""
    return name.removeprefix(f"{PACKAGE}.")


def installed(kind: str) -> dict[str, Reference]:
    """What installed packages add under the entry points `raysim.<kind>`, by name."""
    references = {entry.name: Reference.of(entry.value) for entry in entry_points(group=f"raysim.{kind}")}
    return {name: reference for name, reference in references.items() if reference is not None}


def named(kind: str, name: str) -> Reference | None:
    """What a name refers to outside of raysim, an entry point's included; None: raysim must know it."""
    return Reference.of(name) or installed(kind).get(name)


@dataclass(frozen=True)
class SourceFile:
    """One file."""

    path: str  # where it was read; it need not be there in other processes
    text: bytes

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex."""
        return hashlib.sha256(self.text).hexdigest()


@dataclass(frozen=True)
class OwnCode:
    """The files that a scenario names, and those beside them that they import. Unpickled, it can be imported."""

    files: Mapping[str, SourceFile] = field(default_factory=dict)  # "mine.py" or "helpers/__init__.py" -> the file

    @classmethod
    def of(cls, paths: Iterable[Path]) -> OwnCode:
        """Read the files. Nothing of them runs.

        Raises `ScenarioError` when one cannot be read or parsed, two have the same name, or a module of that name is
        installed.
        """
        files: dict[str, SourceFile] = {}
        for path in paths:
            if not path.stem.isidentifier():
                raise ScenarioError(f"{path}: {path.stem!r} is not a module name; use letters, digits and _")
            if _is_installed(path.stem, path):
                raise ScenarioError(f"{path}: Python has another module {path.stem!r}; give the file another name")
            for name, file in _with_imports(path):
                _add(files, name, file)
        return cls(files)

    @classmethod
    def merged(cls, codes: Iterable[OwnCode]) -> OwnCode:
        """All of these. Raises `ScenarioError` when two have different files of the same name."""
        files: dict[str, SourceFile] = {}
        for code in codes:
            for name, file in code.files.items():
                _add(files, name, file)
        return cls(files)

    def write(self, folder: Path) -> None:
        """Write the files. Raises `OSError` when that fails."""
        for name, file in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(file.text)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (dict(self.files),)

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of every file."""
        return {name: file.digest for name, file in self.files.items()}

    @property
    def paths(self) -> list[str]:
        """Where the files were read, one each."""
        return [file.path for file in self.files.values()]

    @property
    def folders(self) -> list[Path]:
        """Where the files were read."""
        return list(dict.fromkeys(Path(file.path).parent for file in self.files.values()))

    def module(self, name: str) -> SourceFile | None:
        """The file of a module."""
        place = name.replace(".", "/")
        return self.files.get(f"{place}/__init__.py") or self.files.get(f"{place}.py")  # as Python looks

    def is_folder(self, name: str) -> bool:
        """Whether a module is a folder of these files without an `__init__.py`."""
        place = name.replace(".", "/")
        return self.module(name) is None and any(file.startswith(f"{place}/") for file in self.files)

    def activate(self) -> None:
        """Announce these files, and make their modules those of `raysim_own` in this process."""
        known = _FINDER.code.files
        if all(known.get(name) == file for name, file in self.files.items()):
            return
        _announce(self.paths)
        if all(known.get(name, file).text == file.text for name, file in self.files.items()):
            _FINDER.code = OwnCode({**known, **self.files})
        else:  # an earlier version, or another scenario's file of this name: nothing that imported it may stay
            for name in [name for name, module in sys.modules.items() if _is_own(module)]:
                del sys.modules[name]
            _FINDER.code = self
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)


def _add(files: dict[str, SourceFile], name: str, file: SourceFile) -> None:
    if files.setdefault(name, file).text != file.text:
        raise ScenarioError(f"{file.path}: there is another {name}, {files[name].path}; rename one of them")


def _arrived(files: Mapping[str, SourceFile]) -> OwnCode:
    code = OwnCode(files)
    code.activate()
    return code


Listener = Callable[[Sequence[str]], None]
"""Called with the files or the module of the user's own that run next; when it raises, they do not."""

_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within it, this listener alone is called; after it, again whichever was before."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()


def _announce(places: Sequence[str]) -> None:
    if _listeners:
        _listeners[-1](places)


def _with_imports(entry: Path) -> Iterator[tuple[str, SourceFile]]:
    """A file and what it imports from its folder, by their names there."""
    root, seen, rest = entry.parent, set(), [entry]
    while rest:
        path = rest.pop()
        if path in seen:
            continue
        seen.add(path)
        refuse_special(path)
        try:
            if path.stat().st_size > _LONGEST:
                raise ScenarioError(f"{path}: has more than {_LONGEST} bytes; keep data in files of their own")
            text = path.read_bytes()
            tree = ast.parse(text)
        except OSError as error:
            raise ScenarioError(f"{path}: cannot be read ({error.strerror})") from None
        except (SyntaxError, ValueError) as error:
            raise ScenarioError(f"{path}: cannot be imported: {where(error)}") from None
        except (RecursionError, MemoryError):  # of the parser, at thousands of operators in each other
            raise ScenarioError(f"{path}: cannot be imported: an expression is nested too deeply") from None
        relative = path.relative_to(root)
        yield relative.as_posix(), SourceFile(str(path), text)
        package = ".".join(relative.parent.parts)
        for one in imports_of(tree):
            if one.module.startswith(".") and not package:
                raise ScenarioError(
                    f"{path}: line {one.line}: relative import; use `import name` for a file in the same folder"
                )
            try:
                module = resolve_name(one.module, package)
            except ImportError as error:
                raise ScenarioError(f"{path}: line {one.line}: cannot be imported: {error}") from None
            for name in (module, *(f"{module}.{name}" for name in one.names)):
                rest += _files(root, name)


def _files(root: Path, module: str) -> Iterator[Path]:
    """The files in a folder that an import of the module runs."""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:depth])
        path = next((one for one in (place / "__init__.py", place.with_suffix(".py")) if one.is_file()), place)
        if depth == 1 and _is_installed(parts[0], path):
            return
        if path != place:
            yield path
        elif not place.is_dir():  # a folder needs no __init__.py
            return


def _is_installed(module: str, path: Path) -> bool:
    """Whether Python itself, or what is installed, has a module of this name; another file beside a script is none."""
    if module in sys.stdlib_module_names or module == "raysim":
        return True
    spec = PathFinder.find_spec(module)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() == path.resolve():
        return False
    return bool(
        spec.origin in ("built-in", "frozen") or {"site-packages", "dist-packages"} & set(Path(spec.origin).parts)
    )


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
    """`__import__` as own code calls it: a name that is one of its files' means that file."""
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
            spec.has_location = True  # tracebacks and debuggers then show the user's file
        return spec


_FINDER = _Finder()
