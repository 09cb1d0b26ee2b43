"""The seam between engine and algorithms, in pure torch: knows nothing of Ray, MLflow or YAML."""

from raysim.core.algorithm import Algorithm, AnyAlgorithm, Client, ClientId, Server, SplitModel, Task
from raysim.core.data import Batch, Samples
from raysim.core.errors import RaysimError, RunError, ScenarioError
from raysim.core.fields import Count, Fraction, NonNegative, Positive
from raysim.core.fit import LocalTraining
from raysim.core.messages import Weights, message, weights

__all__ = [
    "Algorithm",
    "AnyAlgorithm",
    "Batch",
    "Client",
    "ClientId",
    "Count",
    "Fraction",
    "LocalTraining",
    "NonNegative",
    "Positive",
    "RaysimError",
    "RunError",
    "Samples",
    "ScenarioError",
    "Server",
    "SplitModel",
    "Task",
    "Weights",
    "message",
    "weights",
]
