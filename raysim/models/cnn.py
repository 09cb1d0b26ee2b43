"""Plain convolutional networks and perceptrons: the CNN families of the papers, and small networks for digits.

The five members of a CNN-1..5 family have two 5x5 convolutions and two dense layers; they differ in the filters of
conv2 and the width of fc1. FedGH, FedSSA and FedRAL use them on CIFAR, FedRAL also on Fashion-MNIST.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from torch import nn

from raysim.common.inputs import InputSpec
from raysim.models.split import SplitNet, projection


def five_by_five_cnn(
    num_classes: int, input_spec: InputSpec, feature_dim: int, *, conv1: int, conv2: int, fc1: int
) -> SplitNet:
    """Build two unpadded 5x5 convolutions with 2x2 pooling, then the dense layers fc1 and fc2; fc2 has width D.

    Images are C x H x W with H and W at least 16, so that no feature map becomes empty.
    """
    channels, height, width = input_spec.shape
    flat = conv2 * _after_two_convs(height) * _after_two_convs(width)
    # ReLU follows the pooling, not the convolution as in the papers. Max and ReLU commute, so outputs and gradients are
    # bit-identical. A step on a CPU is faster, because ReLU reads a quarter of the elements.
    extractor = nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, conv1, 5),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(conv1, conv2, 5),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            fc1=nn.Linear(flat, fc1),
            relu3=nn.ReLU(),
            fc2=nn.Linear(fc1, feature_dim),
            relu4=nn.ReLU(),
        )
    )
    return SplitNet(extractor, nn.Linear(feature_dim, num_classes))


def _after_two_convs(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2


def mlp(num_classes: int, input_spec: InputSpec, feature_dim: int, *, hidden: tuple[int, ...]) -> SplitNet:
    """Build a perceptron: flattened pixels or features, dense layers of the `hidden` widths and D, each with ReLU."""
    widths = (input_spec.size, *hidden, feature_dim)
    layers = [projection(wide, narrow) for wide, narrow in pairwise(widths)]
    return SplitNet(nn.Sequential(nn.Flatten(), *layers), nn.Linear(feature_dim, num_classes))


def small_cnn(
    num_classes: int,
    input_spec: InputSpec,
    feature_dim: int,
    *,
    filters: tuple[int, ...],
    hidden: tuple[int, ...] = (),
) -> SplitNet:
    """Build padded 3x3 convolutions, each with 2x2 pooling, then dense layers of the `hidden` widths and D.

    H and W must be at least 2 ** len(filters).
    """
    channels, height, width = input_spec.shape
    layers: list[nn.Module] = []
    for count in filters:
        # ReLU follows the pooling: see five_by_five_cnn.
        layers += [nn.Conv2d(channels, count, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
        channels, height, width = count, height // 2, width // 2
    layers.append(nn.Flatten())
    widths = (channels * height * width, *hidden, feature_dim)
    layers += [projection(wide, narrow) for wide, narrow in pairwise(widths)]
    return SplitNet(nn.Sequential(*layers), nn.Linear(feature_dim, num_classes))


def pooled_cnn(num_classes: int, input_spec: InputSpec, feature_dim: int, *, widths: tuple[int, ...]) -> SplitNet:
    """Build padded 3x3 convolutions with batch norm and 2x2 pooling between them; the mean pixel is projected to D.

    H and W must be at least 2 ** (len(widths) - 1).
    """
    layers: list[nn.Module] = []
    for channels, width in pairwise((input_spec.shape[0], *widths)):
        # ReLU follows the pooling: see five_by_five_cnn.
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.MaxPool2d(2), nn.ReLU()]
    del layers[-2]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), projection(widths[-1], feature_dim)]
    return SplitNet(nn.Sequential(*layers), nn.Linear(feature_dim, num_classes))
