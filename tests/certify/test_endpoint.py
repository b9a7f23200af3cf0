"""A client of servers: keys, and what counts as an answer."""

import asyncio
from typing import Any

import pytest

from gistgate.certify import endpoint
from gistgate.certify.address import Address, headers_of, keys_of
from gistgate.certify.answers import Served
from gistgate.certify.endpoint import Endpoint, continued, with_model
from gistgate.core.utils import UserError
from tests.certify.scripted import Script, serving


def test_a_key_is_sent_to_its_own_server_alone(monkeypatch):
    one, other = "https://one.example/v1", "http://127.0.0.1:8000/v1"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert keys_of(one, other) == {"baseline": "", "candidate": ""}
    assert keys_of(one, one + "/") == {"baseline": "sk-1", "candidate": "sk-1"}
    assert keys_of("https://api.openai.com/v1", other) == {"baseline": "sk-1", "candidate": ""}
    for name, key in (("GISTGATE_LOOSE_API_KEY", "sk-2"), ("GISTGATE_CANDIDATE_API_KEY", "sk-3")):
        monkeypatch.setenv(name, key + "\n")
        assert keys_of(one, one) == {"baseline": "sk-1", "candidate": key}


def ask(script: Script, **changes: Any) -> Served:
    """The answer of a scripted server, found and asked as a command does it."""

    async def asked(url: str) -> Served:
        server = await with_model(Endpoint(Address.parse(url), "", **changes))
        return await server.answer("1 + 1?", [], 12)

    with serving(script) as url:
        return asyncio.run(asked(url))


def test_a_header_reaches_its_server_and_those_of_openai_only_with_its_key(monkeypatch):
    monkeypatch.setenv("GATE", "k 1")
    headers = headers_of(["X-Api-Key: $GATE"])
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "mine")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Team: mine")
    script = Script(statuses={2: 400})
    ask(script, headers=headers)
    assert script.headers["x-api-key"] == "k 1" and "mine" not in script.headers.values()
    ask(script, key="mine")
    names = {name for name, value in script.headers.items() if value == "mine"}
    assert names == {"openai-organization", "openai-project", "x-team"}
    server = Endpoint(Address.parse("http://a/v1"), "m", headers=headers, key="sk")
    assert server.hidden("'k 1', asking for sk") == "'(hidden)', asking for (hidden)"
    assert server.described()["headers"] == ["X-Api-Key"] and "k 1" not in repr(server)


@pytest.mark.parametrize("line", ["X-Api-Key", "X-Api-Key:", "X: $NOT_SET", "a b: c", "X: \u00fc"])
def test_a_header_that_cannot_be_sent_is_refused(line):
    with pytest.raises(UserError):
        headers_of([line])


def test_null_leaves_an_entry_out_as_the_refusal_of_it_says():
    for name in ("max_tokens", "temperature"):
        with pytest.raises(UserError, match=rf"--candidate-body '{{\"{name}\": null"):
            ask(Script(lacks=name))
        script = Script(lacks=name)
        ask(script, extra={name: None})
        assert name not in script.asked[0]


def test_a_server_that_loads_its_model_is_waited_for(monkeypatch, capsys):
    monkeypatch.setattr(endpoint, "PAUSE", 0.0)
    assert ask(Script(loading=7)).tokens == 9
    assert capsys.readouterr().err.count("Loading model. Its model may still load") == 1
    monkeypatch.setattr(endpoint, "LOADING", -1.0)
    with pytest.raises(UserError, match="status 503.*still loads"):
        ask(Script(loading=9))


def test_what_is_wrong_with_address_or_certificates_is_named(monkeypatch):
    for end in ("chat/completions", "completions/", "models"):
        with pytest.raises(UserError, match=f"ends at its version.*/{end.rstrip('/')}'"):
            Address.parse(f"http://a/v1/{end}")
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such.pem")
    with pytest.raises(UserError, match="SSL_CERT_FILE names '/no/such.pem'"):
        ask(Script())


def test_what_came_is_a_text_no_answer_or_an_error():
    server, parts = (
        Endpoint(Address.parse("http://a/v1"), "m"),
        [{"type": "text", "text": one} for one in "ab"],
    )

    def read(said: Any, **more: Any) -> str:
        page = (
            said
            if isinstance(said, str)
            else {"choices": said and [{"finish_reason": "eos", "message": said}]}
        )
        return server.whole({**page, **more} if more else page, "Two words?").text

    thinking, tagged = [{"type": "thinking", "thinking": "b"}, *parts], "<thinking>b</thinking>\na"
    for content, text in (
        (parts, "ab"),
        (thinking, "ab"),
        (tagged, "\na"),
        ("Two words?\n a", "\n a"),
    ):
        assert read({"content": content}) == text
    for said in (
        {"content": "<think>b"},
        {"content": "[THINK]b[/THINK] "},
        {"content": "", "reasoning": "b"},
    ):
        assert not read(said).strip()
    for what, saids in {
        "a refusal": ({"content": "", "refusal": "No."},),
        "the call of a tool": ({"content": None, "tool_calls": [{}]},),
        "nothing": ({"content": []}, {"content": 3}, {"content": None}),
    }.items():
        for said in saids:
            with pytest.raises(UserError, match=f"ended an answer with {what} in place"):
                read(said)
    for sent, said in (
        (None, "it sent {"),
        ("data: {}", "Switch streams off"),
        ("<html>", "it sent <html>. Mend"),
    ):
        with pytest.raises(UserError, match=said):
            read(sent)
    with pytest.raises(UserError, match="ended an answer with 'busy'"):
        read({"content": "a"}, error="busy")


def test_an_answer_goes_on_from_the_beginning_that_its_task_gives():
    """A server would close that message and begin another one; what the user says comes last."""
    asked = [
        {"role": "user", "content": "Write f."},
        {"role": "assistant", "content": "```python\n"},
    ]
    assert continued(asked) == {"continue_final_message": True, "add_generation_prompt": False}
    assert continued(asked[:1]) == {}
