"""Torchvision's ResNets (4 to 152 layers) and a small vision transformer, each brought to a common width D.

These are the high-heterogeneity mix of FedRAL's Table 6. Weights are never downloaded. Torchvision is
imported in the builders: it takes a second to load, and most runs need none of this.
"""

from __future__ import annotations

from torch import nn

from raysim.models.cnn import ImageShape
from raysim.models.split import SplitNet, projection


def imagenet_resnet(
    num_classes: int,
    image_shape: ImageShape,
    feature_dim: int,
    *,
    blocks: tuple[int, ...],
    bottleneck: bool = False,
) -> SplitNet:
    """A ResNet with the 7x7/2 stem and 3x3/2 max-pool; stage i has `blocks[i]` blocks, one to four stages."""
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

    block = Bottleneck if bottleneck else BasicBlock
    # Torchvision knows four stages only: a shorter network is a whole one with its last stages thrown away.
    whole = ResNet(block, [*blocks, *[1] * (4 - len(blocks))], num_classes=1)
    if image_shape[0] != 3:  # torchvision's stem is for colour; this one starts as that one does
        whole.conv1 = nn.Conv2d(image_shape[0], 64, 7, stride=2, padding=3, bias=False)
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


def small_vit(
    num_classes: int,
    image_shape: ImageShape,
    feature_dim: int,
    *,
    patch: int,
    width: int,
    depth: int,
    heads: int,
) -> SplitNet:
    """A vision transformer without dropout, its MLP four times as wide; the class token goes through D.

    Images must be square with a side that `patch` divides.
    """
    from torchvision.models.vision_transformer import VisionTransformer

    vit = VisionTransformer(
        image_size=image_shape[1],
        patch_size=patch,
        num_layers=depth,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=4 * width,
    )
    if image_shape[0] != 3:  # as above
        vit.conv_proj = nn.Conv2d(image_shape[0], width, patch, stride=patch)
        nn.init.trunc_normal_(vit.conv_proj.weight, std=(image_shape[0] * patch**2) ** -0.5)
        nn.init.zeros_(vit.conv_proj.bias)
    # Torchvision starts its own head at zero; a projection at zero would pass no gradient to the transformer.
    vit.heads = projection(width, feature_dim)
    return SplitNet(vit, nn.Linear(feature_dim, num_classes))
