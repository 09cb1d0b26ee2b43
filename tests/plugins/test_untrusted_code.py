"""A user's own files never run unannounced, and what they do wrong when they run is an error in one sentence."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.cli.main import main
from raysim.common.errors import ScenarioError
from raysim.plugins import own_code
from tests.plugins.own import FEDPROX, HELPED, MINE, NETS, ran

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
        assert "Paper of FedAvg, on which it is based: McMahan et al., AISTATS 2017" in shown
        assert "Architectures: one for all clients" in shown
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
            ("extra: Optional[dict[str, list[int]]] = None", ""),
            ("extra: Any = None", ""),
            ("extra: dict[str, Any] | None = None", ""),
            ("extra: list[Any] | None = None", ""),
            ("extra: Dict | None = None", ""),
            ("extra: Mapping | None = None", ""),
            ("extra: Optional[dict[int, float]] = None", "field extra has a type that a scenario cannot contain"),
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

    def test_a_link_in_a_runs_code_and_a_run_that_noted_none(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        result = raysim.run(folder / "s.yaml", quiet=True)
        mine = result.folder / "code" / "mine.py"
        mine.rename(folder / "kept.py")
        mine.symlink_to(folder / "mine.py")
        assert "is a link" in ran("resume", str(result.folder), "--set", "rounds=3", capsys=capsys, code=2)
        mine.unlink()
        (folder / "kept.py").rename(mine)
        identity = result.folder / "run.json"
        facts = json.loads(identity.read_text())
        facts["code"]["files"] = {}
        identity.write_text(json.dumps(facts))
        said = ran("resume", str(result.folder), "--set", "rounds=3", capsys=capsys, code=2)
        assert "mine.py (none before, " in said


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
