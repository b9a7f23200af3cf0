"""Answers that settings share are the answers that each setting decodes by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from gistgate.build.choose import Choice
from gistgate.build.decoder import assemble
from gistgate.certificates.outcomes import Answer
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.prompt_cache import Prefilled
from gistgate.drafters.model import ModelDrafter
from gistgate.integrations.lm_eval.decoding import decode_prompts
from gistgate.rules import RULES, make_rule
from pipeline.certification.agreement import Agreement, SharedAnswers, Watched, forgets, key_of, rules_of
from pipeline.params import MethodParams
from tests.tiny import byte_tokenizer, tiny_pair

PROMPTS: list[dict[str, Any]] = [
    {"id": f"p{index}", "ids": [3 + index, *range(20, 26 + index)], "stops": [], "max_new_tokens": 16}
    for index in range(8)
]
SEEDS = list(range(100, 108))
METHODS = {
    "prob": MethodParams("prob", knob="r", grid=(0.03, 0.02, 0.01, 0.005)),
    "fly": MethodParams("fly", fixed={"entropy": "top3"}, variants=({"window": 0},), knob="theta",
                        grid=(1.09, 0.7, 0.3, 0.02)),
    "random": MethodParams("random", knob="rate", grid=(0.02, 0.1, 0.3, 0.5)),
}  # fmt: skip


class Table:
    """Decodes with one tiny pair and counts the prompts."""

    def __init__(self) -> None:
        self.pair, self.tokenizer = tiny_pair(), byte_tokenizer()
        self.decoded = 0

    def decoder(self, rule: str, settings: dict[str, Any], observer: Agreement | None = None) -> Decoder:
        target, draft = self.pair
        return assemble(
            target, self.tokenizer, Choice(rule, settings, 4, "model"), ModelDrafter(draft), observer=observer
        )

    def decode(self, decoder: Decoder, prompts: Sequence[dict[str, Any]], seeds: Sequence[int]) -> list[Answer]:
        self.decoded += len(prompts)
        return decode_prompts(decoder, prompts, seeds, 5, Prefilled(0))

    def shared(self, method: MethodParams) -> SharedAnswers:
        def fresh(settings: dict[str, Any], prompts: Any, seeds: list[int], watcher: Agreement) -> list[Answer]:
            return self.decode(self.decoder(method.rule, settings, watcher), prompts, seeds)

        return SharedAnswers(method.rule, rules_of(method), fresh)


@pytest.fixture(scope="module")
def table() -> Table:
    torch.manual_seed(0)
    return Table()


def plain(answers: Sequence[Answer]) -> list[Any]:
    """Ids and counts, without draft steps: near the limit of an answer these depend on the neighbours."""
    return [(answer.ids, {**answer.statistics.as_dict(timed=False), "draft_forwards": 0}) for answer in answers]


@pytest.mark.parametrize("name", METHODS)
def test_shared_answers_are_those_of_each_setting(table: Table, name: str) -> None:
    method = METHODS[name]
    shared = table.shared(method)
    settings = [
        {**method.fixed, **variant, str(method.knob): value} for variant in method.variants for value in method.grid
    ]
    alone = {
        key_of(method.rule, one): table.decode(table.decoder(method.rule, one), PROMPTS, SEEDS) for one in settings
    }
    table.decoded = 0
    together = {key_of(method.rule, one): shared.decode(one, PROMPTS, SEEDS) for one in settings}
    assert {key: plain(answers) for key, answers in together.items()} == {
        key: plain(answers) for key, answers in alone.items()
    }
    assert len({str(plain(answers)) for answers in alone.values()}) > 1, "the settings should differ"
    assert len(PROMPTS) < table.decoded < len(settings) * len(PROMPTS)


@pytest.mark.parametrize("name", METHODS)
def test_strict_decoding_knows_which_settings_agree_with_it(table: Table, name: str) -> None:
    method, rules = METHODS[name], rules_of(METHODS[name])
    watcher = Agreement(rules)
    asked: frozenset[str] = frozenset().union(*(rule.needs for rule in rules.values()))
    strict = table.decode(table.decoder("exact", {}).having(rule=Watched(asked), observer=watcher), PROMPTS, SEEDS)
    assert plain(strict) == plain(table.decode(table.decoder("exact", {}), PROMPTS, SEEDS))
    seen = 0
    for variant in method.variants:
        for value in method.grid:
            settings = {**method.fixed, **variant, str(method.knob): value}
            own = table.decode(table.decoder(method.rule, settings), PROMPTS, SEEDS)
            for seed, one, other in zip(SEEDS, strict, own, strict=True):
                if key_of(method.rule, settings) in watcher.alike(seed):
                    seen += 1
                    assert plain([one]) == plain([other])
    assert seen


def test_a_rule_with_a_memory_shares_nothing() -> None:
    assert forgets(make_rule("prob")) and not forgets(make_rule("regret-budget"))
    knob = RULES["regret-budget"].knob
    assert knob and rules_of(MethodParams("regret-budget", knob=knob, grid=RULES["regret-budget"].grid)) == {}


def test_a_drafter_that_reads_more_than_the_text_shares_nothing() -> None:
    assert rules_of(MethodParams("prob", "recycle", knob="r", grid=(0.1,))) == {}


def test_a_row_that_was_never_judged_agrees_with_nothing() -> None:
    assert Agreement(rules_of(METHODS["prob"])).alike(3) == []
