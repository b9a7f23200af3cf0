"""Answers of strict decoding that other methods give as well: an evaluation decodes them once.

A method that is certified at a strict setting decides most blocks as strict decoding does. While that decodes, every
such method judges the same blocks (`pipeline.certification.agreement`). Where one keeps the same tokens to the end, the
answer and its counts are its own. Only greedy answers are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gistgate.block import Sampling
from gistgate.decoding.decoder import Decoder
from gistgate.request.rows import Generation
from gistgate.rules.base import Rule
from pipeline.certification.agreement import Agreement, Watched

Decode = Callable[..., list[Generation]]
"""`gistgate.decoding.batches.decode_all`, or that of a memory of prompts."""


def watched(strict: Decoder, watcher: Agreement) -> Decoder:
    """Strict decoding whose blocks carry what the watched rules ask for."""
    asked: frozenset[str] = frozenset().union(*(rule.needs for rule in watcher.rules.values()))
    return strict.having(rule=Watched(asked), observer=watcher)


class StrictAnswers:
    """Remembers, by rule and prompt, the strict answers that the rule gives as well."""

    def __init__(self, rules: Mapping[str, Rule], decode: Decode) -> None:
        """`rules` by names; those remember nothing between blocks, and their drafter is strict decoding's."""
        self.rules, self.decode = rules, decode
        self._known: dict[str, dict[tuple[int, ...], Generation]] = {name: {} for name in rules}

    def strictly(
        self, decoder: Decoder, prompts: Sequence[Sequence[int]], *, seeds: Sequence[int], **request: Any
    ) -> list[Generation]:
        """Strict answers; who else gives them is remembered."""
        if not self.rules or not is_greedy(request):
            return self.decode(decoder, prompts, seeds=seeds, **request)
        watcher = Agreement(self.rules)
        answers = self.decode(watched(decoder, watcher), prompts, seeds=seeds, **request)
        for prompt, seed, answer in zip(prompts, seeds, answers, strict=True):
            for name in watcher.alike(seed):
                self._known[name][tuple(prompt)] = answer
        return answers

    def loosely(self, name: str) -> Decode:
        """A way to decode with the rule of that name: only prompts without a known answer are decoded."""
        known = self._known.get(name, {})

        def decode(
            decoder: Decoder, prompts: Sequence[Sequence[int]], *, seeds: Sequence[int], **request: Any
        ) -> list[Generation]:
            answers = {place: known.get(tuple(prompt)) for place, prompt in enumerate(prompts)}
            missing = [place for place, answer in answers.items() if answer is None or not is_greedy(request)]
            fresh = (
                self.decode(decoder, [prompts[n] for n in missing], seeds=[seeds[n] for n in missing], **request)
                if missing
                else []
            )
            answers |= dict(zip(missing, fresh, strict=True))
            return [answer for answer in answers.values() if answer is not None]

        return decode


def is_greedy(request: Mapping[str, Any]) -> bool:
    """Whether a request draws nothing at random."""
    sampling: Sampling = request.get("sampling") or Sampling()
    return sampling.greedy
