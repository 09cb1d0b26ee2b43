"""From YAML and `--set` to a scenario, or one sentence that names place, key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from raysim.algorithms.fedgh import FedGH
from raysim.common.errors import ScenarioError
from raysim.common.results import METRICS
from raysim.data.specs import DATASETS
from raysim.scenario.deciding import DECIDING
from raysim.scenario.parse import ParsedScenario, parse_scenario
from raysim.scenario.scenario import Scenario
from raysim.scenario.schema import EarlyStop, Settings
from raysim.scenario.yaml_text import Loader, WrittenLoader

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
QUICKSTART = SCENARIOS / "quickstart.yaml"
SHIPPED = sorted(path for path in SCENARIOS.rglob("*.yaml") if path.parent == SCENARIOS or path.name == "base.yaml")


def mapping() -> dict[str, Any]:
    return yaml.safe_load(QUICKSTART.read_text())


def refused(sets: list[str] | None = None, source: Any = None) -> str:
    """The sentence with which a scenario is refused."""
    with pytest.raises(ScenarioError) as caught:
        Scenario.load(source or mapping(), sets or [])
    return str(caught.value)


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


# -- what is shipped ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_scenario_is_valid_and_round_trips(path: Path, tmp_path: Path):
    loaded = parse_scenario(path)
    checked = Scenario.of(loaded)
    assert checked.participants >= 1
    assert loaded.text == path.read_text()
    again = parse_scenario(written(tmp_path, loaded.resolved_yaml()))
    assert [getattr(again, key) for key in Settings.model_fields] == [
        getattr(loaded, key) for key in Settings.model_fields
    ]
    assert again.resolved == loaded.resolved
    assert again.resolved_yaml() == loaded.resolved_yaml()


def test_the_quickstart_is_what_it_says():
    loaded = parse_scenario(QUICKSTART)
    assert loaded.algorithm == FedGH()
    assert (loaded.clients.count, loaded.rounds, loaded.training.lr) == (20, 20, 0.05)
    checked = Scenario.of(loaded)
    assert (checked.participants, checked.data.split, checked.local.momentum) == (10, "pooled811", 0.9)
    assert checked.task.num_classes == 10
    assert len(checked.task.architectures) == 5


def test_resolved_has_every_default():
    loaded = parse_scenario(QUICKSTART)
    assert loaded.resolved["algorithm"] == {
        "name": "fedgh", "profile": "paper", "header_lr": 0.01, "server_mode": "per_lar", "server_epochs": 1,
        "mask_absent": False, "first": "broadcast",
    }  # fmt: skip
    assert loaded.resolved["training"]["clip"] is None
    assert loaded.resolved["backend"] == "ray"
    flat = loaded.flat()
    assert (flat["algorithm.server_mode"], flat["training.epochs"], flat["clients.participation"]) == (
        "per_lar",
        5,
        0.5,
    )
    assert flat["clients.models"] == "[digits_mlp64, digits_mlp128, digits_cnn_s, digits_cnn_m, digits_resnet]"


# -- keys, values and types --------------------------------------------------------------------------

REFUSED = [
    ("trainin.lr=1", "--set trainin.lr=1: trainin: unknown key; did you mean 'training'? (allowed: name, seed, "),
    ("training.lrr=1", "--set training.lrr=1: training.lrr: unknown key; did you mean 'lr'? (allowed: epochs, "),
    ("clients.cout=3", "clients.cout: unknown key; did you mean 'count'?"),
    (
        "algorithm.header_l=1",
        "algorithm.header_l: unknown key; did you mean 'header_lr'? (allowed: name, header_lr, server",
    ),
    ("data.partition.classes=1", "data.partition.classes: unknown key; did you mean 'classes_per_client'?"),
    (
        "resources.overrides=[{clients: 0-3, actr: 3}]",
        "overrides.0.actr: unknown key; did you mean 'actors'?",
    ),
    ("algorithm.name=fedavgg", "algorithm.name: unknown algorithm 'fedavgg'; did you mean 'fedavg'? (available: "),
    ("data.partition.name=dirichlt", "data.partition.name: unknown name 'dirichlt'; did you mean 'dirichlet'?"),
    ("data.name=digitss", "data.name: unknown data set 'digitss'; did you mean 'digits'? (available: digits, "),
    ("clients.models=[cnn9]", "clients.models.0: unknown model 'cnn9'"),
    ("clients.count=many", "--set clients.count=many: clients.count: 'many' given; allowed: a whole number"),
    ("clients.count=2.5", "clients.count: 2.5 given; allowed: a whole number"),
    ("clients.count=true", "clients.count: true given; allowed: a whole number"),
    ("clients.count=0", "clients.count: 0 given; allowed: at least 1"),
    ("clients.models=cnn1", "clients.models: 'cnn1' given; give a list"),
    ("clients.models=[]", "clients.models: [] given; allowed: at least 1 entry"),
    ("clients.models=[3]", "clients.models.0: 3 given; allowed: text"),
    ("clients.feature_dim=wide", "clients.feature_dim: 'wide' given; allowed: a whole number or 'auto'"),
    ("training.lr='0.1'", "training.lr: '0.1' given; allowed: a number"),
    ("training.lr=-0.1", "training.lr: -0.1 given; allowed: greater than 0"),
    ("training.lr=.inf", "training.lr: .inf given; allowed: a finite number"),
    ("training.lr=.nan", "training.lr: .nan given; allowed: a finite number"),
    ("training.lr=1e400", "training.lr: 1e400 given; allowed: a finite number"),
    ("seed=010", "seed: '010' given; allowed: a whole number"),
    ("seed=-010", "seed: '-010' given; allowed: a whole number"),
    ("seed=0x10", "seed: '0x10' given; allowed: a whole number"),
    ("seed=0b1", "seed: '0b1' given; allowed: a whole number"),
    ("rounds=1_0", "rounds: '1_0' given; allowed: a whole number"),
    ("rounds=1e3", "rounds: 1e3 given; allowed: a whole number"),
    ("training={lr: 0.1, epochs: 1e1}", "training.epochs: 1e1 given; allowed: a whole number"),
    ("training.lr=1_0.5", "training.lr: '1_0.5' given; allowed: a number"),
    ("training.lr=01.5", "training.lr: '01.5' given; allowed: a number"),
    ("failure.client_timeout_s=1:30", "client_timeout_s: '1:30' given; allowed: a number"),
    ("failure.client_timeout_s=1:30.5", "client_timeout_s: '1:30.5' given; allowed: a number"),
    ("data.split=8:1:1", "data.split: '8:1:1' given; allowed: 'auto', 'pooled811'"),
    ("seed=9223372036854775808", "seed: 9223372036854775808 given; allowed: at most 9223372036854775807"),
    ("rounds=1000000001", "rounds: 1000000001 given; allowed: at most 1000000000"),
    (
        "name=2024",
        "name: 2024 given; allowed: text; put it in quotes within quotes, because the shell removes the outer ones: "
        "'\"2024\"'",
    ),
    (
        "name=no",
        "name: no given; allowed: text; put it in quotes within quotes, because the shell removes the outer ones: "
        "'\"no\"'",
    ),
    ("tracking.tags={day: 2024-01-01}", "tracking.tags.day: 2024-01-01 given; allowed: text; put it in quotes"),
    ("tracking.tags={on: x}", "keys must be text; put this key in quotes"),
    ("algorithm.name=FedGH", "algorithm.name: unknown algorithm 'FedGH'; did you mean 'fedgh'?"),
    ("data.partition.name=IID", "data.partition.name: unknown name 'IID'; did you mean 'iid'?"),
    ("Rounds=3", "Rounds: unknown key; did you mean 'rounds'?"),
    ("training.learning_rate=1", "training.learning_rate: unknown key; did you mean 'lr'?"),
    ("training.local-epochs=1", "training.local-epochs: unknown key; did you mean 'epochs'?"),
    ("clients.num_clients=3", "clients.num_clients: unknown key; did you mean 'count'?"),
    ("clients.alpha=1", "clients.alpha: unknown key; did you mean 'data.partition.alpha'? (allowed: count, "),
    ("training.participation=1", "training.participation: unknown key; did you mean 'clients.participation'?"),
    ("training.num_clients=3", "training.num_clients: unknown key; did you mean 'clients.count'?"),
    ("learning_rate=1", "learning_rate: unknown key; did you mean 'training.lr'? (allowed: name, "),
    ("nonsense=1", "nonsense: unknown key (allowed: name, "),
    ("training.momentum=1", "training.momentum: 1 given; allowed: less than 1"),
    ("training.optimizer=lion", "training.optimizer: 'lion' given; allowed: 'sgd', 'adam' or 'adamw'"),
    ("clients.participation=1.5", "clients.participation: 1.5 given; allowed: a share of the clients"),
    ("seed=-1", "seed: -1 given; allowed: at least 0"),
    ("seed=2024-01-01", "seed: 2024-01-01 given; allowed: a whole number"),
    ("name=../x", "name: '../x' given; allowed: letters, digits, dots, dashes and underscores"),
    ("name=" + "x" * 101, "given; allowed: at most 100 characters"),
    ("data=digits", "data: 'digits' given; give a mapping of keys and values, for example {name: digits}"),
    ("data.partition=iid", "'iid' given; give a mapping of keys and values, for example {name: iid}"),
    ("algorithm=fedgh", "'fedgh' given; give a mapping of keys and values, for example {name: fedgh}"),
    ("tracking.tags=me", "tracking.tags: 'me' given; give a mapping of keys and values"),
    ("data.partition={}", "data.partition.name: is missing; give a name"),
    ("algorithm={}", "algorithm.name: is missing; give a name"),
    ("algorithm.name=3", "algorithm.name: 3 given; give a name"),
    ("algorithm.server_epochs=0", "algorithm.server_epochs: 0 given; allowed: at least 1"),
    (
        "algorithm.server_mode=x",
        "server_mode: 'x' given; allowed: 'per_lar', 'per_client' or 'frozen_random'",
    ),
    ("training.precision=half", "training.precision: 'half' given; allowed: 'float32', 'bfloat16' or 'float16'"),
    ("training.overrides=[{clients: 0-3, lrr: 1}]", "training.overrides.0.lrr: unknown key; did you mean 'lr'?"),
    ("training.overrides=[{clients: 0-3, lr: 0}]", "training.overrides.0.lr: 0 given; allowed: greater than 0"),
    ("training.stragglers=0.5", "training.stragglers: 0.5 given; give a mapping of keys and values"),
    ("training.stragglers={share: 0}", "training.stragglers.share: 0 given; allowed: greater than 0"),
    ("training.stragglers={share: 1.5}", "training.stragglers.share: 1.5 given; allowed: at most 1"),
    ("training.stragglers={}", "training.stragglers.share: is missing; add this key"),
    ("resources.overrides=[3]", "resources.overrides.0: 3 given; give a mapping of keys and values"),
    ("training={1: 2}", "training.1: keys must be text"),
    ("training={lr: {a: {b: 1}}}", "training.lr: {a: {b: 1}} given; allowed: a number"),
    ("rounds.x=1", "rounds.x: rounds is not a mapping, so it has no keys; set rounds itself"),
    ("training.lr", "--set training.lr: write it as key.key=value, for example training.lr=0.1"),
    ("=3", "--set =3: write it as key.key=value"),
    ("a..b=3", "--set a..b=3: write it as key.key=value"),
    ("training.lr=[1", "--set training.lr=[1: the value is not valid YAML"),
]


@pytest.mark.parametrize(("item", "sentence"), REFUSED, ids=[item[:40] for item, _ in REFUSED])
def test_a_wrong_override_is_refused_in_one_sentence(item: str, sentence: str):
    text = refused([item])
    assert sentence in text
    assert "\n" not in text and len(text) < 600


@pytest.mark.parametrize("section", ["name", "rounds", "algorithm", "data", "clients"])
def test_a_missing_section_is_named(section: str):
    raw = mapping()
    del raw[section]
    assert refused(source=raw) == f"scenario: {section}: is missing; add this key"


def test_a_misspelt_required_key_is_called_unknown_not_missing():
    raw = mapping()
    raw["round"] = raw.pop("rounds")
    assert refused(source=raw).startswith("scenario: round: unknown key; did you mean 'rounds'?")


# -- --set -------------------------------------------------------------------------------------------


def load(*sets: str) -> ParsedScenario:
    return parse_scenario(QUICKSTART, sets)


def test_set_changes_one_key_and_values_are_yaml():
    loaded = load("training.lr=1e-3", "data.augment=true", "training.clip=null", "clients.models=[digits_cnn_s]")
    assert loaded.training.lr == 0.001
    assert loaded.data.augment is True
    assert loaded.training.clip is None
    assert loaded.clients.models == ["digits_cnn_s"]
    assert loaded.training.epochs == 5  # of the file


def test_set_makes_sections_that_the_file_does_not_have():
    assert load("tracking.tags.who=me").tracking.tags == {"who": "me"}


def test_the_last_of_two_sets_counts():
    assert load("training.lr=1", "training.lr=2").training.lr == 2.0


def test_set_replaces_a_whole_mapping():
    loaded = load("training={lr: 0.5}")
    assert (loaded.training.lr, loaded.training.epochs) == (0.5, 1)
    assert load("algorithm={name: fedgh, server_epochs: 5}").algorithm == FedGH(server_epochs=5)


def test_what_was_overridden_is_known_by_dotted_keys():
    sets = ["training={lr: 1e-3, epochs: 2}", "clients.models=[cnn1]", "algorithm={name: fedgh, server_epochs: 5}"]
    assert load(*sets).overrides == {
        "training.lr": 0.001,
        "training.epochs": 2,
        "clients.models": "[cnn1]",
        "algorithm.name": "fedgh",
        "algorithm.server_epochs": 5,
    }
    assert load(*sets[2:], "algorithm.name=standalone").overrides == {"algorithm.name": "standalone"}
    assert load().overrides == {}


def test_a_value_may_hold_an_equals_sign():
    assert load("tracking.uri=http://x/?a=b").tracking.uri == "http://x/?a=b"


def test_another_algorithm_drops_the_fields_of_the_first(tmp_path: Path):
    raw = mapping()
    raw["algorithm"] = {"name": "fedgh", "server_epochs": 3}
    path = written(tmp_path, yaml.safe_dump(raw))
    assert parse_scenario(path, ["algorithm.name=standalone"]).resolved["algorithm"] == {"name": "standalone"}
    # The same name drops nothing.
    assert parse_scenario(path, ["algorithm.name=fedgh"]).algorithm == FedGH(server_epochs=3)


@pytest.mark.parametrize("flip", [False, True])
def test_another_algorithm_keeps_the_fields_of_other_sets_in_either_order(tmp_path: Path, flip: bool):
    raw = mapping()
    raw["algorithm"] = {"name": "lg_fedavg"}
    sets = ["algorithm.name=fedgh", "algorithm.server_epochs=4"]
    loaded = parse_scenario(written(tmp_path, yaml.safe_dump(raw)), sets[::-1] if flip else sets)
    assert loaded.algorithm == FedGH(server_epochs=4)


@pytest.mark.parametrize("flip", [False, True])
def test_another_partition_drops_and_keeps_likewise(flip: bool):
    sets = ["data.partition.name=dirichlet", "data.partition.alpha=0.25"]
    loaded = load(*(sets[::-1] if flip else sets))
    assert loaded.resolved["data"]["partition"]["alpha"] == 0.25
    assert "classes_per_client" not in loaded.resolved["data"]["partition"]
    assert Scenario.of(loaded).data.partition.alpha == 0.25


def test_a_field_of_the_method_that_was_left_behind_is_unknown():
    text = refused(["algorithm.server_epochs=5", "algorithm.name=standalone"])
    assert text == "--set algorithm.server_epochs=5: algorithm.server_epochs: unknown key (allowed: name)"


# -- files and YAML ----------------------------------------------------------------------------------


def test_a_file_that_is_not_there_a_folder_and_a_binary(tmp_path: Path):
    assert refused(source=tmp_path / "no.yaml") == f"{tmp_path / 'no.yaml'}: there is no such file"
    assert refused(source=tmp_path) == f"{tmp_path}: this is a folder; give a scenario file (.yaml)"
    binary = tmp_path / "x.yaml"
    binary.write_bytes(b"\x80\x81\xff\xfe")
    assert refused(source=binary) == f"{binary}: cannot be read: it is not UTF-8 text; save it as UTF-8"


BAD_YAML = [
    ("name: a\nrounds: [1\n", ", line 3: not valid YAML: "),
    ("name: a\n\tseed: 1\n", ", line 2: not valid YAML: "),
    ("name: a\nseed: 1\nseed: 2\n", ", line 3: not valid YAML: the key 'seed' is given twice"),
    (
        "name: a\ndata:\n  name: x\n  augment: true\n  name: y\n",
        ", line 5: not valid YAML: the key 'name' is given",
    ),
    ("a: !!python/object:os.system x\n", ", line 1: not valid YAML: could not determine a constructor"),
    ("a: *missing\n", ", line 1: not valid YAML: found undefined alias"),
    ("a: 1\n---\nb: 2\n", ", line 2: not valid YAML: "),
    ("", ": the file is empty; a scenario is a mapping of keys and values"),
    ("# name: a\n", ": the file is empty; a scenario is a mapping of keys and values"),
    ("- a\n- b\n", ": a scenario must be a mapping of keys and values, but the file has [a, b]"),
    ("just text", ": a scenario must be a mapping of keys and values, but the file has 'just text'"),
    ("1: 2\n", ": 1: keys must be text"),
    ("{[1, 2]: 3}", ", line 1: not valid YAML: found unhashable key"),
    ("? {a: b}\n: 3\n", ", line 1: not valid YAML: found unhashable key"),
    ("name: a\nseed: 2001-99-99\n", ": not valid YAML: "),
]


@pytest.mark.parametrize(("text", "sentence"), BAD_YAML, ids=[repr(text[:25]) for text, _ in BAD_YAML])
def test_yaml_that_is_no_scenario_is_refused_in_one_line(tmp_path: Path, text: str, sentence: str):
    path = written(tmp_path, text)
    found = refused(source=path)
    assert found.startswith(f"{path}{sentence}")
    assert "\n" not in found and len(found) < 600


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e-3", 0.001), ("1E-3", 0.001), ("+1e2", 100.0), ("2.5e-1", 0.25), ("1.e1", 10.0), (".5", 0.5), ("1", 1.0)],
)
def test_numbers_as_people_write_them(tmp_path: Path, text: str, number: float):
    path = written(tmp_path, QUICKSTART.read_text().replace("lr: 0.05", f"lr: {text}"))
    assert parse_scenario(path).training.lr == number


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("name: quickstart", "name: 2024", 'name: 2024 given; allowed: text; put it in quotes: "2024"'),
        ("name: quickstart", "name: on", 'name: on given; allowed: text; put it in quotes: "on"'),
        ("rounds: 20", "rounds: 2e1", "rounds: 2e1 given; allowed: a whole number"),
        ("rounds: 20", "rounds: 020", "rounds: '020' given; allowed: a whole number"),
        ("models: [", "models: [1e1, ", 'clients.models.0: 1e1 given; allowed: text; put it in quotes: "1e1"'),
    ],
)
def test_a_value_of_a_file_is_shown_as_it_was_written(tmp_path: Path, old: str, new: str, sentence: str):
    text = QUICKSTART.read_text()
    assert old in text
    path = written(tmp_path, text.replace(old, new, 1))
    assert refused(source=path) == f"{path}: {sentence}"


def test_text_that_looks_like_a_number_survives_resolving():
    tags = {"a": "1e3", "b": "010", "c": "1:30", "d": "+.5", "e": "1_000", "f": "no"}
    loaded = parse_scenario({**mapping(), "tracking": {"tags": tags}})
    assert loaded.resolved["tracking"]["tags"] == tags
    text = loaded.resolved_yaml()
    for read in (yaml.safe_load(text), yaml.load(text, Loader), yaml.load(text, WrittenLoader)):
        assert read == loaded.resolved


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_is_written_is_read_the_same_by_the_fast_loader(path: Path):
    text = parse_scenario(path).resolved_yaml()
    assert yaml.load(text, WrittenLoader) == yaml.load(text, Loader)


def test_spaces_within_an_override_are_kept():
    loaded = load(
        "tracking.experiment=a  b", "data.path=/x/wide\u3000space", "algorithm={name: fedgh,\n  server_epochs: 5}"
    )
    assert (loaded.tracking.experiment, loaded.data.path) == ("a  b", "/x/wide\u3000space")
    assert loaded.algorithm == FedGH(server_epochs=5)


@pytest.mark.parametrize("space", ["\xa0", "\u202f", "\u3000"])
def test_a_space_of_another_kind_before_a_value(space: str) -> None:
    assert parse_scenario("quickstart", [f"rounds={space}5"]).rounds == 5


@pytest.mark.parametrize("item", ["output=out #2", "data.label=#1", "clients.models=[digits_mlp64] # two"])
def test_a_comment_in_an_override_is_refused(item: str) -> None:
    with pytest.raises(ScenarioError, match=r"--set .*: the value contains a #, which begins a comment in YAML; put"):
        parse_scenario("quickstart", [item])
    assert parse_scenario("quickstart", ["data.label='out #2'", "tracking.experiment=a#1"]).data.label == "out #2"


def test_yes_and_on_are_true_as_in_yaml():
    assert load("data.augment=yes").data.augment is True
    assert load("data.augment=off").data.augment is False


@pytest.mark.parametrize("sets", ["rounds=3", {"rounds": 3}, [("rounds", 3)]])
def test_overrides_that_are_not_a_list_of_texts_are_refused(sets: Any):
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(QUICKSTART, sets)
    assert str(caught.value) == f"sets: {sets!r} given; give a list of overrides, for example ['rounds=3']"


# -- combinations that cannot be ---------------------------------------------------------------------

COMBINATIONS = [
    (
        ["clients.participation=0.01"],
        "clients.participation: 0.01 given, which selects no client of 20; allowed: 1/20 to 1",
    ),
    (["algorithm.name=fedavg"], "clients.models: 5 architectures given (digits_mlp64, digits_mlp128, digits_cnn_s, "),
    (
        ["clients.models=[cnn1]"],
        "clients.models.0: cnn1 needs 3x32x32 images, but digits has 1x8x8 images; allowed: digits_",
    ),
    (
        ["data.partition.classes_per_client=11"],
        "data.partition.classes_per_client: 11 given, but digits has 10 classes",
    ),
    (["data.partition.classes_per_client=0"], "data.partition.classes_per_client: 0 given; allowed: at least 1"),
    (["clients.count=100000"], "100000 given, but each client needs at least"),
    (["evaluation.global_test=true"], "evaluation.global_test: true given, but with `data.split: pooled811`"),
    (["evaluation.global_every=2"], "evaluation.global_every: needs evaluation.global_test: true"),
    (
        ["data.split=published", "evaluation={global_test: true, every: 2, global_every: 3}"],
        "evaluation.global_every: 3 is not a multiple of evaluation.every (2)",
    ),
    (["evaluation.clients=some"], "evaluation.clients: 'some' given; allowed: 'participants' or 'all'"),
    (["evaluation.all_every=2"], "evaluation.all_every: needs evaluation.clients: all; set it"),
    (
        ["evaluation={clients: all, every: 2, all_every: 3}"],
        "evaluation.all_every: 3 is not a multiple of evaluation.every (2)",
    ),
    (
        ["stop={metric: accuracy/all_current, patience: 2}"],
        "stop.metric: accuracy/all_current needs evaluation.clients: all",
    ),
    (
        ["stop={metric: accuracy/val_current, patience: 2}", "evaluation.clients=all", "data.split=published"],
        "accuracy/val_current needs validation samples, but with `data.split: published`, clients have none",
    ),
    (["checkpoint.keep=[best_val]"], "checkpoint.keep: 'last' is missing, but resuming a run needs it; give"),
    (["checkpoint.keep=[last, best]"], "checkpoint.keep.1: 'best' given; allowed: 'last' or 'best_val'"),
    (
        ["checkpoint={keep: [last, best_val], every: 0}"],
        "checkpoint.keep: best_val given, but checkpoint.every is 0, so no state is saved; set",
    ),
    (
        ["checkpoint.keep=[last, best_val]", "data.split=published"],
        "checkpoint.keep: best_val needs validation samples, but with `data.split: published`, clients have",
    ),
    (["resources.overrides=[{actors: 1}]"], "resources.overrides.0: give either `models` or `clients`"),
    (
        ["resources.overrides=[{models: [digits_cnn_s], clients: 0-1}]"],
        "overrides.0: give either `models` or `clients`",
    ),
    (
        ["resources.overrides=[{clients: 0-99}]"],
        "overrides.0.clients: '0-99' is invalid: there is no client 99; allowed: ids from 0 to 19",
    ),
    (["resources.overrides=[{clients: x}]"], "resources.overrides.0.clients: 'x' is invalid: write ranges of ids"),
    (["resources.overrides=[{models: [cnn1]}]"], "resources.overrides.0.models: 'cnn1' is not among clients.models"),
    (["training.overrides=[{lr: 1}]"], "training.overrides.0: give either `models` or `clients` to select"),
    (["training.overrides=[{clients: 0-99, lr: 1}]"], "training.overrides.0.clients: '0-99' is invalid: there is no"),
    (
        ["training.overrides=[{models: [cnn1], lr: 1}]"],
        "training.overrides.0.models: 'cnn1' is not among clients.models (digits_mlp64, ",
    ),
    (
        ["training.overrides=[{clients: 0-3}]"],
        "training.overrides.0: this override changes no setting; set one, such as `lr`",
    ),
    (
        ["training.overrides=[{clients: 0-9, lr: 1}, {clients: 3-4, lr: 2}]"],
        "training.overrides.1: this override applies to no client: either it selects none, or earlier overrides",
    ),
    (
        ["training.nesterov=true", "training.momentum=0"],
        "training.nesterov: true given, but momentum is 0; set `momentum` greater than 0",
    ),
    (
        ["training.nesterov=true", "training.optimizer=adamw"],
        "training.nesterov: true given, but the optimizer is adamw; set `nesterov` to false",
    ),
    (
        ["training.nesterov=true", "training.overrides=[{models: [digits_resnet], optimizer: adam}]"],
        "training.overrides.0.nesterov: true given, but the optimizer is adam; set `nesterov` to false",
    ),
    (["data.split=published", "data.partition={name: hks, alpha: 0.0}"], "data.partition.alpha: 0.0 given"),
    (["data.split=pooled811", "data.partition={name: hks}"], "data.split: pooled811 given, but the partition `hks`"),
]


@pytest.mark.parametrize(("sets", "sentence"), COMBINATIONS, ids=[sets[-1][:45] for sets, _ in COMBINATIONS])
def test_a_combination_that_cannot_be_is_refused(sets: list[str], sentence: str):
    text = refused(sets)
    assert sentence in text and "\n" not in text


def test_one_architecture_is_enough_for_fedavg_if_only_one_is_used():
    both = ["algorithm.name=fedavg", "clients.models=[digits_cnn_s, digits_mlp64]"]
    assert "2 architectures given" in refused(both)
    checked = Scenario.load(mapping(), [*both, "clients.count=1", "clients.participation=1"])
    assert checked.task.architectures == ("digits_cnn_s",)


def test_overrides_divide_the_clients_and_the_first_match_counts():
    sets = ["resources.overrides=[{clients: '0-3,7', actors: 2}, {models: [digits_mlp64], cpus_per_actor: 3}]"]
    first, second, rest = Scenario.load(mapping(), sets).requests
    assert (first.clients, first.actors, first.cpus_per_actor) == ((0, 1, 2, 3, 7), 2, 1.0)
    assert (second.clients, second.actors, second.cpus_per_actor) == ((5, 10, 15), None, 3.0)
    assert rest.clients == (4, 6, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19)


def test_hks_takes_the_published_split_of_itself():
    assert Scenario.load(mapping(), ["data.partition={name: hks}"]).data.split == "published"


def test_pixels_are_normalised_as_asked_for():
    own = "data.normalise={mean: [0.4914, 0.4822, 0.4465], std: [0.2023, 0.1994, 0.2010]}"
    cifar10 = ["data.name=cifar10", "clients.models=[cnn1]"]
    assert Scenario.load(mapping(), cifar10).dataset == DATASETS["cifar10"]
    checked = Scenario.load(mapping(), [*cifar10, own])
    assert checked.dataset.mean == (0.4914, 0.4822, 0.4465) and checked.dataset.input_spec.shape == (3, 32, 32)
    raw = Scenario.load(mapping(), ["data.normalise={mean: [25.5], std: [51], scaled: false}"]).dataset
    assert (raw.mean, raw.std, raw.input_spec.shape) == ((0.1,), (0.2,), (1, 8, 8))
    # A run that goes on goes on with it.
    assert Scenario.load(yaml.safe_load(checked.resolved_yaml())).dataset == checked.dataset


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (["data.normalise={mean: [1, 1], std: [1, 1]}"], "mean: 2 numbers given; for digits, give 1 or 3 numbers, and"),
        (["data.normalise={mean: [1], std: [1, 1, 1]}"], "std: 3 numbers given; for digits, give 1 or 3 numbers, and"),
        (
            ["data.name=cifar100", "clients.models=[cnn1]", "data.normalise={mean: [0], std: [1]}"],
            "for cifar100, give 3",
        ),
        (["data.normalise={mean: [0], std: [0]}"], "data.normalise.std.0: 0 given; allowed: greater than 0"),
        (["data.normalise={mean: [0, 0, 0], std: [1, 1, 1]}"], "digits_mlp64 needs 1x8x8 images"),
    ],
)
def test_constants_that_do_not_fit_the_images_are_refused(sets: list[str], sentence: str):
    assert sentence in refused(sets)


OFFICIAL = "algorithm={name: fedgh, profile: official}"


def test_a_profile_sets_what_is_not_given():
    loaded = parse_scenario(QUICKSTART, [OFFICIAL])
    assert loaded.algorithm == FedGH(server_mode="frozen_random", first="local")
    assert loaded.resolved["algorithm"]["profile"] == "official"
    both = parse_scenario(QUICKSTART, [OFFICIAL, "algorithm.first=broadcast"])
    assert both.algorithm == FedGH(server_mode="frozen_random")
    # What is resolved loads to the same, and the paper is the default.
    assert parse_scenario(yaml.safe_load(loaded.resolved_yaml())).algorithm == loaded.algorithm
    assert parse_scenario(QUICKSTART).resolved["algorithm"]["profile"] == "paper"


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        ("algorithm={name: fedgh, profile: code}", "algorithm.profile: 'code' given; allowed: paper, official"),
        ("algorithm={name: fedgh, profile: 3}", "algorithm.profile: 3 given; allowed: paper, official"),
        ("algorithm={name: standalone, profile: official}", "algorithm.profile: 'official' given; allowed: paper"),
    ],
)
def test_an_unknown_profile_is_refused(item: str, sentence: str):
    with pytest.raises(ScenarioError) as refused:
        parse_scenario(QUICKSTART, [item])
    assert str(refused.value) == f"--set {item}: {sentence}"


def test_a_profile_of_a_base_class_without_its_field_is_refused(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\n"
        "from raysim.algorithms.fedgh import FedGH\n\n"
        "@dataclass(frozen=True)\nclass Mine(FedGH):\n    first: ClassVar[str] = 'local'\n"
    )
    sets = [f"algorithm={{name: {tmp_path / 'mine.py'}, profile: official}}"]
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(QUICKSTART, sets)
    problem = "algorithm.profile: profile 'official' sets first, which is no setting of Mine"
    assert str(caught.value).endswith(f"{problem}; override `profiles` in the class")


def test_a_scenario_is_shown_in_a_line() -> None:
    parsed = parse_scenario(QUICKSTART)
    shown = "quickstart: fedgh on digits, 20 clients, 20 rounds, seed 1>"
    assert (repr(parsed), str(Scenario.of(parsed))) == (f"<ParsedScenario {shown}", f"<Scenario {shown}")


def test_a_sweep_is_no_scenario(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("base: quickstart.yaml\nseeds: 1..3\n")
    with pytest.raises(
        ScenarioError,
        match=r"sweep\.yaml: this file is a sweep, not a scenario; run it with `raysim sweep`, or only check",
    ):
        parse_scenario(tmp_path / "sweep.yaml")


def test_a_mapping_may_be_merged_into_another(tmp_path: Path):
    text = QUICKSTART.read_text()
    merged = text.replace("training:\n", "training:\n  <<: {lr: 9.0, weight_decay: 0.5}\n")
    assert merged != text
    loaded = parse_scenario(written(tmp_path, merged))
    assert (loaded.training.weight_decay, loaded.training.lr) == (0.5, 0.05)  # its own keys count more


def test_every_metric_that_may_decide_is_described() -> None:
    assert tuple(DECIDING) == get_args(EarlyStop.model_fields["metric"].annotation)
    assert DECIDING.keys() <= METRICS.keys()


def test_an_override_fills_a_section_that_is_null():
    raw = {**mapping(), "system": None, "stop": None}
    scenario = parse_scenario(raw, ["system.dropout=0.5", "stop.patience=2"])
    assert scenario.system.dropout == 0.5 and scenario.stop.patience == 2
