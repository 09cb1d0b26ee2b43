"""Output of `--dry-run`, `doctor` and `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from raysim.cli.tables import new_console, new_table
from raysim.report.units import human_seconds, plural

if TYPE_CHECKING:
    from raysim.engine.policies.placement import ClusterResources
    from raysim.runs.doctor import Finding
    from raysim.runs.preview import Preview
    from raysim.runs.verify import Trace
    from raysim.scenario.scenario import Scenario


def show_preview(found: Preview, scenario: Scenario) -> None:
    """Print the placement and the estimates of `--dry-run`."""
    console = new_console()
    machine = found.machine
    console.print(
        f"{scenario.name}: {scenario.clients.number} clients, {found.participants} per round, "
        f"{plural(scenario.rounds, 'round')}, on {_cluster(machine)}"
    )
    data = scenario.dataset
    console.print(
        f"Data: {data.name}, {data.train_size:,} training and {data.test_size:,} test samples, {data.input_spec}, "
        f"{data.num_classes} classes"
    )
    actors = new_table("Client actors", "actors", "clients", "clients per actor", "CPUs each", "GPUs each")
    for group in found.layout.groups:
        pinned = " (pinned)" if group.pinned else ""
        actors.add_row(
            str(group.actors),
            str(len(group.clients)),
            f"{found.share(group):.3g}{pinned}",
            f"{group.cpus_per_actor:g}",
            f"{group.gpus_per_actor:g}",
        )
    alone = scenario.backend == "in_process"  # one process does all work, without actors
    if not alone:
        console.print(actors)
    if found.placement:
        nodes = new_table("Nodes", "node", "CPUs taken", "GPUs taken", "holds")
        for one in found.placement:
            cpus, gpus = f"{one.cpus:g} of {one.node.cpus:g}", f"{one.gpus:g} of {one.node.gpus:g}"
            nodes.add_row(one.node.name, cpus, gpus, one.holds)
        console.print(nodes)
    models = new_table("Architectures", "model", "clients", "parameters", "one step on this CPU")
    several = len({model.name for model in found.models}) < len(found.models)
    for model in found.models:
        name = f"{model.name}, batches of {model.batch_size}" if several else model.name
        models.add_row(name, str(model.clients), f"{model.params:,}", f"{model.step_s * 1e3:.3g} ms")
    console.print(models)
    count = 1 if alone else found.layout.num_actors + 2
    who = "This process" if alone else f"Processes ({found.layout.num_actors} client actors, server, driver)"
    memory = found.process_memory_mb * count + found.client_memory_mb + found.samples_mb
    console.print(
        f"Estimated time on CPUs like this one: {human_seconds(found.round_s)} per round, "
        f"{human_seconds(found.total_s)} in total.\n"
        f"- Included: training, {found.steps_per_client_round:.3g} steps per participant and round.\n"
        f"- Included: tests, which take {human_seconds(found.tests_s)} of CPU time in total.\n"
        f"- Not included: {_start(found, scenario)}.\n"
        "- Not included: the server's work, and sending messages.\n"
        f"Estimated memory: about {memory / 1024:.1f} GiB.\n"
        f"- {who}: up to {found.process_memory_mb:.0f} MiB{'' if alone else ' each'}.\n"
        f"- Weights of all clients: {found.client_memory_mb:.0f} MiB.\n"
        f"- Samples: {found.samples_mb:.0f} MiB, once per node.\n"
        "- Not included: messages, the server's state, and further networks that a method keeps for each client."
    )
    for note in found.layout.notes:
        console.print(f"Note: {note}")
    console.print("This was a dry run: the scenario was not run.")


def _start(found: Preview, scenario: Scenario) -> str:
    """Return the steps before a run's first round, in words; the estimates do not include them."""
    if scenario.backend == "in_process":
        return "the start (reading the data)"
    processes = found.layout.num_actors + 1
    return f"the start (reading the data, starting Ray, importing torch in {processes} processes), which takes seconds"


def show_finding(finding: Finding) -> None:
    """Print one finding of `raysim doctor`."""
    colour = {"ok": "green", "note": "yellow", "problem": "red"}[finding.verdict]
    table = Table.grid(padding=(0, 2))
    table.add_column(width=7, style=colour)
    table.add_column(width=13)
    table.add_column(overflow="fold")
    table.add_row(finding.verdict, finding.what, finding.text)
    new_console().print(table)


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


def _cluster(machine: ClusterResources) -> str:
    """Return the nodes and resources for which a run is planned, in words."""
    return f"{plural(machine.nodes, 'node')} with {machine.cpus:g} CPUs and {machine.gpus:g} GPUs"
