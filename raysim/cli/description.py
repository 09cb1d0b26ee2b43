"""Output of `list` and `describe`: names, methods, keys of scenarios, columns of files."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic.fields import FieldInfo
from rich.console import Console

from raysim.cli.methods import Method, first_paragraph
from raysim.cli.methods import in_words as message_in_words
from raysim.cli.tables import new_console, new_table
from raysim.common.errors import ScenarioError
from raysim.common.results import METRICS, ClientRow, Output
from raysim.common.suggestions import suggest
from raysim.common.text import expanded
from raysim.comparison.measures import ALL_MEASURES, meaning_of
from raysim.core.fields import field_docs, in_words, settings_fields
from raysim.data.partition import PARTITIONS
from raysim.data.specs import DATASETS, DatasetSpec
from raysim.models import MODELS
from raysim.plugins.reading import read_own_code
from raysim.plugins.references import Reference, named
from raysim.plugins.registry import algorithm_class, algorithm_names
from raysim.scenario.bundled import FOLDER, bundled_names
from raysim.scenario.schema import Data, Section, Settings
from raysim.scenario.sentences import NAMED, kind_of
from raysim.scenario.trackers import TRACKERS
from raysim.scenario.yaml_text import opening_comment, read_text

KINDS = {
    "algorithms": "Federated-learning methods; a scenario selects one with `algorithm: {name: NAME}`. The list shows "
    "the year of the paper, whether the clients' architectures may differ, and the messages down to clients and up to "
    "the server. Bundled methods are files in algorithms/.",
    "models": "Network architectures of clients; a scenario lists them in `clients.models`.",
    "datasets": "Data sets; a scenario selects one with `data: {name: NAME}`.",
    "partitions": "Ways to divide the data among clients; a scenario selects one with "
    "`data: {partition: {name: NAME}}`.",
    "selections": "Ways to choose a round's participants; a scenario selects one with "
    "`clients: {selection: {name: NAME}}`.",
    "schedules": "Schedules of the learning rate over the rounds; a scenario selects one with "
    "`training: {schedule: {name: NAME}}`.",
    "attacks": "What malicious clients do; a scenario selects one with `adversary: {attack: {name: NAME}}`.",
    "rules": "Rules in place of the mean of uploads; a scenario selects one with `aggregator: {rule: {name: NAME}}`.",
    "mixings": "What is done to uploads before a rule; a scenario selects one with "
    "`aggregator: {mixing: {name: NAME}}`.",
    "staleness": "How much a stale upload counts; a scenario selects one with "
    "`asynchronous: {staleness: {name: NAME}}`.",
    "trackers": "Additional destinations of a run's results, besides its folder and MLflow; a scenario adds them with "
    "`tracking: {also: [NAME]}`.",
    "scenarios": "Scenarios and sweeps that come with raysim; run one with `raysim launch NAME` or "
    "`raysim sweep NAME`. The command `raysim init` copies their files.",
    "metrics": "Metrics of a round: the columns of rounds.parquet (except `round`), and the metrics in MLflow. "
    "Accuracies lie between 0 and 1. Methods add `client/<name>` and `server/<name>`.",
    "measures": "Measures of a comparison: the columns of the tables that `raysim compare` writes. Each is computed "
    "per run, and then averaged over the runs of a variant, which differ only in their seed.",
}
FILES = {
    "rounds.parquet": {"round": "round, from 1; 0: before the first round", **METRICS},
    "clients.parquet": field_docs(ClientRow),
}
"""File -> column -> meaning."""

HOOKS = (
    "check", "client_model", "client_register", "server_start", "server_send", "client_receive", "client_update",
    "server_update", "exposed",
)  # fmt: skip
"""The hooks of an algorithm. Their docstrings are read only when they are shown, because that imports torch."""

SWEEPS = ("sweep", "tune")
"""Names under which the keys of a sweep file are described."""

SYNONYMS = {"methods": "algorithms"}


@dataclass(frozen=True)
class Entry(Output):
    """A name that `raysim list` shows, with its meaning."""

    name: str
    """the name, as it is typed"""
    description: str
    """its meaning"""
    facts: Mapping[str, str] = field(default_factory=dict)
    """of a method: year of its paper, architectures of its clients, messages; otherwise empty"""

    @property
    def text(self) -> str:
        """The description and, on a second line, the facts."""
        facts = "; ".join(f"{name}: {value}" for name, value in self.facts.items())
        return f"{self.description}\n{facts}" if facts else self.description


def entries_of(what: str) -> dict[str, list[Entry]]:
    """The entries of a kind, or of all kinds, by kind."""
    return {kind: _entries(kind) for kind in (KINDS if what == "all" else (SYNONYMS.get(what, what),))}


def show_list(entries: Mapping[str, Sequence[Entry]]) -> None:
    """Print entries with their descriptions. entries: by kind."""
    for kind, of_kind in entries.items():
        title = kind.capitalize() if len(entries) > 1 else None
        _show_entries(new_console(), title, [(one.name, one.text) for one in of_kind])


def names_of(what: str) -> list[str]:
    """The names of a kind, or of all kinds, each once."""
    kinds = KINDS if what == "all" else (SYNONYMS.get(what, what),)
    return list(dict.fromkeys(name for kind in kinds for name in _names(kind)))


def show_describable() -> None:
    """Print the names of kinds, sections and files, which have no entry in `raysim list`."""
    console = new_console()
    entries = {
        "scenario": "The keys of a scenario.",
        **{name: _first_sentence(section.__doc__ or name) for name, section in _sections().items()},
        "sweep": "The keys of a sweep file.",
        "tune": "The keys of `tune` in a sweep file.",
        **{name: _first_sentence(text) for name, text in KINDS.items()},
        **dict.fromkeys(FILES, "The columns of this file in a run folder."),
        "hooks": "The methods of an algorithm that raysim calls.",
        "FILE.yaml": "The opening comment and the keys of a scenario or sweep file.",
        "./FILE.py": "The method in a Python file.",
    }
    _show_entries(console, None, entries.items())
    console.print("\nNAME may also be a name that `raysim list` shows, such as fedgh, or a key, such as training.lr.")


def show_description(name: str) -> None:
    """Print the description of a name. Raises `ScenarioError` if nothing has this name."""
    console, name = new_console(), SYNONYMS.get(name, name)
    if name in algorithm_names() or Reference.of(name) is not None:
        _show_algorithm(console, name)
        if name not in PARTITIONS:
            return
        console.print(f"\nThe partition {name}:")
    settings = {named: (where, cls) for where, classes in NAMED.items() for named, cls in classes.items()}
    if name in settings:
        (section, kind), cls = settings[name]
        _show_settings(console, cls, f"{section}: {{{kind}: {{name: {name}}}}}")
    elif name in TRACKERS:
        _show_settings(console, TRACKERS[name], f"tracking: {{also: [{{name: {name}}}]}}")
    elif name in MODELS:
        spec = MODELS[name]
        console.print(f"{spec.summary}\nRepresentation width: {spec.native_dim}")
    elif name in DATASETS:
        _show_dataset(console, DATASETS[name])
    elif name in METRICS:
        console.print(METRICS[name])
    elif (meaning := meaning_of(name)) is not None:
        console.print(f"Measure of a comparison: {meaning}.")
    elif tuple(name.split(".")) in NAMED:
        show_description(f"{name.rpartition('.')[2]}s")
    elif name in KINDS:
        console.print(f"{KINDS[name]} `raysim describe NAME` explains one of them.\n")
        show_list(entries_of(name))
    elif name in FILES:
        _show_entries(console, None, FILES[name].items(), "column")
    elif name in Settings.model_fields or name == "scenario":
        _show_section(console, name)
    elif name in _keys():
        section, _, key = name.partition(".")
        _show_keys(console, _sections()[section], [key])
    elif name in SWEEPS:
        from raysim.sweeps.describe import ABOUT, KEYS

        console.print(f"{ABOUT[name]}\n")
        _show_entries(console, None, KEYS[name].items(), "key", "meaning")
    elif name in bundled_names() or Path(name).suffix in (".yaml", ".yml"):
        from raysim.sweeps.describe import about_file

        comment, entries, how = about_file(name)
        console.print(f"{comment}\n" if comment else "")
        _show_entries(console, None, entries, "key", "value")
        console.print(how)
    elif name == "hooks":
        _show_entries(console, None, [(call, _first_sentence(text)) for call, text in map(_hook, HOOKS)], "hook")
    elif name in HOOKS:
        call, text = _hook(name)
        console.print(f"{call}\n\n{_reflowed(text)}")
    else:
        known = [*algorithm_names(), *settings, *TRACKERS, *MODELS, *DATASETS, *METRICS, *ALL_MEASURES]
        known += [*Settings.model_fields, *_keys(), *KINDS, *FILES, *SWEEPS, *bundled_names(), *HOOKS]
        same = [key for key in _keys() if key.endswith(f".{name}")]
        hint = f"; did you mean {' or '.join(map(repr, same))}?" if same else suggest(name, known)
        raise ScenarioError(f"describe {name}: unknown name{hint} (`raysim list` shows all names)")


def _reflowed(doc: str | None) -> str:
    """Join the lines of each paragraph of a docstring, so that a terminal wraps them; lists keep their lines."""
    return re.sub(r"(?<=\S)\n(?![\s>*-]|\d+[.)] )", " ", inspect.cleandoc(doc or ""))


def _hook(name: str) -> tuple[str, str]:
    """Return the call and the docstring of a hook."""
    from raysim.core.algorithm import Algorithm

    hook = getattr(Algorithm, name)
    arguments = list(inspect.signature(hook).parameters)[1:]
    return f"{name}({', '.join(arguments)})", inspect.getdoc(hook) or ""


def _show_settings(console: Console, cls: type, where: str) -> None:
    """Print the docstring and the fields of a class. where: how a scenario selects it."""
    console.print(f"{_reflowed(cls.__doc__)}\n")
    _show_fields(console, cls, where)


def _show_dataset(console: Console, dataset: DatasetSpec) -> None:
    console.print(dataset.summary)
    if dataset.train_size:
        sizes = f"{dataset.train_size:,} training and {dataset.test_size:,} test samples"
        console.print(f"{dataset.num_classes} classes; {sizes}: {dataset.input_spec}")
    for key in dataset.keys:
        console.print(f"data.{key}: {' '.join((Data.model_fields[key].description or '').split())}")


def _show_algorithm(console: Console, name: str) -> None:
    reference = named("algorithms", name)
    file = f"algorithms/{name}.py" if reference is None else reference.name
    if reference is not None and reference.is_file:
        own_code = read_own_code([expanded(reference.place)])
        own_code.activate()
        file = ", ".join(own_code.paths)
    method = Method(algorithm_class(name if reference is None else reference.name))
    console.print(_reflowed(method.doc), overflow="fold")
    based_on = method.paper_of if method.paper_of not in ("Algorithm", method.cls.__name__) else ""
    paper = f"Paper of {based_on}, on which it is based" if based_on else "Paper"
    console.print(f"\n{paper}: {method.cls.paper}")
    console.print(f"File:  {file}")
    console.print(f"Architectures: {method.architectures}")
    for way, messages in zip(("Down", "Up"), method.messages or (), strict=False):
        for message in messages:
            doc = first_paragraph(message)
            console.print(f"{way}: {message_in_words(message)}" + (f" ({doc.removesuffix('.')})" if doc else ""))
    console.print()
    _show_fields(console, method.cls, f"algorithm: {{name: {name}}}")
    for profile, preset in method.cls.profiles.items():
        values = ", ".join(f"{field}: {_plain(value)}" for field, value in preset.items())
        console.print(f"profile: {profile}  ({values})")


def _named_classes(kind: str) -> Mapping[str, type] | None:
    """The classes of a kind, such as "partitions", that a scenario names; None: a kind without classes."""
    kinds = {kind_of(key): classes for (_, key), classes in NAMED.items()}
    return {**kinds, "trackers": TRACKERS}.get(kind)


def _names(kind: str) -> Iterable[str]:
    """The names of a kind, without importing anything heavy."""
    if kind == "algorithms":
        return algorithm_names()
    if kind == "scenarios":
        return bundled_names()
    others: dict[str, Mapping[str, Any]] = {
        "models": MODELS,
        "datasets": DATASETS,
        "metrics": METRICS,
        "measures": ALL_MEASURES,
    }
    return _named_classes(kind) or others[kind]


def _entries(kind: str) -> list[Entry]:
    if kind == "algorithms":
        return [_algorithm(name) for name in algorithm_names()]
    if kind == "models":
        return [Entry(name, spec.summary) for name, spec in MODELS.items()]
    if kind == "datasets":
        return [Entry(name, spec.summary) for name, spec in DATASETS.items()]
    if kind == "scenarios":
        files = {name: FOLDER / f"{name}.yaml" for name in bundled_names()}
        return [Entry(name, _first_sentence(opening_comment(read_text(file)))) for name, file in files.items()]
    if (classes := _named_classes(kind)) is not None:
        return [Entry(name, first_paragraph(cls)) for name, cls in classes.items()]
    return [Entry(*one) for one in (ALL_MEASURES if kind == "measures" else METRICS).items()]


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?]) (?=[A-Z-])", " ".join(text.split()))[0]


def _show_entries(
    console: Console, title: str | None, entries: Iterable[tuple[str, str]], of: str = "name", what: str = "description"
) -> None:
    table = new_table(title, of, what)
    for name, text in entries:
        table.add_row(name, text)
    console.print(table)


def _algorithm(name: str) -> Entry:
    """A method's summary and facts; or the error in its file, which may be unfinished."""
    try:
        method = Method(algorithm_class(name))
    except ScenarioError as error:
        return Entry(name, str(error))
    facts = {"year": method.year, "architectures": method.architectures, "messages": method.travels}
    return Entry(name, method.summary, {key: value for key, value in facts.items() if value})


