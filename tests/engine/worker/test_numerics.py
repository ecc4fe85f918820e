"""The numerics id changes with whatever changes bits, and with nothing else."""

import hashlib
import pathlib

from triolet.engine.worker.numerics import file_digest, numerics_id, processor_name

FACTS = {"executor": "torch", "dtype": "float32"}


def write(folder: pathlib.Path, content: bytes = b"weights") -> list[pathlib.Path]:
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_bytes(b"{}")
    return [folder / "model.safetensors", folder / "config.json"]


def test_equal_files_in_another_folder_have_the_same_id(tmp_path: pathlib.Path) -> None:
    one = numerics_id(FACTS, write(tmp_path / "one"))
    other = numerics_id(dict(reversed(FACTS.items())), reversed(write(tmp_path / "other")))
    assert one == other
    assert one.startswith("torch-")
    assert len(one) == len("torch-") + 16


def test_weights_facts_and_names_change_it(tmp_path: pathlib.Path) -> None:
    files = write(tmp_path)
    ids = {numerics_id(FACTS, files), numerics_id(FACTS, files[:1])}
    ids.add(numerics_id({**FACTS, "dtype": "bfloat16"}, files))
    write(tmp_path, b"weighted")
    ids.add(numerics_id(FACTS, files))
    write(tmp_path, b"weighteD")
    ids.add(numerics_id(FACTS, files))
    assert len(ids) == 5


def test_file_digest(tmp_path: pathlib.Path) -> None:
    (path,) = [path for path in write(tmp_path) if path.name == "model.safetensors"]
    assert file_digest(path) == hashlib.sha256(b"weights").hexdigest()


def test_processor_name(tmp_path: pathlib.Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    one = (
        "processor: {}\nvendor_id\t: Maker\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: Fast\n\n"
    )
    cpuinfo.write_text(one.format(0) + one.format(1))
    assert processor_name(cpuinfo) == "Maker/25/1/Fast"
    cpuinfo.write_text("nothing: known\n")
    assert processor_name(cpuinfo) == "unknown"
    assert processor_name(tmp_path / "gone") == "unknown"
