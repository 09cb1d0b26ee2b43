"""A user's own files: found, announced, run as they were read, kept with the run, and never run unannounced."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import raysim
from raysim.cli.main import main
from raysim.common.errors import ScenarioError
from raysim.plugins import own_code, references
from raysim.plugins.own_code import OwnCode
from raysim.plugins.references import Reference
from raysim.runs.verify import verify
from tests.conftest import REPOSITORY

MINE = (REPOSITORY / "algorithms" / "fedgh.py").read_text().replace("class FedGH", "class Mine")
HELPED = MINE.replace("from typing", "from my_helper import SCALE\nfrom typing", 1)
NETS = """
from torch import nn
from raysim import SplitNet

class Small(SplitNet):
    def __init__(self, num_classes, input_spec, feature_dim):
        body = nn.Sequential(nn.Flatten(), nn.Linear(input_spec.size, feature_dim), nn.ReLU())
        super().__init__(body, nn.Linear(feature_dim, num_classes))

def narrow(num_classes, input_spec, feature_dim):
    return Small(num_classes, input_spec, feature_dim - 1)

def deep(num_classes, input_spec, feature_dim):
    net = Small(num_classes, input_spec, feature_dim)
    net.header = nn.Sequential(net.header)
    return net

def fails(num_classes, input_spec, feature_dim):
    raise RuntimeError("oops")

def other(num_classes, input_spec, feature_dim):
    return nn.Linear(2, 2)

def few(num_classes):
    return nn.Linear(2, 2)
"""
FEDPROX = """
from dataclasses import dataclass
from raysim.algorithms.fedavg import FedAvg
from raysim.core import Model, NonNegative
from raysim.core.ops import cross_entropy

@dataclass(frozen=True)
class FedProx(FedAvg):
    mu: NonNegative = 0.1

    def client_update(self, client, down):
        client.fit(self.loss, down.w)
        return Model(self._shared(client.net))

    def loss(self, net, batch, given):
        away = sum((value - given[name]).square().sum() for name, value in net.named_parameters())
        return cross_entropy(net, batch, None) + self.mu / 2 * away
"""
NAMES = ("mine", "nets", "my_helper", "evil")
SCENARIO = """
name: mine
rounds: 2
backend: in_process
algorithm: {name: ./mine.py}
data: {name: digits, partition: {name: pathological, classes_per_client: 2}}
clients: {count: 4, models: [digits_mlp64, "./nets.py:Small"]}
"""


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Iterator[None]:
    forget_own_code()  # tests of other folders leave theirs
    yield
    forget_own_code()


def forget_own_code() -> None:
    own_code._FINDER.code = OwnCode()
    for name in [name for name in sys.modules if name.startswith(own_code.PACKAGE) or name in NAMES]:
        del sys.modules[name]


@pytest.fixture
def folder(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, which is no part of the current one."""
    here = workplace / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    there = workplace / "there"
    there.mkdir()
    files = {"mine.py": HELPED, "my_helper.py": "SCALE = 1.0\n", "nets.py": NETS, "s.yaml": SCENARIO}
    for name, text in files.items():
        (there / name).write_text(text)
    return there


def ran(*words: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """What the command prints on stderr."""
    with pytest.raises(SystemExit) as ended:
        main([*words])
        raise SystemExit(0)
    shown = capsys.readouterr()
    assert ended.value.code == code, shown.err
    return " ".join(shown.err.split())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fedgh", None),
        ("./mine.py", Reference("./mine.py")),
        ("/a/b c/mine.py:Mine", Reference("/a/b c/mine.py", "Mine")),
        ("package.module:Mine", Reference("package.module", "Mine")),
        ("no module:Mine", None),
    ],
)
def test_references(name: str, expected: Reference | None) -> None:
    assert Reference.of(name) == expected


