"""Five hundred damaged scenario files: each becomes a plan or is refused in one line, never by another exception."""

from __future__ import annotations

import copy
import random
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from raysim.cli.main import main
from raysim.common.errors import ScenarioError
from raysim.engine.policies.placement import ClusterResources, make_plan
from raysim.engine.workers.time_limit import limit
from raysim.scenario.scenario import Scenario
from tests.choices import first

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
QUICKSTART = SCENARIOS / "quickstart.yaml"
FILES = [
    QUICKSTART,
    SCENARIOS / "cifar100_hetero.yaml",
    SCENARIOS / "papers" / "hks" / "base.yaml",
    SCENARIOS / "papers" / "fedral" / "base.yaml",
    SCENARIOS / "papers" / "dc_pfl" / "base.yaml",
]

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    7,
    10**6,
    2**70,
    0.5,
    -0.5,
    1e-9,
    float("inf"),
    float("nan"),
    "",
    "x",
    "auto",
    "0-3",
    "fedavg",
    "cifar100",
    "digits_cnn_s",
    "é\n",
    "9" * 300,
    [],
    [1],
    ["x"],
    [[]],
    [None],
    [{}],
    {},
    {"name": "iid"},
    {"name": None},
    {"name": ["x"]},
    {"name": {}},
    {"x": {"y": [1, {"z": 2}]}},
    {"name": "dirichlet", "alpha": 1e308},
    {"clients": "5-2"},
    [{"clients": "0-999999999999"}],
    [{"clients": "1,,2"}],
    [{"clients": "-1"}],
    [{"models": []}],
    [{"clients": ""}],
    [{"clients": "0-3", "actors": 0}],
    [{"clients": "0", "gpus_per_actor": -1}],
    {"name": "resample", "samples_per_client": 1},
    {"name": "hks", "alpha": 1},
    {"name": "fedgh", "header_lr": 0},
]
KEYS = ["name", "Name", "lr", "x", "", "models", "overrides", "format", "split", "root", "uri", "tags", "every", "when"]
SECTIONS = ["resources", "tracking", "evaluation", "checkpoint", "training", "data", "clients"]

ROOMS: list[dict[str, Any]] = [
    {"actors": 3},
    {"actors": 10**9},
    {"clients_per_actor": 7},
    {"clients_per_actor": 10**9, "actors": 1},
    {"actors": 2, "clients_per_actor": 1},
    {"cpus_per_actor": 0.1},
    {"cpus_per_actor": 1e-320},
    {"cpus_per_actor": 64.0, "gpus_per_actor": 0.0},
    {"gpus_per_actor": 0.25},
    {"overrides": [{"clients": "0-3,5", "actors": 2}, {"clients": "1", "cpus_per_actor": 4.0}]},
    {"overrides": [{"clients": "0-99"}, {"clients": "0-19", "gpus_per_actor": "auto"}]},
    {"overrides": [{"models": ["cnn1"], "clients_per_actor": 1}, {"models": ["digits_resnet"], "actors": 1}]},
]


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path below a mapping or list."""
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
    return [found for key in keys for found in [(*path, key), *places(node[key], (*path, key))]]


def nudged(rng: random.Random, value: Any) -> Any:
    """A value that is close to the one that was right."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return type(value)(rng.choice([value + 1, value - 1, value * 2, value / 2, value * 1000, -value, value + 0.5]))
    if isinstance(value, list):
        return rng.sample(value, rng.randrange(len(value) + 1)) + rng.choices(value, k=2) if value else value
    return value


def damaged(rng: random.Random) -> bytes:
    """A scenario with values, keys or whole sections changed; still a YAML file."""
    raw = yaml.safe_load(rng.choice(FILES).read_text())
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        *above, key = rng.choice(places(raw))
        section = raw
        for part in above:
            section = section[part]
        what = rng.choice(["value", "value", "delete", "add", "section", "key", "nudge", "nudge", "room"])
        if what == "nudge":
            section[key] = nudged(rng, section[key])
        elif what == "room":
            raw["resources"] = copy.deepcopy(rng.choice(ROOMS))
        elif what == "value":
            section[key] = copy.deepcopy(rng.choice(VALUES))
        elif what == "delete":
            del section[key]
        elif what == "section":
            raw[rng.choice(SECTIONS)] = {rng.choice(KEYS): copy.deepcopy(rng.choice(VALUES))}
        elif isinstance(section, dict):
            value = section.pop(key) if what == "key" else copy.deepcopy(rng.choice(VALUES))
            section[rng.choice(KEYS)] = value
        if not raw:
            break
    return yaml.safe_dump(raw, sort_keys=False, allow_unicode=rng.random() < 0.5).encode()


