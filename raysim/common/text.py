"""Text for messages: valid folder names, shortening, and secrets in addresses."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeGuard

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

QUOTED = 200
"""Maximum number of characters of a user's text in a message."""

# A colon before digits and a slash begins a port, not a password. S3 secrets and careless passwords may contain any
# character.
_USER = re.compile(
    r"(?i)(?:(?<=\bhttp://)|(?<=\bhttps://))[^\s/]{0,2000}@"
    r"|(?<=://)[^\s/?#@:]{0,2000}:(?!\d+(?:[/?#\s]|$))[^\s]{0,2000}@"
)
_QUERY = re.compile(
    r"(?i)([?&;](?:[\w.-]*(?:token|secret|passw|pwd|api[_-]?key|access[_-]?key|credential|signature)[\w.-]*|sig|key|sas|pw)"
    r"=)(?!\*\*\*)[^\s&#]+"
)


def is_name(value: object) -> TypeGuard[str]:
    """Return whether `value` is a valid name for a scenario, a run id or a job id, which is also a folder name."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def expanded(path: Path | str) -> Path:
    """Replace `~` by the home folder; return the path unchanged if the user does not exist."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def one_line(text: str, longest: int = 500) -> str:
    """Return a text as one line, shortened to `longest` characters."""
    return " ".join(text.split())[:longest]


def cause(error: BaseException) -> str:
    """Return an exception's class and shortened text as one line."""
    return f"{type(error).__name__}: {cut(one_line(str(error)))}".removesuffix(": ")


def quoted(value: object) -> str:
    """Return a value as a short text for a sentence."""
    return cut(one_line(repr(value)))


def cut(text: str) -> str:
    """Shorten a text to at most `QUOTED` characters, by removing its middle."""
    return text if len(text) <= QUOTED else f"{text[: QUOTED // 2]}…{text[1 - QUOTED // 2 :]}"


def shortened(text: str, longest: int) -> str:
    """Return a text, shortened to `longest` characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def distinct(texts: Iterable[str]) -> list[str]:
    """Number duplicates: a second `fedgh` becomes `fedgh-2`."""
    taken: dict[str, None] = {}
    for text in texts:
        choices = itertools.chain([text], (f"{text}-{i}" for i in itertools.count(2)))
        taken[next(one for one in choices if one not in taken)] = None
    return list(taken)


def mlflow_name(text: str) -> str:
    """Return a valid name for an MLflow metric, parameter or tag, with _ in place of invalid characters."""
    return re.sub(r"[^/\w.\- :]", "_", text)[:250]


def few(names: Sequence[str]) -> str:
    """Join at most ten names, each shortened to 50 characters."""
    rest = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(shortened(name, 50) for name in names[:10]) + rest


def holds_secret(value: str) -> bool:
    """Return whether an address contains a user name with a password, or a token."""
    joined = "".join(value.split())
    return redacted(joined) != joined


def redacted(address: str) -> str:
    """Return an address without user name, password and token."""
    return _QUERY.sub(r"\1***", _USER.sub("", address))
