"""Scripts are requests with one right answer."""

from triolet.engine.worker.null.executor import null_token
from triolet.fuzz.chaos.load import BYSTANDERS, PROBES, SCRIPTS, check_null_tokens

VOCABULARY = 100


def test_a_script_asks_for_exactly_its_tokens_and_their_ids() -> None:
    body = PROBES[1].body(stream_id="a")
    assert body["max_output_tokens"] == PROBES[1].tokens
    assert body["runtime"]["ignore_eos"]
    assert body["runtime"]["token_ids"]
    assert body["stream_id"] == "a"


def test_all_are_different() -> None:
    assert len(set(SCRIPTS)) == len(SCRIPTS) == len(PROBES) + len(BYSTANDERS)


def test_tokens_of_the_null_executor_are_recomputed() -> None:
    script = PROBES[1]
    tokens = [17]
    for position in range(1, 9):
        tokens.append(null_token(script.seed, position, tokens[-1], vocab_size=VOCABULARY))
    assert check_null_tokens(script, tokens, VOCABULARY) == []
    (violation,) = check_null_tokens(script, [*tokens[:4], *tokens[5:]], VOCABULARY)
    assert violation.invariant == "I2"
    assert "token 4" in violation.evidence
