"""Where an answer may be loose: prose and thoughts, found in the text."""

import re
from typing import Any

import pytest

from gistgate.core.block import Reason
from gistgate.core.decoder import Decoder
from gistgate.core.rule import Exact, Rule
from gistgate.core.scopes import Reading, Scope
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from tests.tiny import byte_tokenizer, tiny_pair

QWEN25 = r"""
{%- if tools %}{{- '<|im_start|>system\n' + messages[0]['content'] + "\n\n# Tools\n\n" }}
    {{- "You are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}{{- "\n" + tool | tojson }}{%- endfor %}
    {{- "\n</tools>\n\nReturn a json object within <tool_call></tool_call> XML tags:\n" }}
    {{- "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n" }}
    {{- "</tool_call><|im_end|>\n" }}{%- endif %}
{%- for message in messages %}{%- if not tools or not loop.first %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
QWEN3 = QWEN25 + r"{%- if enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
LLAMA3 = r"""{{- bos_token }}{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
    {{- message['content'] | trim }}
    {%- if tools and loop.last %}
    {{- '\n\nRespond in the format {"name": function name, "parameters": {}}.\n\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) + "\n\n" }}{%- endfor %}{%- endif %}
    {{- '<|eot_id|>' }}{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""
R1 = r"""{{- bos_token }}{%- for message in messages %}
    {%- if message['role'] == 'user' %}{{- '<｜User｜>' + message['content'] }}{%- endif %}
    {%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜><think>\n' }}{% endif %}"""
MARKERS = {
    "<|python_tag|>",
    *re.findall(r"<\|\w+\|>|<｜\w+｜>|</?(?:think|tool_call)>", QWEN3 + LLAMA3 + R1),
}
"""Chat templates as their models publish them, but shorter, and their markers."""
CODE = "```py\nd = {1: '«'}\n```"
JSON = '{"name": "look", "parameters": {"at": "a } b", "is": {"x": 1}}}'


@pytest.mark.parametrize(
    "scope, template, answer",
    [
        ("prose", QWEN25, "Su~re, here it comes:\n~" + CODE + "~\nAnd that is all.~"),
        (
            "prose",
            QWEN25,
            "I l~ook it up.\n~<tool_call>\n" + JSON + "\n</tool_call>~\nand then wait~",
        ),
        ("prose", QWEN25, "Ev~er ~[" + "on" * 300 + "] it is"),
        ("prose", QWEN25, "So~ it is so.\n~#### 42\n~Good bye~"),
        ("prose", LLAMA3, JSON),
        ("prose", LLAMA3, '<|python_tag|>look.call(at="it") and so on'),
        ("prose", R1, "~We look at it.\n~</think>\n\nIt~ is 4.~"),
        ("thinking", R1, "~We see: f(2) is 4.\n~</think>\n\nIt is 4."),
        ("thinking", QWEN3, "No thought at all."),
        ("thinking", QWEN3, "<think>~a {thought}: 1 + 1~</think>\nIt is 2."),
        ("thinking", QWEN3 + "{{- '<think>' }}", "~a thought~"),
        ("prose", QWEN25 + "{{- '```py\n' }}", "d = 1\n```~\nDone.~"),
    ],
)
def test_a_scope_is_found_in_the_answers_of_chat_templates(scope: str, template: str, answer: str):
    """Between the tildes an answer may be loose. The user's own text may hold any marker."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(sorted(MARKERS), special_tokens=True)
    turns = [{"role": role, "content": "Look { [ ```"} for role in ("system", "user")]
    tools = [{"name": "look"}] if scope == "prose" else None
    text = tokenizer.apply_chat_template(
        turns,
        tools=tools,
        chat_template=template,
        add_generation_prompt=True,
        tokenize=False,
        enable_thinking=False,
    )
    reader = Scope(scope, tokenizer)
    parts = [tokenizer.encode(part, add_special_tokens=False) for part in answer.split("~")]
    ids = [token for part in parts for token in part]
    reading = Reading(reader.start(tokenizer.encode(text, add_special_tokens=False)))
    blocks = [
        reader.along(reading, ids[:at], ids[at : at + 4], ids[at : at + 4])
        for at in range(0, len(ids), 4)
    ]
    expected = [place % 2 == 1 for place, part in enumerate(parts) for _ in part]
    assert [inside for block in blocks for inside in block] == expected
    assert reader.along(Reading(reader.start([])), [-1], ids[:1], ids[:1]) == [False]


def test_a_decoder_is_loose_inside_the_scope_alone():
    target, draft = tiny_pair()
    tokenizer = byte_tokenizer()
    rule = make_rule("prob", r=1e-9)
    request: dict[str, Any] = {"prompts": [[1, 40 + n, 50] for n in range(8)], "max_new_tokens": 60}

    def ids(*scopes: str, rule: Rule = rule) -> list[list[int]]:
        guards = [Scope(name, tokenizer) for name in scopes]
        answers = Decoder(
            target, ModelDrafter(draft), rule, 5, tokenizer=tokenizer, guards=guards
        ).generate(**request)
        for prompt, (x, reasons) in zip(
            request["prompts"], [(a.ids, a.reasons) for a in answers], strict=True
        ):
            loose = [at for at, why in enumerate(reasons) if guards and why == Reason.LOOSE]
            assert all(
                guards[0].along(Reading(guards[0].start(prompt)), x[:at], [x[at]], [50])[0]
                for at in loose
            )
        return [answer.ids for answer in answers]

    assert ids("thinking") == ids("prose", "thinking") == ids(rule=Exact()) != ids("prose") != ids()
    with pytest.raises(UserError, match="Pass tokenizer"):
        Scope("prose", None)
