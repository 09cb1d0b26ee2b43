"""raysim: simulate model-heterogeneous federated learning on Ray.

import raysim

run = raysim.run("quickstart", sets=["rounds=3"])
print(run.folder, run.status, run.rounds["accuracy/all"].max())
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.common.errors import HookError, RaysimError, RunError, ScenarioError
    from raysim.common.inputs import InputSpec
    from raysim.common.results import Tracker
    from raysim.contract import ContractError, check_algorithm
    from raysim.core.algorithm import Algorithm
    from raysim.core.messages import message
    from raysim.engine.checkpoint.format import CheckpointError
    from raysim.models.split import SplitNet
    from raysim.runs.run import Run, run
    from raysim.scenario.scenario import Scenario
    from raysim.study.compare import Comparison, compare
    from raysim.study.study import Study

__all__ = [
    "Algorithm",
    "CheckpointError",
    "Comparison",
    "ContractError",
    "HookError",
    "InputSpec",
    "RaysimError",
    "Run",
    "RunError",
    "Scenario",
    "ScenarioError",
    "SplitNet",
    "Study",
    "Tracker",
    "check_algorithm",
    "compare",
    "message",
    "run",
]

# The program that uses raysim decides where records are logged. The root logger's level would drop INFO, which a run
# shows.
_logger = logging.getLogger("raysim")
_logger.addHandler(logging.NullHandler())
if _logger.level == logging.NOTSET:
    _logger.setLevel(logging.INFO)

_HOMES = {
    "Algorithm": "raysim.core.algorithm",
    "CheckpointError": "raysim.engine.checkpoint.format",
    "Comparison": "raysim.study.compare",
    "ContractError": "raysim.contract",
    "HookError": "raysim.common.errors",
    "InputSpec": "raysim.common.inputs",
    "RaysimError": "raysim.common.errors",
    "Run": "raysim.runs.run",
    "RunError": "raysim.common.errors",
    "Scenario": "raysim.scenario.scenario",
    "ScenarioError": "raysim.common.errors",
    "SplitNet": "raysim.models.split",
    "Study": "raysim.study.study",
    "Tracker": "raysim.common.results",
    "check_algorithm": "raysim.contract",
    "compare": "raysim.study.compare",
    "message": "raysim.core.messages",
    "run": "raysim.runs.run",
}


def __getattr__(name: str) -> Any:
    # These names are imported when first used, so that `raysim --help` does not wait for torch.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'raysim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
