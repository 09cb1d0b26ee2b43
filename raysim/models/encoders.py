"""Frozen encoders: fixed functions from images to representations, for methods that compare images.

`mobilenet_v3_small` needs torchvision's ImageNet weights, which raysim does not download: an actor may have no network
access, and a hundred actors would download them at once. To install them, on every machine of the cluster run

    python -c "import torchvision; torchvision.models.mobilenet_v3_small(weights='IMAGENET1K_V1')"

or copy `mobilenet_v3_small-047dcff4.pth` to the folder `hub/checkpoints` below TORCH_HOME (~/.cache/torch).

Shapes: B images, C channels, H x W pixels, h width of the representation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.common.errors import ScenarioError, UnavailableError
from raysim.common.inputs import Kind
from raysim.core.algorithm import pixels

Encoder = Callable[[Tensor], Tensor]
"""Normalised images [B, C, H, W] -> [B, h]. Deterministic, and without trainable parameters."""

ENCODERS: dict[str, str] = {
    "mobilenet_v3_small": "torchvision's MobileNetV3-small with ImageNet weights, without its head; h = 576",
    "pixels": "the sample's pixels or features, minus their mean over the sample; h = number of these values",
}

_URL = "https://download.pytorch.org/models/mobilenet_v3_small-047dcff4.pth"
_SIDE = 224  # side in pixels to which images are resized
_CHUNK = 32  # images per call: at 224 x 224, 512 images need half a gigabyte


def build_encoder(name: str, kind: Kind = "image") -> Encoder:
    """Return the encoder `name` for samples of this kind. It is loaded once per process and weights file.

    Raises ScenarioError (a ValueError) for an unknown name, an unsupported kind, or missing weights. Weights are read
    at the encoder's first call, which raises ScenarioError for a damaged file.
    """
    if kind == "tokens" or (kind == "features" and name != "pixels"):
        remedy = "give pixels" if kind == "features" else "choose a method without an encoder"
        raise ScenarioError(f"encoder: {name} cannot encode {kind}; {remedy}")
    if name == "pixels":
        return pixels
    if name != "mobilenet_v3_small":
        raise ScenarioError(f"encoder: {name!r} given; allowed: {', '.join(ENCODERS)}")
    file = weights_file()
    if not file.is_file():
        raise UnavailableError(
            f"encoder: mobilenet_v3_small given, but there are no weights at {file}; download {_URL} to this path, or "
            "choose the encoder pixels"
        )
    return _mobilenet(file)


def weights_file() -> Path:
    """Return the path of the weights of `mobilenet_v3_small` in torch's hub cache, even if the file is missing."""
    return Path(torch.hub.get_dir()) / "checkpoints" / _URL.rsplit("/", 1)[1]


class MobileNet:
    """MobileNetV3-small up to its average pool. Grey images are repeated to three channels."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @cached_property
    def body(self) -> nn.Module:
        """The frozen network in eval mode, from images [B, 3, 224, 224] to [B, 576]; at first on the CPU."""
        from torchvision.models import mobilenet_v3_small  # imported here, because it takes a second

        try:
            state = torch.load(self.file, map_location="cpu", weights_only=True)
            # The meta device draws no random numbers for weights that are replaced immediately.
            with torch.device("meta"):
                whole = mobilenet_v3_small(weights=None)
            whole.load_state_dict(state, assign=True)
        except Exception as error:
            why = " ".join(str(error).split())[:200]
            raise ScenarioError(
                f"encoder: {self.file} holds no weights of mobilenet_v3_small ({why}); download "
                f"{_URL} and replace the file by it"
            ) from error
        body = nn.Sequential(whole.features, whole.avgpool, nn.Flatten()).requires_grad_(False).eval()
        return body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it

    @torch.no_grad()
    def __call__(self, x_BCHW: Tensor) -> Tensor:
        """Return the representations [B, 576] of images [B, 1 or 3, H, W]."""
        body = self.body.to(x_BCHW.device)
        return torch.cat([body(self._resized(x)) for x in x_BCHW.split(_CHUNK)])

    @staticmethod
    def _resized(x_BCHW: Tensor) -> Tensor:
        colour = x_BCHW.expand(-1, 3, -1, -1)
        return F.interpolate(colour, size=(_SIDE, _SIDE), mode="bilinear", align_corners=False)


@cache
def _mobilenet(file: Path) -> MobileNet:
    return MobileNet(file)
