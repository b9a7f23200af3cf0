"""The decoder: one target with any drafter, rule and gate. What it does round by round stands in
`session`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.architecture import fills_slots
from gistgate.core.block import Sampling
from gistgate.core.cache import Texts
from gistgate.core.drafter import Drafter
from gistgate.core.guard import Guard, Guards
from gistgate.core.parts import DecoderParts, Observer, Terms, count_ids, models_of
from gistgate.core.reader import remembered
from gistgate.core.request import (
    Generation,
    PrefixState,
    Row,
    Slots,
    Stop,
    check_ids,
    check_prompts,
    check_rows,
)
from gistgate.core.rule import Exact, Rule
from gistgate.core.session import Queue, QueuedRow, Session, Verifier
from gistgate.core.utils import Registry, UserError, added_ids

LOCKS: WeakKeyDictionary[PreTrainedModel, Any] = WeakKeyDictionary()  # reentrant, of each model
GUARD = Lock()  # whoever asks for a lock first makes it


@contextmanager
def model_lock(models: Iterable[PreTrainedModel]) -> Iterator[None]:
    """No other thread decodes with these models while the lock is held.

    Locks are taken in one order, so that nobody waits in a circle.
    """
    with ExitStack() as taken:
        for model in sorted(models, key=id):
            with GUARD:
                lock = LOCKS.setdefault(model, RLock())
            taken.enter_context(lock)
        yield


class Engine:
    """Decodes the rows of requests with the models as they are."""

    name = "eager"

    def __init__(self) -> None:
        self.fell_back: set[str] = set()  # why requests ran on this engine instead of a faster one

    def run(self, terms: Terms, rows: list[Row]) -> list[Generation]:
        """The answers of these rows, in their order."""
        queue = Queue(map(QueuedRow, rows), terms.slots.most(len(rows)))
        return [answer for answer, _ in Session(terms, queue).run()]


ENGINES: Registry[type[Engine]] = Registry("engine", {"eager": Engine})
"""Engines by name; `gistgate.compiled` registers another one."""


class Decoder:
    """Speculative decoding of a target with any drafter and any acceptance rule (arXiv 2211.17192
    and relatives).
    """

    def __init__(
        self,
        target: PreTrainedModel,
        drafter: Drafter | None,
        rule: Rule,
        block: int = 8,
        *,
        gate: Any = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        vocabulary: int | None = None,
        observer: Observer | None = None,
        think_markers: tuple[str, str] = ("<think>", "</think>"),
        engine: str = "eager",
        guards: Sequence[Guard] = (),
        speculate_up_to: int | None = None,
    ) -> None:
        """Put the parts together; nothing runs yet.

        Args:
            target: any decoder-only transformers model with attention caches.
            drafter: proposes tokens; None is plain decoding, one token per forward.
            rule: decides which proposed tokens stay.
            block: K, drafted tokens per round; 0 is plain decoding.
            gate: gives the rule probabilities, when the rule needs them.
            tokenizer: finds stop strings, and the added tokens (chat, think and tool markers),
                which like eos ids are never accepted loosely.
            vocabulary: token ids that count, where output layers are padded; default: those that
                both models have.
            observer: sees every block with its acceptance.
            think_markers: tokens that begin and end thinking, for the rules that tell it from
                answering.
            engine: "eager" calls the models as they are; "compiled" replays programs of fixed
                shape, whose building takes seconds to minutes once, and warns where it has to fall
                back (`resume` always does, silently).
            guards: `gistgate.core.guards`, which watch every request and may make it stricter,
                never looser.
            speculate_up_to: rows above which a batch is decoded plainly; None speculates always.
                Greedy answers are then strict ones, whatever the rule, and a seed draws other
                sampled ones.

        Raises:
            UserError: parts that cannot work together, or an engine that does not exist.
        """
        self.engine = ENGINES[engine]()
        self.speculate_up_to = speculate_up_to
        context = rule.context(tokenizer, think_markers)
        self.parts = DecoderParts(
            target,
            drafter,
            rule,
            block if drafter is not None else 0,
            count_ids(models_of(target, drafter), tokenizer, vocabulary),
            gate,
            tokenizer,
            tuple(sorted({*context.protocol_ids, *added_ids(tokenizer)})),
            () if observer is None else (observer,),
            context,
            Guards(guards),
        )
        self.parts.check()

    @property
    def target(self) -> PreTrainedModel:
        """The model whose answers are decoded."""
        return self.parts.target

    @property
    def drafter(self) -> Drafter | None:
        """What proposes tokens; None where decoding is plain."""
        return self.parts.drafter

    @property
    def rule(self) -> Rule:
        """What decides which proposed tokens stay."""
        return self.parts.rule

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The target's tokenizer, where one was given."""
        return self.parts.tokenizer

    @property
    def block(self) -> int:
        """K, drafted tokens per round."""
        return self.parts.block

    def having(self, **changes: Any) -> Decoder:
        """The same decoder with other parts, which are not checked again: a rule in a wrapper, for
        example.
        """
        changed = copy(self)
        changed.parts = replace(self.parts, **changes)
        return changed

    def strict(self, block: int | None = None) -> Decoder:
        """Strict decoding with the same models, tokenizer and engine, at the same K unless another
        is given.
        """
        block = self.block if block is None else block
        return Decoder(
            self.target,
            self.drafter if block else None,
            Exact(),
            block,
            tokenizer=self.tokenizer,
            vocabulary=self.parts.vocabulary,
            engine=self.engine.name,
        )

    def plain(self) -> Decoder:
        """The target alone: its own tokens, one per forward."""
        return self.strict(0)

    def watched_by(self, observer: Observer) -> Decoder:
        """The same decoder with one more observer."""
        return self.having(observers=(*self.parts.observers, observer))

    @torch.inference_mode()
    def generate(
        self,
        prompts: Texts,
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
            slots: how many rows are decoded at a time, the others in their order as slots get free;
                all by default.

        Raises:
            UserError: an empty or over-long prompt, stop strings without a tokenizer, a temperature
                that the rule does not define, ids that a model does not know, seeds or costs that
                do not fit.
        """
        check_rows(len(prompts), seeds, costs)
        check_ids(self.parts.models, prompts)
        lengths = [len(prompt) for prompt in prompts]
        terms = self._terms(lengths, max_new_tokens, eos_ids, stops, sampling, slots)
        rows = []
        for index, prompt in enumerate(prompts):
            seed = seeds[index] if seeds else index
            cost = costs[index] if costs else None
            rows.append(Row(index, list(prompt), len(prompt), seed, cost=cost))
        with model_lock(self.parts.models):
            return self.engine.run(terms, rows)

    @torch.inference_mode()
    def resume(
        self,
        prefixes: Iterable[PrefixState],
        continuations: Sequence[tuple[int, Sequence[int]]],
        prompt_lengths: Sequence[int],
        *,
        seeds: Sequence[int] | None = None,
        is_decided: Callable[[Row], str | None] = lambda _row: None,
        remember: bool = True,
        **request: Any,
    ) -> list[tuple[Generation, PrefixState | None]]:
        """Go on from the middle of remembered texts: keep `length` tokens of each, append others,
        decode on.

        Args:
            prefixes: what is known of each text; one may appear several times. Each is asked for
                when its row gets a slot, so that an iterator holds few at a time.
            continuations: for each row (tokens of the text to keep, token ids to put behind them).
            prompt_lengths: tokens of each text that are prompt; the answer begins behind them.
            seeds: as in `generate`.
            is_decided: may end a row early by naming a reason.
            remember: return what is known of each row's text as well.
            request: max_new_tokens (counted from the end of the prompt), eos_ids, stops, sampling
                and slots, as in `generate`.

        Returns:
            For each row the answer (kept tokens included) and what is known of its text.
        """
        check_rows(len(continuations), seeds)
        check_ids(self.parts.models, [added for _, added in continuations])
        terms = self._terms(prompt_lengths, **request)

        def queued() -> Iterator[QueuedRow]:
            for index, prefix in enumerate(prefixes):
                length, added = continuations[index]
                text = [*prefix.text[:length], *added]
                seed = seeds[index] if seeds else index
                row = Row(index, text, prompt_lengths[index], seed)
                row.reasons = [0] * len(row.answer)
                yield QueuedRow(row, prefix, length)

        queue = Queue(queued(), terms.slots.most(len(continuations)))
        with model_lock(self.parts.models):
            return Session(terms, queue, is_decided, remember).run()

    @torch.inference_mode()
    def remember(self, texts: Texts) -> list[PrefixState]:
        """Read texts with both models and return what they remember, to `resume` from any token of
        them.
        """
        check_ids(self.parts.models, texts)
        with model_lock(self.parts.models):
            targets = remembered(self.target, texts)
            drafts = (self.drafter or Drafter()).read(texts)
        return [PrefixState(list(text), *caches) for text, *caches in zip(texts, targets, drafts)]

    def _terms(
        self,
        lengths: Sequence[int],
        max_new_tokens: int,
        eos_ids: Collection[int] = (),
        stops: Sequence[str] = (),
        sampling: Sampling | None = None,
        slots: Slots | None = None,
    ) -> Terms:
        """What the rows of a request share, whose prompts have these lengths."""
        sampling = sampling or Sampling()
        self._check(sampling, lengths, max_new_tokens)
        strings = tuple(string for string in stops if string)
        if strings and self.tokenizer is None:
            raise UserError(
                "Stop strings are looked for in decoded text. Pass tokenizer=... to the decoder."
            )
        stop = Stop(max_new_tokens, frozenset(eos_ids), strings, self.tokenizer)
        slots = slots or Slots()
        if self.parts.one_by_one:
            slots = replace(slots, number=1)
        most = self.speculate_up_to
        speculates = most is None or slots.most(len(lengths)) <= most
        return Terms(self.parts if speculates else self.parts.plain(), stop, sampling, slots)

    def _check(self, sampling: Sampling, lengths: Sequence[int], max_new_tokens: int) -> None:
        """Refuse a temperature that the rule does not define, and prompts that leave no room for
        the answer.
        """
        rule = self.rule
        if rule.temperatures != "all" and sampling.greedy != (rule.temperatures == "greedy"):
            kind = "greedy decoding" if sampling.greedy else f"temperature {sampling.temperature:g}"
            raise UserError(
                f"The rule '{rule.id}' is not defined for {kind}. Use 'prob-ratio' there."
            )
        if not sampling.greedy:
            self.parts.form.check_sampled(rule)
        extra = (rule.verifier or Verifier).extra_tokens(self.parts)
        if any(map(fills_slots, self.parts.models)):  # a draft may run over the end of its answer
            extra += self.block
        check_prompts(self.parts.models, lengths, max_new_tokens + extra)
