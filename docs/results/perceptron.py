"""A small perceptron for the images of Fashion-MNIST, for `robust_rules.yaml`."""

from __future__ import annotations

from raysim.common.inputs import InputSpec
from raysim.models.cnn import mlp
from raysim.models.split import SplitNet


def perceptron(num_classes: int, input_spec: InputSpec, feature_dim: int) -> SplitNet:
    """Build one hidden layer of D neurons with ReLU, and a linear header."""
    return mlp(num_classes, input_spec, feature_dim, hidden=())
