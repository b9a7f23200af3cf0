"""The loop: draft, verify, accept, commit. It knows no particular rule, drafter or gate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.block import Sampling
from gistgate.decoding.admission import Waiting, continued
from gistgate.decoding.checks import (
    check_costs,
    check_ids,
    check_parts,
    check_prompts,
    check_seeds,
    check_temperature,
    count_ids,
    models_of,
)
from gistgate.decoding.engines.choice import Engine
from gistgate.decoding.extensions import FORMS, GUARDING, VERIFIERS
from gistgate.decoding.guarding import Unguarded
from gistgate.decoding.parts import GateLike, Observer, Parts
from gistgate.decoding.session import Session
from gistgate.decoding.turns import turn
from gistgate.drafters.base import Drafter
from gistgate.errors import UserError
from gistgate.forward.cache import RowCache
from gistgate.forward.reader import fills_slots, remembered
from gistgate.protocol import added_ids
from gistgate.request.rows import Generation, Memory, Row
from gistgate.request.slots import Slots
from gistgate.request.stopping import Stop
from gistgate.rules.base import Rule


class Decoder:
    """Speculative decoding of a target with any drafter and any acceptance rule (arXiv 2211.17192 and relatives)."""

    certificate: Any = None
    """The certificate that this decoder was built to keep, by name or as `gistgate tune` chose; None without one.
    Whoever passes requests on compares them with it (`gistgate.certificates.holds.check_request`)."""

    def __init__(
        self,
        target: PreTrainedModel,
        drafter: Drafter | None,
        rule: Rule,
        block: int = 8,
        *,
        gate: GateLike | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        protocol_ids: Sequence[int] = (),
        vocabulary: int | None = None,
        observer: Observer | None = None,
        think_markers: tuple[str, str] = ("<think>", "</think>"),
        engine: str = "eager",
        guards: Sequence[Any] = (),
        speculate_up_to: int | None = None,
    ) -> None:
        """Put the parts together; nothing runs yet.

        Args:
            target: any decoder-only transformers model with attention caches.
            drafter: proposes tokens; None is plain decoding, one token per forward.
            rule: decides which proposed tokens stay.
            block: K, drafted tokens per round; 0 is plain decoding.
            gate: gives the rule probabilities, when the rule needs them.
            tokenizer: finds stop strings; needed only when some are given.
            protocol_ids: further tokens that are never accepted loosely; eos ids and the added tokens of the tokenizer
                (chat, think and tool markers) never are.
            vocabulary: token ids that count, where output layers are padded; default: those that both models have.
            observer: sees every block with its acceptance.
            think_markers: tokens that begin and end thinking, for the rules that tell it from answering.
            engine: "eager" calls the models as they are; "compiled" replays programs of fixed shape, whose building
                takes seconds to minutes once, and warns where it has to fall back (`resume` always does, silently).
            guards: `gistgate.optional.guards`, which watch every request and may make it stricter, never looser.
            speculate_up_to: rows above which a batch is decoded plainly; None speculates always. Greedy answers are
                then strict ones, whatever the rule, and a seed draws other sampled ones;
                `gistgate.observing.race.pays_up_to` measures the number.

        Raises:
            UserError: an unknown engine, or parts that do not fit together.
        """
        self.engine, self.speculate_up_to = Engine(engine), speculate_up_to
        check_parts(target, drafter, rule, block, gate)
        context = rule.context(tokenizer, think_markers)
        form = FORMS["chain" if drafter is None else drafter.form]()
        form.check(models_of(target, drafter), rule)
        self.parts = Parts(
            target=target,
            drafter=drafter,
            rule=rule,
            block=block if drafter is not None else 0,
            vocabulary=count_ids(target, drafter, tokenizer, vocabulary),
            gate=gate,
            tokenizer=tokenizer,
            protocol_ids=tuple(sorted({*protocol_ids, *context.protocol_ids, *added_ids(tokenizer)})),
            observer=observer,
            context=context,
            form=form,
            guards=GUARDING["guards"](guards) if guards else Unguarded(),
        )

    @property
    def target(self) -> PreTrainedModel:
        """The model whose text is written."""
        return self.parts.target

    @property
    def drafter(self) -> Drafter | None:
        """What proposes tokens."""
        return self.parts.drafter

    @property
    def rule(self) -> Rule:
        """What decides which proposed tokens stay."""
        return self.parts.rule

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """What finds stop strings."""
        return self.parts.tokenizer

    @property
    def block(self) -> int:
        """K, drafted tokens per round; 0 is plain decoding."""
        return self.parts.block

    @property
    def vocabulary(self) -> int:
        """Number of token ids that count, where output layers are padded."""
        return self.parts.vocabulary

    def having(self, **changes: Any) -> Decoder:
        """The same decoder with other `Parts`, which are not checked again: an observer, or a rule in a wrapper."""
        other = copy(self)
        other.parts = replace(self.parts, **changes)
        return other

    def watched_by(self, observer: Observer) -> Decoder:
        """The same decoder with an observer, behind one that counts for the decoder itself where there is one."""
        before = getattr(self.parts.observer, "before", None)
        return self.having(observer=observer if before is None else before(observer))

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        eos_ids: Collection[int] = (),
        stops: Sequence[str] = (),
        sampling: Sampling | None = None,
        seeds: Sequence[int] | None = None,
        costs: Sequence[float] | None = None,
        slots: Slots | None = None,
    ) -> list[Generation]:
        """Continue every prompt; rows do not influence each other.

        Args:
            prompts: token ids of each row, at least one token each.
            max_new_tokens: longest answer in tokens.
            eos_ids: ids that end an answer.
            stops: strings that end an answer; the token completing one stays.
            sampling: how tokens are drawn; greedy by default.
            seeds: one per row, for sampling and for rules that draw; default: the row's place.
            costs: what a round costs each row's request right now, 0 to 1, for rules that weigh it.
            slots: how many rows are decoded at a time, the others in their order as slots get free; all by default.

        Raises:
            UserError: an empty or over-long prompt, stop strings without a tokenizer, a temperature that the rule
                does not define, ids that a model does not know, seeds or costs that do not fit.
        """
        check_seeds(seeds, len(prompts))
        check_ids(models_of(self.target, self.drafter), prompts)
        check_costs(costs, len(prompts))
        rows = [
            Row(index, list(prompt), len(prompt), seeds[index] if seeds else index)
            for index, prompt in enumerate(prompts)
        ]
        for row, cost in zip(rows, costs if costs is not None else [None] * len(rows), strict=True):
            row.cost = cost
        sampling = sampling or Sampling()
        self._check(sampling, [len(prompt) for prompt in prompts], max_new_tokens)
        slots = slots or Slots()
        parts = self._parts_for(slots.most(len(rows)))
        with turn(models_of(self.target, self.drafter)):
            answers = self.engine.run(parts, rows, self._stop(max_new_tokens, eos_ids, stops), sampling, slots)
        return self._counted(parts, answers)

    @torch.inference_mode()
    def resume(
        self,
        memories: Iterable[Memory],
        continuations: Sequence[tuple[int, Sequence[int]]],
        prompt_lengths: Sequence[int],
        *,
        max_new_tokens: int,
        eos_ids: Collection[int] = (),
        stops: Sequence[str] = (),
        sampling: Sampling | None = None,
        seeds: Sequence[int] | None = None,
        is_decided: Callable[[Row], str | None] | None = None,
        remember: bool = True,
        slots: Slots | None = None,
    ) -> list[tuple[Generation, Memory | None]]:
        """Go on from the middle of remembered texts: keep `length` tokens of each, append others, decode on.

        Args:
            memories: what is known of each text; one may appear several times. Each is asked for when its row gets a
                slot, so that an iterator (`read_ahead`) holds few at a time.
            continuations: for each row (tokens of the text to keep, token ids to put behind them).
            prompt_lengths: tokens of each text that are prompt; the answer begins behind them.
            max_new_tokens: longest answer, counted from the end of the prompt.
            eos_ids, stops, sampling, seeds, slots: as in `generate`.
            is_decided: may end a row early by naming a reason.
            remember: return each row's memory as well.

        Returns:
            For each row the answer (kept tokens included) and its memory.

        Raises:
            UserError: as `generate`.
        """
        sampling = sampling or Sampling()
        check_seeds(seeds, len(continuations))
        check_ids(models_of(self.target, self.drafter), [added for _, added in continuations])
        self._check(sampling, prompt_lengths, max_new_tokens)
        slots = slots or Slots()
        starts = continued(memories, continuations, prompt_lengths, seeds)
        waiting = Waiting(starts, slots.most(len(continuations)))
        stop, parts = self._stop(max_new_tokens, eos_ids, stops), self._parts_for(waiting.slots)
        with turn(models_of(self.target, self.drafter)):
            found = Session(parts, waiting, stop, sampling, slots, is_decided, remember).run()
        self._counted(parts, [answer for answer, _ in found])
        return found

    @torch.inference_mode()
    def remember(self, texts: Sequence[Sequence[int]]) -> list[Memory]:
        """Read texts with both models and return what they remember, to `resume` from any token of them.

        Raises:
            UserError: a text holds ids that a model does not know.
        """
        check_ids(models_of(self.target, self.drafter), texts)
        with turn(models_of(self.target, self.drafter)):
            targets = remembered(self.target, texts)
            drafts = [RowCache([]) for _ in texts] if self.drafter is None else self.drafter.read(texts)
        return [Memory(list(text), *both) for text, *both in zip(texts, targets, drafts, strict=True)]

    def _parts_for(self, rows: int) -> Parts:
        """What decodes that many rows at a time: more than `speculate_up_to` are decoded plainly."""
        speculates = self.speculate_up_to is None or rows <= self.speculate_up_to
        return self.parts if speculates else self.parts.plain()

    def _counted(self, parts: Parts, answers: list[Generation]) -> list[Generation]:
        """The answers, with the forwards of those that were decoded plainly for want of speculation."""
        for answer in answers if parts is not self.parts else []:
            answer.statistics.extra["plain_forwards"] = float(answer.statistics.forwards)
        return answers

    def _check(self, sampling: Sampling, lengths: Sequence[int], max_new_tokens: int) -> None:
        """Refuse a temperature that the rule does not define, and prompts that leave no room for the answer.

        Raises:
            UserError: what cannot be decoded.
        """
        check_temperature(self.rule, sampling)
        if not sampling.greedy:
            self.parts.form.check_sampled(self.rule)
        models, extra = models_of(self.target, self.drafter), VERIFIERS[self.rule.verifier].extra_tokens(self.parts)
        if any(map(fills_slots, models)):  # a draft may run over the end of its answer
            extra += self.block
        check_prompts(models, lengths, max_new_tokens + extra)

    def _stop(self, max_new_tokens: int, eos_ids: Collection[int], stops: Sequence[str]) -> Stop:
        strings = tuple(string for string in stops if string)
        if strings and self.tokenizer is None:
            raise UserError("Stop strings are looked for in decoded text. Pass tokenizer=... to the decoder.")
        return Stop(max_new_tokens, frozenset(eos_ids), strings, self.tokenizer)
