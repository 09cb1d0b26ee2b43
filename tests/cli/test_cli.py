"""The command line: its frozen set of options, its exit codes, and one line on stderr for what a user can mend."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from raysim.cli.main import cli
from raysim.common.errors import ScenarioError
from raysim.common.results import METRICS, ClientRow
from raysim.data.specs import DATASETS
from raysim.models import MODELS
from raysim.plugins.registry import algorithm_names
from raysim.scenario.json_schema import scenario_schema
from raysim.scenario.parse import parse_scenario
from raysim.scenario.scenario import Scenario
from raysim.scenario.schema import Settings
from raysim.scenario.sentences import NAMED, NAMED_SECTIONS
from raysim.study import definition
from raysim.study.definition import KEYS
from raysim.study.measures import ALL_MEASURES
from tests.cli.command import run

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
QUICKSTART = str(SCENARIOS / "quickstart.yaml")
SHIPPED = sorted(path for path in SCENARIOS.rglob("*.yaml") if path.parent == SCENARIOS or path.name == "base.yaml")


@pytest.mark.parametrize("command", cli.commands)
def test_help(capfd: pytest.CaptureFixture[str], command: str):
    code, out, err = run(capfd, command, "-h")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: raysim {command} ")
    assert all(name in out for one in cli.commands[command].params for name in one.opts if name.startswith("--"))


# -- list and describe -------------------------------------------------------------------------------

NAMES = {
    "algorithms": algorithm_names(),
    "models": list(MODELS),
    "datasets": list(DATASETS),
    **{f"{key}s": list(classes) for (_, key), classes in NAMED.items()},
    "metrics": list(METRICS),
    "measures": list(ALL_MEASURES),
}


@pytest.mark.parametrize("what", NAMES)
def test_list_has_every_name(capfd: pytest.CaptureFixture[str], what: str):
    code, out, err = run(capfd, "list", what)
    assert (code, err) == (0, "")
    assert set(NAMES[what]) <= set(out.split())


DESCRIBED = [
    *(name for names in NAMES.values() for name in names[:10]),
    *Settings.model_fields, *NAMES,
    "scenario", "sweep", "tune", "training.lr", "at_best_val", "quickstart", "sweeps/tuned", QUICKSTART,
]  # fmt: skip


def test_describe_knows_names_of_every_kind(capfd: pytest.CaptureFixture[str]):
    for name in dict.fromkeys(DESCRIBED):
        code, out, err = run(capfd, "describe", name)
        assert (code, err) == (0, "") and len(out.strip()) > 10, name


def test_describe_knows_a_cost_to_any_target(capfd: pytest.CaptureFixture[str]) -> None:
    of_all, of_one = (run(capfd, "describe", f"mib_to_{target}") for target in ("A", "0.95"))
    assert of_all == of_one and of_one[0] == 0 and "comm/total_bytes in MiB" in of_one[1]
    assert run(capfd, "describe", "mib_to_2")[0] == 2


def test_describe_a_file_gives_its_columns(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = run(capfd, "describe", "clients.parquet")
    rows = [line.split(maxsplit=1) for line in out.splitlines() if line.strip()]
    assert [row[0] for row in rows[2:]] == [field.name for field in fields(ClientRow)]
    assert all(len(row) == 2 for row in rows[2:]), "a column without a meaning"
    _, out, _ = run(capfd, "describe", "rounds.parquet")
    assert {"round", *METRICS} <= set(out.split())


def test_every_key_of_a_sweep_file_is_described() -> None:
    assert KEYS["sweep"].keys() == definition.SweepFile.model_fields.keys()


LIGHT = [
    ["--help"],
    ["list", "models"],
    ["describe", "clients"],
    ["describe", "dirichlet"],
    ["describe", "fedghh"],
    ["launch", QUICKSTART, "--set", "training.lrr=1"],
]


def test_commands_that_need_no_method_import_no_torch(workplace: Path) -> None:
    code = f"""
import sys
from raysim.cli.main import main
for args in {LIGHT!r}:
    try:
        main(args)
    except SystemExit as end:
        assert end.code in (0, 2), args
    found = {{"torch", "ray", "mlflow", "pyarrow", "matplotlib", "scipy"}} & set(sys.modules)
    assert not found, (args, found)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


