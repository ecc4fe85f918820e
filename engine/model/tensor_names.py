"""Where checkpoints name tensors otherwise than models do, or hold more than the model's.

Sans-IO. Must not know files, shapes or what computes.
"""

import re
from types import MappingProxyType

from ..model_config.config import GEMMA3_MULTIMODAL
from .weight_folder import Rename, same_name

# As published, and as `transformers` saved it for a time.
_TEXT_PART = re.compile(r"^(?:language_model\.model|model\.language_model)\.")
_VISION_PART = re.compile(r"^(?:model\.)?(?:vision_tower|multi_modal_projector)\.")


def text_tensor(name: str) -> str | None:
    """The name in the text part of a tensor of the whole; None for what only pictures need."""
    if _VISION_PART.match(name):
        return None
    return _TEXT_PART.sub("model.", name).removeprefix("language_model.")


_RENAMES: MappingProxyType[str, Rename] = MappingProxyType({GEMMA3_MULTIMODAL: text_tensor})


def rename_of(architecture: str) -> Rename:
    """How the files of an architecture name what its model takes."""
    return _RENAMES.get(architecture, same_name)
