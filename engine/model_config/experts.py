"""Mixtures of experts by a model's config: how many, how chosen, in which layers.

Fields are named and defaulted as `transformers` does for Qwen3-MoE, in its old form (`num_experts`)
and its new one (`num_local_experts`).
"""

import attrs

from .folder import ConfigFields

# Published models have up to a few hundred.
EXPERTS_MAX = 2**12
# In all layers together: each has three tensors, all planned before a file is opened. Published
# models have some 20 thousand.
EXPERTS_ALL_MAX = 2**17
WIDTH_MAX = 2**20  # no published model comes near
STEP_MAX = 2**12  # of layers; a model has no more than so many
EXPERTS_DEFAULT, CHOSEN_DEFAULT, WIDTH_DEFAULT = 128, 8, 768


@attrs.frozen(kw_only=True)
class Experts:
    """Mixture: a router gives each token to `chosen` of `count` gated MLPs.

    The results are weighted by the router's probabilities; where `normalized`, those of the chosen
    ones are scaled to a sum of 1 first.
    """

    count: int
    chosen: int
    intermediate_size: int
    normalized: bool


def read_experts(fields: ConfigFields, layers: int) -> tuple[Experts | None, frozenset[int]]:
    """The mixture and the layers that have it; the others' MLPs are dense.

    Raises `ModelFolderError`.
    """
    count = fields.integer(
        "num_experts",
        EXPERTS_MAX,
        least=0,
        default=fields.integer("num_local_experts", EXPERTS_MAX, least=0, default=EXPERTS_DEFAULT),
    )
    step = fields.integer("decoder_sparse_step", STEP_MAX, default=1)
    dense = _dense_layers(fields)
    sparse = frozenset(
        index for index in range(layers) if index not in dense and (index + 1) % step == 0
    )
    if not count or not sparse:
        return None, frozenset()
    if count * len(sparse) > EXPERTS_ALL_MAX:
        reason = f"of {len(sparse)} layers are more than {EXPERTS_ALL_MAX} together"
        raise fields.fault("num_experts", reason)
    experts = Experts(
        count=count,
        chosen=fields.integer("num_experts_per_tok", EXPERTS_MAX, default=CHOSEN_DEFAULT),
        intermediate_size=fields.integer("moe_intermediate_size", WIDTH_MAX, default=WIDTH_DEFAULT),
        normalized=fields.flag("norm_topk_prob"),
    )
    if experts.chosen > count:
        raise fields.fault("num_experts_per_tok", f"{experts.chosen} are more than {count} experts")
    return experts, sparse


def _dense_layers(fields: ConfigFields) -> frozenset[int]:
    layers = fields.values.get("mlp_only_layers")
    if layers is None:
        return frozenset()
    if not isinstance(layers, list) or not all(type(index) is int for index in layers):
        raise fields.fault("mlp_only_layers", "must be a list of layers' numbers")
    return frozenset(layers)
