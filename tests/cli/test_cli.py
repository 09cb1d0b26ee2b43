"""The command line: its frozen set of options, its exit codes, and one line on stderr for what a user can mend."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.shell_completion import BashComplete

from raysim.cli import description
from raysim.cli.main import cli, main
from raysim.common.errors import ScenarioError
from raysim.common.results import METRICS, ClientRow
from raysim.comparison.measures import ALL_MEASURES
from raysim.data.specs import DATASETS
from raysim.models import MODELS
from raysim.plugins import class_check
from raysim.plugins.registry import algorithm_names
from raysim.scenario.json_schema import scenario_schema
from raysim.scenario.parse import parse_scenario
from raysim.scenario.scenario import Scenario
from raysim.scenario.schema import Settings
from raysim.scenario.sentences import NAMED, NAMED_SECTIONS
from raysim.sweeps import definition
from raysim.sweeps.definition import KEYS
from tests.cli.command import run

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
QUICKSTART = str(SCENARIOS / "quickstart.yaml")
SHIPPED = sorted(path for path in SCENARIOS.rglob("*.yaml") if path.parent == SCENARIOS or path.name == "base.yaml")


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", [None, *cli.commands])
def test_help(capfd: pytest.CaptureFixture[str], command: str | None, flag: str):
    code, out, err = run(capfd, *([command] if command else []), flag)
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: raysim{' ' + command if command else ''} ")
    options = [name for one in cli.commands[command].params for name in one.opts] if command else []
    for name in [one for one in options if one.startswith("--")] if command else cli.commands:
        assert name in out


def test_version(capfd: pytest.CaptureFixture[str]):
    code, out, _ = run(capfd, "--version")
    assert code == 0 and version("raysim") in out


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
    words = set(out.split())
    assert [name for name in NAMES[what] if name not in words] == []
    assert len(out.splitlines()) >= len(NAMES[what]) + 2


def test_help_shows_whole_summaries_in_80_columns(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capfd, "--help")
    lines = out.split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in lines] == sorted(cli.commands), "every summary has one line"
    assert not [line for line in lines if line.endswith("...")]


VALID = "valid; data files were not checked, see `raysim launch --dry-run`"


def test_methods_are_another_word_for_algorithms(capfd: pytest.CaptureFixture[str]) -> None:
    for command in ("list", "describe"):
        assert run(capfd, command, "methods") == run(capfd, command, "algorithms")


def test_list_names(capfd: pytest.CaptureFixture[str]):
    assert run(capfd, "list", "models", "--names") == (0, "".join(f"{name}\n" for name in MODELS), "")
    code, out, _ = run(capfd, "list", "--names")
    names = out.splitlines()
    assert code == 0 and len(names) == len(set(names)) and {"fedgh", "digits", "quickstart", *METRICS} <= set(names)


def test_list_says_of_a_method_its_year_its_architectures_and_what_travels(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = run(capfd, "list", "algorithms")
    lines = [line.strip() for line in out.splitlines()]
    method = next(i for i, line in enumerate(lines) if line.startswith("fedgh "))
    assert lines[method + 1] == "year: 2023; architectures: may differ; messages: header down, class means up"
    assert "year: 2019; architectures: one for all clients; messages: extractor down and up" in lines


def test_describe_says_what_a_method_sends(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = run(capfd, "describe", "fedper")
    assert "Architectures: one for all clients\nDown: extractor (A model without its last linear layer: " in out
    assert "\nUp: extractor (A model without" in out


def test_every_hook_can_be_described():
    assert list(description.HOOKS) == list(class_check.HOOKS)


def test_describe_explains_hooks(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run(capfd, "describe", "client_update")
    assert (code, out.split("\n")[0]) == (0, "client_update(client, down)")
    assert "Train locally and return the upload (`None`: no upload)." in out
    _, out, _ = run(capfd, "describe", "hooks")
    assert code == 0 and re.search(
        r"server_start\(server, registrations\) +Return the server's state before round 1", out
    )
    code, _, err = run(capfd, "describe", "client_updat")
    assert code == 2 and "did you mean 'client_update'?" in err


def test_list_without_a_word_lists_all(capfd: pytest.CaptureFixture[str]):
    code, out, _ = run(capfd, "list")
    assert code == 0
    words = set(out.split())
    assert {name for names in NAMES.values() for name in names} <= words


@pytest.mark.parametrize("name", [*(n for names in NAMES.values() for n in names), *Settings.model_fields, "scenario"])
def test_describe_knows_every_name(capfd: pytest.CaptureFixture[str], name: str):
    code, out, err = run(capfd, "describe", name)
    assert (code, err) == (0, "")
    assert len(out.strip()) > 10


def test_describe_knows_a_cost_to_any_target(capfd: pytest.CaptureFixture[str]) -> None:
    of_all, of_one = (run(capfd, "describe", f"mib_to_{target}") for target in ("A", "0.95"))
    assert of_all == of_one and of_one[0] == 0 and "comm/total_bytes in MiB" in of_one[1]
    assert run(capfd, "describe", "mib_to_2")[0] == 2


def test_describe_alone_lists_what_it_explains(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "describe")
    table = out.partition("\nNAME may")[0]
    names = [line.split()[0] for line in table.splitlines() if line[:2].strip() and " " in line.strip()]
    for name in set(names) - {"name", "FILE.yaml", "./FILE.py"}:
        assert run(capfd, "describe", name)[0] == 0, name
    assert code == 0 and {"scenario", "clients", "sweep", "metrics", "rounds.parquet"} <= set(names)


@pytest.mark.parametrize("kind", NAMES)
def test_describe_a_kind_says_where_its_names_go_and_lists_them(capfd: pytest.CaptureFixture[str], kind: str):
    code, out, err = run(capfd, "describe", kind)
    assert (code, err) == (0, "")
    assert set(NAMES[kind]) <= set(out.split()) and "`raysim describe NAME` explains one" in " ".join(out.split())


def test_describe_a_file_gives_its_columns(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = run(capfd, "describe", "clients.parquet")
    rows = [line.split(maxsplit=1) for line in out.splitlines() if line.strip()]
    assert [row[0] for row in rows[2:]] == [field.name for field in fields(ClientRow)]
    assert all(len(row) == 2 for row in rows[2:]), "a column without a meaning"
    _, out, _ = run(capfd, "describe", "rounds.parquet")
    assert {"round", *METRICS} <= set(out.split())


def test_adam_says_that_momentum_is_not_used(capfd: pytest.CaptureFixture[str]):
    code, _, err = run(capfd, "validate", QUICKSTART, "--set", "training.optimizer=adam")
    notify = "note: training.momentum: 0.9 has no effect, because the optimizer is adam\n"
    assert (code, err) == (0, f"{notify}{QUICKSTART}: {VALID}\n")
    without = ["--set", "training.optimizer=adam", "--set", "training.momentum=0"]
    assert run(capfd, "validate", QUICKSTART, *without)[2] == f"{QUICKSTART}: {VALID}\n"


@pytest.mark.parametrize("backend", ["ray", "in_process"])
def test_a_dry_run_says_what_it_leaves_out(capfd: pytest.CaptureFixture[str], workplace: Path, backend: str):
    code, out, _ = run(capfd, "launch", QUICKSTART, "--dry-run", "--set", f"backend={backend}")
    words = " ".join(out.split())
    assert code == 0 and "Not included: the start (reading the data" in words
    assert ("importing torch" in words) == (backend == "ray")
    # In one process, there are no actors.
    assert ("client actors, server, driver): up to" in words) == ("clients per actor" in words) == (backend == "ray")
    assert ("- This process: up to" in words) == (backend == "in_process")


def test_describe_an_algorithm_gives_paper_file_and_fields(capfd: pytest.CaptureFixture[str]):
    _, out, _ = run(capfd, "describe", "fedgh")
    for text in ("arxiv.org/abs/2303.13137", "algorithms/fedgh.py", "server_epochs", "per_lar", "0.01", "whole number"):
        assert text in " ".join(out.split())


def test_describe_wraps_a_docstring_at_the_terminals_width(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for columns in (80, 130):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, out, _ = run(capfd, "describe", "fedproto")
        text = out.partition("\nPaper:")[0]
        following = [(a, b) for a, b in pairwise(text.splitlines()) if b.strip() and a.strip()]
        full = [len(a) + 1 + len(b.split()[0]) > columns for a, b in following if "https:" not in a]
        assert full and all(full)


def test_describe_a_section(capfd: pytest.CaptureFixture[str]):
    _, out, _ = run(capfd, "describe", "clients")
    assert "participation" in out and "independent_init" in out and "required" in out


DESCRIBED = [
    ("training", ["optimizer sgd sgd, adam", "epochs 1 a whole number at least 1", "at least 0 and less than 1"]),
    ("data", ["format auto auto, parquet, torchvision, idx, folder", "partition {name: iid} a mapping"]),
    ("data", ["true or false"]),
    ("clients", ["models required a list of at least 1 entry, each text"]),
    ("resources", ["auto a whole number at least 1 and at most 1000000000 or auto", "each a mapping of models"]),
    ("checkpoint", ["every auto a whole number at least 0 or auto", "folder null text or null"]),
    ("scenario", ["data required see `raysim describe data` The data set, and how its samples are divided among",
                  "clients required see `raysim describe clients` The clients, their architectures, and",
                  "training its defaults see `raysim describe training` Local training of every client"]),
    ("backend", ["Default: ray Allowed: ray, in_process"]),
    ("seed", ["Default: 1 Allowed: a whole number at least 0 and at most 9223372036854775807"]),
    ("name", ["Default: required Allowed: text: letters, digits,"]),
    ("training.lr", ["key default allowed meaning", "lr 0.01 a number greater than 0 Learning rate."]),
    ("at_best_val", ["accuracy/all, in the round with the greatest accuracy/val"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "lines"), DESCRIBED, ids=[name for name, _ in DESCRIBED])
def test_describe_says_what_is_allowed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, lines: list[str]
):
    monkeypatch.setenv("COLUMNS", "500")
    _, out, _ = run(capfd, "describe", name)
    words = " ".join(out.split())
    assert [line for line in lines if line not in words] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "sweep",
            [
                "or the name of a bundled scenario, such as quickstart;",
                "runs the variants to compare, as name -> list of overrides",
                "see `raysim describe tune`",
            ],
        ),
        (
            "tune",
            [
                "halving successive halving, such as {rounds: [5, 20], keep: 1/3}: ",
                "seeds required: the seeds of every trial",
            ],
        ),
        (
            "quickstart",
            ["The first run: FedGH", "data.partition.classes_per_client 2", "run it with `raysim launch quickstart`;"],
        ),
        (QUICKSTART, [f"This is a scenario: run it with `raysim launch {QUICKSTART}`"]),
        (
            "sweeps/tuned",
            [
                "runs.FedGH [algorithm.name=fedgh]",
                "tune.halving.rounds [5, 20]",
                "This is a sweep: run it with `raysim sweep",
            ],
        ),
        ("own.yaml", ["algorithm.name ./own.py", "This is a scenario: run it with `raysim launch own.yaml`"]),
    ],
)
def test_describe_a_file_or_the_keys_of_a_sweep(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, workplace: Path, name: str, words: list[str]
):
    monkeypatch.setenv("COLUMNS", "300")
    Path("own.yaml").write_text("name: own\nalgorithm: {name: ./own.py}\n")  # own.py does not exist: nothing runs it
    code, out, err = run(capfd, "describe", name)
    assert (code, err) == (0, "")
    shown = " ".join(out.split())
    assert [one for one in words if one not in shown] == []


def test_every_key_of_a_sweep_file_is_described() -> None:
    assert KEYS["sweep"].keys() == definition.SweepFile.model_fields.keys()


def test_no_help_names_a_page_of_the_repository() -> None:
    """A wheel has no docs."""
    texts = [command.help or "" for command in cli.commands.values()]
    texts += [getattr(one, "help", "") or "" for command in cli.commands.values() for one in command.params]
    assert [text for text in texts if "docs/" in text] == []


def test_every_method_says_what_travels(capfd: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capfd, "list", "methods", "--json")[1])["algorithms"]
    facts = {one["name"]: one["facts"] for one in found}
    assert all(one["messages"] and ("year" in one or name == "standalone") for name, one in facts.items())
    assert facts["standalone"]["messages"] == "no communication"
    assert facts["fedkd"]["messages"] == "update or mentee down and up"


LIGHT = [
    ["--help"],
    ["list", "--names"],
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
    (["validate", QUICKSTART, "--set", "training.lrr=1"], "raysim: --set training.lrr=1: training.lrr: unknown key"),
    (["validate", "no/such.yaml"], "raysim: no/such.yaml: there is no such file"),
    (["launch", "no/such.yaml"], "raysim: no/such.yaml: there is no such file"),
    (["launch", QUICKSTART, "--set", "rounds=0"], "raysim: --set rounds=0: rounds: 0 given; allowed: at least 1"),
    (
        ["launch", QUICKSTART, "--dry-run", "--set", "data.name=x"],
        "raysim: --set data.name=x: data.name: unknown data set",
    ),
    (["launch", QUICKSTART, "--set", "clients.models=[cnn1]"], "clients.models.0: cnn1 needs 3x32x32 images"),
    (["describe", "fedghh"], "raysim: describe fedghh: unknown name; did you mean 'fedgh'?"),
    (["describe", "FedGH"], "did you mean 'fedgh'?"),
    (["describe", "model"], "raysim: describe model: unknown name; did you mean 'models'?"),
    (
        ["validate", QUICKSTART, "--set", "clients.participation=5"],
        "clients.participation: 5 given; allowed: a share of the clients, greater than 0 and at most 1; "
        "5 of 20 clients is 0.25\n",
    ),
    (["describe", "lr"], "raysim: describe lr: unknown name; did you mean 'training.lr'? (`raysim list` shows"),
    (["describe", "every"], "unknown name; did you mean 'evaluation.every' or 'checkpoint.every'? (`raysim list`"),
    (["describe", "training.lrr"], "raysim: describe training.lrr: unknown name; did you mean 'training.lr'?"),
    (["describe", "nonsense"], "unknown name; did you mean 'noise'?"),
]


@pytest.mark.parametrize("command", ["launch", "validate", "sweep"])
def test_a_method_is_no_scenario(capfd: pytest.CaptureFixture[str], workplace: Path, command: str) -> None:
    Path("mine.py").write_text("import raysim\n")
    code, _, err = run(capfd, command, "mine.py")
    how = "or add --set algorithm.name=./mine.py to another scenario"
    assert (code, err) == (
        2,
        f"raysim: mine.py: this file is Python code, not a scenario; give a scenario file (.yaml), {how}\n",
    )
    Path("mine.yaml").write_text("name: mine\n")
    assert f"is Python code, not a scenario; give its scenario, mine.yaml, {how}" in run(capfd, command, "mine.py")[2]


@pytest.mark.parametrize(("args", "sentence"), REFUSED, ids=[" ".join(args)[-50:] for args, _ in REFUSED])
def test_bad_input_is_exit_code_2_and_one_line(
    capfd: pytest.CaptureFixture[str], workplace: Path, args: list[str], sentence: str
):
    code, out, err = run(capfd, *args)
    assert code == 2
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1 and err.endswith("\n")
    assert list(workplace.iterdir()) == []  # nothing was begun


def test_a_bad_file_is_named_with_its_key(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(Path(QUICKSTART).read_text().replace("momentum: 0.9", "momentum: 9"))
    code, _, err = run(capfd, "validate", str(path))
    assert (code, err) == (2, f"raysim: {path}: training.momentum: 9 given; allowed: less than 1\n")


@pytest.mark.parametrize(
    "args",
    [["nonsense"], ["launch"], ["list", "cats"], ["ui", "--port", "0"], ["launch", "--no"]],
)
def test_wrong_usage_is_exit_code_2(capfd: pytest.CaptureFixture[str], args: list[str]):
    code, out, err = run(capfd, *args)
    assert (code, out) == (2, "")
    assert "Error: " in err and "Traceback" not in err


def test_validate_prints_the_resolved_scenario(capfd: pytest.CaptureFixture[str]):
    code, out, err = run(capfd, "validate", QUICKSTART, "--set", "training.lr=0.5")
    assert (code, err) == (0, f"{QUICKSTART}: {VALID}\n")
    found = yaml.safe_load(out)
    assert found == Scenario.load(QUICKSTART, ["training.lr=0.5"]).resolved
    assert (found["training"]["lr"], found["algorithm"]["server_epochs"]) == (0.5, 1)


# -- completion and schema ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["launch", "quick"], "plain,quickstart"),
        (["describe", "dirich"], "plain,dirichlet"),
    ],
)
def test_names_are_completed(words: list[str], expected: str):
    completion = BashComplete(cli, {}, "raysim", "_RAYSIM_COMPLETE")
    found = [completion.format_completion(one) for one in completion.get_completions(words[:-1], words[-1])]
    assert found[:1] == [expected]


def test_schema_prints_what_is_shipped(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    code, out, err = run(capfd, "schema")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((SCENARIOS / "schema.json").read_text()), (
        "raysim schema -o scenarios/schema.json"
    )
    path = tmp_path / "s.json"
    assert run(capfd, "schema", "-o", str(path)) == (0, "", "")
    assert path.read_text() == out


@pytest.fixture(scope="module")
def checker() -> Any:
    schema = scenario_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_schema_accepts_what_is_shipped(checker: Any, path: Path):
    checker.validate(yaml.safe_load(path.read_text()))
    checker.validate(dict(parse_scenario(path).resolved))


@pytest.mark.parametrize("name", ["./mine.py", "mine.py:Mine", "package.module:Mine"])
@pytest.mark.parametrize("key", NAMED_SECTIONS, ids=".".join)
def test_the_schema_accepts_custom_classes_with_any_fields(checker: Any, key: tuple[str, ...], name: str):
    raw = yaml.safe_load(Path(QUICKSTART).read_text())
    section = raw
    for part in key[:-1]:
        section = section.setdefault(part, {})
    section[key[-1]] = {"name": name, "mine": 0.5}
    if key[0] == "adversary":
        section["clients"] = 0.2
    elif key[0] == "aggregator":
        section.setdefault("rule", {"name": "median"})
    elif key[0] == "asynchronous":
        section["buffer"] = 2
    checker.validate(raw)


WRONG: list[tuple[tuple[str, ...], Any]] = [
    (("trainin",), {}),
    (("training", "lrr"), 1),
    (("training", "lr"), 0),
    (("training", "lr"), "fast"),
    (("rounds",), 0),
    (("algorithm",), {"name": "fedavgg"}),
    (("algorithm", "header_l"), 1),
    (("algorithm", "header_lr"), 0),
    (("algorithm", "server_mode"), "x"),
    (("algorithm", "avg_bn_buffers"), True),
    (("data", "partition"), {"name": "iidd"}),
    (("data", "partition"), {"classes_per_client": 2}),
    (("data", "partition", "classes"), 2),
    (("data", "partition"), {"name": "pathological"}),
    (("clients", "models"), []),
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


def test_a_name_of_a_method_and_a_partition_describes_both(capsys: pytest.CaptureFixture[str]) -> None:
    main(["describe", "hks"])
    shown = capsys.readouterr().out
    assert "File:  algorithms/hks.py" in shown
    assert "The partition hks:" in shown and "alpha" in shown


@pytest.mark.parametrize("options", [["--resume", "none"], ["--code-changed"]])
def test_a_dry_run_is_of_a_new_run(options: list[str], capfd: pytest.CaptureFixture[str], workplace: Path) -> None:
    code, out, err = run(capfd, "launch", QUICKSTART, "--dry-run", *options)
    assert (code, out) == (2, "") and "--resume" in err


def test_the_help_of_describe_names_every_kind() -> None:
    text = cli.commands["describe"].help or ""
    assert [kind for kind in (*description.KINDS, "hooks", "sweep", "tune") if f"`{kind}`" not in text] == []


def test_sigterm_ends_every_command_as_ctrl_c_does(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminate(*given: object, **options: object) -> None:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # otherwise it would end the tests
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(cli, "main", terminate)
    assert run(capfd, "fetch", "some-job") == (130, "", "raysim: stopped\n")
