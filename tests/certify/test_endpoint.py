"""A client of servers: keys, and what counts as an answer."""

from typing import Any

import pytest

from gistgate.certify.address import Address, keys_of
from gistgate.certify.endpoint import Endpoint, continued
from gistgate.core.utils import UserError


def test_a_key_is_sent_to_its_own_server_alone(monkeypatch):
    one, other = "https://one.example/v1", "http://127.0.0.1:8000/v1"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert keys_of(one, other) == {"strict": "", "loose": ""}
    assert keys_of(one, one + "/") == {"strict": "sk-1", "loose": "sk-1"}
    assert keys_of("https://api.openai.com/v1", other) == {"strict": "sk-1", "loose": ""}
    monkeypatch.setenv("GISTGATE_LOOSE_API_KEY", "sk-2\n")
    assert keys_of(one, one)["loose"] == "sk-2"


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
    for what, saids in {
        "its reasoning": (
            {"content": "<think>b"},
            {"content": "[THINK]b[/THINK] "},
            {"content": "", "reasoning": "b"},
        ),
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
