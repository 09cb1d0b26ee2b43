"""`raysim new algorithm NAME --from METHOD`: a subclass of a bundled method, and what a scenario needs for it."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.plugins.registry import algorithm_file, algorithm_names
from raysim.scenario.declaration import Messages
from raysim.scenario.declared import declared

METHOD = '''"""{cls}: {base} with one change; say here which change, and why.

{base} is described by `raysim describe {module}`; its code is in raysim/algorithms/{module}.py.
"""

from dataclasses import dataclass
from typing import Any

{imports}


@dataclass(frozen=True)
class {cls}({base}):
    """{base} with one change; say here which, in one sentence.

{inherited}
    """

{hook}'''

UPDATE = '''    def client_update(self, client: Client, down: Any) -> Any:
        """Train the client and return its upload ({up}). down: the server's message ({down})."""
        return super().client_update(client, down)  # replace this call by the changed training
'''

LOSS = '''    def loss(self, net: Any, batch: Batch, given: Any) -> Any:
        """The loss of a batch of B samples. given: the value of `given` in the call of `client.fit`."""
        return super().loss(net, batch, given)  # replace this call by the changed loss, or add a term
'''

MODELS = (
    ("digits_mlp64, digits_cnn_s, digits_resnet", ""),
    ("heterofl_cnn_d, heterofl_cnn_e", "one network in several widths"),
    ("digits_cnn_s", "one architecture for all clients"),
    ("digits_resnet", "networks with stages"),
)
"""Architectures that methods need, tried in turn, each with the reason that a scenario states."""


@dataclass(frozen=True)
class Base:
    """A bundled method from which a new one inherits, and what a scenario needs for it.

    Attributes:
        models: architectures of the clients, separated by commas.
        reason: why the architectures are these; empty: any others work, too.
    """

    module: str
    cls: str
    models: str
    reason: str
    public_data: bool

    @classmethod
    def of(cls, name: str) -> Base:
        """Return the bundled method of this name. Raises `ScenarioError` if there is none."""
        if algorithm_file(name) is None:
            bundled = [known for known in algorithm_names() if algorithm_file(known) is not None]
            raise ScenarioError(
                f"--from: {name} is not a bundled method{suggest(name, bundled)} (`raysim list algorithms` shows all)"
            )
        method = declared(name)
        return cls(name, method.name, *_models(name, method.public_data), method.public_data)

    def text(self, cls: str) -> str:
        """Return the text of a file with the subclass `cls`."""
        method = declared(self.module)
        hooks = self._hooks()
        hook = "loss" if "loss" in hooks and _uses(hooks.get("client_update"), "loss") else "client_update"
        others = ", ".join(name for name, method in hooks.items() if name != hook and not method.decorator_list)
        inherited = "It inherits all other hooks, the fields and `paper`."
        inherited += f" To change more, override any of {others}." if others else ""
        text = textwrap.fill(inherited, 116, initial_indent="    ", subsequent_indent="    ")
        words = {"down": _words(method.down), "up": _words(method.up)}
        core = "Batch" if hook == "loss" else "Client"
        imports = f"from raysim.algorithms.{self.module} import {self.cls}\nfrom raysim.core import {core}"
        body = (LOSS if hook == "loss" else UPDATE).format(**words)
        return METHOD.format(cls=cls, base=self.cls, module=self.module, imports=imports, inherited=text, hook=body)

    @property
    def words(self) -> dict[str, str]:
        """What a scenario of the subclass states: its architectures, its public data, and methods to compare with."""
        return {
            "models": self.models,
            "reason": f"  # {self.cls} needs {self.reason}" if self.reason else "",
            "public": f"  public: {{{{share: 0.2}}}}  # {self.cls} needs public data\n" if self.public_data else "",
            "rivals": "standalone" if self.module == "standalone" else f"{self.module},standalone",
        }

    def _hooks(self) -> dict[str, ast.FunctionDef]:
        """Return the public methods of the class, in the order of its file."""
        file = algorithm_file(self.module)
        assert file is not None
        body = next(node for node in ast.parse(file.read_bytes()).body if getattr(node, "name", "") == self.cls)
        assert isinstance(body, ast.ClassDef)
        return {node.name: node for node in body.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"}


def _uses(method: ast.FunctionDef | None, name: str) -> bool:
    """Whether a method has the attribute of this name, such as `self.loss`."""
    return method is not None and any(isinstance(one, ast.Attribute) and one.attr == name for one in ast.walk(method))


def _models(name: str, public_data: bool) -> tuple[str, str]:
    """Return the first of `MODELS` with which the method accepts a scenario on the digits."""
    from raysim.scenario.parse import parse_scenario
    from raysim.scenario.scenario import Scenario

    data = {"name": "digits", "partition": {"name": "dirichlet", "alpha": 0.5}}
    refused: ScenarioError | None = None
    for models, reason in MODELS:
        scenario = {
            "name": name,
            "rounds": 20,
            "algorithm": {"name": name},
            "data": {**data, "public": {"share": 0.2}} if public_data else data,
            "clients": {"count": 50, "models": models.split(", ")},
        }
        try:
            Scenario.of(parse_scenario(scenario))
        except ScenarioError as error:
            refused = error
        else:
            return models, reason
    assert refused is not None
    raise refused


def _words(messages: Messages) -> str:
    return " or ".join(message.words for message in messages or ()) or "none"
