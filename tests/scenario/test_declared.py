"""What an algorithm's file says is read without importing it, and only where importing it would say the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from raysim import algorithms
from raysim.algorithms.standalone import Standalone
from raysim.common.errors import ScenarioError
from raysim.plugins.registry import algorithm_class, algorithm_file, algorithm_names
from raysim.scenario import declared as module
from raysim.scenario.declared import declaration_of, declared, read

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
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a method called `mine`, and a cache that knows no method."""
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "raysim.algorithms.mine", raising=False)  # of another test
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


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
    found = read(file.read_bytes())
    assert found is not None, "write its fields in plain literals, or `raysim describe` has to import it"
    assert vars(found) == vars(declaration_of(algorithm_class(name)))


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
    assert [message.doc for message in one.down or ()] == ["The last linear layer."]


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
