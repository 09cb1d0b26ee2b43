"""Tables and texts of commands, printed by rich: those of `--dry-run`, `doctor` and `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from raysim.results.units import human_seconds, plural

if TYPE_CHECKING:
    from raysim.runs.doctor import Finding
    from raysim.runs.preview import Preview
    from raysim.runs.verify import Trace
    from raysim.scenario.scenario import Scenario


def new_console() -> Console:
    """Return a console that prints texts without interpreting markup."""
    return Console(markup=False, emoji=False, highlight=False)


def new_table(title: str | None, *columns: str) -> Table:
    """Return an empty table in the style of raysim's commands."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0, overflow="fold")
    return table


def show_preview(found: Preview, scenario: Scenario) -> None:
    """Print the placement and the estimates of `--dry-run`."""
    from raysim.runs.preview import client_memory_mb, samples_mb  # imported here, because it imports torch

    console = new_console()
    machine = found.machine
    console.print(
        f"{scenario.name}: {scenario.clients.number} clients, {scenario.participants} per round, "
        f"{plural(scenario.rounds, 'round')}, on {plural(machine.nodes, 'node')} with {machine.cpus:g} CPUs and "
        f"{machine.gpus:g} GPUs"
    )
    data = scenario.dataset
    console.print(
        f"Data: {data.name}, {data.train_size:,} training and {data.test_size:,} test samples, {data.input_spec}, "
        f"{data.num_classes} classes"
    )
    alone = scenario.backend == "in_process"  # one process does all work, without actors
    if not alone:
        console.print(_actors(found))
    console.print(_architectures(found))
    count = 1 if alone else found.layout.num_actors + 2  # with the server and the driver
    process_mb = psutil.Process().memory_info().rss / 2**20  # this process has the imports of an actor
    weights_mb, stored_mb = client_memory_mb(scenario), samples_mb(scenario)
    memory = process_mb * count + weights_mb + stored_mb
    console.print(
        f"Estimated time on CPUs like this one: {human_seconds(found.total_s / scenario.rounds)} per round, "
        f"{human_seconds(found.total_s)} in total, of which tests take {human_seconds(found.tests_s)} of CPU time. "
        "Not included: the start, the server's work, sending messages, and the gain of float16.\n"
        f"Estimated memory: about {memory / 1024:.1f} GiB: up to {process_mb:.0f} MiB in each of "
        f"{count} process{'' if count == 1 else 'es'}, {weights_mb:.0f} MiB of client weights, and "
        f"{stored_mb:.0f} MiB of samples per node. Not included: messages, the "
        "server's state, and further networks of a method."
    )
    for note in found.notes:
        console.print(f"Note: {note}")
    console.print("This was a dry run: the scenario was not run.")


def _actors(found: Preview) -> Table:
    """Return a table with a row per group of equal actors."""
    actors = new_table("Client actors", "actors", "clients", "clients per actor", "CPUs each", "GPUs each")
    for group in found.layout.groups:
        pinned = " (pinned)" if group.pinned else ""
        actors.add_row(
            str(group.actors),
            str(len(group.clients)),
            f"{len(group.clients) / group.actors:.3g}{pinned}",
            f"{group.cpus_per_actor:g}",
            f"{group.gpus_per_actor:g}",
        )
    return actors


def _architectures(found: Preview) -> Table:
    """Return a table with a row per architecture, or per architecture and batch size."""
    models = new_table("Architectures", "model", "clients", "parameters", "one step on this CPU")
    several = len({model.name for model in found.models}) < len(found.models)
    for model in found.models:
        name = f"{model.name}, batches of {model.batch_size}" if several else model.name
        models.add_row(name, str(model.clients), f"{model.params:,}", f"{model.step_s * 1e3:.3g} ms")
    return models


def show_finding(finding: Finding) -> None:
    """Print one finding of `raysim doctor`."""
    colour = {"ok": "green", "note": "yellow", "problem": "red"}[finding.verdict]
    click.echo(f"{click.style(f'{finding.verdict:<7}', fg=colour)}  {finding.what:<13}  {finding.text}")


def show_traces(traces: Sequence[Trace]) -> None:
    """Print the result of `raysim verify`."""
    console = new_console()
    table = new_table(None, "placement", "rounds", "seconds", "restarts", "state digest", "")
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
            console.print(f"{trace.variation.name}: {trace.difference}")
    if all(trace.difference is None for trace in traces):
        tensors = sum(len(one) for found in traces[0].rounds for one in found.values())
        console.print(f"All runs are identical in every metric and every tensor after every round ({tensors} tensors).")
