"""Output of `list`, `describe`, `verify` and `--dry-run`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from pydantic.fields import FieldInfo
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from raysim.common.errors import ScenarioError
from raysim.common.results import METRICS, ClientRow
from raysim.common.suggestions import suggest
from raysim.common.text import expanded, printable, reflowed
from raysim.comparison.measures import MEASURES
from raysim.core.fields import field_docs, in_words
from raysim.data.partition import PARTITIONS
from raysim.data.specs import DATASETS
from raysim.models import MODELS
from raysim.plugins.reading import read_own_code
from raysim.plugins.references import Reference, named
from raysim.plugins.registry import algorithm_names
from raysim.report.units import human_seconds
from raysim.scenario.bundled import bundled_names, scenario_file
from raysim.scenario.declaration import Declaration
from raysim.scenario.declared import declaration_of, declared, read_own
from raysim.scenario.json_schema import NAMED
from raysim.scenario.schema import Data, Section, Settings
from raysim.scenario.source import UnreadableError
from raysim.scenario.trackers import TRACKERS
from raysim.scenario.yaml_text import opening_comment, read_text

if TYPE_CHECKING:
    from raysim.runs.doctor import Finding
    from raysim.runs.preview import Preview
    from raysim.runs.verify import Trace
    from raysim.scenario.scenario import Scenario

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
    "trackers": "Additional destinations of a run's results, beside its folder and MLflow; a scenario adds them with "
    "`tracking: {also: [NAME]}`.",
    "scenarios": "Scenarios and sweeps that come with raysim: give a name to `raysim launch` or `raysim sweep`. "
    "The command `raysim init` copies their files.",
    "metrics": "Metrics of a round: the columns of rounds.parquet (beside `round`), and the metrics in MLflow. "
    "Accuracies lie between 0 and 1. Methods add `client/<name>` and `server/<name>`.",
    "measures": "Measures of a comparison: the columns of the tables that `raysim compare` writes. Each is computed "
    "per run, and then averaged over the runs of a method.",
}
FILES = {
    "rounds.parquet": {"round": "round, from 1; 0: before the first round", **METRICS},
    "clients.parquet": field_docs(ClientRow),
}
"""File -> column -> meaning."""

SWEEPS = ("sweep", "tune")
"""Names under which the keys of a sweep file are described."""


def show_list(what: str) -> None:
    """Print the names of a kind, or of all kinds, each with its summary."""
    console = Console()
    for kind in KINDS if what == "all" else (what,):
        _show_entries(console, kind.capitalize() if what == "all" else None, _entries(kind))


def names_of(what: str) -> list[str]:
    """The names of a kind, or of all kinds, each once."""
    kinds = KINDS if what == "all" else (what,)
    return list(dict.fromkeys(name for kind in kinds for name, _ in _entries(kind)))


def show_describable() -> None:
    """Print the names of kinds, sections and files, which have no entry in `raysim list`."""
    console = Console()
    entries = {
        "scenario": "The keys of a scenario.",
        **{name: _first_sentence(section.__doc__ or name) for name, section in _sections().items()},
        "sweep": "The keys of a sweep file.",
        "tune": "The keys of `tune` in a sweep file.",
        **{name: _first_sentence(text) for name, text in KINDS.items()},
        **dict.fromkeys(FILES, "The columns of this file in a run folder."),
        "FILE.yaml": "The opening comment and the keys of a scenario or sweep file.",
        "./FILE.py": "The method in a Python file.",
    }
    _show_entries(console, None, entries.items())
    console.print(
        _text("\nNAME may also be a name that `raysim list` shows, such as fedgh, or a key, such as training.lr.")
    )


def show_description(name: str) -> None:
    """Print the description of a name. Raises `ScenarioError` if nothing has this name."""
    console = Console()
    if name in algorithm_names() or Reference.of(name) is not None:
        _show_algorithm(console, name)
        if name not in PARTITIONS:
            return
        console.print(_text(f"\nThe partition {name}:"))
    settings = {named: (where, cls) for where, classes in NAMED.items() for named, cls in classes.items()}
    if name in settings:
        (section, kind), cls = settings[name]
        declaration = declaration_of(cls)
        console.print(_text(f"{reflowed(declaration.doc)}\n"))
        _show_fields(console, declaration, f"{section}: {{{kind}: {{name: {name}}}}}")
    elif name in TRACKERS:
        declaration = declaration_of(TRACKERS[name])
        console.print(_text(f"{reflowed(declaration.doc)}\n"))
        _show_fields(console, declaration, f"tracking: {{also: [{{name: {name}}}]}}")
    elif name in MODELS:
        spec = MODELS[name]
        console.print(_text(f"{spec.summary}\nRepresentation width: {spec.native_dim}"))
    elif name in DATASETS:
        dataset = DATASETS[name]
        console.print(_text(dataset.summary))
        if dataset.train_size:
            sizes = f"{dataset.train_size:,} training and {dataset.test_size:,} test samples"
            console.print(_text(f"{dataset.num_classes} classes; {sizes}: {dataset.input_spec}"))
        for key in dataset.keys:
            console.print(_text(f"data.{key}: {' '.join((Data.model_fields[key].description or '').split())}"))
    elif name in METRICS:
        console.print(_text(METRICS[name]))
    elif name in MEASURES:
        console.print(_text(f"Measure of a comparison: {MEASURES[name]}."))
    elif tuple(name.split(".")) in NAMED:
        show_description(f"{name.rpartition('.')[2]}s")
    elif name in KINDS:
        console.print(_text(f"{KINDS[name]} `raysim describe NAME` explains one of them.\n"))
        _show_entries(console, None, _entries(name))
    elif name in FILES:
        _show_entries(console, None, FILES[name].items(), "column")
    elif name in Settings.model_fields or name == "scenario":
        _show_section(console, name)
    elif name in _keys():
        section, _, key = name.partition(".")
        _show_keys(console, _sections()[section], [key])
    elif name in SWEEPS:
        from raysim.sweeps.describe import ABOUT, KEYS

        console.print(_text(f"{ABOUT[name]}\n"))
        _show_entries(console, None, KEYS[name].items(), "key", "meaning")
    elif name in bundled_names() or Path(name).suffix in (".yaml", ".yml"):
        from raysim.sweeps.describe import about_file

        comment, entries, how = about_file(name)
        console.print(_text(f"{comment}\n" if comment else ""))
        _show_entries(console, None, entries, "key", "value")
        console.print(_text(how))
    else:
        known = [*algorithm_names(), *settings, *TRACKERS, *MODELS, *DATASETS, *METRICS, *MEASURES]
        known += [*Settings.model_fields, *_keys(), *KINDS, *FILES, *SWEEPS, *bundled_names()]
        same = [key for key in _keys() if key.endswith(f".{name}")]
        hint = f"; did you mean {' or '.join(map(repr, same))}?" if same else suggest(name, known)
        raise ScenarioError(f"describe {name}: unknown name{hint} (`raysim list` shows all names)")


def _show_algorithm(console: Console, name: str) -> None:
    reference = named("algorithms", name)
    if reference is not None and reference.is_file:
        method, file = _read_method(name, reference)
    else:
        method = declared(name if reference is None else reference.name)
        file = f"algorithms/{name}.py" if reference is None else reference.name
    console.print(_text(reflowed(method.file_doc or method.doc), overflow="fold"))
    console.print(_text(f"\nPaper: {method.paper}"))
    console.print(_text(f"File:  {file}"))
    console.print(_text(f"Architectures: {_architectures(method)}"))
    for way, messages in (("Down", method.down), ("Up", method.up)):
        for message in messages or ():
            doc = message.doc.split("\n\n")[0].replace("\n", " ")
            console.print(_text(f"{way}: {message.words}" + (f" ({doc.removesuffix('.')})" if doc else "")))
    console.print()
    _show_fields(console, method, f"algorithm: {{name: {name}}}")
    for profile, preset in method.profiles.items():
        values = ", ".join(f"{field}: {_plain(value)}" for field, value in preset.items())
        console.print(_text(f"profile: {profile}  ({values})"))


def _read_method(name: str, reference: Reference) -> tuple[Declaration, str]:
    """Return the declaration of a method in the user's own files, which are not run, and the paths of these files."""
    own_code = read_own_code([expanded(reference.place)])
    try:
        return read_own(Reference(Path(reference.place).name, reference.attribute), own_code), ", ".join(own_code.paths)
    except UnreadableError as error:
        raise ScenarioError(f"describe {name}: cannot describe the method from the file's text: {error}") from None


