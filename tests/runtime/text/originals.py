"""Chat templates as their models have them, read from packages that ship them.

None is copied into this repository: see `templates/README.md`. `make test` installs the packages
in a folder of their own; without them the tests that need originals are skipped.
"""

import functools
import importlib
import pathlib
import sys

import pytest

PACKAGES = pathlib.Path(__file__).parents[3] / ".cache" / "originals"
needs_originals = pytest.mark.skipif(
    not PACKAGES.exists(), reason="`make test` installs the packages with original templates"
)
# Mistral's own generator makes the template of each version of its format; options by name.
MISTRAL = {
    "mistral_v3": ("v3", {}),
    "mistral_v7": ("v7", {}),
    "mistral_v11": ("v11", {"plain_thinking_support": True}),
    "mistral_v13": ("v13", {"thinking_support": True}),
}


@functools.cache
def original(name: str) -> str:
    """The template of this name."""
    if name not in MISTRAL:
        return (PACKAGES / "trl" / "chat_templates" / f"{name}.jinja").read_text()
    version, options = MISTRAL[name]
    sys.path.append(str(PACKAGES))
    try:
        package = "mistral_common"
        made = importlib.import_module(f"{package}.integrations.chat_templates.template_generator")
        versions = importlib.import_module(f"{package}.tokens.tokenizers.base").TokenizerVersion
    finally:
        sys.path.remove(str(PACKAGES))
    config = made.TemplateConfig(version=versions(version), **options)
    return str(made.build_chat_template(config))
