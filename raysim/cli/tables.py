"""Tables and texts of commands, printed by rich."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table


def new_console() -> Console:
    """Return a console that prints texts without interpreting markup."""
    return Console(markup=False, emoji=False, highlight=False)


def new_table(title: str | None, *columns: str) -> Table:
    """Return an empty table in the style of raysim's commands."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0, overflow="fold")
    return table
