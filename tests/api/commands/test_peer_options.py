"""Command lines of vLLM and llama.cpp: what is taken, what is left out, what is refused."""

import re

import pytest
from cyclopts import CycloptsError

from triolet.api.commands.peer_options import OPTIONS, our_words
from triolet.command_line import app, run_words

VLLM = (
    "FOLDER --served-model-name m --tensor-parallel-size 1 --gpu-memory-utilization .9 --dtype"
    " bfloat16 --max-model-len 512 --enforce-eager --enable-auto-tool-choice --tool-call-parser"
    " hermes --data-parallel-size 2 --api-server-count=3 --enable-prefix-caching"
    " --disable-log-requests --trust-remote-code"
)
LLAMA_CPP = (
    "-m FOLDER -c 4096 -np 8 -t 2 -ngl 99 -fa on --jinja -b 2048 -ub 512 --host 127.0.0.1 --port"
    " 8123 -a m --metrics --mlock"
)


def test_a_command_line_of_vllm_is_taken() -> None:
    ours, notes = our_words(VLLM.split())
    said = "FOLDER --served-model-name m --max-model-len 512 --engines 2 --frontends 3"
    assert " ".join(ours) == f"{said} --no-access-log"
    assert "--data-parallel-size is --engines here" in notes
    assert len(notes) == 11
    app.parse_args(["serve", *ours], exit_on_error=False, print_error=False)


def test_a_command_line_of_llama_cpp_is_taken() -> None:
    ours, notes = our_words(LLAMA_CPP.split())
    said = "--model FOLDER --max-model-len 4096 --max-num-seqs 8 --threads 2 --host 127.0.0.1"
    assert " ".join(ours) == f"{said} --port 8123 --served-model-name m"
    assert len(notes) == 12
    app.parse_args(["serve", *ours], exit_on_error=False, print_error=False)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--tensor-parallel-size 2", "--tensor-parallel-size 2 is not available: each engine"),
        ("-tp=2", "-tp 2 is not available"),
        ("--dtype float16", "--dtype float16 is not needed: weights are computed in the type"),
        ("--quantization awq", "--quantization is not available: quantised weights"),
        ("--ssl-keyfile key.pem", "--ssl-keyfile is for a proxy in front"),
        ("--lora-modules a=b", "--lora-modules is not available: adapters"),
        ("-md draft.gguf", "-md is not available: there is no speculative decoding"),
        ("--temp 0.7", "--temp is of each request here; defaults are in generation_config.json"),
        ("-n 256", "-n 256 is of each request here: its `max_tokens`"),
        ("--download-dir /models", "--download-dir is HF_HUB_CACHE in the environment"),
    ],
)
def test_what_has_no_place_here_is_refused_with_what_to_do(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_words(["serve", *words.split()])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"triolet: {sentence}")


def test_how_it_is_read_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_words(["config", "show", "--data-parallel-size", "2"])
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert err == "triolet: warning: --data-parallel-size is --engines here\n"
    assert re.search(r"--engines +2 +command line", out)


def test_a_value_that_is_missing_is_missed_by_the_parser() -> None:
    ours, _ = our_words(["--ctx-size"])
    with pytest.raises(CycloptsError, match="max-model-len"):
        app.parse_args(["serve", *ours], exit_on_error=False, print_error=False)


def test_an_option_without_its_value_leaves_the_next_one() -> None:
    ours, notes = our_words(["-fa", "--jinja", "-ngl", "-1", "-c", "--mlock", "--port", "1"])
    assert ours == ["--max-model-len", "", "--port", "1"]
    assert len(notes) == 5


def test_a_parser_of_vllm_is_left_out_and_a_misspelt_one_of_ours_is_not() -> None:
    words = [
        "--reasoning-parser",
        "qwen3",
        "--reasoning-parser=glm45",
        "--reasoning-parser",
        "tink",
    ]
    ours, notes = our_words(words)
    assert ours == ["--reasoning-parser", "tink"]
    assert notes == ["--reasoning-parser is not needed: the chat template shows the format"] * 2


def test_no_option_of_ours_is_hidden_by_one_of_a_peer() -> None:
    ours = {name for each in app["serve"].assemble_argument_collection() for name in each.names}
    assert ours & set(OPTIONS) == set()
    for option in OPTIONS.values():
        assert {word for word in option.words if word.startswith("--")} <= ours
