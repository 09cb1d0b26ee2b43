"""Tests of runs on a cluster through Ray's Jobs API."""

from __future__ import annotations


def add_commands() -> None:
    """Put the commands into raysim's group, if they are not in it."""
    from raysim.cli.jobs import COMMANDS
    from raysim.cli.main import cli

    for command in COMMANDS:
        if command.name not in cli.commands:
            cli.add_command(command)