def bomb(levels: int) -> str:
    """Lists of nine of the list before, a few hundred bytes that stand for 9 ** levels entries."""
    lists = [f"&a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return f"[&a0 [x], {', '.join(lists)}]"


def mapping_bomb(levels: int) -> str:
    """The same of mappings."""
    inner = (", ".join(f"k{j}: *a{i - 1}" for j in range(9)) for i in range(1, levels))
    return "{k0: &a0 {x: 1}, " + ", ".join(f"k{i}: &a{i} {{{one}}}" for i, one in enumerate(inner, 1)) + "}"


SNIPPETS = [
    bomb(12),
    mapping_bomb(12),
    "&a [*a]",
    "&a {x: *a}",
    "[" * 400 + "]" * 400,
    "{a: " * 350 + "1" + "}" * 350,
    "!!int ''",
    "!!int '+'",
    "!!bool x",
    "!!timestamp x",
    "!!binary aGVsbG8=",
    '"\\UFFFFFFFF"',
    '{"a\\nb": 1}',
    "&a [1, [*a, {x: *a}]]",
    "*unknown",
    "&a &b 1",
    "[" * 3_000,
    "[" * 3_000 + "]" * 3_000,
    "[" * 200 + "]" * 200,
    "{a: " * 3_000,
    "{a: " * 200 + "1" + "}" * 200,
    "- " * 5_000 + "x",
    "9" * 4_000,
    "9" * 5_000,
    "-" + "9" * 400,
    "0x" + "f" * 300,
    "0x" + "f" * 5_000,
    "1e999999999",
    "-1e-999999999",
    "99999999:59:59",
    "0b1" + "0" * 2_000,
    "x" * 100_000,
    "!!python/object:os.system [x]",
    "!!python/object/apply:os.system ['echo x']",
    "!!python/name:os.system",
    "!!python/tuple [1, 2]",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!map x",
    "!!seq {a: b}",
    "!!str {a: b}",
    "!!int x",
    "!!float [1]",
    "!mine {a: b}",
    "! x",
    "2024-99-99",
    "2001-12-14t21:59:43.10-99:99",
    "{<<: {a: 1}}",
    "{<<: 3}",
    "{a: 1, a: 2}",
    "{1: 2, 1.0: 3, true: 4}",
    "{[a]: b}",
    "{.nan: 1, .nan: 2}",
    "{? {a: b} : c}",
    "=",
    "~",
    "''",
    "'it''s",
    '"\\ud800"',
    '"\\0"',
    '"\\x1b[31m"',
    "|\n  a\n b",
    ">+\n\n\n",
    "@x",
    "`x`",
    "%x",
    "{a: [b, c}",
    "]",
    "? : :",
    "---",
    "...",
]


def cut(rng: random.Random, lines: list[str]) -> None:
    del lines[rng.randrange(len(lines)) :]


def drop(rng: random.Random, lines: list[str]) -> None:
    del lines[rng.randrange(len(lines))]


def repeat(rng: random.Random, lines: list[str]) -> None:
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))


def swap(rng: random.Random, lines: list[str]) -> None:
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]


def indent(rng: random.Random, lines: list[str]) -> None:
    i = rng.randrange(len(lines))
    lines[i] = rng.choice([" ", "  ", "\t", "    ", "- ", "? ", "# "]) + lines[i]


def outdent(rng: random.Random, lines: list[str]) -> None:
    i = rng.randrange(len(lines))
    lines[i] = lines[i].lstrip() if rng.random() < 0.5 else lines[i][1:]


def tabs(rng: random.Random, lines: list[str]) -> None:
    i = rng.randrange(len(lines))
    lines[i] = lines[i].replace(" ", "\t")


def another_value(rng: random.Random, lines: list[str]) -> None:
    """One key gets a snippet as its value."""
    i = rng.choice([i for i, line in enumerate(lines) if ":" in line] or [0])
    lines[i] = f"{lines[i].partition(':')[0]}: {rng.choice(SNIPPETS)}"


def another_line(rng: random.Random, lines: list[str]) -> None:
    """A line of its own, at any depth."""
    text = rng.choice([rng.choice(SNIPPETS), f"zz: {rng.choice(SNIPPETS)}", f"{rng.choice(KEYS)}: 1"])
    lines.insert(rng.randrange(len(lines) + 1), "  " * rng.randrange(3) + text)


STRANGE = [
    b"\0",
    b"\xff\xfe",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"\r",
    b"\x1b",
    b"\t",
]
"""NUL, no UTF-8, a surrogate, a byte order mark, line ends of other systems and of Unicode, an escape, a tab."""


