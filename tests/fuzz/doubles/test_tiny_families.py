"""Folders written by hand are what the loader asks for, so that spoiling them means something."""

import json
import pathlib

import pytest

from triolet.engine.model.registry import check_model_folder
from triolet.engine.model_config.config import ARCHITECTURES, load_model_config
from triolet.fuzz.doubles.tiny_families import FAMILIES, Family
from triolet.fuzz.fuzzers.models import good_files


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_folder_is_good(tmp_path: pathlib.Path, family: Family) -> None:
    for name, content in good_files(family).items():
        (tmp_path / name).write_bytes(content)
    assert check_model_folder(tmp_path) == load_model_config(tmp_path)


def test_every_kind_of_frame_is_there() -> None:
    names = {json.dumps(family.config["architectures"]) for family in FAMILIES}
    assert len(names) == 4
    assert all(json.loads(name)[0] in ARCHITECTURES for name in names)
