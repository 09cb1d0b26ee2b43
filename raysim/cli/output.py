"""Output of commands."""

from __future__ import annotations

import contextlib
import io

import click


def echo(text: object, err: bool = False, nl: bool = True) -> None:
    """Print `text`, to standard error if `err`.

    A closed standard error is ignored, so that the exit code does not depend on it.
    """
    with contextlib.suppress(OSError) if err else contextlib.nullcontext():
        click.echo(str(text), err=err, nl=nl)


def show_error(error: click.ClickException) -> None:
    """Print Click's message about a wrong command line."""
    text = io.StringIO()
    error.show(text)
    echo(text.getvalue(), err=True, nl=False)
