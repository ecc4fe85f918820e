"""A mixture of experts: a router gives each token to a few of many gated MLPs.

Bit for bit the same in any batch where the experts are: a token's experts are chosen from its own
row, each computes it in tiles as any linear layer does (`layers`), and what they say is added in
the order in which the router prefers them, whatever else went to the same expert.

Letters as in `layers`; E experts, C chosen ones of a token.
"""

import math

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from .decoder import GatedMlp
from .layers import Linear, exp2_, padded_rows

LOG2_E = math.log2(math.e)


@attrs.frozen(eq=False)
class ExpertsMlp:
    """The MLP of a layer; `chosen` and `normalized` are `model_config.experts.Experts`'."""

    router: Linear
    experts: list[GatedMlp]
    chosen: int
    normalized: bool
    bitwise: bool
    dtype: torch.dtype  # of the experts' weights

    def __call__(self, x_TN: Tensor, tokens: int) -> Tensor:
        """Sum of the chosen experts of each of the first `tokens` rows; padding gives 0.

        `x_TN` is float32, for the router; the experts round it to their weights' type.
        """
        weights_TC, experts_TC = self._route(x_TN, tokens)
        # Tokens sorted by expert: place i of `order` is the pair of token i // C with an expert.
        wanted = experts_TC.reshape(-1)
        order = torch.argsort(wanted, stable=True)
        counts = torch.bincount(wanted, minlength=len(self.experts)).tolist()
        outputs = torch.empty((len(wanted), x_TN.shape[1]), device=x_TN.device)
        rounded_TN = x_TN.to(self.dtype)
        for expert, pairs in zip(self.experts, torch.split(order, counts), strict=True):
            if len(pairs):
                rows = padded_rows(len(pairs), x_TN.device, bitwise=self.bitwise)
                padding = (0, 0, 0, rows - len(pairs))
                given = functional.pad(rounded_TN[pairs // self.chosen], padding)
                outputs[pairs] = expert(given, len(pairs))[: len(pairs)].float()
        outputs_TCN = outputs.view(tokens, self.chosen, -1) * weights_TC.unsqueeze(-1)
        total = torch.zeros(x_TN.shape, device=x_TN.device)
        for place in range(self.chosen):
            total[:tokens] += outputs_TCN[:, place]
        return total

    def _route(self, x_TN: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """The probabilities and numbers of each token's experts, the most probable first."""
        scores_TE = self.router(x_TN) * LOG2_E
        odds = exp2_(scores_TE - scores_TE.amax(-1, keepdim=True))
        probabilities = odds / odds.sum(-1, keepdim=True)
        weights_TC, experts_TC = torch.topk(probabilities, self.chosen, dim=-1)
        if self.normalized:
            weights_TC = weights_TC / weights_TC.sum(-1, keepdim=True)
        return weights_TC[:tokens], experts_TC[:tokens]
