"""What an algorithm's file says is read without importing it, and only where importing it would say the same."""

from __future__ import annotations

import subprocess
import sys
import typing
from collections import abc
from collections.abc import Iterator
from enum import Enum
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from raysim import algorithms
from raysim.algorithms.standalone import Standalone
from raysim.common.errors import ScenarioError
from raysim.core.fields import Range
from raysim.plugins.registry import algorithm_class, algorithm_file, algorithm_names
from raysim.scenario import declared as module
from raysim.scenario.declared import declaration_of, declared
from raysim.scenario.named import _foreign
from raysim.scenario.source import UnreadableError, bundled, read

QUICKSTART = str(Path(__file__).resolve().parents[2] / "scenarios" / "quickstart.yaml")
HEAVY = {"torch", "torchvision", "ray", "mlflow", "pyarrow", "matplotlib", "scipy", "sklearn"}

COMMANDS = [
    ["list"],
    ["describe", "fedgh"],
    ["describe", "algorithms"],
    ["describe", "models"],
    ["describe", "clients"],
    ["schema"],
    ["validate", QUICKSTART],
    ["validate", QUICKSTART, "--set", "algorithm={name: fedssa, mu0: 2}"],
    ["describe", "fedghh"],
    ["launch", QUICKSTART, "--set", "training.lrr=1"],
]

