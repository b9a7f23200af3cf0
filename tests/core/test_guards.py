"""The loop guard and the domain guard: what they notice, and what they do to a decoder."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from gistgate.cli.show import guarded as guarded_in_words
from gistgate.core.block import Block, Reason, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.guards import (
    CLOSED,
    CONFIG_FILE,
    DomainGuard,
    LoopGuard,
    Verdict,
    Watched,
    fit,
    narrowed,
    step,
    strictest,
)
from gistgate.core.request import Generation, Row, Statistics
from gistgate.core.rule import Exact, Rule
from gistgate.core.scopes import Reading, Scope
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from tests.architectures import CONTEXT, noisy_copy, pair, prompts, tiny_model
from tests.core.watching import HalfGate
from tests.tiny import byte_tokenizer, tiny_pair

LENGTH = 120
VOCABULARY = 24


@pytest.mark.parametrize(
    "ids, loops",
    [
        ([1, 2, 3] * 4, True),
        ([9, 9, 5, *[1, 2, 3] * 4], True),
        ([1, 2, 3] * 3 + [1, 2], False),  # not yet four times
        ([1, 2, 3] * 4 + [4], False),  # it got out again
        (list(range(64)) * 4, True),
        (
            list(range(65)) * 3 + list(range(60)),
            False,
        ),  # too long a period, too short a text for its grams
        (list(range(60)), False),
        ([5] * 4, True),
        ([5] * 3, False),
        ([], False),
    ],
)
def test_a_period_that_stands_four_times_is_a_loop(ids: list[int], loops: bool):
    assert LoopGuard().is_loop(ids) is loops


def test_a_text_of_few_grams_is_a_loop_although_no_period_stands():
    words = torch.randint(10, (60, 4), generator=torch.Generator().manual_seed(0))
    few = (
        words[torch.randint(6, (70,), generator=torch.Generator().manual_seed(1))]
        .flatten()
        .tolist()
    )
    assert LoopGuard(repeats=20, variety=0.9).is_loop(few)
    assert not LoopGuard(repeats=20, variety=0.9).is_loop(few[:255])
    varied = torch.randint(200, (300,), generator=torch.Generator().manual_seed(2)).tolist()
    assert not LoopGuard(repeats=20).is_loop(varied)


def wandering() -> PreTrainedModel:
    """A target whose greedy text depends on the place more than on what was read, so that it does
    not loop.
    """
    target = tiny_model("gpt2", VOCABULARY, seed=3)
    with torch.no_grad():
        target.transformer.wpe.weight.mul_(8)
    return target


def circling(vocabulary: int = VOCABULARY) -> PreTrainedModel:
    """A model without attention: the next token hangs on the last one alone, so every greedy text
    ends in a cycle.
    """
    model = tiny_model("llama", vocabulary, seed=0)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    return model


def answer(*guards: LoopGuard, rule: str = "prob", **settings: float) -> Generation:
    settings = settings or {"r": 1e-30}
    decoder = Decoder(
        wandering(), ModelDrafter(circling()), make_rule(rule, **settings), 16, guards=guards
    )
    return decoder.generate([[7, 8, 9]], max_new_tokens=LENGTH)[0]


def test_without_the_guard_the_answer_loops():
    with pytest.raises(UserError, match="impossible"):
        LoopGuard(repeats=1)
    looping, strict = answer(), answer(r=1.0)
    guard = LoopGuard()
    assert (
        any(guard.is_loop(looping.ids[:end]) for end in range(LENGTH))
        and looping.statistics.loose > LENGTH / 2
    )
    assert (
        not any(guard.is_loop(strict.ids[:end]) for end in range(LENGTH))
        and not strict.statistics.loose
    )


def test_the_guard_closes_for_the_rest_or_opens_again_behind_its_window():
    guarded = answer(LoopGuard(window=None))
    first = next(end for end in range(LENGTH) if LoopGuard().is_loop(guarded.ids[:end]))
    behind = guarded.reasons[first + 17 :]  # the block in which it was noticed is committed
    assert set(behind) == {Reason.LOOP, Reason.OWN} and len(behind) > LENGTH / 2
    extra = guarded.statistics.extra
    assert Reason.LOOP not in guarded.reasons[: first + 1]
    counted = guarded.statistics
    assert counted.strict == guarded.reasons.count(Reason.LOOP) + guarded.reasons.count(
        Reason.STRICT
    )
    assert extra["loop_alarms"] == 1 and extra["loop_rounds"] > 5 and extra["loop_open"] == 0
    said = guarded_in_words(guarded.statistics, ["loop"])
    opened = answer(LoopGuard(window=20)).statistics
    assert (
        opened.extra["loop_alarms"] >= 1
        and guarded.statistics.loose < opened.loose < answer().statistics.loose
    )
    assert said == f"guards: loop 1 alarms, {extra['loop_rounds']:.0f} rounds stricter"


class Shut(LoopGuard):
    """Closes every row from its first token on."""

    def verdicts(self, rule: Rule, block: Block, rows: Sequence[Row]) -> list[Verdict]:
        return [CLOSED] * len(rows)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
@pytest.mark.parametrize(
    ("rule_id", "settings", "superset"),
    [
        ("typical", {"superset": False, "greedy": "raw", "scale": 0.1}, False),
        ("ensemble", {"w": 0.2, "superset": False, "replacement": "argmax_nu"}, False),
        ("fsd", {"threshold": 0.05, "reduced": False, "replacement": "p"}, False),
        ("sgl-threshold", {"single": 0.02}, False),
        ("mars", {"theta": 0.7}, True),
        ("random", {"rate": 0.9}, True),
    ],
)
def test_a_closed_row_is_strict_whether_or_not_its_rule_replaces_the_strict_test(
    rule_id: str, settings: dict[str, Any], superset: bool, sampling: Sampling
):
    """Closed from the first token on, every rule gives the strict text and draws the strict
    tokens.
    """
    (target, draft), rule = pair("llama", noise=0.1), make_rule(rule_id, **settings)
    closed, free, exact = (
        Decoder(target, ModelDrafter(draft), one, 4, guards=guards).generate(
            prompts(4, 7), max_new_tokens=40, sampling=sampling
        )
        for one, guards in ((rule, [Shut()]), (rule, []), (make_rule("exact"), []))
    )
    assert rule.superset is superset and any(row.statistics.loose for row in free)
    strict = [(row.ids, row.reasons) for row in exact]
    assert [(row.ids, row.reasons) for row in closed] == strict
    assert [row.ids for row in free] != [ids for ids, _ in strict]


def test_a_loop_of_the_target_is_logged_as_its_own():
    target = circling(259)
    decoder = Decoder(
        target,
        ModelDrafter(noisy_copy(target, 0.0)),
        make_rule("prob", r=0.5),
        4,
        guards=[LoopGuard()],
    )
    extra = decoder.generate(prompts(4), max_new_tokens=CONTEXT - 10)[0].statistics.extra
    assert extra["loop_target"] >= 1 and extra["loop_open"] == 1 and "loop_alarms" not in extra
    assert guarded_in_words(Statistics(extra=extra), ["loop"]).endswith(
        "; the answer ends in a loop"
    )


WIDTH = 32
"""Width of the tiny models."""
BATCH = prompts(5, 9, 2)


def guard(**settings: object) -> DomainGuard:
    states = torch.randn(200, WIDTH, generator=torch.Generator().manual_seed(0))
    return replace(DomainGuard(*fit(states, 8), about={"rule": "prob"}), **settings)


def test_with_all_directions_it_is_the_mahalanobis_distance():
    chance = torch.Generator().manual_seed(1)
    states = torch.randn(500, 4, generator=chance) @ torch.randn(4, 4, generator=chance)
    known, point = DomainGuard(*fit(states, 3)), torch.randn(4, generator=chance)
    x = (point - states.mean(0)).double()
    exact = x @ torch.linalg.inv(torch.cov(states.T.double())) @ x / 4
    assert known.distance(point).item() == pytest.approx(exact.item(), rel=1e-3)


def test_the_bet_gains_by_many_loose_tokens_and_loses_by_few():
    assert step(4, 8, 0.1) > 0 > step(0, 8, 0.1)
    usual = 0.1 * step(1, 1, 0.1) + 0.9 * step(0, 1, 0.1)
    assert usual < 0, "at the calibration's own rate the bet loses"
    assert math.isfinite(step(1, 1, 0.0)) and math.isfinite(step(1, 2, 0.9))
    known = Watched()
    for gain in (-5.0, 2.0, -1.0, 0.5):
        known.bet(gain)
    assert known.highest == 2.0 and known.gain == 1.5


def test_the_strictest_verdict_wins_and_never_loosens():
    rule = make_rule("prob", r=0.1)  # a larger r is stricter
    assert strictest(rule, [None, 0.3, 0.2]) == 0.3 and strictest(rule, [0.3, "closed"]) == "closed"
    assert strictest(rule, [None, None]) is None
    assert narrowed(rule, 0.3) == make_rule("prob", r=0.3)
    assert isinstance(narrowed(rule, 0.05), Exact) and isinstance(narrowed(rule, "closed"), Exact)
    judge = make_rule("autojudge", risk=0.4)  # a larger risk is looser
    assert strictest(judge, [0.3, 0.2]) == 0.2 and narrowed(judge, 0.2) == make_rule(
        "autojudge", risk=0.2
    )


def decode(rule_id: str, *guards: DomainGuard, **settings: float):  # type: ignore[no-untyped-def]
    target, draft = pair("llama")
    decoder = Decoder(
        target,
        ModelDrafter(draft),
        make_rule(rule_id, **settings),
        4,
        gate=HalfGate(),
        guards=guards,
    )
    return decoder.generate(BATCH, max_new_tokens=24)


def ids(rows):  # type: ignore[no-untyped-def]
    return [row.ids for row in rows]


def test_a_guard_that_never_alarms_changes_nothing():
    watched, free = decode("prob", guard(), r=0.001), decode("prob", r=0.001)
    assert ids(watched) == ids(free) and any(row.statistics.loose for row in free)
    assert all(set(row.statistics.extra) == {"domain_distance", "domain_bet"} for row in watched)


def test_a_strange_text_is_strict_from_its_first_block():
    watched = decode("prob", guard(far=0.0), r=0.001)
    assert ids(watched) == ids(decode("exact"))
    assert all(row.statistics.extra["domain_far"] == 1 for row in watched)
    assert all(row.statistics.extra["domain_rounds"] == row.statistics.forwards for row in watched)


def test_one_alarm_moves_to_the_stricter_setting_and_two_close():
    one, two = guard(far=0.0, stricter=0.01), guard(far=0.0, bet=-1.0, stricter=0.01)
    assert ids(decode("prob", one, r=0.001)) == ids(decode("prob", r=0.01)) != ids(decode("exact"))
    assert ids(decode("prob", two, r=0.001)) == ids(decode("exact"))


@pytest.mark.parametrize(
    "about", [{"rule": "autojudge", "method": "prob"}, {"method": "autojudge"}, {}]
)
def test_the_setting_of_another_rule_closes(about: dict):
    """The risk of a judge is no probability ratio, although both are numbers below one."""
    watched = decode("prob", guard(far=0.0, stricter=0.01, about=about), r=0.001)
    assert ids(watched) == ids(decode("exact")) != ids(decode("prob", r=0.01))


def test_too_many_loose_tokens_close_the_rest():
    watched = decode("prob", guard(rate=0.001, bet=0.5), r=0.001)
    caught = [row for row in watched if row.statistics.extra.get("domain_loose")]
    assert caught
    for row in caught:
        first = row.reasons.index(Reason.LOOSE)
        assert (
            Reason.LOOSE not in row.reasons[first + 5 :]
        )  # the block of four and the target's token behind it


def test_rows_are_watched_one_by_one():
    target, draft = pair("llama")
    watch = guard(far=1.2, rate=0.05, bet=1.0)
    decoder = Decoder(target, ModelDrafter(draft), make_rule("prob", r=0.001), 4, guards=[watch])
    together = decoder.generate(BATCH, max_new_tokens=24)
    alone = [decoder.generate([prompt], max_new_tokens=24)[0] for prompt in BATCH]
    assert ids(together) == ids(alone)
    assert [row.statistics.loose for row in together] == [row.statistics.loose for row in alone]


@pytest.mark.parametrize("stricter", [None, 0.2])
def test_saved_and_loaded_it_is_the_same(tmp_path: Path, stricter: float | None):
    known = guard(far=1.5, stricter=stricter, about={"prompts": 200})
    known.save(tmp_path)
    again = DomainGuard.load(tmp_path)
    assert torch.equal(again.basis, known.basis) and torch.equal(again.variances, known.variances)
    assert (again.far, again.bet, again.stricter, again.about) == (
        1.5,
        math.inf,
        stricter,
        {"prompts": 200},
    )


def test_a_folder_without_one_or_with_a_damaged_one_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="does not know which prompts"):
        DomainGuard.load(tmp_path)
    guard().save(tmp_path)
    (tmp_path / CONFIG_FILE).write_text("{}")
    with pytest.raises(UserError, match="damaged"):
        DomainGuard.load(tmp_path)


QWEN25 = r"""
{%- if tools %}{{- '<|im_start|>system\n' + messages[0]['content'] + "\n\n# Tools\n\nYou are provided with function " }}
    {{- "signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}{{- "\n" + tool | tojson }}{%- endfor %}
    {{- "\n</tools>\n\nReturn a json object within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": " }}
    {{- "<function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}{%- endif %}
{%- for message in messages %}{%- if not tools or not loop.first %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
QWEN3 = QWEN25 + r"{%- if enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
LLAMA3 = r"""{{- bos_token }}{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim }}
    {%- if tools and loop.last %}{{- '\n\nRespond in the format {"name": function name, "parameters": {}}.\n\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) + "\n\n" }}{%- endfor %}{%- endif %}{{- '<|eot_id|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""
R1 = r"""{{- bos_token }}{%- for message in messages %}
    {%- if message['role'] == 'user' %}{{- '<｜User｜>' + message['content'] }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜><think>\n' }}{% endif %}"""
MARKERS = {
    "<|python_tag|>",
    *re.findall(r"<\|\w+\|>|<｜\w+｜>|</?(?:think|tool_call)>", QWEN3 + LLAMA3 + R1),
}
"""Chat templates as their models publish them, but shorter, and their markers."""
CODE, JSON = (
    "```py\nd = {1: '«'}\n```",
    '{"name": "look", "parameters": {"at": "a } b", "is": {"x": 1}}}',
)


@pytest.mark.parametrize("scope, template, answer", [
    ("prose", QWEN25, "Su~re, here it comes:\n~" + CODE + "~\nAnd that is all.~"),
    ("prose", QWEN25, "I l~ook it up.\n~<tool_call>\n" + JSON + "\n</tool_call>~\nand then wait~"),
    ("prose", QWEN25, "Ev~er ~[" + "on" * 300 + "] it is"),
    ("prose", QWEN25, "So~ it is so.\n~#### 42\n~Good bye~"),
    ("prose", LLAMA3, JSON), ("prose", LLAMA3, '<|python_tag|>look.call(at="it") and so on'),
    ("prose", R1, "~We look at it.\n~</think>\n\nIt~ is 4.~"),
    ("thinking", R1, "~We see: f(2) is 4.\n~</think>\n\nIt is 4."),
    ("thinking", QWEN3, "No thought at all."), ("thinking", QWEN3, "<think>~a {thought}: 1 + 1~</think>\nIt is 2."),
    ("thinking", QWEN3 + "{{- '<think>' }}", "~a thought~"),
    ("prose", QWEN25 + "{{- '```py\n' }}", "d = 1\n```~\nDone.~"),
])  # fmt: skip
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
    made = Scope(scope, tokenizer)
    parts = [tokenizer.encode(part, add_special_tokens=False) for part in answer.split("~")]
    ids = [token for part in parts for token in part]
    reading = Reading(made.start(tokenizer.encode(text, add_special_tokens=False)))
    found = [
        made.along(reading, ids[:at], ids[at : at + 4], ids[at : at + 4])
        for at in range(0, len(ids), 4)
    ]
    expected = [place % 2 == 1 for place, part in enumerate(parts) for _ in part]
    assert [one for block in found for one in block] == expected
    assert made.along(Reading(made.start([])), [-1], ids[:1], ids[:1]) == [False]


def test_a_decoder_is_loose_inside_the_scope_alone():
    target, draft = tiny_pair()
    tokenizer, rule = byte_tokenizer(), make_rule("prob", r=1e-9)
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