class TestRuns:
    def test_a_method_and_a_model_of_ones_own(self, folder: Path) -> None:
        """The same numbers as the built-in method, whose file this is, in a run folder that stands alone."""
        result = raysim.run(folder / "s.yaml", quiet=True)
        same = raysim.run(folder / "s.yaml", sets=["algorithm.name=fedgh"], quiet=True)
        assert result.state_digest == same.state_digest
        assert set(result.clients.model) == {"digits_mlp64", "nets.py:Small"}
        kept = {path.name: path.read_text() for path in (result.folder / "code").iterdir() if path.suffix == ".py"}
        assert kept == {"mine.py": HELPED, "my_helper.py": "SCALE = 1.0\n", "nets.py": NETS}
        assert {"mine.py", "my_helper.py", "nets.py"} < result.summary["code"]["files"].keys()

        shutil.rmtree(folder)
        longer = result.resume(["rounds=3"], quiet=True)
        assert longer.summary["rounds"] == 3
        assert len(result.client(1).network.header.weight) == 10

    def test_an_edited_file_is_another_run(self, folder: Path) -> None:
        before = raysim.Scenario.load(folder / "s.yaml")
        first = before.algorithm
        (folder / "my_helper.py").write_text("SCALE = 2.0\n")
        after = raysim.Scenario.load(folder / "s.yaml")
        assert type(after.algorithm) is not type(first)
        assert sys.modules["raysim_own.my_helper"].SCALE == 2.0
        assert before.own_code.digests != after.own_code.digests

    @pytest.mark.parametrize("edited", [False, True])
    def test_beside_the_users_own_modules(self, edited: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A notebook that has imported its own files runs them, resumes the run, looks into it, and keeps its own."""
        monkeypatch.syspath_prepend(folder)
        users = {name: importlib.import_module(name) for name in ("mine", "my_helper", "nets")}
        result = raysim.run(folder / "s.yaml", quiet=True)
        if edited:
            for name in ("my_helper.py", "nets.py"):
                (folder / name).write_text((folder / name).read_text() + "EDITED = True\n")
        net = result.client(1).network
        assert type(net).__name__ == "Small"
        assert not isinstance(net, users["nets"].Small)
        assert not hasattr(sys.modules[type(net).__module__], "EDITED")
        result.resume(["rounds=3"], quiet=True)
        assert {name: sys.modules[name] for name in users} == users
        assert hasattr(importlib.reload(users["my_helper"]), "EDITED") == edited

    @pytest.mark.large
    @pytest.mark.ray
    def test_the_same_on_actors(self, folder: Path) -> None:
        traces = verify(raysim.Scenario.load(folder / "s.yaml"), [1, 2], kill=True)
        assert [trace.difference for trace in traces] == [None] * len(traces)
        assert traces[0].digest == traces[1].digest

    def test_a_folder_without_an_init_file(self, folder: Path) -> None:
        """It is a package to Python too; the run folder has its files, and other processes import them from there."""
        (folder / "lib" / "deep").mkdir(parents=True)
        (folder / "my_helper.py").rename(folder / "lib" / "deep" / "my_helper.py")
        for line in (
            "from lib.deep.my_helper import SCALE",
            "import lib.deep.my_helper\nSCALE = lib.deep.my_helper.SCALE",
        ):
            (folder / "mine.py").write_text(HELPED.replace("from my_helper import SCALE", line))
            loaded = raysim.Scenario.load(folder / "s.yaml")
            assert set(loaded.own_code.files) == {"mine.py", "lib/deep/my_helper.py", "nets.py"}
            assert type(loaded.algorithm).__module__ == "raysim_own.mine"

    def test_a_subclass_of_a_bundled_method(self, folder: Path) -> None:
        """FedProx as FedAvg and a term: FedAvg's bits without the term, other bits with it."""
        (folder / "mine.py").write_text(FEDPROX)
        digests = [
            raysim.run(
                folder / "s.yaml", sets=[f"algorithm={algorithm}", "clients.models=[digits_mlp64]"], quiet=True
            ).state_digest
            for algorithm in ("{name: fedavg}", "{name: ./mine.py, mu: 0}", "{name: ./mine.py, mu: 1}")
        ]
        assert digests[0] == digests[1] != digests[2]

    def test_a_sweep(self, folder: Path) -> None:
        from raysim.sweeps.definition import load_sweep

        (folder / "sweep.yaml").write_text(
            "base: s.yaml\nruns:\n  a: [algorithm.name=./mine.py]\n  b: [algorithm.name=fd]\n"
        )
        first, second = load_sweep(folder / "sweep.yaml").cells
        assert first.scenario.own_code.files.keys() == {"mine.py", "my_helper.py", "nets.py"}
        assert second.scenario.own_code.files.keys() == {"nets.py"}
        (folder / "my_helper.py").write_text("SCALE = 2.0\n")
        changed, same = load_sweep(folder / "sweep.yaml").cells
        assert changed.id != first.id
        assert same.id == second.id
        by_grid = load_sweep(folder / "s.yaml", grid={"algorithm.name": ["./mine.py", "fd"]}, seeds=[1])
        assert [cell.name for cell in by_grid.cells] == ["Mine seed=1", "fd seed=1"]

    def test_an_entry_point(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(folder)
        points = [
            EntryPoint("my_method", "mine:Mine", "raysim.algorithms"),
            EntryPoint("my_net", "nets:Small", "raysim.models"),
        ]
        monkeypatch.setattr(references, "entry_points", lambda group: EntryPoints(points).select(group=group))
        sets = ["algorithm.name=my_method", "clients.models=[digits_mlp64, my_net]"]
        result = raysim.run(folder / "s.yaml", sets=sets, quiet=True)
        assert set(result.clients.model) == {"digits_mlp64", "my_net"}
        assert {"mine.py", "my_helper.py"} < result.summary["code"]["files"].keys()

    def test_a_job_ships_them(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from raysim.jobs.stage import stage

        loaded = raysim.Scenario.load(folder / "s.yaml")
        name = stage([folder / "s.yaml"], tmp_path / "job", loaded.own_code)
        shutil.rmtree(folder)
        monkeypatch.chdir(tmp_path / "job")
        assert raysim.Scenario.load(str(name)).own_code.digests == loaded.own_code.digests


@pytest.mark.parametrize(
    ("sets", "files", "sentence"),
    [
        ("algorithm.name=./none.py", {}, "./none.py given, but there is no such file in "),
        (
            "algorithm.name=./mine.py:Nope",
            {},
            "mine.py: contains no subclasses of raysim.Algorithm called Nope; add one",
        ),
        (
            "algorithm.name=./random.py",
            {"random.py": ""},
            "random.py: an installed module also has the name 'random'; rename the file",
        ),
        (
            "algorithm.name=./my-own.py",
            {"my-own.py": ""},
            "'my-own' is not a valid module name; use letters, digits and _, and do not begin with a digit",
        ),
        ("algorithm.name=./evil.py", {"evil.py": "def f(:\n"}, "evil.py: cannot be imported: invalid syntax (line 1)"),
        (
            "algorithm.name=./evil.py",
            {"evil.py": "from .nets import x\n"},
            "evil.py: line 1: the import is relative; use ",
        ),
        (
            "algorithm.name=./evil.py",
            {"evil.py": "import no_such_module\n"},
            "evil.py: cannot be imported: ModuleNotFoundError: ",
        ),
        ("algorithm.name=no_such_package:Mine", {}, "no_such_package: cannot be imported: ModuleNotFoundError: "),
        ("algorithm.name=mine", {}, "unknown algorithm 'mine' (available: "),
        (
            "clients.models=[./nets.py, digits_mlp64]",
            {},
            "nets.py given; add the name of the class or function: nets.py:Name",
        ),
        ("clients.models=['./nets.py:None_', digits_mlp64]", {}, "nets.py: has no class or function 'None_'"),
        (
            "clients.models=['./nets.py:fails', digits_mlp64]",
            {},
            "nets.py:fails: cannot be built: RuntimeError: oops (nets.py, line 19)",
        ),
        (
            "clients.models=['./nets.py:few', digits_mlp64]",
            {},
            "nets.py:few: cannot be built: TypeError: few() takes 1 positional argument but 3 were given",
        ),
        (
            "clients.models=['./nets.py:other', digits_mlp64]",
            {},
            "nets.py:other: returns a Linear; it must return a raysim.SplitNet",
        ),
        (
            "clients.models=['./nets.py:deep', digits_mlp64]",
            {},
            "nets.py:deep: its header is a Sequential; it must be a torch.nn.Linear, because methods ",
        ),
        (
            "clients.models=['./nets.py:narrow', digits_mlp64]",
            {},
            "nets.py:narrow: the representation of two samples must be a tensor of shape (2, 32), "
            "but the model returned one of shape (2, 31)",
        ),
        (
            "clients.models=['./nets.py:Small']",
            {},
            "the representation width of nets.py:Small is unknown; set clients.feature_dim",
        ),
        (
            "clients.models=['./nets.py:Small', './sub/nets.py:Small']",
            {"sub/nets.py": ""},
            "has the same name nets.py; rename one of them",
        ),
    ],
)
def test_one_sentence(
    folder: Path, sets: str, files: Mapping[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    said = ran("launch", str(folder / "s.yaml"), "--set", sets, capsys=capsys, code=2)
    assert sentence in said and "(__init__.py, line" not in said
    assert not Path("runs").exists()


TOUCH = "open({mark!r}, 'w').close()\n"
EVIL: dict[str, dict[str, Any]] = {
    "when imported": {"evil.py": "{touch}" + MINE},
    "in an annotation": {
        "evil.py": MINE.replace("header_lr: Positive", "header_lr: open({mark!r}, 'w').close() or float")
    },
    "in an annotation, by attributes": {
        "evil.py": MINE.replace("header_lr: Positive", "header_lr: ().__class__.__base__.__subclasses__() or {touch_}")
    },
    "in an annotation that is text": {
        "evil.py": MINE.replace("header_lr: Positive", "header_lr: 'open({quoted}, chr(119)).close() or float'")
    },
    "in text within an annotation": {
        "evil.py": MINE.replace("header_lr: Positive", "header_lr: list['open({quoted}, chr(119)).close() or float']")
    },
    "in an annotation, by a function of typing": {
        "evil.py": MINE.replace(
            "header_lr: Positive",
            "header_lr: _eval_type(ForwardRef('open({quoted}, chr(119))'), dict(), dict(), ()) or float",
        )
    },
    "in a default": {"evil.py": MINE.replace("= 0.01", "= open({mark!r}, 'w').close() or 0.01", 1)},
    "in a class body": {"evil.py": MINE.replace("    paper:", "    open({mark!r}, 'w').close()\n    paper:", 1)},
    "in a decorator": {"evil.py": MINE.replace("@dataclass", "@(open({mark!r}, 'w').close() or dataclass)", 1)},
    "in a file that it imports": {"evil.py": "import my_helper\n" + MINE, "my_helper.py": "{touch}"},
    "in a package that it imports": {
        "evil.py": "import deep.er\n" + MINE,
        "deep/__init__.py": "{touch}",
        "deep/er.py": "",
    },
    "in a check": {"evil.py": MINE + "\n    def check(self, task):\n        {touch}"},
    "through a link": {"elsewhere/evil.py": "{touch}" + MINE, "evil.py": None},
    "a module": {"evil.py": "{touch}" + MINE, "--set": "evil:Mine"},
    "a parent's folder": {"evil.py": "{touch}" + MINE, "--set": "../there/evil.py"},
    "an absolute path": {"evil.py": "{touch}" + MINE, "--set": "{folder}/evil.py"},
    "the code folder": {"code/evil.py": "{touch}" + MINE},
    "a model": {"evil.py": "{touch}" + NETS, "--set": "fedgh", "model": "./evil.py:Small"},
    "a model's module": {"evil.py": "{touch}" + NETS, "--set": "fedgh", "model": "evil:Small"},
}


def place(files: Mapping[str, Any], folder: Path) -> tuple[list[str], Path]:
    """Write the files; the words of a command that names them, and what one of them writes when it runs."""
    mark = folder.parent / "it_ran"
    texts = {"touch": TOUCH.format(mark=str(mark)), "touch_": f"open({str(mark)!r}, 'w')"}

    def filled(text: str) -> str:
        for word, value in {**texts, "mark!r": repr(str(mark)), "quoted": f'"{mark}"', "folder": str(folder)}.items():
            text = text.replace(f"{{{word}}}", value)
        return text

    for name, text in files.items():
        if name in ("--set", "model"):
            continue
        (folder / name).parent.mkdir(exist_ok=True)
        if text is None:
            (folder / name).symlink_to(folder / "elsewhere" / name)
        else:
            (folder / name).write_text(filled(text))
    sets = [f"algorithm.name={filled(files.get('--set', './evil.py'))}"]
    sets.append(f"clients.models=[digits_mlp64, '{files.get('model', 'digits_mlp128')}']")
    return [str(folder / "s.yaml"), *(word for one in sets for word in ("--set", one))], mark


class TestNothingRunsUnannounced:
    @pytest.mark.parametrize("files", EVIL.values(), ids=EVIL.keys())
    def test_validate_says_what_it_would_run(
        self,
        files: Mapping[str, Any],
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.syspath_prepend(folder)
        words, mark = place(files, folder)
        assert "evil" in ran("validate", *words, capsys=capsys)
        assert not mark.exists()

    @pytest.mark.parametrize("case", ["when imported", "in an annotation", "in a check", "a module", "a model"])
    def test_launch_says_it_first(
        self, case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """By the time that the code runs, its file was printed."""
        monkeypatch.syspath_prepend(folder)
        words, mark = place(EVIL[case], folder)
        said: list[bool] = []
        real = own_code.announce

        def announce(places: Any) -> None:
            assert any(said) or not mark.exists()
            real(places)
            said.append("evil" in capsys.readouterr().err)

        monkeypatch.setattr(own_code, "announce", announce)
        with contextlib.suppress(SystemExit):
            main(["launch", "--dry-run", *words])
        assert any(said)
        assert mark.exists()

    def test_describe(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        _, mark = place(EVIL["when imported"], folder)
        main(["describe", str(folder / "evil.py")])
        assert "header_lr" in capsys.readouterr().out
        (folder / "evil.py").write_text(FEDPROX.replace("@", f"open({str(mark)!r}, 'w')\n\n@", 1))
        main(["describe", str(folder / "evil.py")])
        shown = " ".join(capsys.readouterr().out.split())
        assert "Paper: McMahan et al., AISTATS 2017" in shown and "Architectures: one for all clients" in shown
        assert "avg_bn_buffers true" in shown and "mu 0.1 a number at least 0" in shown
        place(EVIL["in a default"], folder)
        said = ran("describe", str(folder / "evil.py"), capsys=capsys, code=2)
        assert "cannot describe the method from the file's text: the value of header_lr is computed (" in said
        assert "`raysim validate SCENARIO --run-code` runs the file and shows its fields" in said
        assert not mark.exists()

    @pytest.mark.parametrize(
        ("line", "sentence"),
        [
            ("profiles: ClassVar[Any] = [1]", "`profiles` is [1]; give each profile a mapping of fields to values"),
            (
                "profiles: ClassVar[Any] = {'official': 3}",
                "`profiles` is {'official': 3}; give each profile a mapping of",
            ),
            ("extra: __builtins__ = 1", "a field has a type that a scenario cannot contain"),
            ("extra: [int] = 1", "a field has a type that a scenario cannot contain"),
            ("extra: Pattern = 1", "a field has a type that a scenario cannot contain"),
            ("extra: Optional[List] = None", ""),
            ("extra: int = 'a'", "field extra has the default 'a'; allowed: a whole number"),
            ("extra: Annotated[float, Range(gt=0)] = 0.0", "field extra has the default 0.0; allowed: greater than 0"),
            ('extra: int = 1\n    """\\x1b]0;title\\x07 red \\x1b[31m"""', ""),
        ],
    )
    def test_odd_fields(self, line: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Not one is a defect of raysim, and none reaches the terminal as an escape sequence."""
        head, _, rest = MINE.partition("    header_lr")
        (folder / "odd.py").write_text(f"from typing import *\n{head}    {line}\n    header_lr{rest}")
        codes = []
        for words in (["describe", str(folder / "odd.py")], ["validate", str(folder / "s.yaml")]):
            try:
                main([*words, *(["--set", "algorithm.name=./odd.py"] if words[0] == "validate" else [])])
                codes.append(0)
            except SystemExit as ended:
                codes.append(int(ended.code or 0))
        shown = capsys.readouterr()
        assert set(codes) <= {0, 2}, shown.err
        assert sentence in shown.err
        assert "\x1b" not in shown.out + shown.err

    def test_only_these_commands_refuse_it(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """What a command refused to run, Python code may run after it in the same process."""
        words, mark = place(EVIL["in a default"], folder)
        assert "only partly checked" in ran("validate", *words, capsys=capsys)
        raysim.Scenario.load(folder / "s.yaml", words[2::2])
        assert mark.exists()

    def test_validate_runs_it_when_asked_and_finds_what_a_dry_run_finds(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words, mark = place(EVIL["in a default"], folder)
        said = ran("validate", *words, "--run-code", capsys=capsys)
        assert mark.exists()
        assert "running code from" in said and "s.yaml: valid; data files were not checked" in said
        hollow = (
            "from nets import Small\n\nclass Hollow(Small):\n    def forward(self, x_B):\n        raise KeyError(1)\n"
        )
        (folder / "hollow.py").write_text(hollow)
        sets = ["clients.models=['./hollow.py:Hollow']", "clients.feature_dim=16"]
        words = [str(folder / "s.yaml"), *(word for one in sets for word in ("--set", one))]
        for command in (["launch", "--dry-run"], ["validate", "--run-code"]):
            said = ran(*command, *words, capsys=capsys, code=2)
            assert "clients.models: hollow.py:Hollow: a training step fails: KeyError: 1 (hollow.py, line 5)" in said

    def test_a_run_whose_code_was_changed(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        result = raysim.run(folder / "s.yaml", quiet=True)
        mark = folder / "it_ran"
        kept = result.folder / "code"
        (kept / "my_helper.py").write_text(TOUCH.format(mark=str(mark)) + "SCALE = 1.0\n")
        for words in (["resume"], ["tsne", "--clients", "0"], ["tree", "--sample", "0"], ["attack"]):
            said = ran(words[0], str(result.folder), *words[1:], capsys=capsys, code=2)
            done = "resumed" if words == ["resume"] else "inspected"
            assert f"{result.folder} cannot be {done}: its code has changed: my_helper.py (" in said
            assert said.endswith(f"; restore the original files in {kept}") == (done == "inspected")
            assert ("--code-changed" in said) == (done == "resumed")
        with pytest.raises(ScenarioError, match=r" cannot be inspected: its code has changed: my_helper\.py "):
            result.client(0)
        assert "its code has changed" in ran("resume", str(result.folder), "--set", "rounds=3", capsys=capsys, code=2)
        assert not mark.exists()
        said = ran("resume", str(result.folder), "--set", "rounds=3", "--code-changed", "--quiet", capsys=capsys)
        assert said.startswith(f"raysim: running code from {kept / 'mine.py'}, ")
        assert mark.exists()

    def test_a_run_that_noted_no_code(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        result = raysim.run(folder / "s.yaml", quiet=True)
        identity = result.folder / "run.json"
        facts = json.loads(identity.read_text())
        facts["code"]["files"] = {}
        identity.write_text(json.dumps(facts))
        said = ran("resume", str(result.folder), "--set", "rounds=3", capsys=capsys, code=2)
        assert "mine.py (none before, " in said

    def test_a_link_in_a_runs_code(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        result = raysim.run(folder / "s.yaml", quiet=True)
        (result.folder / "code" / "mine.py").unlink()
        (result.folder / "code" / "mine.py").symlink_to(folder / "mine.py")
        assert "is a link" in ran("resume", str(result.folder), "--set", "rounds=3", capsys=capsys, code=2)


SELECTS = """import numpy as np
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    def select(self, candidates, size, rng):
        return {returned}
"""
LEAVES = """
import sys
import numpy
from dataclasses import dataclass
from torch import nn
from raysim import SplitNet

class WordlessError(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def load():
    sys.exit()

def model(num_classes, input_spec, feature_dim):
    sys.exit(3)

def tensors():
    import torch
    return {"x": torch.zeros(9, 4, requires_grad=True), "y": [0, 1, 2] * 3}

def wordless():
    raise WordlessError

class Late(SplitNet):
    def __init__(self, num_classes, input_spec, feature_dim):
        body = nn.Sequential(nn.Flatten(), nn.Linear(input_spec.size, feature_dim))
        super().__init__(body, nn.Linear(feature_dim, num_classes))

    def forward(self, x):
        sys.exit("bye")

class Attribute(Late):
    def __getattr__(name):
        return None

@dataclass(frozen=True)
class Default:
    first: int = numpy.int64(1)

    def shares(self, *given):
        return None

@dataclass(frozen=True)
class Leaves:
    select = shares = factor = lambda self, *given: sys.exit()
"""
OWN_POLICY = "clients={count: 4, participation: 0.5, models: [digits_mlp64], selection: {name: './evil.py:Leaves'}}"
LEAVING: dict[str, tuple[str, str]] = {
    "import": ("clients.models=['./gone.py:Net', digits_mlp64]", "gone.py: cannot be imported: SystemExit: 0 (gone.py"),
    "data": ("data={name: './evil.py:load', partition: {name: iid}}", "evil.py:load fails: SystemExit (evil.py, line"),
    "model": ("clients.models=['./evil.py:model', digits_mlp64]", "evil.py:model: cannot be built: SystemExit: 3 ("),
    "selection": (OWN_POLICY, "clients.selection: round 1: Leaves.select fails: SystemExit (evil.py, line "),
    "partition": ("data.partition={name: './evil.py:Leaves'}", "partition.name: Leaves.shares fails: SystemExit (evil"),
    "schedule": ("training.schedule={name: './evil.py:Leaves'}", "schedule: Leaves.factor fails: SystemExit (evil.py"),
    "a default that is NumPy's": (
        "data.partition={name: './evil.py:Default'}",
        " of type numpy.int64, which a scenario cannot contain; allowed: text",
    ),
    "an attribute": (
        "clients.models=['./evil.py:Attribute', digits_mlp64]",
        "evil.py:Attribute: fails on two samples of 1x8x8 images: TypeError: Attribute.__getattr__() takes 1",
    ),
    "tensors that require a gradient": (
        "data={name: './evil.py:tensors', partition: {name: iid}}",
        "evil.py:tensors returned a value for x that is not an array: RuntimeError: Can't call numpy() on",
    ),
    "an exception without text": (
        "data={name: './evil.py:wordless', partition: {name: iid}}",
        "evil.py:wordless fails: WordlessError: its text cannot be shown (evil.py, line ",
    ),
}  # fmt: skip


class TestCodeThatEndsTheProcess:
    @pytest.mark.parametrize(("sets", "sentence"), LEAVING.values(), ids=LEAVING.keys())
    def test_is_an_error_before_the_run(
        self, sets: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "evil.py").write_text(LEAVES)
        (folder / "gone.py").write_text("import sys\nsys.exit(0)\n")
        words = ["--set", "algorithm.name=fedgh", "--set", "clients.models=[mlp_s]", "--set", sets]
        if not sets.startswith("data={"):
            words[3] = "clients.models=[digits_mlp64]"
        assert sentence in ran("launch", str(folder / "s.yaml"), *words, capsys=capsys, code=2)
        assert not Path("runs").exists()

    @pytest.mark.parametrize("hook", ["client_update", "server_update", "forward"])
    def test_is_an_error_of_its_hook(self, hook: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "nets.py").write_text(LEAVES)
        if hook == "forward":
            sets = ["clients.models=[digits_mlp64, './nets.py:Late']", "algorithm.name=fedgh"]
        else:
            sets = ["clients.models=[digits_mlp64]"]
            leaves = re.sub(rf"(    def {hook}\(.*:\n)", r"\1        raise SystemExit\n", HELPED)
            (folder / "mine.py").write_text(leaves)
        words = [word for one in sets for word in ("--set", one)]
        said = ran("launch", str(folder / "s.yaml"), *words, capsys=capsys, code=1)
        assert "Traceback (most recent call last)" in said
        sentence = {
            "client_update": r"raysim: Mine.client_update of client 0 failed in round 1 .*\(mine.py, line \d+\)$",
            "server_update": r"raysim: Mine.server_update failed in round 1.*\(mine.py, line \d+\)$",
            "forward": r"raysim: the test of client 1 with model nets.py:Late failed: SystemExit: bye",
        }[hook]
        assert re.search(sentence, said, re.MULTILINE)
        (run,) = Path("runs").glob("*/*")
        copies = f"resuming uses the copy of your code in {run.absolute() / 'code'}; to run a corrected file, "
        assert f"{copies}launch again" in said


class TestSelection:
    def test_numpy_integers(self, folder: Path) -> None:
        """As NumPy returns them: the run writes them down, is resumed, and is looked into."""
        (folder / "evil.py").write_text(SELECTS.format(returned="np.array(candidates.ids)[:size]"))
        sets = ["clients.participation=0.5", "clients.selection={name: './evil.py:Mine'}", "algorithm.name=fedgh"]
        result = raysim.run(folder / "s.yaml", sets=sets, quiet=True)
        assert set(result.clients[result.clients.participated].client) == {0, 1}
        assert result.resume(["rounds=3"], quiet=True).summary["rounds"] == 3

    @pytest.mark.parametrize(
        ("returned", "sentence"),
        [
            ("None", "returned None; it must return the ids of 2 different clients among the 4 candidates"),
            ("1 / 0", "fails: ZeroDivisionError: division by zero (evil.py, line 7)"),
        ],
    )
    def test_refused_before_the_run(
        self, returned: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "evil.py").write_text(SELECTS.format(returned=returned))
        sets = ["clients.participation=0.5", "clients.selection={name: './evil.py:Mine'}", "algorithm.name=fedgh"]
        said = ran(
            "launch", str(folder / "s.yaml"), *(w for one in sets for w in ("--set", one)), capsys=capsys, code=2
        )
        assert f"clients.selection: round 1: Mine.select {sentence}" in said
        assert not Path("runs").exists()

    def test_ones_own(self, folder: Path) -> None:
        (folder / "evil.py").write_text(
            "from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Last:\n    skip: int = 0\n\n"
            "    def select(self, candidates, size, rng):\n"
            "        ids = sorted(candidates.ids)[: len(candidates.ids) - self.skip]\n        return ids[-size:]\n"
        )
        sets = ["clients.participation=0.5", "clients.selection={name: './evil.py:Last', skip: 1}"]
        result = raysim.run(folder / "s.yaml", sets=[*sets, "algorithm.name=fedgh"], quiet=True)
        assert set(result.clients[result.clients.participated].client) == {1, 2}
        assert "evil.py" in result.summary["code"]["files"]

    def test_one_that_is_none(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["--set", "clients.participation=0.5", "--set", "clients.selection={name: './nets.py:Small'}"]
        said = ran("launch", str(folder / "s.yaml"), *words, capsys=capsys, code=2)
        assert "clients.selection.name: nets.py:Small is not a dataclass with a method `select`" in said


def test_a_method_given_without_its_path(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("near.py").write_text("")
    said = ran("validate", str(folder / "s.yaml"), "--set", "algorithm.name=near", capsys=capsys, code=2)
    assert said.endswith("algorithm.name: unknown algorithm 'near'; did you mean ./near.py?")


def test_data_in_the_place_of_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / "nets.py").open("wb") as file:
        file.truncate(3 << 30)  # takes no disk
    said = ran("validate", str(folder / "s.yaml"), capsys=capsys, code=2)
    assert "nets.py: is larger than 10000000 bytes; move data to separate files" in said


def test_a_metric_that_has_no_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = r"\1        server.log('../x', 1)\n"
    (folder / "mine.py").write_text(re.sub(r"(    def server_update\(.*:\n)", logs, HELPED))
    said = ran("launch", str(folder / "s.yaml"), "--set", "clients.models=[digits_mlp64]", capsys=capsys, code=1)
    assert "raysim: Mine.server_update failed in round 1" in said
    assert "ValueError: log: the name '../x' is invalid; allowed: at most 100 letters, digits, " in said


DEEP = 2_000 if sys.version_info < (3, 13) else 20_000
"""Nested types that Python parses but does not compute; Python 3.13 computes 2,000, and refuses to parse 20,000."""

NESTED = {
    "operators": MINE + "\nX = " + "1+" * 200_000 + "1\n",
    "signs": MINE + "\nX = " + "-" * 200_000 + "1\n",
    "brackets": MINE + "\nX = " + "(" * 200_000 + "\n",
    "a text as annotation": MINE.replace("header_lr: Positive", f"header_lr: '{'int|' * 200_000}int'"),
    "an annotation": MINE.replace("header_lr: Positive", f"header_lr: {'int|' * DEEP}int"),
    "an annotation that computes for ever": MINE.replace("header_lr: Positive", "header_lr: 9**9**9**9"),
    "a text that computes for ever": MINE.replace("header_lr: Positive", "header_lr: '9**9**9**9'"),
}


@pytest.mark.parametrize("text", NESTED.values(), ids=NESTED.keys())
def test_nested_without_end(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "evil.py").write_text(text)
    for words in (["describe", str(folder / "evil.py")], ["validate", str(folder / "s.yaml")]):
        with contextlib.suppress(SystemExit):
            main([*words, *(["--set", "algorithm.name=./evil.py"] if words[0] == "validate" else [])])
        said = " ".join(capsys.readouterr().err.split())
        assert "evil.py" in said
        assert "Traceback" not in said


OWN_PARTITION = """
from dataclasses import dataclass
import numpy as np

@dataclass(frozen=True)
class Halves:
    \"\"\"The first clients hold the even classes, the others the odd ones.\"\"\"

    first: int = 2
    wrong: str = ""

    def shares(self, class_count_C, num_clients, rng):
        odd_C = np.arange(len(class_count_C)) % 2
        later_N = np.arange(num_clients) >= self.first
        share_NC = (later_N[:, None] == odd_C[None, :]).astype(float)
        if self.wrong == "shape":
            return share_NC[1:]
        if self.wrong == "negative":
            return share_NC - 1
        if self.wrong == "unheld":
            return share_NC * odd_C
        if self.wrong == "error":
            raise KeyError("oops")
        return share_NC
"""


OWN_DATA = """
import numpy as np

def load():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)).astype("float32")
    return {"x": x, "y": (x[:, 0] > 0).astype(int), "user": np.arange(200) % 5, "num_train": 150}

def not_arrays():
    return {"x": [1.0]}

def fails():
    return 1 / 0

def ragged():
    return {"x": np.zeros((3, 2)), "y": [0, 1]}

def no_part():
    return {**load(), "num_train": 0}
"""


class TestData:
    def test_a_function_of_ones_own(self, folder: Path) -> None:
        (folder / "evil.py").write_text(OWN_DATA)
        data = "data={name: './evil.py:load', partition: {name: natural, by: user}}"
        sets = [data, "clients={count: auto, models: [mlp_s, mlp_m]}", "algorithm.name=fedgh"]
        result = raysim.run(folder / "s.yaml", sets=sets, quiet=True)
        table = pq.read_table(result.folder / "partition.parquet").to_pandas()
        assert {k: set(rows["sample"] % 5) for k, rows in table.groupby("client")} == {k: {k} for k in range(5)}
        assert result.summary["dataset"]["name"] == "evil.py:load"
        published = raysim.run(folder / "s.yaml", sets=[*sets, "data.split=published"], quiet=True)
        table = pq.read_table(published.folder / "partition.parquet").to_pandas()
        assert (table.part == "test").sum() == 50
        (folder / "evil.py").write_text(OWN_DATA.replace("default_rng(0)", "default_rng(1)"))
        other = raysim.run(folder / "s.yaml", sets=sets, quiet=True)
        assert other.summary["dataset"]["digest"] != result.summary["dataset"]["digest"]

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("not_arrays", "evil.py:not_arrays must return a mapping with the arrays x and y"),
            ("fails", "evil.py:fails fails: ZeroDivisionError: division by zero (evil.py, line "),
            ("ragged", "evil.py:ragged: x has 3 samples, y has 2 samples; give all arrays the same number"),
            ("no_part", "evil.py:no_part returned num_train 0; return the number of training samples, 1 to 200"),
            ("none", "evil.py: has no class or function 'none'"),
        ],
    )
    def test_functions_that_are_none(
        self, name: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "evil.py").write_text(OWN_DATA)
        words = [
            "--set",
            f"data={{name: './evil.py:{name}', partition: {{name: iid}}}}",
            "--set",
            "clients.models=[mlp_s]",
        ]
        assert sentence in ran("launch", str(folder / "s.yaml"), *words, capsys=capsys, code=2)


class TestPartition:
    def test_ones_own(self, folder: Path) -> None:
        (folder / "evil.py").write_text(OWN_PARTITION)
        result = raysim.run(
            folder / "s.yaml",
            sets=["data.partition={name: './evil.py:Halves', first: 1}", "algorithm.name=fedgh"],
            quiet=True,
        )
        table = pq.read_table(result.folder / "partition.parquet").to_pandas()
        classes = {k: sorted(set(rows.label)) for k, rows in table.groupby("client")}
        assert classes == {0: [0, 2, 4, 6, 8], **{k: [1, 3, 5, 7, 9] for k in (1, 2, 3)}}
        assert len(table) == 1797
        assert "evil.py" in result.summary["code"]["files"]
        assert "first: 1" in (result.folder / "resolved.yaml").read_text()

    @pytest.mark.parametrize(
        ("wrong", "sentence"),
        [
            ("shape", "Halves.shares returned an array of shape (3, 10) with values from 0 to 1; return"),
            ("negative", "Halves.shares returned an array of shape (4, 10) with values from -1 to 0; return"),
            ("unheld", "Halves.shares assigned class 0 to no client"),
            ("error", "Halves.shares fails: KeyError: 'oops' (evil.py, line "),
        ],
    )
    def test_shares_that_are_none(
        self, wrong: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "evil.py").write_text(OWN_PARTITION)
        words = ["--set", f"data.partition={{name: './evil.py:Halves', wrong: {wrong}}}"]
        said = ran("launch", str(folder / "s.yaml"), *words, capsys=capsys, code=2)
        assert f"data.partition.name: {sentence}" in said
