"""Arguments and options shared by several commands."""

from __future__ import annotations

import click

SCENARIO = click.argument("scenario", type=click.Path())
SETS = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the scenario, for example training.lr=0.1; values are YAML. May be given often.",
)
ADDRESS = click.option(
    "--address",
    metavar="ADDRESS",
    help="Attach to a running Ray: `auto` for the one on this machine, or HOST:PORT. "
    "Default: the variable RAY_ADDRESS; without it, the run starts its own Ray.",
)
