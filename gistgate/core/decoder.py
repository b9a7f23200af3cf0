"""The loop: draft, verify, accept, commit. It knows no particular rule, drafter or gate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.block import Sampling
from gistgate.core.drafter import Drafter
from gistgate.core.reader import RowCache, context_of, counts_slots, fills_slots, has_window, num_ids, remembered
from gistgate.core.request import Generation, Memory, Row, Slots, Stop, Usage, ignore
from gistgate.core.rule import Rule
from gistgate.core.session import (
    FORMS,
    GUARDING,
    VERIFIERS,
    GateLike,
    Observer,
    Parts,
    Session,
    Start,
    Unguarded,
    Waiting,
    continued,
)
from gistgate.core.utils import UserError, added_ids, is_out_of_memory
from gistgate.drafters.model import ModelDrafter

if TYPE_CHECKING:
    from gistgate.compiled.session import CompiledSession

# ---- What is refused before decoding starts, each with one sentence.


def check_parts(
    target: PreTrainedModel, drafter: Drafter | None, rule: Rule, block: int, gate: GateLike | None
) -> None:
    """Refuse parts that cannot work together."""
    if block < 0:
        raise UserError(f"block is {block}, but K is a number of drafted tokens. Use 0 for plain decoding.")
    if "gate" in rule.needs and gate is None:
        raise UserError(f"The rule '{rule.id}' needs a gate. Pass gate=Gate.load(folder), or choose another rule.")
    if "gate" in rule.needs and gate and gate.wants_q and drafter is not None and not drafter.gives_q:
        raise UserError(
            "The gate reads draft probabilities, which this drafter has not. Use the drafter 'model', or a gate that "
            "was trained without the feature 'draft'."
        )
    if "q" in rule.needs and drafter is not None and not drafter.gives_q:
        raise UserError(
            f"The rule '{rule.id}' needs draft probabilities, which this drafter has not. Use the drafter 'model', or "
            "a rule that reads the target alone, such as 'prob-ratio'."
        )
    for model in models_of(target, drafter):
        if getattr(model, "_is_stateful", False):  # not every version of transformers has it
            raise UserError(
                f"{type(model).__name__} keeps a recurrent state that cannot be rolled back. "
                "Use a model with attention alone."
            )


def count_ids(
    target: PreTrainedModel, drafter: Drafter | None, tokenizer: PreTrainedTokenizerBase | None, vocabulary: int | None
) -> int:
    """The number of token ids that count: those that both models know, and no more than `vocabulary`.

    Output layers are often padded beyond the tokenizer, and by different amounts in target and draft. What is padding
    is known where `vocabulary` or the tokenizer is given; no token of theirs may be lost to a smaller draft model.

    Raises:
        UserError: the draft model lacks a token that the target may write, or nobody can tell.
    """
    sizes: list[int] = [model.config.get_text_config().vocab_size for model in models_of(target, drafter)]
    known = min(sizes)
    if known < sizes[0]:
        check_padding(sizes[0], known, vocabulary or (None if tokenizer is None else num_ids(tokenizer)))
    return min(vocabulary, known) if vocabulary else known


def check_padding(target: int, draft: int, tokens: int | None) -> None:
    """Refuse a draft model of fewer ids than the target unless all that it lacks is padding beyond the `tokens`.

    Raises:
        UserError: it lacks tokens, or their number is not known.
    """
    if tokens is None:
        raise UserError(
            f"The draft model knows {draft} token ids and the target {target}; whether the target writes the others "
            "cannot be seen without its tokenizer. Pass tokenizer=..., or vocabulary= the number of ids in use."
        )
    needed = min(target, tokens)
    if draft < needed:
        raise UserError(
            f"The draft model knows {draft} token ids and the target's tokenizer has {needed}. Use a draft model "
            "with the target's tokenizer, or a drafter without a model such as 'lookup'."
        )


def check_temperature(rule: Rule, sampling: Sampling) -> None:
    """Refuse a temperature that the rule does not define."""
    if rule.temperatures != "all" and sampling.greedy != (rule.temperatures == "greedy"):
        asked = "greedy decoding" if sampling.greedy else f"temperature {sampling.temperature:g}"
        raise UserError(f"The rule '{rule.id}' is not defined for {asked}. Use {rule.alternative} there.")


def models_of(target: PreTrainedModel, drafter: Drafter | None) -> list[PreTrainedModel]:
    """The target and, where there is one, the draft model."""
    return [target] if drafter is None or drafter.model is None else [target, drafter.model]


def check_ids(models: Sequence[PreTrainedModel], prompts: Sequence[Sequence[int]]) -> None:
    """Refuse prompts with ids that a model has no embedding for, which a tokenizer with added tokens may give."""
    known = min(model.get_input_embeddings().weight.shape[0] for model in models)
    for index, prompt in enumerate(prompts):
        strange = next((token for token in prompt if not 0 <= token < known), None)
        if strange is not None:
            raise UserError(
                f"Prompt {index} holds the token id {strange}, and the models know the ids 0 to {known - 1}. Use the "
                "tokenizer that belongs to them, or leave this token out."
            )


def check_seeds(seeds: Sequence[int] | None, rows: int) -> None:
    """Refuse seeds that are not one for each row, or that no generator takes."""
    if seeds is not None and len(seeds) != rows:
        raise UserError(f"There are {len(seeds)} seeds for {rows} prompts. Give one for each.")
    for seed in seeds or ():
        if not -(2**63) <= seed < 2**64:
            raise UserError(f"The seed {seed} does not fit into 64 bits. Give a smaller one.")


def check_costs(costs: Sequence[float] | None, rows: int) -> None:
    """Refuse costs that are not one for each row between 0 and 1, beyond which a rule would be looser than promised."""
    if costs is not None and len(costs) != rows:
        raise UserError(f"There are {len(costs)} costs for {rows} prompts. Give one for each.")
    for cost in costs or ():
        if not 0 <= cost <= 1:
            raise UserError(f"A round costs {cost}, but costs are shares from 0 to 1. Divide by the largest.")


def check_prompts(models: Sequence[PreTrainedModel], lengths: Sequence[int], max_new_tokens: int) -> None:
    """Refuse empty prompts and those that leave no room for the answer, by their lengths in tokens."""
    for index, length in enumerate(lengths):
        if not length:
            raise UserError(f"Prompt {index} is empty. Give at least one token, for instance the tokenizer's bos.")
    longest = max(lengths, default=0)
    for model in models:
        context = context_of(model.config.get_text_config())
        if context and longest + max_new_tokens > context:
            raise UserError(
                f"A prompt of {longest} tokens and an answer of up to {max_new_tokens} exceed the context of "
                f"{type(model).__name__}, {context} tokens. Shorten the prompt or lower max_new_tokens."
            )


# ---- Requests of several threads take turns at a model.


TURNS: WeakKeyDictionary[PreTrainedModel, Any] = WeakKeyDictionary()
"""The lock of each model. A thread may ask its models again while it decodes, as memories that are read ahead and the
opinion `pair` of segments do."""
GUARD = Lock()
"""Whoever asks for a lock first makes it."""


@contextmanager
def turn(models: Iterable[PreTrainedModel]) -> Iterator[None]:
    """No other thread decodes with these models. Locks are taken in one order, so that nobody waits in a circle."""
    with ExitStack() as taken:
        for model in sorted(models, key=id):
            taken.enter_context(lock_of(model))
        yield


def lock_of(model: PreTrainedModel) -> Any:
    """The lock of a model."""
    with GUARD:
        return TURNS.setdefault(model, RLock())


# ---- Which engine runs a request: the one that was asked for, or the eager one with a sentence that says why.


ENGINES = ("eager", "compiled")

MOST_ROWS = 32
"""Largest batch that gets programs of its own; larger ones keep the device busy without."""


class Engine:
    """Runs the requests of one decoder."""

    def __init__(self, name: str) -> None:
        if name not in ENGINES:
            raise UserError(f"There is no engine '{name}'. Known: {', '.join(ENGINES)}.")
        self.name = name
        self.fell_back: set[str] = set()
        """Why requests ran on the eager engine although the compiled one was asked for."""
        self._failed: dict[tuple[object, ...], str] = {}

    def run(self, parts: Parts, rows: list[Row], stop: Stop, sampling: Sampling, slots: Slots) -> list[Generation]:
        """The answers of these rows, in their order.

        The eager engine gives the slots of finished rows to others. A program has a fixed batch whose rows begin
        together, so the compiled engine decodes each batch to its end before the next.
        """
        most, answers = slots.most(len(rows)), list[Generation]()
        while len(answers) < len(rows):
            batch = rows[len(answers) : len(answers) + most]
            session = self.programs(parts, batch, stop, sampling, slots) if self.name == "compiled" else None
            if session is None:
                waiting = Waiting(map(Start, rows[len(answers) :]), most)
                answers += [answer for answer, _ in Session(parts, waiting, stop, sampling, slots).run()]
            else:
                answers += session.run()
        return answers

    def programs(
        self, parts: Parts, rows: list[Row], stop: Stop, sampling: Sampling, slots: Slots
    ) -> CompiledSession | None:
        """A session of programs, or None where the eager engine has to run.

        The first session of a new shape builds them, which takes seconds or minutes.
        """
        from gistgate.compiled.memory import forget
        from gistgate.compiled.program import UnsupportedError
        from gistgate.compiled.session import CompiledSession

        shape = (len(rows), sampling, *parts.rule.known_by)
        why = self._failed.get(shape) or reason_against(parts, rows)
        if why is None:
            try:
                with torch.inference_mode(False), torch.no_grad():
                    return CompiledSession(parts, rows, stop, sampling, slots)
            except UnsupportedError as error:
                why = self._failed[shape] = str(error)  # trying again would cost as much and end alike
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                # The next request may find more.
                why = "there is not enough memory for it"
                forget(models_of(parts.target, parts.drafter))
        self._explain(why)
        return None

    def _explain(self, why: str) -> None:
        if why not in self.fell_back:
            self.fell_back.add(why)
            warnings.warn(f"This runs on the eager engine instead of the compiled one: {why}.", stacklevel=6)


def reason_against(parts: Parts, rows: Sequence[Row]) -> str | None:
    """Why these parts or this batch need the eager engine; None where nothing is known against the compiled one."""
    drafter = parts.drafter
    if len(rows) > MOST_ROWS:
        return f"{len(rows)} rows are more than the {MOST_ROWS} for which programs are built"
    if drafter is not None and (why := reason_against_drafter(drafter)) is not None:
        return f"the drafter {type(drafter).__name__} {why}"
    if parts.observer is not None:
        return "an observer looks at every block"
    if type(parts.guards) is not Unguarded:
        return "guards look at every block"
    if parts.context.needs_eager:
        return f"the rule '{parts.rule.id}' {parts.context.needs_eager}"
    models = models_of(parts.target, drafter)
    if len({model.device for model in models}) > 1:
        return "target and draft model are on different devices"
    return next((why for model in models if (why := reason_against_model(model)) is not None), None)


def reason_against_drafter(drafter: Drafter) -> str | None:
    """Why a drafter needs the eager engine, as the end of a sentence about it."""
    if drafter.stops_early:
        return "ends its drafts at a length that is not known beforehand"
    if drafter.nodes:
        return "returns trees"
    if drafter.model is not None and getattr(type(drafter), "propose", None) is not ModelDrafter.propose:
        return "asks its model in a way of its own"
    if drafter.learns or (drafter.gives_q and drafter.model is None):
        return "looks at every block"
    return None


def reason_against_model(model: PreTrainedModel) -> str | None:
    """Why a model needs the eager engine."""
    name = type(model).__name__
    if has_window(model):
        return f"{name} attends to a sliding window"
    if counts_slots(model):
        return f"{name} measures distances in slots of its cache"
    if not getattr(model, "_supports_attention_backend", False):
        return f"{name} does not let its attention be exchanged"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return f"{name} is spread over several devices"
    from gistgate.compiled.program import missing_compiler

    missing = missing_compiler(model.device)
    if missing is not None and model.device.type != "cuda":  # a CUDA graph helps without a compiler, too
        return missing
    return None


class Decoder:
    """Speculative decoding of a target with any drafter and any acceptance rule (arXiv 2211.17192 and relatives)."""

    certificate: Any = None
    """The certificate that this decoder was built to keep, by name or as `gistgate tune` chose; None without one.
    Whoever passes requests on compares them with it (`gistgate.core.certificate.check_request`)."""

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
            guards: `gistgate.core.guards`, which watch every request and may make it stricter, never looser.
            speculate_up_to: rows above which a batch is decoded plainly; None speculates always. Greedy answers are
                then strict ones, whatever the rule, and a seed draws other sampled ones;
                `gistgate.measure.speed.pays_up_to` measures the number.

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


# ---- Many prompts through one decoder: a finished row leaves its slot to the next prompt.


def decode_all(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    seeds: Sequence[int] | None = None,
    costs: Sequence[float] | None = None,
    progress: Callable[[int], object] = ignore,
    usage: Usage | None = None,
    **request: Any,
) -> list[Generation]:
    """Decode every prompt and return the answers in the order of the prompts.

    The compiled engine cannot fill slots and decodes batch after batch.

    Args:
        decoder: does the work.
        prompts: token ids of each prompt.
        batch_size: rows decoded together; ids do not depend on it (up to near ties of the arithmetic), unless the
            decoder's `speculate_up_to` lies between two sizes.
        seeds: one per prompt; default: the prompt's place.
        costs: one per prompt, as in `Decoder.generate`.
        progress: called with the number of prompts just finished, one prompt at a time.
        usage: counts how many slots had a row; `usage.idle` is the share that had none.
        request: the other arguments of `Decoder.generate`.

    Raises:
        UserError: a batch size below 1, or what `Decoder.generate` refuses.
    """
    seeds = list(range(len(prompts))) if seeds is None else seeds
    order = longest_first(prompts)
    done = decoder.generate(
        [prompts[index] for index in order],
        seeds=in_order(seeds, order),
        costs=None if costs is None else in_order(costs, order),
        slots=Slots(batch_size, progress, usage or Usage()),
        **request,
    )
    answers = dict(zip(order, done, strict=True))
    return [answers[index] for index in range(len(prompts))]


def in_order(values: Sequence[Any], order: Sequence[int]) -> Sequence[Any]:
    """The values of the rows in this order; too many or too few are left for `Decoder.generate` to refuse."""
    return [values[index] for index in order] if len(values) == len(order) else values


def longest_first(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The places of prompts by falling length: those that come in together need little padding, and memory that does
    not suffice is noticed at the beginning."""
    return sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))