# -- what is refused ---------------------------------------------------------------------------------

REFUSED = [
    (["validate", "no/such.yaml"], "no/such.yaml"),
    (["launch", QUICKSTART, "--dry-run", "--set", "data.name=x"], "data.name"),
    (["launch", QUICKSTART, "--set", "clients.models=[cnn1]"], "clients.models"),
    (["describe", "fedghh"], "'fedgh'"),
    (["describe", "lr"], "'training.lr'"),
    (["new", "model", "json"], "json"),
    (["sweep", QUICKSTART, "--grid", "training.lx=1"], "training.lx"),
    (["sweep", QUICKSTART, "--seeds", "x"], "seeds"),
]


@pytest.mark.parametrize(("args", "word"), REFUSED, ids=[" ".join(args)[-50:] for args, _ in REFUSED])
def test_bad_input_is_exit_code_2_and_names_the_key(
    capfd: pytest.CaptureFixture[str], workplace: Path, args: list[str], word: str
):
    code, out, err = run(capfd, *args)
    assert (code, out) == (2, "")
    assert word in err.splitlines()[-1]
    assert list(workplace.iterdir()) == []  # nothing was begun


def test_validate_prints_the_resolved_scenario(capfd: pytest.CaptureFixture[str]):
    code, out, err = run(capfd, "validate", QUICKSTART, "--set", "training.lr=0.5")
    assert (code, err.count("\n")) == (0, 1)
    found = yaml.safe_load(out)
    assert found == Scenario.load(QUICKSTART, ["training.lr=0.5"]).resolved
    assert (found["training"]["lr"], found["algorithm"]["server_epochs"]) == (0.5, 1)


# -- schema -----------------------------------------------------------------------------------------


def test_schema_prints_what_is_shipped(capfd: pytest.CaptureFixture[str]):
    code, out, err = run(capfd, "schema")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((SCENARIOS / "schema.json").read_text()), (
        "raysim schema > scenarios/schema.json"
    )


@pytest.fixture(scope="module")
def checker() -> Any:
    schema = scenario_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_schema_accepts_what_is_shipped(checker: Any, path: Path):
    checker.validate(yaml.safe_load(path.read_text()))
    checker.validate(dict(parse_scenario(path).resolved))


@pytest.mark.parametrize("key", NAMED_SECTIONS, ids=".".join)
def test_the_schema_accepts_custom_classes_with_any_fields(checker: Any, key: tuple[str, ...]):
    raw = yaml.safe_load(Path(QUICKSTART).read_text())
    section = raw
    for part in key[:-1]:
        section = section.setdefault(part, {})
    section[key[-1]] = {"name": "./mine.py:Mine", "mine": 0.5}
    if key[0] == "adversary":
        section["clients"] = 0.2
    elif key[0] == "aggregator":
        section.setdefault("rule", {"name": "median"})
    elif key[0] == "asynchronous":
        section["buffer"] = 2
    checker.validate(raw)


WRONG: list[tuple[tuple[str, ...], Any]] = [
    (("training", "lrr"), 1),
    (("training", "lr"), 0),
    (("training", "lr"), "fast"),
    (("algorithm",), {"name": "fedavgg"}),
    (("algorithm", "server_mode"), "x"),
    (("algorithm", "avg_bn_buffers"), True),
    (("data", "partition"), {"name": "pathological"}),
]


@pytest.mark.parametrize(("key", "value"), WRONG, ids=[f"{'.'.join(key)}={value}" for key, value in WRONG])
def test_the_schema_rejects_what_the_loader_rejects(checker: Any, key: tuple[str, ...], value: Any):
    raw = yaml.safe_load(Path(QUICKSTART).read_text())
    assert checker.is_valid(raw)
    section = raw
    for part in key[:-1]:
        section = section[part]
    section[key[-1]] = value
    assert not checker.is_valid(raw)
    with pytest.raises(ScenarioError):
        Scenario.load(raw)


def test_sigterm_ends_every_command_as_ctrl_c_does(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminate(*given: object, **options: object) -> None:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # otherwise it would end the tests
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(cli, "main", terminate)
    assert run(capfd, "fetch", "some-job") == (130, "", "raysim: stopped\n")
