"""Torchvision's ResNets (4 to 152 layers), a small vision transformer and a small MobileNetV2, all with width D.

All but the last are the high-heterogeneity mix of FedRAL's Table 6. Weights are never downloaded. Torchvision is
imported in the builders, because the import takes a second and most runs use none of these networks.
"""

from __future__ import annotations

from torch import nn

from raysim.common.inputs import InputSpec
from raysim.models.split import SplitNet, projection


def imagenet_resnet(
    num_classes: int,
    input_spec: InputSpec,
    feature_dim: int,
    *,
    blocks: tuple[int, ...],
    bottleneck: bool = False,
) -> SplitNet:
    """Build a ResNet: a 7x7/2 stem, a 3x3/2 max-pool, and one to four stages; stage i has `blocks[i]` blocks."""
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

    block = Bottleneck if bottleneck else BasicBlock
    # Torchvision supports only four stages, so the last stages of a full network are removed for a shorter one.
    whole = ResNet(block, [*blocks, *[1] * (4 - len(blocks))], num_classes=1)
    # torchvision's stem reads only colour images; the new stem is initialised in the same way.
    if input_spec.shape[0] != 3:
        whole.conv1 = nn.Conv2d(input_spec.shape[0], 64, 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(whole.conv1.weight, mode="fan_out", nonlinearity="relu")
    stages = [whole.layer1, whole.layer2, whole.layer3, whole.layer4][: len(blocks)]
    backbone_dim = 64 * 2 ** (len(blocks) - 1) * block.expansion
    extractor = nn.Sequential(
        nn.Sequential(whole.conv1, whole.bn1, whole.relu, whole.maxpool),
        *stages,
        nn.Sequential(whole.avgpool, nn.Flatten()),
        projection(backbone_dim, feature_dim),
    )
    return SplitNet(extractor, nn.Linear(feature_dim, num_classes))


def small_mobilenet(
    num_classes: int, input_spec: InputSpec, feature_dim: int, *, stages: tuple[tuple[int, int], ...]
) -> SplitNet:
    """Build a MobileNetV2 for small images: a 3x3 stem, then stages of (channels, inverted residual blocks).

    Each stage except the first halves H and W; blocks expand their channels by a factor of six.
    """
    from torchvision.models.mobilenetv2 import InvertedResidual

    channels = stages[0][0]
    layers: list[nn.Module] = [
        nn.Conv2d(input_spec.shape[0], channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU6(inplace=True),
    ]
    for stage, (width, count) in enumerate(stages):
        for block in range(count):
            layers.append(InvertedResidual(channels, width, 2 if stage > 0 and block == 0 else 1, expand_ratio=6))
            channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), projection(channels, feature_dim)]
    return SplitNet(nn.Sequential(*layers), nn.Linear(feature_dim, num_classes))


def small_vit(
    num_classes: int,
    input_spec: InputSpec,
    feature_dim: int,
    *,
    patch: int,
    width: int,
    depth: int,
    heads: int,
) -> SplitNet:
    """Build a vision transformer without dropout. Its MLPs are four times as wide; its class token is projected to D.

    Images must be square with a side that is a multiple of `patch`.
    """
    from torchvision.models.vision_transformer import VisionTransformer

    vit = VisionTransformer(
        image_size=input_spec.shape[1],
        patch_size=patch,
        num_layers=depth,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=4 * width,
    )
    if input_spec.shape[0] != 3:  # torchvision's projection reads only colour images
        vit.conv_proj = nn.Conv2d(input_spec.shape[0], width, patch, stride=patch)
        nn.init.trunc_normal_(vit.conv_proj.weight, std=(input_spec.shape[0] * patch**2) ** -0.5)
        nn.init.zeros_(vit.conv_proj.bias)
    # Torchvision initialises the head with zeros. A projection of zeros would give the transformer no gradient.
    vit.heads = projection(width, feature_dim)
    return SplitNet(vit, nn.Linear(feature_dim, num_classes))