def read_ahead(read: Callable[[range], list[Memory]], total: int, ahead: int) -> Iterator[Memory]:
    """The memories of `total` rows; `read` is asked for `ahead` of them when the first of these is needed."""
    for start in range(0, total, ahead):
        yield from read(range(start, min(total, start + ahead)))


# ---- Prompts that many settings decode are read once: both models' keys and values wait for the next setting.


class Prefilled:
    """Remembered prompts of one pair, up to a limit of memory; the rest is read anew each time."""

    def __init__(self, limit_mb: int) -> None:
        self.room = limit_mb * 1_000_000
        self._known: dict[tuple[str, tuple[int, ...]], Memory] = {}

    def decode_all(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        *,
        batch_size: int,
        seeds: Sequence[int],
        progress: Callable[[int], object] = ignore,
        usage: Usage | None = None,
        **request: Any,
    ) -> list[Generation]:
        """As `gistgate.core.decoder.decode_all`; prompts that are not known are read a batch at a time."""
        order = longest_first(prompts)
        texts = [list(prompts[index]) for index in order]

        def read(places: range) -> list[Memory]:
            return self._memories(decoder, [texts[place] for place in places])

        done = decoder.resume(
            read_ahead(read, len(texts), batch_size),
            [(len(text) - 1, text[-1:]) for text in texts],
            [len(text) for text in texts],
            seeds=[seeds[index] for index in order],
            remember=False,
            slots=Slots(batch_size, progress, usage or Usage()),
            **request,
        )
        answers = dict(zip(order, (answer for answer, _ in done), strict=True))
        return [answers[index] for index in range(len(prompts))]

    def _memories(self, decoder: Decoder, texts: list[list[int]]) -> list[Memory]:
        kind = type(decoder.drafter).__name__
        keys = [(kind, tuple(text)) for text in texts]
        missing = [text for text, key in zip(texts, keys, strict=True) if key not in self._known]
        fresh = dict(zip(map(tuple, missing), decoder.remember(missing) if missing else [], strict=True))
        memories = [self._known.get(key) or fresh[tuple(key[1])] for key in keys]
        for text, memory in fresh.items():
            if (size := memory.num_bytes) <= self.room:
                self.room -= size
                self._known[kind, text] = memory
        return memories