MINE = '''"""A method."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from raysim.core import Algorithm, Client, Fraction


@dataclass(frozen=True)
class Mine(Algorithm[Any, Any, Any]):
    """Does nothing."""

    paper: ClassVar[str] = "mine"
    share: Fraction = 0.5
    """How much."""
    mode: Literal["a", "b"] | None = None

    def client_update(self, client: Client, down: Any) -> None:
        return None
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a method called `mine`, and a cache that knows no method."""
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    yield file
    sys.modules.pop("raysim.algorithms.mine", None)  # else other tests would find a method called `mine`


def again(name: str = "mine") -> module.Declaration:
    """What a new process would be told."""
    sys.modules.pop(f"raysim.algorithms.{name}", None)
    module._read_once.cache_clear()
    return declared(name)


def imported(name: str = "mine") -> bool:
    return f"raysim.algorithms.{name}" in sys.modules


@pytest.mark.parametrize("name", algorithm_names())
def test_reading_a_file_says_what_importing_it_says(name: str) -> None:
    file = algorithm_file(name)
    assert file is not None
    found = read(file.read_bytes())  # raises unless its fields are plain literals
    assert vars(found) == vars(declaration_of(algorithm_class(name)))


SUBCLASS = """
from dataclasses import dataclass
from typing import Any, ClassVar
{imports}

class Mixin:
    def helper(self): return 1

@dataclass(frozen=True)
class Mine({base}):
    \"\"\"Mine.\"\"\"

    {line}

    def client_update(self, client, down): return None
"""


def read_and_imported(folder: Path, imports: str, base: str, line: str = "extra: int = 3") -> list[module.Declaration]:
    """The declaration of a subclass as it is read, and as importing the file gives it."""
    file = folder / "mine.py"
    file.write_text(SUBCLASS.format(imports=imports, base=base, line=line))
    found = read(file.read_bytes(), "Mine", lambda name: read_in(folder, name))
    place = spec_from_file_location("a_subclass", file)
    assert place is not None and place.loader is not None
    imported = module_from_spec(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setitem(sys.modules, "a_subclass", imported)
        patch.delitem(sys.modules, "a_base_in_a_file", raising=False)  # of another test
        place.loader.exec_module(imported)
        return [found, declaration_of(imported.Mine)]


def read_in(folder: Path, name: str) -> bytes | None:
    beside = folder / f"{name}.py"
    return beside.read_bytes() if beside.is_file() else bundled(name)


@pytest.mark.parametrize("name", algorithm_names())
def test_a_subclass_of_a_bundled_method_is_read_with_what_it_inherits(name: str, tmp_path: Path) -> None:
    cls = algorithm_class(name)
    base = f"raysim.algorithms.{name} import {cls.__name__}"
    found, imported = read_and_imported(tmp_path, f"from {base}", cls.__name__)
    assert vars(found) == vars(imported)
    assert (found.paper, len(found.fields)) == (cls.paper, len(declaration_of(cls).fields) + 1)


WAYS = {
    "a module with another name": ("import raysim.algorithms.fedprox as other", "other.FedProx"),
    "a module of a package": ("from raysim.algorithms import fedprox", "fedprox.FedProx"),
    "a full name": ("import raysim.algorithms.fedprox", "raysim.algorithms.fedprox.FedProx"),
    "its own name": ("from raysim.algorithms.fedprox import FedProx as Mine", "Mine"),
    "a file beside it": ("from a_base_in_a_file import Between", "Between"),
    "a name that a file beside it imports": ("import a_base_in_a_file", "a_base_in_a_file.FedProx"),
    "a class without fields": ("from raysim.algorithms.fedprox import FedProx", "Mixin, FedProx"),
}
LINES = [
    "mu: float = 2.0",
    "mu: ClassVar[float] = 2.0",
    "one_architecture = False",
    "paper: ClassVar[str] = 'mine, 2026'",
    "def check(self, task): pass",
]


@pytest.mark.parametrize(
    ("imports", "base", "line"),
    [(*way, "extra: int = 3") for way in WAYS.values()] + [(*WAYS["a file beside it"], line) for line in LINES],
)
def test_ways_to_inherit(imports: str, base: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "a_base_in_a_file.py").write_text(
        SUBCLASS.replace("class Mine", "class Between").format(
            imports="from raysim.algorithms.fedprox import FedProx", base="FedProx", line="between: float = 1.0"
        )
    )
    found, imported = read_and_imported(tmp_path, imports, base, line)
    assert vars(found) == vars(imported)
    assert found.one_architecture == (line != "one_architecture = False")


@pytest.mark.parametrize(
    ("imports", "base", "why"),
    [
        (
            "Base = make()",
            "Base",
            "the base class Base of Mine was not found in raysim.algorithms, in this file or in a ",
        ),
        ("from raysim.algorithms.fedavg import *", "FedAvg", "the base class FedAvg of Mine was not found in raysim"),
        ("from a import Base", "Base", "the base class Base of Mine was not found in raysim.algorithms"),
        (
            "from a import Private\nfrom raysim.core import Algorithm",
            "Private, Algorithm",
            "the base class Private of Mine was not found in text that is read",
        ),
        (
            "from raysim.core import Algorithm\nclass A(Algorithm):\n    a: int = 1 + 1",
            "A",
            "the value of a is computed",
        ),
        ("from raysim.core import Algorithm\nclass A:\n    a: int = 1", "A, Algorithm", "Mine inherits fields of A, "),
        (
            "from raysim.core import Algorithm\nclass A(Algorithm): pass\nclass B(A): pass",
            "A, B",
            "Mine inherits from s",
        ),
    ],
)
def test_bases_that_are_not_read(imports: str, base: str, why: str) -> None:
    with pytest.raises(UnreadableError) as told:
        read(SUBCLASS.format(imports=imports, base=base, line="extra: int = 3").encode(), "Mine")
    assert str(told.value).startswith(why)


@pytest.mark.parametrize(
    "text", ["class A(B): pass\nclass B(A): pass", "from a import A\nclass A(A): pass", "class A(A.B): pass"]
)
def test_bases_in_a_circle_are_one_sentence(text: str) -> None:
    with pytest.raises(UnreadableError, match=r"^(its text is too unusual \(RecursionError\)|the base class )"):
        read(text.encode(), modules=lambda name: text.encode() if name == "a" else None)


def test_one_of_several_algorithms_is_chosen_by_its_name() -> None:
    text = b"from raysim.core import Algorithm\nclass A(Algorithm): a: int = 1\nclass B(A): b: int = 2\n"
    assert [field.name for field in read(text, "B").fields] == ["a", "b"]
    with pytest.raises(UnreadableError, match=r"^it contains 2 algorithms; add the name of one: FILE:A$"):
        read(text)
    with pytest.raises(UnreadableError, match=r"^it contains no algorithm called C; "):
        read(text, "C")


FACTS = {
    "standalone": ("", False, "no communication"),
    "fedavg": ("2017", True, "model down and up"),
    "fedgh": ("2023", False, "header down, class means up"),
    "fedkd": ("2022", False, "update or mentee down and up"),
    "fedper": ("2019", True, "extractor down and up"),
    "ditto": ("2021", True, "model down and up"),
}


@pytest.mark.parametrize("name", FACTS)
def test_year_architectures_and_messages(name: str) -> None:
    found = declared(name)
    assert (found.year, found.one_architecture, found.travels) == FACTS[name]


def test_every_method_says_what_travels() -> None:
    for name in algorithm_names():
        found = declared(name)
        assert found.travels and (found.year or name == "standalone"), name
        assert all(message.doc for message in (*(found.down or ()), *(found.up or ()))), name


def test_what_a_class_does_not_say(mine: Path) -> None:
    found = declared("mine")
    assert (found.down, found.up, found.travels, found.year) == (None, None, "", "")


def test_a_subclass_sends_what_its_base_sends() -> None:
    one = declaration_of(type("Mine", (algorithm_class("fedgh"),), {"paper": "2 others, 1999 to 2004, http://a/2011"}))
    assert (one.travels, one.year) == ("header down, class means up", "2004")
    assert [message.doc.partition("\n")[0] for message in one.down or ()] == ["The last linear layer."]


def test_commands_that_train_nothing_import_nothing_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path))
    for name in algorithm_names():
        file = algorithm_file(name)
        assert file is not None
        module._imported(name, file.read_bytes())  # as the first command ever does
    code = f"""
import sys
from raysim.cli.main import main
for args in {COMMANDS!r}:
    try:
        main(args)
    except SystemExit as end:
        assert end.code == 2, args
    found = {HEAVY!r} & set(sys.modules)
    assert not found, (args, found)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_file_is_imported_once_and_then_read(mine: Path) -> None:
    first = again()
    assert imported()
    second = again()
    assert not imported()
    assert vars(first) == vars(second)
    share, mode = second.fields
    assert (share.default, share.doc, share.allowed) == (0.5, "How much.", "a number at least 0 and at most 1")
    assert (mode.name, mode.default, second.paper) == ("mode", None, "mine")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("import Algorithm", "import Algorithmm", r"algorithms/mine\.py: cannot be imported: ImportError"),
        ("@dataclass", "oops\n\n@dataclass", r"algorithms/mine\.py: cannot be imported: NameError: .* line 9"),
        ("def client_update", "def client_updat", r"algorithms/mine\.py: Mine lacks client_update"),
        ("import Any,", "import Any Any,", r"algorithms/mine\.py: cannot be imported: invalid syntax"),
    ],
)
def test_a_file_that_was_changed_is_imported_and_its_errors_are_told(
    mine: Path, old: str, new: str, sentence: str
) -> None:
    again()
    mine.write_text(MINE.replace(old, new))
    for _ in range(2):
        with pytest.raises(ScenarioError, match=sentence):
            again()


@pytest.mark.parametrize("hook", ["check", "__post_init__"])
def test_a_check_that_is_inherited_is_a_check(hook: str) -> None:
    mixin = type("Mixin", (), {hook: lambda *_: None, "__module__": "elsewhere"})
    assert declaration_of(type("Mine", (mixin, Standalone), {})).checks
    assert not declaration_of(Standalone).checks


def test_a_changed_default_is_seen(mine: Path) -> None:
    again()
    mine.write_text(MINE.replace("0.5", "0.25"))
    assert again().fields[0].default == again().fields[0].default == 0.25


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("share: Fraction = 0.5", "share: Fraction = 1 / 2"),
        ('paper: ClassVar[str] = "mine"', 'paper: ClassVar[str] = "mine".upper()'),
        ("from raysim.core", "import yaml\nfrom raysim.core"),
        ("from raysim.core", "from raysim.data import specs\nfrom raysim.core"),
    ],
)
def test_what_cannot_be_read_is_imported_every_time(mine: Path, old: str, new: str) -> None:
    mine.write_text(MINE.replace(old, new, 1))
    for _ in range(2):
        assert again().fields[0].default == 0.5
        assert imported()


def test_another_version_of_torch_is_imported_again(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again()
    monkeypatch.setattr("importlib.metadata.version", lambda package: "0.0")
    module._surroundings.cache_clear()
    again()
    module._surroundings.cache_clear()
    assert imported()


def test_a_cache_that_cannot_be_written_is_only_slower(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine.parent / "file").write_text("no folder")
    monkeypatch.setenv("RAYSIM_CACHE", str(mine.parent / "file"))
    assert again().name == again().name == "Mine"
    assert imported()


@pytest.mark.parametrize(
    ("hint", "accepted"),
    [
        (Any, True),
        (dict[str, Any] | None, True),
        (list[Any], True),
        (typing.Dict, True),  # noqa: UP006
        (typing.Mapping, True),
        (abc.Sequence, True),
        (dict[Literal["a"], tuple[int, ...]], True),
        (Annotated[float, Range(gt=0)] | None, True),
        (dict[int, float] | None, False),
        (dict[Literal["a"], Path], False),
        (list[Enum], False),
        (Path, False),
    ],
)
def test_types_of_which_a_scenario_has_no_values(hint: Any, accepted: bool) -> None:
    assert (_foreign(hint) is None) is accepted
