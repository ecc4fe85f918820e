"""Logprobs of raw logits, with torch: exact to the bit, like the tokens (see `sampler`).

With m the largest logit of a row and w the weights of z - m (step 6, temperature 1), integers whose
sum S does not depend on their order: L = log(float64(S) · 2**-40), and the logprob of a logit z is
float32((float64(z) - float64(m)) - L). The order of alternatives is that of step 4, and a token's
rank is its place in it, from 1.

Letters: R rows, V vocabulary, C columns: the row's token, then the alternatives.
"""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from ...step_messages import RowLogprobs
from ..numerics import exact_log
from .sampler import WEIGHT_ONE, exp_weights, order_keys


@attrs.frozen(eq=False)
class ScoredTokens:
    """Tokens of each row and the alternatives, their logprobs, and the token's rank.

    Meaningless in rows that `finite_R` denies: a logit is NaN or +inf, or all are -inf.
    """

    token_ids_RC: Tensor  # int32
    logprobs_RC: Tensor  # float32
    ranks_R: Tensor  # int32
    finite_R: Tensor  # bool

    def message(self, row: int, first: int) -> RowLogprobs:
        """Message with the logprobs of successive tokens of `row` from its token `first` on."""
        ids, values, ranks = (
            x.contiguous().cpu().numpy().tobytes()
            for x in (self.token_ids_RC, self.logprobs_RC, self.ranks_R)
        )
        width = self.token_ids_RC.shape[1]
        return RowLogprobs(
            row=row, first=first, width=width, token_ids=ids, logprobs=values, ranks=ranks
        )


def logprobs_of(logits_RV: Tensor, token_ids: Sequence[int], alternatives: int) -> ScoredTokens:
    """Logprobs of one token of each row and of the `alternatives` first in order (at most V)."""
    device = logits_RV.device
    largest_R1 = logits_RV.amax(-1, keepdim=True)
    finite_R = largest_R1.isfinite().squeeze(1)  # NaN is the largest where there is one
    sums = exp_weights(logits_RV - largest_R1).sum(-1).tolist()
    logs = [exact_log(max(total, 1) / WEIGHT_ONE) for total in sums]
    log_sums_R1 = torch.tensor(logs, dtype=torch.float64, device=device).unsqueeze(1)
    own_R1 = torch.tensor(token_ids, dtype=torch.int64, device=device).unsqueeze(1)
    keys_RV = order_keys(logits_RV)
    ranks_R = 1 + (keys_RV > keys_RV.gather(1, own_R1)).sum(-1)
    first = keys_RV.topk(min(alternatives, logits_RV.shape[1]), dim=-1).indices
    ids_RC = torch.cat([own_R1, first], dim=1)
    shifted_RC = logits_RV.gather(1, ids_RC).double() - largest_R1.double()
    return ScoredTokens(ids_RC.int(), (shifted_RC - log_sums_R1).float(), ranks_R.int(), finite_R)
