r"""Names and other text from elsewhere, written so that every output shows them as text and as nothing else.

The label of a run in a sweep, a key of another user's scenario and the name of a class of images may hold any
character: `$` starts a formula in Matplotlib, a newline ends a comment in LaTeX, `=` starts a formula in a spreadsheet.
Every writer passes such text through the function for its output. Jinja escapes HTML pages itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable

from raysim.common.text import one_line, printable

LONGEST_NAME = 200
_LONGEST = 5000  # characters of a sentence that holds names
_IN_PICTURES = 80


def name(text: object) -> str:
    """A name as one line of at most 200 characters, without control characters; not empty."""
    return one_line(str(text), LONGEST_NAME) or "(no name)"


def apart(texts: Iterable[object], clean: Callable[[object], str]) -> list[str]:
    """Each text as `clean` writes it, of which no two are the same: a second `fedgh` is `fedgh-2`."""
    taken: dict[str, None] = {}
    for text in texts:
        first = clean(text)
        choices = itertools.chain([first], (f"{first}-{i}" for i in itertools.count(2)))
        taken[next(one for one in choices if one not in taken)] = None
    return list(taken)


def plain(text: object) -> str:
    """One line for a terminal or a page: without control characters, escape sequences and secrets in addresses."""
    return one_line(str(text), _LONGEST)


# An underscore within a word means nothing; a mark at the beginning does only with a space behind it.
_MARKDOWN = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)|^(?:#{1,6}|[-+]|\d{1,9}[.)])(?=\s)")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def markdown(text: object) -> str:
    """A line of Markdown, in a table's cell or elsewhere, that shows `text`."""
    escaped = _MARKDOWN.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", plain(text))
    return re.sub(r"[&<>]", lambda match: _ENTITIES[match[0]], escaped)


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}",
    "[": "{[}", "]": "{]}", "*": "{*}",  # after \\ they would be its arguments
}  # fmt: skip
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}


def latex(text: object) -> str:
    """A line of LaTeX, in a table's cell or behind a %, that shows `text`."""
    return "".join(_LATEX.get(character, character) for character in plain(text))


def spreadsheet(text: object) -> str:
    """A cell of a CSV file that no spreadsheet takes for a formula: with ' before it where one would."""
    cell = plain(text)
    return f"'{cell}" if cell[:1] in tuple("=+-@") and not _is_number(cell) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def picture(text: object, longest: int = _IN_PICTURES) -> str:
    """`text` for Matplotlib, which takes text between two $ for a formula and hides labels that begin with _.

    Lines stay; each is cut after `longest` characters.
    """
    lines = printable(str(text).replace("\t", " ")).split("\n")
    cut = (line if len(line) <= longest else f"{line[: longest - 1]}…" for line in lines)
    return re.sub(r"^_", " _", "\n".join(cut).replace("$", r"\$"))


def mlflow(text: object) -> str:
    """The name of a metric, parameter or tag in MLflow: with _ for what it does not allow there; not empty."""
    allowed = re.sub(r"[^/\w.\- :]", "_", str(text))[:250]
    parts = [re.sub(r"^\.+$|^\.\.", "_", part) for part in allowed.split("/") if part]  # ./ and ../ are places
    return "/".join(parts) or "_"


def file(text: object) -> str:
    """A part of a file's name: letters, digits, dots and underscores, at most 100."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", str(text))[:100]
