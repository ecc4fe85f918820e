"""Spoiling is decided by the seed, changes something, and makes everything that it can."""

from random import Random

import msgspec

from triolet.fuzz.mutation import mutate, mutate_json

BODY = {"model": "toy", "input": [{"role": "user", "content": "hi"}], "stream": True, "top_p": 0.5}


def test_the_same_seed_spoils_alike() -> None:
    data = bytes(range(64))
    assert mutate(Random(3), data) == mutate(Random(3), data)
    assert mutate_json(Random(3), BODY) == mutate_json(Random(3), BODY)


def test_most_spoilings_change_something() -> None:
    data = bytes(range(64))
    spoiled = [mutate(Random(seed), data) for seed in range(200)]
    assert sum(each != data for each in spoiled) > 180
    assert {len(each) < 64 for each in spoiled} == {len(each) > 64 for each in spoiled}
    assert {len(each) for each in (mutate(Random(seed), b"") for seed in range(50))} > {0}


def test_spoiled_json_is_still_json_and_mostly_still_an_object() -> None:
    spoiled = [mutate_json(Random(seed), BODY, names=("user",)) for seed in range(300)]
    for value in spoiled:
        msgspec.json.encode(value)
    assert 200 < sum(isinstance(value, dict) for value in spoiled) < 300
    assert any(isinstance(value, dict) and "user" in value for value in spoiled)
    assert any(isinstance(value, dict) and "input" not in value for value in spoiled)
