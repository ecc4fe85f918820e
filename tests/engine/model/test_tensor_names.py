"""Tensors of the text part of a model that sees; everybody else's have the model's own names."""

import pytest

from triolet.engine.model.tensor_names import rename_of, text_tensor
from triolet.engine.model_config.config import ARCHITECTURES, GEMMA3_MULTIMODAL


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("model.language_model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("vision_tower.vision_model.post_layernorm.weight", None),
        ("model.vision_tower.post_layernorm.weight", None),
        ("multi_modal_projector.mm_soft_emb_norm.weight", None),
        ("audio_tower.norm.weight", "audio_tower.norm.weight"),
    ],
)
def test_tensors_of_the_text_part_are_told_from_the_rest(stored: str, name: str | None) -> None:
    assert text_tensor(stored) == name


def test_only_a_whole_with_a_text_part_has_other_names() -> None:
    for architecture in ARCHITECTURES:
        expected = "model.norm.weight"
        if architecture != GEMMA3_MULTIMODAL:
            expected = "language_model.model.norm.weight"
        assert rename_of(architecture)("language_model.model.norm.weight") == expected
