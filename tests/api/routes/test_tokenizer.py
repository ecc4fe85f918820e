"""The tokenizer over HTTP, in vLLM's shapes."""

from ..fakes import VOCABULARY, make_application, open_client


async def test_tokenize_and_back() -> None:
    async with open_client(make_application()) as client:
        answer = await client.request(
            "POST", "/tokenize", {"prompt": "ab", "return_token_strs": True}
        )
        assert answer.json == {
            "count": 3,
            "max_model_len": 128,
            "tokens": [1, 97, 98],
            "token_strs": ["\x01", "a", "b"],
        }
        chat = {"messages": [{"role": "user", "content": "c"}]}
        answer = await client.request("POST", "/tokenize", chat)
        assert (answer.json["tokens"], answer.json["token_strs"]) == ([99], None)
        answer = await client.request("POST", "/detokenize", {"tokens": [97, 98]})
        assert answer.json == {"prompt": "ab"}
        answer = await client.request("GET", "/tokenizer_info")
        assert answer.json["eos_token"] == "</s>"


async def test_an_id_that_the_model_lacks_names_its_field() -> None:
    async with open_client(make_application()) as client:
        answer = await client.request("POST", "/detokenize", {"tokens": [VOCABULARY + 1]})
    assert (answer.status, answer.error["param"]) == (400, "tokens")
