"""Two endpoints in turn, one request at a time: what is timed, and what is said of it."""

import asyncio
import json
from typing import Any

import pytest

from gistgate.certify.address import Address
from gistgate.certify.comparison import BothEndpoints
from gistgate.certify.endpoint import Endpoint
from gistgate.certify.play import request_of
from gistgate.certify.timing import STEPS, Timing, summary, timed
from gistgate.tasks.prompt_file import PromptFile
from gistgate.tasks.task import TaskSpec
from tests.certify.scripted import Script, serving

CHAT = [{"role": "user", "content": text} for text in ("9 + 1?", "10 + 1?")]


def time(baseline: Script, candidate: Script, count: int = 4) -> dict[str, Any]:
    """The speeds of two scripted servers on so many prompts."""

    async def measured(*urls: str) -> dict[str, Any]:
        sides = [Endpoint(Address.parse(url), "adder") for url in urls]
        file = PromptFile([("line", f"{n} + 1?") for n in range(count)], TaskSpec("own"))
        requests = [request_of(file, doc) for doc in file.docs]
        both = BothEndpoints(sides[0], sides[1], 0.0, 1, 0, 1)
        chat = PromptFile([("line", {"messages": CHAT})], TaskSpec("own"))
        return await timed(both, requests, request_of(chat, chat.docs[0]))

    with serving(baseline) as first, serving(candidate) as second:
        return asyncio.run(measured(first, second))


def test_a_server_that_is_slower_between_tokens_takes_longer_and_is_told_so():
    slow = Script(pace=0.06, tokens=12, timings={"predicted_n": 12})
    fast = Script(pace=0.02, timings={"predicted_n": 9, "draft_n_accepted": 5})
    speed = time(slow, fast)
    assert speed["prompts"] == 4 and speed["confidence"] == 0.95
    for name in ("answer", "first token", "token"):
        low, high = speed[name]["interval"]
        assert speed[name]["ratio"] > 1 and low <= speed[name]["ratio"] <= high
    assert speed["first token"]["baseline"] < speed["answer"]["baseline"]
    assert speed["forwards"] == {
        "baseline": 12.0,
        "candidate": 4.0,
        "ratio": pytest.approx(3.0),
        "interval": pytest.approx([3.0, 3.0]),
    }
    assert speed["verdict"] in speed["sentence"] and "per answer" in speed["verdict"]


def test_the_first_call_of_a_tool_is_the_first_token():
    function = {"name": "add", "arguments": '{"n": 1}'}
    delta = {"role": "assistant", "tool_calls": [{"index": 0, "function": function}]}
    page = {"model": "adder", "choices": [{"index": 0, "delta": delta, "text": ""}]}
    stream = f"data: {json.dumps(page)}\n\ndata: [DONE]\n\n"
    called = Script(pages=dict.fromkeys(range(10), stream))
    assert "first token" in time(called, called)


def test_servers_take_turns_in_alternating_order_behind_an_answer_that_does_not_count():
    order: list[str] = []

    class Noted(list):  # type: ignore[type-arg]
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def append(self, body: Any) -> None:
            order.append(self.name)
            super().append(body)

    first, second = Script(asked=Noted("b")), Script(asked=Noted("c"))
    time(first, second)
    assert "".join(order) == "bc" + "bccbbccb"
    assert "messages" in first.asked[0] and first.asked[1]["stream_options"]["include_usage"]


@pytest.mark.parametrize("refusal", [{"lacks": "stream"}, {"streams": False}])
def test_a_server_without_streams_is_timed_without_the_first_token(refusal):
    speed = time(Script(**refusal), Script())
    assert "first token" not in speed and speed["answer"]["ratio"] > 0


def test_a_prompt_that_a_server_refuses_is_timed_at_neither():
    assert time(Script(), Script(statuses={2: 400}))["prompts"] == 3


def test_a_prompt_is_timed_anew_where_the_connection_broke():
    assert time(Script(), Script(drops={2: 1}))["prompts"] == 4


def test_nothing_is_said_of_less_than_two_prompts():
    timing = Timing(1.0, 0.5, 9, None)
    assert summary([(timing, timing)])["sentence"].startswith("Fewer than two")


def test_the_forwards_of_all_engines_are_read_from_metrics():
    line = 'vllm:iteration_tokens_total_count{engine="%d",model_name="m"} %s\n'
    page = "# TYPE\n" + line % (0, "12.0") + line % (1, "1e+03") + "vllm:other_count 3.0\n"
    assert [float(count) for count in STEPS.findall(page)] == [12.0, 1000.0]
