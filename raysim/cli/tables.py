"""Tables and texts of commands, for rich."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text


def as_text(text: str, **options: Any) -> Text:
    """Convert text for rich, without its markup."""
    return Text(text, **options)


def new_table(title: str | None, *columns: str) -> Table:
    """Return an empty table in the style of raysim's commands."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0, overflow="fold")
    return table
