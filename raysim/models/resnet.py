"""Residual networks with the CIFAR stem (3x3 convolution, no max-pool), for small images.

HKS and FedCache use three stages with 16, 32 and 64 channels; FedGH's ResNet-18 has four stages.
"""

from __future__ import annotations

from torch import Tensor, nn

from raysim.common.inputs import InputSpec
from raysim.models.split import SplitNet, projection


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, added to the input.

    [B, in, H, W] becomes [B, out, H / stride, W / stride], rounded up.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.relu(self.body(x_BCHW) + self.shortcut(x_BCHW))


def small_image_resnet(
    num_classes: int,
    input_spec: InputSpec,
    feature_dim: int,
    *,
    widths: tuple[int, ...],
    blocks: tuple[int, ...],
    kaiming: bool = False,
    always_project: bool = False,
) -> SplitNet:
    """Build stages of `blocks[i]` residual blocks with `widths[i]` channels; each stage but the first halves H and W.

    The pooled vector of width `widths[-1]` is the representation. If its width differs from D, or with
    `always_project`, a Linear -> ReLU to D follows. `kaiming` draws convolutions from the Kaiming normal, fan-out.
    """
    channels = widths[0]
    layers: list[nn.Module] = [
        nn.Conv2d(input_spec.shape[0], channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
    ]
    cuts = []
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(ResidualBlock(channels, width, stride))
            channels = width
        cuts.append(len(layers))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if always_project or feature_dim != channels:
        layers.append(projection(channels, feature_dim))
    net = SplitNet(nn.Sequential(*layers), nn.Linear(feature_dim, num_classes), cuts[:-1])
    if kaiming:
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net