def _show_fields(console: Console, cls: type, where: str) -> None:
    fields = settings_fields(cls)
    if not fields:
        console.print(f"It has no fields to set. In a scenario: {where}")
        return
    table = new_table(None, "field", "default", "allowed", "meaning")
    for one in fields:
        default = "required" if one.default is MISSING else _plain(one.default)
        table.add_row(one.name, default, one.allowed, one.doc)
    console.print(table)


def _show_section(console: Console, name: str) -> None:
    section = Settings if name == "scenario" else section_of(Settings.model_fields[name], optional=True)
    if section is None:
        field = Settings.model_fields[name]
        console.print(field.description or name)
        allowed = in_words(get_type_hints(Settings, include_extras=True)[name])
        console.print(f"Default: {default_of(field)}\nAllowed: {allowed}")
        return
    console.print(_reflowed(section.__doc__) + "\n")
    _show_keys(console, section, section.model_fields)


def _show_keys(console: Console, section: type[Section], keys: Iterable[str]) -> None:
    hints = get_type_hints(section, include_extras=True)
    table = new_table(None, "key", "default", "allowed", "meaning")
    for key in keys:
        field = section.model_fields[key]
        inner = section_of(field)
        may = in_words(hints[key]) if inner is None else f"see `raysim describe {key}`"
        meaning = field.description or (inspect.cleandoc(inner.__doc__ or "").split("\n\n")[0] if inner else "")
        table.add_row(key, default_of(field), may, meaning.replace("\n", " "))
    console.print(table)


def _sections() -> dict[str, type[Section]]:
    """The sections of a scenario, by name."""
    sections = {name: section_of(field, optional=True) for name, field in Settings.model_fields.items()}
    return {name: section for name, section in sections.items() if section is not None}


def _keys() -> list[str]:
    """The keys in the sections of a scenario, such as `training.lr`."""
    return [f"{name}.{key}" for name, section in _sections().items() for key in section.model_fields]


def section_of(field: FieldInfo, optional: bool = False) -> type[Section] | None:
    """The section that is a key's value, or None if the value is no section. optional: also accept `Section | None`."""
    kinds = (field.annotation, *(get_args(field.annotation) if optional else ()))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def default_of(field: FieldInfo) -> str:
    """Return a key's default in words."""
    if field.is_required():
        return "required"
    return "its defaults" if section_of(field) else _plain(field.get_default(call_default_factory=True))


def _plain(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(inner)}" for key, inner in value.items()) + "}"
    return str(value)
