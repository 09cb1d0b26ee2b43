"""Arguments and options that several commands use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from raysim.results.accuracies import DRAWABLE
from raysim.scenario.bundled import scenario_file


class ScenarioFile(click.Path):
    """A parameter with a scenario or sweep file, or the name of a bundled one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path of the file, even if it does not exist."""
        return str(scenario_file(os.fsdecode(super().convert(value, param, ctx))))


def folders_of(runs: Iterable[str]) -> list[Path]:
    """Return folders with runs; a sweep file stands for its output folder. Raises `ScenarioError`."""

    def folder_of(run: str) -> Path:
        if Path(run).suffix not in (".yaml", ".yml"):
            return Path(run)
        from raysim.study.definition import load_sweep  # imported here, because it imports torch

        return load_sweep(run).output

    return [folder_of(run) for run in runs]


SCENARIO = click.argument("scenario", type=ScenarioFile())
SETS = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the scenario, for example training.lr=0.1; values are YAML. May be repeated.",
)
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print the same content as JSON, for programs, with null for NaN."
)


def print_json(value: object) -> None:
    """Print dataclasses, lists and mappings as JSON."""
    from pydantic_core import to_json

    click.echo(json.dumps(json.loads(to_json(value, inf_nan_mode="null")), indent=2))


def width(default: str) -> Callable[[Any], Any]:
    """Return the option `--width`."""
    return click.option(
        "--width",
        default=default,
        show_default=True,
        type=click.Choice(["one-column", "two-columns"]),
        help="Width of figures: one column of a paper (3.5 in), or two (7.16 in).",
    )


def metric(default: str) -> Callable[[Any], Any]:
    """Return the option `--metric`. default: the default value in words."""
    return click.option(
        "--metric",
        type=click.Choice(list(DRAWABLE)),
        help="The accuracy that figures show. `raysim describe NAME` explains each choice, for example "
        f"`raysim describe accuracy/val`. Default: {default}.",
    )


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
    "discounts": "How much a stale upload counts; a scenario selects one with "
    "`asynchronous: {discount: {name: NAME}}`.",
    "trackers": "Additional destinations of a run's results, besides its folder and MLflow; a scenario adds them with "
    "`tracking: {also: [{name: NAME}]}`.",
    "scenarios": "Scenarios and sweeps that come with raysim; run one with `raysim launch NAME` or "
    "`raysim sweep NAME`. The command `raysim init` copies their files.",
    "metrics": "Metrics of a round: the columns of rounds.parquet (except `round`), and the metrics in MLflow. "
    "Accuracies lie between 0 and 1. Methods add `client/<name>` and `server/<name>`.",
    "measures": "Measures of a comparison: the columns of the tables that `raysim compare` writes. Each is computed "
    "per run, and then averaged over the runs of a variant, which differ only in their seed.",
}
"""Kind of names for `list` and `describe` -> what the names are, and how a scenario uses one."""
