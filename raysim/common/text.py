"""Checks and cleaning of untrusted text: names of folders, terminal escape sequences, secrets, length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

QUOTED = 200
"""Greatest number of characters that a message quotes of a user's text."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])")
"""Escape sequences of terminals."""

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and newline, line separators, text direction marks and lone surrogates."""

# A colon before digits and a slash starts a port. S3 secrets and careless passwords may contain any character. Lengths
# are bounded, so that no text takes quadratic time.
_USER = re.compile(
    r"(?i)(?:(?<=\bhttp://)|(?<=\bhttps://))[^\s/]{0,2000}@"
    r"|(?<=://)[^\s/?#@:]{0,2000}:(?!\d+(?:[/?#\s]|$))[^\s]{0,2000}@"
)
_QUERY = re.compile(
    r"(?i)([?&;](?:[\w.-]*(?:token|secret|passw|pwd|api[_-]?key|access[_-]?key|credential|signature)[\w.-]*|sig|key|sas|pw)"
    r"=)(?!\*\*\*)[^\s&#]+"
)


_LONG = re.compile(
    rf"(?<!\w)'[^'\n]{{{QUOTED},}}'(?!\w)" + rf'|(?<!\w)"[^"\n]{{{QUOTED},}}"(?!\w)' + rf"|\S{{{QUOTED + 1},}}"
)
"""Quotations and words of more than `QUOTED` characters. An apostrophe inside or after a word starts no quotation."""


_STANDS_ALONE = re.compile(r"\s*$|\s|[-*] |\d+[.)] |>>> ")
"""Beginnings of lines that are joined with no other line: empty, indented, an item of a list or an example."""

_ADDRESS = re.compile(r"https?://\S+$")


def is_name(value: object) -> TypeGuard[str]:
    """Return whether `value` is a valid scenario name, run id or job id, and so a valid folder name."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def expanded(path: Path | str) -> Path:
    """Expand `~` to the home folder; return the path unchanged if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def reflowed(text: str) -> str:
    """Join the lines of each paragraph of a docstring, so that a terminal wraps them at its own width.

    A break stays beside lines that are empty, indented or items of a list, after an address, and after a sentence if
    the first word of the next line would have fit.
    """
    lines = text.splitlines()
    width = max(map(len, lines), default=0)
    joined = lines[:1]
    for before, line in pairwise(lines):
        if _is_break(before, line, width):
            joined.append(line)
        else:
            joined[-1] += f" {line}"
    return "\n".join(joined)


def _is_break(before: str, line: str, width: int) -> bool:
    """Return whether a line break belongs to the text, instead of only keeping lines within the width."""
    if any(map(_STANDS_ALONE.match, (before, line))) or _ADDRESS.search(before):
        return True
    return before[-1] in ".:!?" and len(before) + 1 + len(line.split(maxsplit=1)[0]) <= width


def printable(text: str) -> str:
    """Remove escape sequences and control characters, which could control a terminal; tabs and newlines stay."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def one_line(text: str, longest: int = 500) -> str:
    """Return text as one line for a terminal, without secrets, cut after `longest` characters."""
    return re.sub(r"[\t\n]", " ", redacted(printable(text[: 4 * longest]))).strip()[:longest]


def cause(error: BaseException) -> str:
    """Return the class and the shortened text of any exception as one line, even if its `__str__` fails."""
    try:
        text = str(error)
    except (Exception, SystemExit):
        text = "its text cannot be shown"
    return f"{type(error).__name__}: {cut(one_line(text))}".removesuffix(": ")


def quoted(value: object) -> str:
    """Return any value as short text for a sentence, even if its `__repr__` fails."""
    try:
        text = repr(value)
    except (Exception, SystemExit):
        text = f"a {type(value).__name__}"
    return cut(one_line(text))


def cut(text: str) -> str:
    """Remove secrets and shorten text to at most `QUOTED` characters: its beginning and its end."""
    text = redacted(text)
    return text if len(text) <= QUOTED else f"{text[: QUOTED // 2]}…{text[1 - QUOTED // 2 :]}"


def few(names: Sequence[str]) -> str:
    """Join at most ten names, each cut to 50 characters."""
    rest = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(name if len(name) <= 50 else f"{name[:49]}…" for name in names[:10]) + rest


def sentence(text: str) -> str:
    """Clean a message for the user: remove secrets and control characters, shorten long quotations and words."""
    return _LONG.sub(lambda match: cut(match[0]), redacted(printable(text)))


def redacted(text: str) -> str:
    """Remove user names, passwords and tokens from the addresses in a text."""
    return _QUERY.sub(r"\1***", _USER.sub("", text))


def holds_secret(value: str) -> bool:
    """Return whether an address contains a password or a token."""
    joined = "".join(value.split())
    return redacted(joined) != joined
