"""Text that comes from elsewhere: what may name a folder, what a terminal may get, what must not be kept or shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeGuard

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

QUOTED = 200
"""Characters of a user's text that a message quotes at most."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])")
"""Escape sequences of terminals."""

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, marks that reorder what is read, and halves of characters."""

# A colon before digits and a slash is a port's. An S3 secret, and a careless password, may hold any sign. Lengths have
# a bound, so that no text takes quadratic time.
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
"""Quotations and words of more than `QUOTED` characters. An apostrophe within or behind a word begins no quotation."""


def is_name(value: object) -> TypeGuard[str]:
    """Whether `value` has the form of a scenario's name, a run id or a job id, and so is one folder's name."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def expanded(path: Path | str) -> Path:
    """A path with `~` as the home folder; as it is where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def printable(text: str) -> str:
    """`text` without what would move a terminal's cursor, colour it, or make it answer; tabs and newlines stay."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def one_line(text: str, longest: int = 500) -> str:
    """`text` as a line for a terminal without secrets, cut after `longest` characters."""
    return re.sub(r"[\t\n]", " ", redacted(printable(text[: 4 * longest]))).strip()[:longest]


def cause(error: BaseException) -> str:
    """Kind and text of an exception of any code, in one line, of which the text is cut; it may have none to give."""
    try:
        text = str(error)
    except (Exception, SystemExit):
        text = "its text cannot be shown"
    return f"{type(error).__name__}: {cut(one_line(text))}".removesuffix(": ")


def quoted(value: object) -> str:
    """Any value in a sentence, cut, also one of own code whose `repr` fails."""
    try:
        text = repr(value)
    except (Exception, SystemExit):
        text = f"a {type(value).__name__}"
    return cut(one_line(text))


def cut(text: str) -> str:
    """`text` without secrets, in at most `QUOTED` characters: its beginning and its end."""
    text = redacted(text)
    return text if len(text) <= QUOTED else f"{text[: QUOTED // 2]}…{text[1 - QUOTED // 2 :]}"


def sentence(text: str) -> str:
    """A message as a user may see it: no secrets, nothing that moves a cursor, and long quotations and words cut."""
    return _LONG.sub(lambda match: cut(match[0]), redacted(printable(text)))


def redacted(text: str) -> str:
    """`text` without the user names, passwords and tokens in the addresses that it holds."""
    return _QUERY.sub(r"\1***", _USER.sub("", text))


def holds_secret(value: str) -> bool:
    """Whether an address holds a password or a token."""
    joined = "".join(value.split())
    return redacted(joined) != joined