def flip(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice([1, 1, 3, 20])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def insert(rng: random.Random, data: bytearray) -> None:
    what = rng.choice(STRANGE)
    at = rng.randrange(len(data))
    data[at:at] = what


def truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


OF_LINES: list[Callable[[random.Random, list[str]], None]] = [
    *(cut, drop, repeat, swap, indent, outdent, tabs, another_line),
    *(another_value, another_value, another_value, another_value),
]
OF_BYTES: list[Callable[[random.Random, bytearray], None]] = [flip, flip, insert, truncate]


def garbled(rng: random.Random) -> bytes:
    """A scenario file whose text was damaged, without the comments that some begin with."""
    lines = re.sub(r"(?m)^#.*\n", "", rng.choice(FILES).read_text()).splitlines()
    for _ in range(rng.choice([0, 1, 1, 2])):
        rng.choice(OF_LINES)(rng, lines)
        lines = lines or ["x"]
    data = bytearray("\n".join(lines).encode("utf-8", "surrogatepass") + b"\n")
    if rng.random() < 0.4:
        rng.choice(OF_BYTES)(rng, data)
    if rng.random() < 0.05:
        data = bytearray(data.decode("utf-8", "replace").encode("utf-16"))
    return bytes(data)


def accepted(path: Path) -> bool:
    """What `validate` and `launch --dry-run` do before anything is measured; refusals are one line."""
    try:
        with limit(30, "reading and planning took longer than 30 s"):
            checked = Scenario.load(path)
            checked.resolved_yaml()
            plan = make_plan(checked.requests, ClusterResources(8, 0, oversubscribable=True), checked.participants)
    except ScenarioError as error:
        text = str(error)
        assert text.startswith((str(path), "resources.")), text
        assert len(text.splitlines()) == 1, text
        return False
    assert plan.num_actors >= 1
    return True


@pytest.mark.parametrize("batch", first(range(10), 3))
def test_damaged_files_become_a_plan_or_are_refused_in_one_line(batch: int, tmp_path: Path) -> None:
    rng = random.Random(batch)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = tmp_path / "scenario.yaml"
    good = 0
    for i in range(50):
        path.write_bytes((damaged if i % 2 else garbled)(rng))
        try:
            good += accepted(path)
        except Exception as error:
            keep = tmp_path / f"found_{batch}_{i}.yaml"
            keep.write_bytes(path.read_bytes())
            pytest.fail(f"{keep}: {type(error).__name__}: {error}")
    assert 5 <= good <= 35  # the damage does damage, and not only damage
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 2**10
    assert grown_mb < 300, grown_mb


@pytest.mark.parametrize("command", [["validate"], ["launch", "--dry-run"]], ids=["validate", "dry run"])
def test_the_command_says_one_line_and_exits_with_2(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(7)
    path = tmp_path / "scenario.yaml"
    codes = []
    while len(codes) < 15:
        path.write_bytes(garbled(rng))
        if command[0] == "launch" and accepted(path):
            continue  # it would measure
        try:
            main([*command, str(path)])
            codes.append(0)
        except SystemExit as end:
            codes.append(int(str(end.code)))
        told = capfd.readouterr().err
        assert told.count("\n") == 1, told
        assert told.startswith("raysim: " if codes[-1] else str(path)), told
    assert set(codes) == ({0, 2} if command[0] == "validate" else {2})


ITEMS = [
    "=",
    "a",
    "a=",
    ".=",
    "a.b.c.d.e=1",
    "algorithm=",
    "algorithm.name=",
    "algorithm.name=[x]",
    "data.partition.name={}",
    "clients=[]",
    "clients.models.0=x",
    "training.lr.x=1",
    "resources.overrides.0.actors=1",
    "tracking.tags=[1]",
    "tracking.tags={1: 2}",
    "checkpoint.every=-1",
    "name=",
    "name=''",
    "seed=1_000",
    "seed=0x10",
    "seed=1:30",
    "seed=7",
    "rounds=!!x 1",
    "rounds=&a [*a]",
    "clients.participation=1e-320",
    "training.epochs=1e3",
    "output=3",
    "data.root=3",
    "x" * 2000 + "=1",
    "algorithm={name: fedgh, name: fedavg}",
    "clients.feature_dim=-3",
    "clients.count=[1, 2",
    "training.lr=-",
    "a=b=c",
    "algorithm.server_mode=[per_lar]",
    "algorithm.server_mode={}",
    "data.partition={name: pathological}",
    "seed=\x00",
    "resources.overrides=[{clients: '0-999999999999'}]",
    "resources.overrides=[{clients: 5}]",
    "clients.models=[[x]]",
    "evaluation.when=after",
    "data.format=zip",
    "resources.cpus_per_actor=.inf",
    "resources.gpus_per_actor=-1",
]


@pytest.mark.parametrize("item", ITEMS, ids=[repr(item[:40]) for item in ITEMS])
def test_any_override_is_accepted_or_refused_with_a_sentence(item: str):
    try:
        Scenario.load(QUICKSTART, [item])
    except ScenarioError as error:
        assert "\n" not in str(error)
    else:
        assert item == "seed=7"  # the one that is meant to be fine
