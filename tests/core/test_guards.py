"""The loop guard, and what several guards do to a decoder."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from gistgate.cli.show import guarded as guarded_in_words
from gistgate.core.block import Block, Reason, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.guard import CLOSED, Verdict, narrowed, strictest
from gistgate.core.guards import LoopGuard
from gistgate.core.request import Generation, Row, Statistics
from gistgate.core.rule import Exact, Rule
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from tests.architectures import CONTEXT, noisy_copy, pair, prompts, tiny_model

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
    looping = answer()
    strict = answer(r=1.0)
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
    guarded = answer(LoopGuard(window=math.inf))
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
    line = guarded_in_words(guarded.statistics, ["loop"])
    opened = answer(LoopGuard(window=20)).statistics
    assert (
        opened.extra["loop_alarms"] >= 1
        and guarded.statistics.loose < opened.loose < answer().statistics.loose
    )
    assert line == f"guards: loop 1 alarms, {extra['loop_rounds']:.0f} rounds stricter"


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
    target, draft = pair("llama", noise=0.1)
    rule = make_rule(rule_id, **settings)
    closed, free, exact = (
        Decoder(target, ModelDrafter(draft), judge, 4, guards=guards).generate(
            prompts(4, 7), max_new_tokens=40, sampling=sampling
        )
        for judge, guards in ((rule, [Shut()]), (rule, []), (make_rule("exact"), []))
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
