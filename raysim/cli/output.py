"""Output of commands, without control characters: names of files and runs cannot send commands to the terminal."""

from __future__ import annotations

import contextlib
import io

import click

from raysim.common.text import printable, sentence


def echo(text: object, err: bool = False, nl: bool = True) -> None:
    """Print `text`, to standard error if `err`, without control characters and escape sequences.

    A closed standard error is ignored, so that the exit code does not depend on it.
    """
    with contextlib.suppress(OSError) if err else contextlib.nullcontext():
        click.echo(printable(str(text)), err=err, nl=nl)


def show_error(error: click.ClickException) -> None:
    """Print Click's message about a wrong command line, with long words shortened."""
    text = io.StringIO()
    error.show(text)
    echo("\n".join(map(sentence, text.getvalue().splitlines())), err=True)