def show_preview(found: Preview, scenario: Scenario) -> None:
    """Print the placement plan and the estimate of `--dry-run`."""
    console = Console()
    machine = found.machine
    console.print(
        _text(
            f"{scenario.name}: {scenario.clients.number} clients, {found.participants} per round, "
            f"{scenario.rounds} rounds, on {machine.nodes} node{'s' if machine.nodes > 1 else ''} with "
            f"{machine.cpus:g} CPUs and {machine.gpus:g} GPUs"
        )
    )
    actors = _table("Client actors", "actors", "clients", "clients per actor", "CPUs each", "GPUs each")
    for group in found.plan.groups:
        pinned = " (pinned)" if group.pinned else ""
        actors.add_row(
            str(group.actors),
            str(len(group.clients)),
            f"{found.share(group):.3g}{pinned}",
            f"{group.cpus_per_actor:g}",
            f"{group.gpus_per_actor:g}",
        )
    console.print(actors)
    if found.placement:
        nodes = _table("Nodes", "node", "CPUs taken", "GPUs taken", "holds")
        for one in found.placement:
            cpus, gpus = f"{one.cpus:g} of {one.node.cpus:g}", f"{one.gpus:g} of {one.node.gpus:g}"
            nodes.add_row(_text(one.node.name), cpus, gpus, _text(one.holds))
        console.print(nodes)
    models = _table("Architectures", "model", "clients", "parameters", "one step on this CPU")
    several = len({model.name for model in found.models}) < len(found.models)
    for model in found.models:
        name = f"{model.name}, batches of {model.batch_size}" if several else model.name
        models.add_row(name, str(model.clients), f"{model.params:,}", f"{model.step_s * 1e3:.3g} ms")
    console.print(models)
    memory = found.process_memory_mb * (found.plan.num_actors + 2) + found.client_memory_mb + found.samples_mb
    console.print(
        _text(
            f"Estimated time on CPUs like this one: {human_seconds(found.round_s)} per round, "
            f"{human_seconds(found.total_s)} in total.\n"
            f"- Included: training, {found.steps_per_turn:.3g} steps per participant and round.\n"
            f"- Included: tests, which take {human_seconds(found.tests_s)} of CPU time in total.\n"
            f"- Not included: {_start(found, scenario)}.\n"
            "- Not included: the server's work, and sending messages.\n"
            f"Estimated memory: at most {memory / 1024:.1f} GiB.\n"
            f"- Processes ({found.plan.num_actors} client actors, server, driver): up to "
            f"{found.process_memory_mb:.0f} MiB each.\n"
            f"- Weights of all clients: {found.client_memory_mb:.0f} MiB.\n"
            f"- Samples: {found.samples_mb:.0f} MiB, once per node."
        )
    )
    for note in found.plan.notes:
        console.print(_text(f"Note: {note}"))
    console.print(_text("This was a dry run: the scenario was not run."))


