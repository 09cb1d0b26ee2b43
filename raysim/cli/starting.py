"""Commands to begin with: init copies the scenarios, new writes a template of a method, model or data set."""

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

SCENARIO = """# A scenario for the {kind} in {name}.py. To run it:
#
#     raysim launch {name}.yaml
{why}name: {name}
rounds: 20
algorithm: {{name: {algorithm}}}
data:
  name: {data}
  partition: {{{partition}}}
clients:
  count: {clients}
  participation: 0.5
  models: [{models}]
training: {{epochs: 5, batch_size: 16, lr: 0.05}}
"""

TEST = '''"""Run it with `pytest test_{name}.py`."""

import pathlib

import raysim
{imports}

{check}

def test_it_runs(tmp_path: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{{tmp_path / 'mlflow.db'}}")
    sets = ["rounds=2", "backend=in_process", f"output={{tmp_path}}"]
    result = raysim.run(pathlib.Path(__file__).parent / "{name}.yaml", sets=sets, quiet=True)
    assert result.rounds["accuracy/all"].iloc[-1] > 0.1
'''

CHECKS = {
    "algorithm": """def test_it_keeps_the_contract() -> None:
    raysim.check_algorithm({cls}())
""",
    "model": """def test_shapes() -> None:
    net = {cls}(num_classes=10, input_spec=raysim.InputSpec("image", (1, 8, 8)), feature_dim=32)
    features_BD = net.features(torch.zeros(5, 1, 8, 8))
    assert features_BD.shape == (5, 32)
    assert net.header(features_BD).shape == (5, 10)
""",
    "data": """def test_it_is_the_same_each_time() -> None:
    first, second = load(), load()
    assert all((first[name] == second[name]).all() for name in first)
""",
}


MERIT = """#
# A client holds fewer than 40 samples on average, too few to learn all of its classes well alone, so learning from
# other clients can help. (20 clients of 2 classes each would learn well alone, and no method could help.) To compare
# methods:
#
#     raysim sweep {name}.yaml --grid algorithm.name=./{name}.py,fedgh,standalone --seeds 1..3
"""

_DIGITS = {"partition": "name: pathological, classes_per_client: 2"}
_WORDS = {
    "algorithm": {
        "partition": "name: dirichlet, alpha: 0.5",
        "clients": "50",
        "why": MERIT,
        "algorithm": "./{name}.py",
        "models": "digits_mlp64, digits_cnn_s, digits_resnet",
        "imports": "from {name} import {cls}\n",
    },
    "model": {
        **_DIGITS,
        "models": '"./{name}.py:{cls}", digits_mlp64, digits_cnn_s',
        "imports": "import torch\nfrom {name} import {cls}\n",
    },
    "data": {
        "data": "./{name}.py:load",
        "partition": "name: dirichlet, alpha: 0.5",
        "models": "mlp_s, mlp_m, mlp_l",
        "imports": "from {name} import load\n",
    },
}


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
@click.argument("kind", type=click.Choice(list(CHECKS)))
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
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,99}", name):  # also the name of the scenario
        text = f"{name!r} given; use at most 100 letters a to z, digits and _, and begin with a letter"
        raise click.BadParameter(text, param_hint="NAME")
    cls = "".join(word.capitalize() for word in name.split("_")) if name.islower() else name
    name = name.lower()
    files = [Path(f"{name}.py"), Path(f"{name}.yaml"), Path(f"test_{name}.py")]
    for file in files:
        if file.exists():
            raise ScenarioError(f"{file} exists already; give another name")
    module = importlib.util.find_spec(name)  # of a folder without an `__init__.py`, it has no origin
    if keyword.iskeyword(name) or keyword.iskeyword(cls) or cls in core.__all__ or (module and module.origin):
        text = f"{name!r} given, but this is a word of Python, or the name of an installed module or of a raysim class"
        raise click.BadParameter(f"{text}; give another name", param_hint="NAME")
    words = {"kind": kind, "name": name, "algorithm": "fedgh", "data": "digits", "clients": "20"}
    words |= {"why": "", **_WORDS[kind]}
    template = (Path(__file__).parent / "templates" / f"{kind}.py").read_text(encoding="utf-8")
    text = template.replace("NewMethod", cls).replace("NewModel", cls)
    words = {key: value.format(name=name, cls=cls) for key, value in words.items()}
    imports = words.pop("imports")
    check = CHECKS[kind].format(cls=cls)
    texts = [text, SCENARIO.format(**words), TEST.format(name=name, imports=imports, check=check)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
        click.echo(f"wrote {file}")
    click.echo(f"    raysim launch {name}.yaml")
    click.echo(f"    pytest test_{name}.py  # checks it, and runs two rounds")


COMMANDS = (init, new)
