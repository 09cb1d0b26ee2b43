"""From YAML and `--set` to a scenario, or one sentence that names place, key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from raysim.algorithms.fedgh import FedGH
from raysim.common.errors import ScenarioError
from raysim.data.specs import DATASETS
from raysim.scenario.parse import ParsedScenario, parse_scenario
from raysim.scenario.scenario import Scenario
from raysim.scenario.schema import Settings
from raysim.scenario.yaml_text import Loader

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
    ("training.lrr=1", "'lr'"),
    ("algorithm.header_l=1", "'header_lr'"),
    ("data.partition.classes=1", "'classes_per_client'"),
    ("algorithm.name=fedavgg", "'fedavg'"),
    ("clients.models=[cnn9]", "clients.models: unknown model"),
    ("clients.alpha=1", "'data.partition.alpha'"),
    ("nonsense=1", "unknown key"),
    ("clients.count=many", "a whole number"),
    ("clients.count=0", "at least 1"),
    ("clients.models=cnn1", "a list"),
    ("clients.models=[3]", "text"),
    ("training.lr='0.1'", "a number"),
    ("training.lr=.nan", ".nan given; allowed: a number"),
    ("name=2024", "'\"2024\"'"),
    ("training.optimizer=lion", "sgd, adam, adamw"),
    ("clients.participation=1.5", "at most 1"),
    ("name=../x", "letters, digits"),
    ("data=digits", "a mapping of name"),
    ("algorithm=fedgh", "{name: "),
    ("algorithm.server_epochs=0", "algorithm.server_epochs: 0 given"),
    ("training.lr", "key.key=value"),
    ("training.lr=[1", "not valid YAML"),
]


@pytest.mark.parametrize(("item", "sentence"), REFUSED, ids=[item[:40] for item, _ in REFUSED])
def test_a_wrong_override_is_refused_in_one_sentence(item: str, sentence: str):
    text = refused([item])
    assert sentence in text and "\n" not in text


def test_a_required_key_is_missing_or_misspelt():
    raw = mapping()
    raw["round"] = raw.pop("rounds")
    assert refused(source=raw).startswith("scenario: round: unknown key; did you mean 'rounds'?")
    del raw["round"]
    assert "rounds: is missing" in refused(source=raw)


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
    assert load("tracking.tags.who=me").tracking.tags == {"who": "me"}  # a section that the file does not have
    assert load("training.lr=1", "training.lr=2").training.lr == 2.0


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


def test_another_algorithm_drops_the_fields_of_the_first(tmp_path: Path):
    raw = mapping()
    raw["algorithm"] = {"name": "fedgh", "server_epochs": 3}
    path = written(tmp_path, yaml.safe_dump(raw))
    assert parse_scenario(path, ["algorithm.name=standalone"]).resolved["algorithm"] == {"name": "standalone"}
    # The same name drops nothing.
    assert parse_scenario(path, ["algorithm.name=fedgh"]).algorithm == FedGH(server_epochs=3)


@pytest.mark.parametrize("flip", [False, True])
def test_another_partition_drops_fields_and_keeps_those_of_other_sets_in_either_order(flip: bool):
    sets = ["data.partition.name=dirichlet", "data.partition.alpha=0.25"]
    loaded = load(*(sets[::-1] if flip else sets))
    assert loaded.resolved["data"]["partition"]["alpha"] == 0.25
    assert "classes_per_client" not in loaded.resolved["data"]["partition"]
    assert Scenario.of(loaded).data.partition.alpha == 0.25


def test_a_field_of_the_method_that_was_left_behind_is_unknown():
    text = refused(["algorithm.server_epochs=5", "algorithm.name=standalone"])
    assert "--set algorithm.server_epochs=5: algorithm.server_epochs: unknown key" in text


# -- files and YAML ----------------------------------------------------------------------------------


BAD_YAML = [
    ("name: a\nseed: 1\nseed: 2\n", ", line 3: not valid YAML: the key 'seed'"),
    ("a: !!python/object:os.system x\n", ", line 1: not valid YAML"),
    ("", ": a scenario must be a mapping"),
    ("- a\n- b\n", ": a scenario must be a mapping"),
]


@pytest.mark.parametrize(("text", "sentence"), BAD_YAML, ids=[repr(text[:25]) for text, _ in BAD_YAML])
def test_yaml_that_is_no_scenario_is_refused_in_one_line(tmp_path: Path, text: str, sentence: str):
    path = written(tmp_path, text)
    found = refused(source=path)
    assert found.startswith(f"{path}{sentence}") and "\n" not in found


def test_numbers_as_people_write_them(tmp_path: Path):
    path = written(tmp_path, QUICKSTART.read_text().replace("lr: 0.05", "lr: 1e-3"))
    assert parse_scenario(path).training.lr == 0.001


def test_text_that_looks_like_a_number_survives_resolving():
    tags = {"a": "1e3", "b": "010", "c": "1:30", "d": "+.5", "e": "1_000", "f": "no"}
    loaded = parse_scenario({**mapping(), "tracking": {"tags": tags}})
    assert loaded.resolved["tracking"]["tags"] == tags
    text = loaded.resolved_yaml()
    assert yaml.safe_load(text) == yaml.load(text, Loader) == loaded.resolved


# -- combinations that cannot be ---------------------------------------------------------------------

_TWICE = "training.overrides=[{clients: 0-9, lr: 1}, {clients: 3-4, lr: 2}]"
_VALIDATES = "stop={metric: accuracy/val_current, patience: 2}"
COMBINATIONS = [
    (["clients.participation=0.01"], "clients.participation: 0.01"),
    (["algorithm.name=fedavg"], "clients.models: 5 architectures"),
    (["clients.models=[cnn1]"], "clients.models: cnn1"),
    (["data.partition.classes_per_client=11"], "data.partition.classes_per_client: 11"),
    (["clients.count=100000"], "100000 given"),
    (["evaluation.global_test=true"], "evaluation.global_test: true"),
    (["evaluation.global_every=2"], "evaluation.global_every"),
    (["evaluation={clients: all, every: 2, all_every: 3}"], "evaluation.all_every: 3"),
    (["stop={metric: accuracy/all_current, patience: 2}"], "stop.metric"),
    ([_VALIDATES, "evaluation.clients=all", "data.split=published"], "accuracy/val_current"),
    (["checkpoint.keep=[best_val]"], "checkpoint.keep"),
    (["checkpoint={keep: [last, best_val], every: 0}"], "checkpoint.every"),
    (["checkpoint.keep=[last, best_val]", "data.split=published"], "checkpoint.keep"),
    (["resources.overrides=[{actors: 1}]"], "resources.overrides.0"),
    (["resources.overrides=[{clients: 0-99}]"], "resources.overrides.0.clients: '0-99'"),
    (["resources.overrides=[{models: [cnn1]}]"], "resources.overrides.0.models: 'cnn1'"),
    ([_TWICE], "training.overrides.1"),
    (["training.nesterov=true", "training.momentum=0"], "training.nesterov"),
    (["data.normalise={mean: [1, 1], std: [1, 1]}"], "2 numbers"),
    (["training.nesterov=true", "training.optimizer=adamw"], "training.nesterov"),
    (["data.split=pooled811", "data.partition={name: hks}"], "data.split: pooled811"),
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


def test_an_unknown_profile_is_refused():
    assert "algorithm.profile: 'official' given" in refused(["algorithm={name: standalone, profile: official}"])


def test_a_sweep_is_no_scenario(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("base: quickstart.yaml\nseeds: 1..3\n")
    with pytest.raises(ScenarioError, match="raysim sweep"):
        parse_scenario(tmp_path / "sweep.yaml")
