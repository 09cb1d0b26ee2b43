"""Commands for a beginning: `init` copies the scenarios, `new` writes a template of a method, model or data set."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
import shutil
from pathlib import Path

import click

from raysim import core
from raysim.common.errors import ScenarioError

TEMPLATES = Path(__file__).parent / "templates"


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default="scenarios")
def init(folder: Path) -> None:
    """Copy the bundled scenarios into FOLDER.

    FOLDER must be new or empty; the default is ./scenarios.
    """
    import raysim

    if folder.exists() and any(folder.iterdir()):
        raise ScenarioError(f"{folder} is not empty; choose a new or empty folder")
    shutil.copytree(Path(str(raysim.__file__)).parent / "scenarios", folder, dirs_exist_ok=True)
    click.echo(
        f"copied {sum(1 for _ in folder.rglob('*.yaml'))} scenarios and sweeps to {folder}; to start a first run:"
    )
    click.echo(f"    raysim launch {shlex.quote(str(folder / 'quickstart.yaml'))}")


@click.command()
@click.argument("kind", type=click.Choice(["algorithm", "model", "data"]))
@click.argument("name")
def new(kind: str, name: str) -> None:
    """Write a working method, model or data set for you to modify.

    The files are NAME.py, NAME.yaml and test_NAME.py. If NAME has capital letters, it is the name of the class, and the
    files have it in lower case.

    \b
    Examples:
        raysim new algorithm my_method
        raysim new algorithm FedBABU
        raysim launch my_method.yaml
    """
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,99}", name):  # the name is also that of a scenario
        text = f"{name!r} given; use at most 100 letters a to z, digits and _, and begin with a letter"
        raise click.BadParameter(text, param_hint="NAME")
    cls = "".join(word.capitalize() for word in name.split("_")) if name.islower() else name
    name = name.lower()
    files = [Path(f"{name}.py"), Path(f"{name}.yaml"), Path(f"test_{name}.py")]
    for file in files:
        if file.exists():
            raise ScenarioError(f"{file} exists already; give another name")
    module = importlib.util.find_spec(name)  # a folder without an `__init__.py` has no origin
    if keyword.iskeyword(name) or keyword.iskeyword(cls) or cls in core.__all__ or (module and module.origin):
        text = f"{name!r} given, but this is a word of Python, or the name of an installed module or of a raysim class"
        raise click.BadParameter(f"{text}; give another name", param_hint="NAME")
    for source, file in zip((f"{kind}.py", f"{kind}.yaml", f"test_{kind}.py.txt"), files, strict=True):
        text = (TEMPLATES / source).read_text(encoding="utf-8")
        text = text.replace("NewMethod", cls).replace("NewModel", cls).replace("new_name", name)
        file.write_text(text, encoding="utf-8")
        click.echo(f"wrote {file}")
    click.echo(f"    raysim launch {name}.yaml")
    click.echo(f"    pytest test_{name}.py  # checks it, and runs two rounds")


COMMANDS = (init, new)
