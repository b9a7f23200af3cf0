"""Settings that decide every block of an answer alike share the answer: it is decoded once.

While one setting is decoded, every other setting of the method judges the same blocks. Where it would have kept the
same tokens in all of them, its answer and its counts are those of the decoded one. A strict threshold and the next
looser one differ on a part of the prompts alone, so about half of calibration need not be decoded.

This is exact for rules that remember nothing between blocks, with a draft model, whose drafts depend on the text alone.

Axis letters: B rows, K drafted tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gistgate.block import Acceptance, Block
from gistgate.certificates.outcomes import Answer
from gistgate.certificates.scores import Prompt
from gistgate.files import read_json
from gistgate.request.rows import Row
from gistgate.rules import make_rule
from gistgate.rules.base import LooseRule, Rule, settle
from gistgate.rules.exact import Exact
from pipeline.common.paths import AGREEMENT
from pipeline.params import MethodParams, Params

TOGETHER = 2
"""Batches that calibration decodes between two looks at whether a setting is lost."""
DRAFTER = "model"
"""The drafter whose drafts depend on nothing but the text."""


def key_of(rule: str, settings: Mapping[str, Any]) -> str:
    """A name for one setting of a rule."""
    return json.dumps([rule, dict(settings)], sort_keys=True)


def rules_of(method: MethodParams) -> dict[str, Rule]:
    """All settings of a method that may share answers, by their keys; none where its parts remember something."""
    if method.drafter != DRAFTER or method.knob is None:
        return {}
    given = [{**method.fixed, **variant, method.knob: value} for variant in method.variants for value in method.grid]
    rules = {key_of(method.rule, settings): make_rule(method.rule, **settings) for settings in given}
    return rules if all(map(forgets, rules.values())) else {}


def rules_beside_strict(params: Params) -> dict[str, Rule]:
    """All settings of the methods without a gate that may share strict answers, by their keys."""
    names = [name for name, method in params.methods.items() if not method.learned]
    alike = [params.method(name) for name in names if params.block_of(name) == params.decoding.block]
    return {key: rule for method in alike for key, rule in rules_of(method).items()}


def agreement_file(split: str) -> Path:
    """Where the stage `reference` writes the settings that agree with strict decoding."""
    return AGREEMENT / f"{split}.json"


def read_agreement(split: str) -> dict[str, set[str]]:
    """Ids of the prompts that a setting answers by the same blocks as strict decoding, by the setting's key."""
    path = agreement_file(split)
    found: dict[str, list[str]] = read_json(path) if path.is_file() else {}
    return {key: set(ids) for key, ids in found.items()}


def forgets(rule: Rule) -> bool:
    """Whether a rule judges every block for itself, and knows nothing of tokenizer and request."""
    kind = type(rule)
    own = {name for name in ("advance", "context") if getattr(kind, name) is not getattr(LooseRule, name, None)}
    return not own and rule.verifier == "once" and not rule.counters


class Agreement:
    """An observer of a decoder: which of `rules` would have kept the same tokens of every block of a row.

    Rows are told apart by their seeds, so all prompts of a call need different ones.
    """

    layers: Collection[str] = frozenset()
    wants_q = False

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self.rules = dict(rules)
        self.differing: dict[int, set[str]] = {}

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        seen = [self.differing.setdefault(row.seed, set()) for row in rows]
        for key, rule in self.rules.items():
            if all(key in differing for differing in seen):
                continue
            other = settle(rule, block, {})
            differs_B = (other.length != acceptance.length) | (other.own_ids != acceptance.own_ids)
            for differing, differs in zip(seen, differs_B.tolist(), strict=True):
                if differs:
                    differing.add(key)

    def alike(self, seed: int) -> list[str]:
        """The keys of the rules that agreed on a row to its end; none for a row without a block."""
        return sorted(self.rules.keys() - self.differing[seed]) if seed in self.differing else []


@dataclass(frozen=True)
class Watched(Exact):
    """Strict decoding whose blocks carry what other rules ask for."""

    asked: frozenset[str] = frozenset()
    """Their `needs`."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return self.asked


Fresh = Callable[[dict[str, Any], Sequence[Prompt], list[int], Agreement], list[Answer]]
"""Decode prompts with these seeds at one setting while an observer watches."""


class SharedAnswers:
    """The answers of one method; a setting takes over those of settings before that decided alike."""

    def __init__(self, rule: str, rules: Mapping[str, Rule], fresh: Fresh) -> None:
        self.rule, self.rules, self.fresh = rule, rules, fresh
        self.known: dict[tuple[str, int], dict[str, Answer]] = {}

    def learn(self, prompt: Prompt, seed: int, answer: Answer, keys: Collection[str]) -> None:
        """Keep an answer for all settings that give it."""
        self.known.setdefault((prompt["id"], seed), {}).update(dict.fromkeys(keys, answer))

    def decode(self, settings: dict[str, Any], prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Answer]:
        """The answers at one setting; only prompts without a known one are decoded."""
        key, pairs = key_of(self.rule, settings), list(zip(prompts, seeds, strict=True))
        missing = [pair for pair in pairs if key not in self.known.get((pair[0]["id"], pair[1]), {})]
        if missing:
            watcher = Agreement({name: rule for name, rule in self.rules.items() if name != key})
            answers = self.fresh(settings, [prompt for prompt, _ in missing], [seed for _, seed in missing], watcher)
            for (prompt, seed), answer in zip(missing, answers, strict=True):
                self.learn(prompt, seed, answer, [key, *watcher.alike(seed)])
        return [self.known[prompt["id"], seed][key] for prompt, seed in pairs]
