"""Networks for a fixed number of tokens: a gated recurrent unit and a transformer, each brought to a common width D.

Shapes: B samples, L tokens each, E width of an embedding.
"""

from __future__ import annotations

from torch import Tensor, nn

from raysim.common.inputs import InputSpec
from raysim.models.split import SplitNet, projection


class LastState(nn.Module):
    """The state of a gated recurrent unit after the last token: [B, L, E] to [B, hidden]."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(width, hidden, batch_first=True)

    def forward(self, x_BLE: Tensor) -> Tensor:
        return self.gru(x_BLE)[1][-1]


class MeanToken(nn.Module):
    """The mean over the tokens: [B, L, E] to [B, E]."""

    def forward(self, x_BLE: Tensor) -> Tensor:
        return x_BLE.mean(1)


def gru(num_classes: int, input_spec: InputSpec, feature_dim: int, *, width: int, hidden: int) -> SplitNet:
    """Embeddings of `width` through one gated recurrent unit; its last state goes through D."""
    extractor = nn.Sequential(
        nn.Embedding(input_spec.vocabulary, width), LastState(width, hidden), projection(hidden, feature_dim)
    )
    return SplitNet(extractor, nn.Linear(feature_dim, num_classes))


def transformer(
    num_classes: int, input_spec: InputSpec, feature_dim: int, *, width: int, depth: int, heads: int
) -> SplitNet:
    """A pre-norm encoder with learned positions and no dropout, its MLP four times as wide; the mean goes through D."""
    from torchvision.models.vision_transformer import Encoder

    encoder = Encoder(input_spec.size, depth, heads, width, 4 * width, dropout=0.0, attention_dropout=0.0)
    extractor = nn.Sequential(
        nn.Embedding(input_spec.vocabulary, width), encoder, MeanToken(), projection(width, feature_dim)
    )
    return SplitNet(extractor, nn.Linear(feature_dim, num_classes))
