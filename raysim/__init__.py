"""raysim: simulate model-heterogeneous federated learning on Ray.

import raysim

result = raysim.run("scenarios/quickstart.yaml", sets=["rounds=3"])
print(result.folder, result.summary["final"]["accuracy/all"], result.rounds["accuracy/all"].max())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.common.errors import RaysimError, RunError, ScenarioError
    from raysim.common.inputs import InputSpec
    from raysim.common.results import Tracker
    from raysim.comparison.compare import Comparison, compare
    from raysim.contract import check_algorithm
    from raysim.core.algorithm import Algorithm
    from raysim.core.messages import message
    from raysim.inspection.runs import client_data, load_client, representations
    from raysim.launch.run import resume, run
    from raysim.launch.session import Result
    from raysim.models.split import SplitNet
    from raysim.report.load import class_accuracy, read_clients, read_rounds, read_summary
    from raysim.scenario.load import Loaded, load_scenario
    from raysim.sweeps.run import sweep

__all__ = [
    "Algorithm",
    "Comparison",
    "InputSpec",
    "Loaded",
    "RaysimError",
    "Result",
    "RunError",
    "ScenarioError",
    "SplitNet",
    "Tracker",
    "check_algorithm",
    "class_accuracy",
    "client_data",
    "compare",
    "load_client",
    "load_scenario",
    "message",
    "read_clients",
    "read_rounds",
    "read_summary",
    "representations",
    "resume",
    "run",
    "sweep",
]

_HOMES = {
    "Algorithm": "raysim.core.algorithm",
    "Comparison": "raysim.comparison.compare",
    "InputSpec": "raysim.common.inputs",
    "Loaded": "raysim.scenario.load",
    "RaysimError": "raysim.common.errors",
    "Result": "raysim.launch.session",
    "RunError": "raysim.common.errors",
    "ScenarioError": "raysim.common.errors",
    "SplitNet": "raysim.models.split",
    "Tracker": "raysim.common.results",
    "check_algorithm": "raysim.contract",
    "class_accuracy": "raysim.report.load",
    "client_data": "raysim.inspection.runs",
    "compare": "raysim.comparison.compare",
    "load_client": "raysim.inspection.runs",
    "load_scenario": "raysim.scenario.load",
    "message": "raysim.core.messages",
    "read_clients": "raysim.report.load",
    "read_rounds": "raysim.report.load",
    "read_summary": "raysim.report.load",
    "representations": "raysim.inspection.runs",
    "resume": "raysim.launch.run",
    "run": "raysim.launch.run",
    "sweep": "raysim.sweeps.run",
}


def __getattr__(name: str) -> Any:
    # Loaded when first used: `raysim --help` should not wait for torch.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'raysim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