def _start(found: Preview, scenario: Scenario) -> str:
    """The steps before a run's first round, which the estimate does not include."""
    if scenario.backend == "in_process":
        return "the start (reading the data)"
    processes = found.plan.num_actors + 1
    return f"the start (reading the data, starting Ray, importing torch in {processes} processes), which takes seconds"


def show_finding(finding: Finding) -> None:
    """Print one finding of `raysim doctor`."""
    colour = {"ok": "green", "note": "yellow", "problem": "red"}[finding.verdict]
    table = Table.grid(padding=(0, 2))
    table.add_column(width=7, style=colour)
    table.add_column(width=13)
    table.add_column(overflow="fold")
    table.add_row(finding.verdict, _text(finding.what), _text(finding.text))
    Console().print(table)


def show_traces(traces: Sequence[Trace]) -> None:
    """Print the result of `raysim verify`."""
    console = Console()
    table = _table(None, "placement", "rounds", "seconds", "restarts", "state digest", "")
    for i, trace in enumerate(traces):
        verdict = "" if i == 0 else "identical" if trace.difference is None else "differs"
        table.add_row(
            trace.variation.name,
            str(len(trace.rounds)),
            human_seconds(trace.seconds),
            str(trace.restarts),
            trace.digest[:12],
            verdict,
        )
    console.print(table)
    for trace in traces:
        if trace.difference is not None:
            console.print(_text(f"{trace.variation.name}: {trace.difference}"))
    if all(trace.difference is None for trace in traces):
        tensors = sum(len(one) for found in traces[0].rounds for one in found.values())
        console.print(
            _text(f"All runs are identical in every metric and every tensor after every round ({tensors} tensors).")
        )


