r"""Escape names and other untrusted text for each output: terminal, Markdown, LaTeX, CSV, Matplotlib, MLflow.

The label of a run in a sweep, a key of another user's scenario and the name of a class of images may hold any
character: `$` starts a formula in Matplotlib, a newline ends a comment in LaTeX, `=` starts a formula in a spreadsheet.
Every writer passes such text through the function for its output. Jinja escapes HTML pages itself.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable

from raysim.common.text import one_line, printable

LONGEST_NAME = 200
_LONGEST = 5000  # characters of a line from `plain`
_IN_PICTURES = 80


def name(text: object) -> str:
    """Return a name as one line of at most 200 characters, without control characters, never empty."""
    return one_line(str(text), LONGEST_NAME) or "(no name)"


def distinct(texts: Iterable[object], clean: Callable[[object], str]) -> list[str]:
    """Apply `clean` to each text and number duplicates: a second `fedgh` becomes `fedgh-2`."""
    taken: dict[str, None] = {}
    for text in texts:
        first = clean(text)
        choices = itertools.chain([first], (f"{first}-{i}" for i in itertools.count(2)))
        taken[next(one for one in choices if one not in taken)] = None
    return list(taken)


def plain(text: object) -> str:
    """Return text as one line, without control characters, escape sequences and secrets in addresses."""
    return one_line(str(text), _LONGEST)


# Markdown ignores an underscore within a word, and a heading or list mark without a space behind it.
_MARKDOWN = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)|^(?:#{1,6}|[-+]|\d{1,9}[.)])(?=\s)")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def markdown(text: object) -> str:
    """Escape text for one line of Markdown, which may be a table cell."""
    escaped = _MARKDOWN.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", plain(text))
    return re.sub(r"[&<>]", lambda match: _ENTITIES[match[0]], escaped)


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}",
    "[": "{[}", "]": "{]}", "*": "{*}",  # after \\, LaTeX would read them as arguments
}  # fmt: skip
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}


def _greek(letter: str) -> str:
    """Return the LaTeX command of a Greek letter; pdflatex has none of them outside mathematical mode."""
    name = unicodedata.name(letter).split()[-1].lower().replace("lamda", "lambda")
    return rf"\ensuremath{{\{name if letter.islower() else name.capitalize()}}}"


_LATEX |= {letter: _greek(letter) for letter in "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ"}


def latex(text: object) -> str:
    """Escape text for one line of LaTeX, which may be a table cell or a comment."""
    return "".join(_LATEX.get(character, character) for character in plain(text))


def spreadsheet(text: object) -> str:
    """Return a CSV cell; text that a spreadsheet would read as a formula gets a leading apostrophe."""
    cell = plain(text)
    return f"'{cell}" if cell[:1] in tuple("=+-@") and not _is_number(cell) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def picture(text: object, longest: int = _IN_PICTURES) -> str:
    """Escape text for Matplotlib, which reads text between two $ as a formula and hides labels that begin with _.

    Line breaks stay; each line is cut after `longest` characters.
    """
    lines = printable(str(text).replace("\t", " ")).split("\n")
    cut = (line if len(line) <= longest else f"{line[: longest - 1]}…" for line in lines)
    return re.sub(r"^_", " _", "\n".join(cut).replace("$", r"\$"))


def mlflow(text: object) -> str:
    """Return a valid name of an MLflow metric, parameter or tag: _ replaces forbidden characters; never empty."""
    allowed = re.sub(r"[^/\w.\- :]", "_", str(text))[:250]
    parts = [re.sub(r"^\.+$|^\.\.", "_", part) for part in allowed.split("/") if part]  # ./ and ../ are folders
    return "/".join(parts) or "_"


def file(text: object) -> str:
    """Return a part of a file name: at most 100 letters, digits, dots, underscores and hyphens."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", str(text))[:100]
