"""Sphinx's settings of the documentation site, which `make docs` builds."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.writers.html5 import HTML5Translator

sys.path.insert(0, str(Path(__file__).parent))
import measured_runs
import scenario_keys
import tables

# Cells call `raysim` of the environment that builds the site, and print for a page, not for a terminal.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ |= {"NO_COLOR": "1", "COLUMNS": "92", "OMP_NUM_THREADS": "1"}

DOCS = Path(__file__).parent
REPOSITORY = DOCS.parent
BUILD = REPOSITORY / "build"

# IPython runs `!command` in a terminal, in which progress is drawn again and again, and continues after one that fails.
# The page of studies imports `examples`, which is not installed.
STARTUP = f"""
import subprocess
import sys

sys.path.append({str(REPOSITORY)!r})
shell = get_ipython()


def checked(command):
    command = shell.var_expand(command)
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="")
    if done.returncode:
        raise RuntimeError(f"{{command}} ended with exit code {{done.returncode}}")


shell.system = checked
"""
os.environ["IPYTHONDIR"] = str(BUILD / "ipython")
startup = BUILD / "ipython" / "profile_default" / "startup"
startup.mkdir(parents=True, exist_ok=True)
(startup / "exit_code.py").write_text(STARTUP)

project = "raysim"
release = importlib.metadata.version("raysim")
html_title = f"raysim {release}"
html_theme = "furo"
html_show_copyright = False
smartquotes = False  # they make a dash of `--set`
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_click",
    "sphinx_copybutton",
]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "force"  # a cache would not notice changes of raysim
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

autodoc_member_order = "bysource"
default_role = "code"
python_maximum_signature_line_length = 100

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "algorithms/README.md": "methods.md",
    "benchmarks/README.md": "benchmarks.md",
    "cluster/README.md": "cluster.md",
    "raysim/README.md": "rooms.md",
    "docs/methods": "methods.md",
    "scenarios/papers": "papers.md",
}
"""Files outside this folder, and folders -> the pages that include them, or take their place."""

LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def _relink(text: str, folder: Path, page: Path) -> str:
    """Let the links of a text that is stored in `folder` lead to the same files from `page`, or to their pages."""

    def replaced(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        name = target.relative_to(REPOSITORY).as_posix()
        target = DOCS / PAGES[name] if name in PAGES else target
        return Path(os.path.relpath(target, page.parent)).as_posix()

    return LINK.sub(replaced, text)


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(_mathml(node.astext(), "block"))
    raise nodes.SkipNode


def _mathml(latex: str, display: str) -> str:
    """Return a formula as MathML, which browsers show without a script from another site."""
    found = convert(latex, display=display)
    if "\\" in found:
        raise ValueError(f"latex2mathml does not know a command of {latex}")
    return found


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))

    def read(app: Sphinx, page: str, content: list[str]) -> None:
        path = Path(app.env.doc2path(page))
        content[0] = _relink(content[0], path.parent, path)
        if page == "reference/scenario":
            content[0] += scenario_keys.markdown()
        if page == "measured_runs":
            content[0] += measured_runs.markdown()
        content[0] = tables.expand(content[0])

    def include(app: Sphinx, path: Path, page: str, content: list[str]) -> None:
        # `page` lacks its folder (MyST-Parser 5.2).
        file = (DOCS / path).resolve()
        content[0] = _relink(content[0], file.parent, DOCS / PAGES[file.relative_to(REPOSITORY).as_posix()])

    def docstring(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
        # Napoleon would take the words before a colon in a property's docstring as its type.
        kind = "function" if what in ("property", "attribute") else what
        lines[:] = str(GoogleDocstring(lines, Config(napoleon_use_rtype=False), what=kind)).splitlines()

    app.connect("autodoc-process-docstring", docstring)
    app.connect("source-read", read)
    app.connect("include-read", include)
