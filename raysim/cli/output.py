"""What commands print: text that a terminal shows and does not obey, whatever names of files and runs it holds."""

from __future__ import annotations

import io

import click

from raysim.common.text import printable, sentence


def echo(text: object, err: bool = False, nl: bool = True) -> None:
    """Print `text`, to standard error if `err`, without control characters and escape sequences."""
    click.echo(printable(str(text)), err=err, nl=nl)


def show_error(error: click.ClickException) -> None:
    """Print what Click says of a wrong command line, with the words given cut where they are long."""
    text = io.StringIO()
    error.show(text)
    echo("\n".join(map(sentence, text.getvalue().splitlines())), err=True)
