"""Thoughts are told apart from answers, in the marks of all families, and in no answer."""

from typing import Any

import pytest

from gistgate.certify.thoughts import reply_in, split

HARMONY = "<|channel|>analysis<|message|>Is it 4?<|end|><|start|>assistant"


@pytest.mark.parametrize(
    "text",
    [
        "<think>Is it 4?</think>It is 5.",
        "\n<think>\nIs it 4?\n</think>\n\nIt is 5.",
        "Is it 4?\n</think>\n\nIt is 5.",
        "Okay. Is it 4? </think> It is 5.",
        "◁think▷Is it 4?◁/think▷It is 5.",
        "Is it 4?◁/think▷It is 5.",
        "<think>Is it 4?</think>\n<response>It is 5.</response>",
        "<think>\nIs it 4?\n</think>\n<answer>\nIt is 5.\n</answer>",
        "Here is my thought process:\nIs it 4?\n\nHere is my response:\nIt is 5.",
        "Here's my thought process: Is it 4? Here's my response: It is 5.",
        "<|START_THINKING|>Is it 4?<|END_THINKING|><|START_RESPONSE|>It is 5.<|END_RESPONSE|>",
        "[THINK]Is it 4?[/THINK]It is 5.",
        "<seed:think>Is it 4?</seed:think>It is 5.",
        "<longcat_think>Is it 4?</longcat_think>\nIt is 5.",
        "<thought>\nIs it 4?\n</thought>\n\nIt is 5.",
        "<|begin_of_thought|>Is it 4?<|end_of_thought|><|begin_of_solution|>It is 5."
        "<|end_of_solution|>",
        "<reasoning>Is it 4?</reasoning><answer>It is 5.</answer>",
        "<|inner_prefix|>Is it 4?<|inner_suffix|>It is 5.",
        "<|ponder|>Is it 4?<|/ponder|>It is 5.",
        "<reflection>Is it 4?</reflection>\nIt is 5.",
        "<|channel>thought\nIs it 4?\n<channel|>It is 5.",
        "<unused94>thought\nIs it 4?<unused95>It is 5.",
        "[unused16]Is it 4?[unused17]It is 5.",
        f"{HARMONY}<|channel|>final<|message|>It is 5.<|return|>",
        f"<|start|>assistant{HARMONY}<|channel|>commentary<|message|>I add.<|end|><|start|>"
        "assistant<|channel|>final <|constrain|>json<|message|>It is 5.",
        "analysisIs it 4?assistantfinalIt is 5.",
        "analysis Is it 4?assistantfinalIt is 5.",
        "Is it 4?assistantfinalIt is 5.",
        "<|think|>Is it 4?<|end|><|begin|>assistant<|content|>It is 5.",
        "<|im_start|>think\nIs it 4?<|im_start|>answer\nIt is 5.",
        "<|im_start|>assistant\n<think>Is it 4?</think>It is 5.<|im_end|>",
        "<think>Is it 4, with <think> in it?</think>It is 5.",
        "<think>Is it 4? I close with `</think>` soon.</think>It is 5.",
        "<think>One.</think>\n<think>Is it 4?</think>It is 5.",
        "<think>Is it 4?\n<answer>It is 5.</answer>",
        "<think>Is it 4?</think><|begin_of_box|>It is 5.<|end_of_box|>",
    ],
)
def test_a_thought_is_no_part_of_the_answer(text):
    reply = split(text)
    assert reply.answer.strip() == "It is 5."
    assert "Is it 4" in reply.thought and not reply.is_open


@pytest.mark.parametrize(
    "text",
    [
        "The model writes <think> and </think> around its thoughts.",
        "<think> and </think> are the marks of a thought.",
        "Close it with </think> when you are done.",
        "It ends with `</think>`.",
        "Use this:\n```\n<think>\nfirst\n</think>\n```\nIt is 5.",
        "```xml\n</think>\n```\nis the end.",
        "The tag is </think>.",
        '"</think>" ends it.',
        "<p>It is <b>5</b>.</p>",
        "<html><body><h1>5</h1></body></html>",
        "<result><thinking>4</thinking><value>5</value></result>",
        "<reasoning>It is big.</reasoning><label>5</label>",
        "<analysis><step>4</step></analysis>",
        "<answer>5</answer>",
        "<response>5</response>",
        "<|im_end|>5",
        "<|tool_call|>5<|/tool_call|>5",
        "analysis of the numbers: 5",
        "Analysis: 5",
        "Here is my thought process: 2 + 3 gives 5.",
        "[1] Smith, [2] Jones: 5",
        "[Think Tank] 5",
        "[Plan] 5",
        "<plan>\n5",
        "<think-tank>5</think-tank> is one",
        "a < b and c > d, so 5",
        "",
    ],
)
def test_an_answer_that_speaks_of_marks_or_holds_markup_stays_whole(text):
    reply = split(text)
    assert reply.answer == text
    assert not reply.thought


@pytest.mark.parametrize(
    "text",
    [
        "<think>Is it 5?",
        "<think>Is it 5?</think>",
        "Is it 5?\n</think>\n",
        "<think>I close with `</think>` at 5",
        "[THINK]Is it 5?",
        "◁think▷Is it 5?",
        "<reasoning>Is it 5?",
        "<|START_THINKING|>Is it 5?",
        "analysisIs it 5?",
        "<|channel|>analysis<|message|>Is it 5?",
        "Here is my thought process:\nIs it 5?",
    ],
)
def test_a_thought_without_an_end_is_no_answer(text):
    reply = split(text, is_capped=True)
    assert reply.is_open
    assert not reply.answer.strip()


THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "Is it 4?"}]}


@pytest.mark.parametrize(
    "message",
    [
        {"content": "5", "reasoning_content": "Is it 4?"},
        {"content": "5", "reasoning": "Is it 4?", "reasoning_content": "Is it 4?"},
        {"content": "5", "reasoning_details": [{"type": "reasoning.text", "text": "Is it 4?"}]},
        {"content": [THINKING, {"type": "text", "text": "5"}]},
        {"content": [{"type": "reasoning", "text": "Is it 4?"}, {"type": "text", "text": "5"}]},
        {"content": [{"thought": True, "text": "Is it 4?"}, {"text": "5"}]},
        {"text": "<think>Is it 4?</think>5"},
    ],
)
def test_fields_and_parts_hold_thoughts(message: dict[str, Any]):
    reply = reply_in(message)
    assert (reply.answer, reply.thought, reply.is_open) == ("5", "Is it 4?", False)
    assert reply_in({**message, "content": None, "text": None}).answer == ""