def _architectures(method: Declaration) -> str:
    return "one for all clients" if method.one_architecture else "may differ"


def _entries(kind: str) -> Iterable[tuple[str, str]]:
    if kind == "algorithms":
        return [(name, _algorithm(name)) for name in algorithm_names()]
    if kind == "models":
        return [(name, spec.summary) for name, spec in MODELS.items()]
    if kind == "datasets":
        return [(name, spec.summary) for name, spec in DATASETS.items()]
    if kind == "scenarios":
        return [(name, _first_sentence(opening_comment(read_text(scenario_file(name))))) for name in bundled_names()]
    for key, classes in (*((key, classes) for (_, key), classes in NAMED.items()), ("tracker", TRACKERS)):
        if kind == f"{key}s":
            return [(name, declaration_of(cls).summary) for name, cls in classes.items()]
    return list((MEASURES if kind == "measures" else METRICS).items())


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?]) (?=[A-Z-])", " ".join(text.split()))[0]


def _show_entries(
    console: Console, title: str | None, entries: Iterable[tuple[str, str]], of: str = "name", what: str = "description"
) -> None:
    table = _table(title, of, what)
    for name, text in entries:
        table.add_row(_text(name), _text(text))
    console.print(table)


def _algorithm(name: str) -> str:
    """A method's summary and, on a second line, its facts; or the error in its file, which may be unfinished."""
    try:
        method = declared(name)
    except ScenarioError as error:
        return str(error)
    facts = [method.year, f"architectures: {_architectures(method)}", method.travels]
    return f"{method.summary}\n{'; '.join(filter(None, facts))}"


def _show_fields(console: Console, declaration: Declaration, where: str) -> None:
    if not declaration.fields:
        console.print(_text(f"It has no fields to set. In a scenario: {where}"))
        return
    table = _table(None, "field", "default", "allowed", "meaning")
    for field in declaration.fields:
        default = "required" if field.default is MISSING else _plain(field.default)
        table.add_row(_text(field.name), _text(default), _text(field.allowed), _text(field.doc))
    console.print(table)


def _show_section(console: Console, name: str) -> None:
    section = Settings if name == "scenario" else _section_of(Settings.model_fields[name], optional=True)
    if section is None:
        field = Settings.model_fields[name]
        console.print(_text(field.description or name))
        console.print(
            _text(
                f"Default: {_default(field)}\nAllowed: {in_words(get_type_hints(Settings, include_extras=True)[name])}"
            )
        )
        return
    console.print(_text(reflowed(inspect.cleandoc(section.__doc__ or "")) + "\n"))
    _show_keys(console, section, section.model_fields)


def _show_keys(console: Console, section: type[Section], keys: Iterable[str]) -> None:
    hints = get_type_hints(section, include_extras=True)
    table = _table(None, "key", "default", "allowed", "meaning")
    for key in keys:
        field = section.model_fields[key]
        inner = _section_of(field)
        may = in_words(hints[key]) if inner is None else f"see `raysim describe {key}`"
        meaning = field.description or (inspect.cleandoc(inner.__doc__ or "").split("\n\n")[0] if inner else "")
        table.add_row(_text(key), _text(_default(field)), _text(may), _text(meaning.replace("\n", " ")))
    console.print(table)


def _sections() -> dict[str, type[Section]]:
    """The sections of a scenario, by name."""
    sections = {name: _section_of(field, optional=True) for name, field in Settings.model_fields.items()}
    return {name: section for name, section in sections.items() if section is not None}


def _keys() -> list[str]:
    """The keys in the sections of a scenario, such as `training.lr`."""
    return [f"{name}.{key}" for name, section in _sections().items() for key in section.model_fields]


def _section_of(field: FieldInfo, optional: bool = False) -> type[Section] | None:
    """The section that is a key's value, or None if the value is no section. optional: also accept `Section | None`."""
    kinds = (field.annotation, *(get_args(field.annotation) if optional else ()))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "its defaults" if _section_of(field) else _plain(field.get_default(call_default_factory=True))


def _plain(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(inner)}" for key, inner in value.items()) + "}"
    return str(value)


def _text(text: str, **options: Any) -> Text:
    """Convert text for rich, without control characters, because another person may have written the file."""
    return Text(printable(text).encode(errors="replace").decode(), **options)


def _table(title: str | None, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0, overflow="fold")
    return table
