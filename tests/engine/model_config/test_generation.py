"""Advice of a model's makers: what is read, what cannot be followed, what is refused."""

import json
import pathlib
from typing import Any

import pytest

from triolet.engine.errors import ModelFolderError
from triolet.engine.model_config.generation import GenerationConfig, load_generation_config
from triolet.engine.sampling_params import SamplingParams


def load(folder: pathlib.Path, **values: Any) -> GenerationConfig:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return load_generation_config(folder)


def test_no_file_advises_nothing(tmp_path: pathlib.Path) -> None:
    assert load_generation_config(tmp_path) == GenerationConfig(SamplingParams(), ())


def test_advice(tmp_path: pathlib.Path) -> None:
    found = load(tmp_path, temperature=0.6, top_p=0.95, top_k=20, min_p=0, eos_token_id=[1, 2])
    assert found.defaults == SamplingParams(temperature=0.6, top_p=0.95, top_k=20, min_p=0.0)
    assert found.unserved == ()


@pytest.mark.parametrize(("top_k", "expected"), [(-1, 0), (0, 0), (50, 50), (None, None)])
def test_every_way_to_say_off(
    tmp_path: pathlib.Path, top_k: int | None, expected: int | None
) -> None:
    assert load(tmp_path, top_k=top_k).defaults.top_k == expected


def test_what_is_not_served_is_told(tmp_path: pathlib.Path) -> None:
    found = load(tmp_path, no_repeat_ngram_size=3, typical_p=1, num_beams=1)
    assert found.unserved == ("no_repeat_ngram_size 3",)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", "warm"),
        ("temperature", 1e9),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", 2.5),
        ("top_k", -2),
        ("min_p", True),
        ("min_p", []),
    ],
)
def test_nonsense_is_refused_by_name(tmp_path: pathlib.Path, field: str, value: Any) -> None:
    with pytest.raises(ModelFolderError, match=rf"generation_config\.json: {field} must be"):
        load(tmp_path, **{field: value})
