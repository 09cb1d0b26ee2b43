"""Text for messages: valid names of folders, length, secrets in addresses."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeGuard

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

QUOTED = 200
"""Greatest number of characters that a message quotes of a user's text."""

# A colon before digits and a slash starts a port. S3 secrets and careless passwords may contain any character.
_USER = re.compile(
    r"(?i)(?:(?<=\bhttp://)|(?<=\bhttps://))[^\s/]{0,2000}@"
    r"|(?<=://)[^\s/?#@:]{0,2000}:(?!\d+(?:[/?#\s]|$))[^\s]{0,2000}@"
)
_QUERY = re.compile(
    r"(?i)([?&;](?:[\w.-]*(?:token|secret|passw|pwd|api[_-]?key|access[_-]?key|credential|signature)[\w.-]*|sig|key|sas|pw)"
    r"=)(?!\*\*\*)[^\s&#]+"
)


def is_name(value: object) -> TypeGuard[str]:
    """Return whether `value` is a valid scenario name, run id or job id, and so a valid folder name."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def expanded(path: Path | str) -> Path:
    """Expand `~` to the home folder; return the path unchanged if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def one_line(text: str, longest: int = 500) -> str:
    """Return text as one line, cut after `longest` characters."""
    return " ".join(text.split())[:longest]


def cause(error: BaseException) -> str:
    """Return the class and the shortened text of an exception as one line."""
    return f"{type(error).__name__}: {cut(one_line(str(error)))}".removesuffix(": ")


def quoted(value: object) -> str:
    """Return a value as short text for a sentence."""
    return cut(one_line(repr(value)))


def cut(text: str) -> str:
    """Shorten text to at most `QUOTED` characters: its beginning and its end."""
    return text if len(text) <= QUOTED else f"{text[: QUOTED // 2]}…{text[1 - QUOTED // 2 :]}"


def shortened(text: str, longest: int) -> str:
    """Return text, cut after `longest` characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def distinct(texts: Iterable[str]) -> list[str]:
    """Number duplicates: a second `fedgh` becomes `fedgh-2`."""
    taken: dict[str, None] = {}
    for text in texts:
        choices = itertools.chain([text], (f"{text}-{i}" for i in itertools.count(2)))
        taken[next(one for one in choices if one not in taken)] = None
    return list(taken)


def mlflow_name(text: str) -> str:
    """Return a valid name of an MLflow metric, parameter or tag: _ replaces forbidden characters."""
    return re.sub(r"[^/\w.\- :]", "_", text)[:250]


def few(names: Sequence[str]) -> str:
    """Join at most ten names, each cut to 50 characters."""
    rest = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(shortened(name, 50) for name in names[:10]) + rest


def holds_secret(value: str) -> bool:
    """Return whether an address contains a user name with a password, or a token."""
    joined = "".join(value.split())
    return redacted(joined) != joined


def redacted(address: str) -> str:
    """Return an address without user name, password and token."""
    return _QUERY.sub(r"\1***", _USER.sub("", address))
