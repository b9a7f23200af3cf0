"""What a decoder is made of, and which parts cannot work together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.architecture import counts_slots, keeps_states, num_ids
from gistgate.core.block import Acceptance, Block, Sampling
from gistgate.core.drafter import Chains, Drafter
from gistgate.core.guard import Guards
from gistgate.core.reader import Reader, SingleReader
from gistgate.core.request import Row, Slots, Stop
from gistgate.core.rule import Context, Exact, Rule
from gistgate.core.utils import UserError


class Observer(Protocol):
    """Sees every block with its acceptance, before anything is committed."""

    layers: Collection[str] = frozenset()  # hidden states that the block shall carry
    wants_q: bool = False  # whether it shall carry draft probabilities, where the drafter has them

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None: ...


@dataclass(frozen=True)
class DecoderParts:
    """What all sessions of a decoder share."""

    target: PreTrainedModel
    drafter: Drafter | None
    rule: Rule
    block: int  # K, drafted tokens per round; 0 is plain decoding
    vocabulary: int  # number of token ids that count, where output layers are padded
    gate: Any  # gives a block its probabilities; `layers` and `wants_q` say what it reads
    tokenizer: PreTrainedTokenizerBase | None
    protocol_ids: tuple[int, ...]  # tokens that are never accepted loosely, besides eos
    observers: tuple[Observer, ...]
    context: Context  # what the rule knows about tokenizer and requests
    guards: Guards  # who watches every request and may make it stricter

    def plain(self) -> DecoderParts:
        """The same without speculation: the target's own tokens, one per forward."""
        return replace(self, drafter=None, rule=Exact(), block=0, gate=None, context=Context())

    @property
    def models(self) -> list[PreTrainedModel]:
        """The target and, where there is one, the draft model."""
        return models_of(self.target, self.drafter)

    @property
    def form(self) -> Chains:
        """What the drafts look like."""
        return Chains() if self.drafter is None else self.drafter.form()

    @cached_property
    def reader(self) -> type[Reader]:
        """What reads texts with the target."""
        return SingleReader if keeps_states(self.target) else Reader

    @property
    def one_by_one(self) -> bool:
        """Whether rows are read one at a time, because padding would change what is read."""
        verifier = self.rule.verifier
        return self.reader is SingleReader or (verifier is not None and counts_slots(self.target))

    @property
    def most_drafted(self) -> int:
        """Most tokens of one round's draft: K, or the nodes of a tree."""
        return max(self.block, self.drafter.nodes) if self.block and self.drafter else 0

    @property
    def layers(self) -> frozenset[str]:
        """Hidden states that a block has to carry."""
        readers = [self.guards, *self.observers, self.drafter, self.gate if self.judged else None]
        return frozenset().union(*(reader.layers for reader in readers if reader is not None))

    @property
    def judged(self) -> bool:
        """True when the rule asks the gate."""
        return "gate" in self.rule.needs and self.gate is not None

    @property
    def random(self) -> bool:
        """True when the rule needs random numbers for greedy requests, too."""
        return "uniforms" in self.rule.needs

    @property
    def wants_q(self) -> bool:
        """True when the drafter shall name its probabilities also for greedy requests."""
        is_read = (self.judged and self.gate.wants_q) or "q" in self.rule.needs
        return is_read or any(observer.wants_q for observer in self.observers)

    def check(self) -> None:
        """Refuse parts that cannot work together."""
        rule = self.rule
        is_asked_q = "q" in rule.needs or (self.judged and self.gate.wants_q)
        if self.block < 0:
            raise UserError(
                f"block is {self.block}, but K is a number of drafted tokens. Use 0 for plain"
                " decoding."
            )
        if "gate" in rule.needs and self.gate is None:
            raise UserError(
                f"The rule '{rule.id}' needs a gate. Pass gate=Gate.load(folder), or choose another"
                " rule."
            )
        if is_asked_q and self.drafter is not None and not self.drafter.gives_q:
            raise UserError(
                f"The rule '{rule.id}', or its gate, needs draft probabilities, which this drafter"
                " has not. Use the drafter 'model', or the rule 'prob-ratio'."
            )
        for model in self.models:
            if self.drafter is not None and keeps_states(model):
                raise UserError(
                    f"{type(model).__name__} keeps states besides keys and values, from which no"
                    " refused token can be taken back. Decode it plainly, without a draft and a"
                    " drafter, or use a model with attention alone."
                )
        self.form.check(self.models, rule)


@dataclass(frozen=True)
class Terms:
    """What all rows of a request share."""

    parts: DecoderParts
    stop: Stop
    sampling: Sampling
    slots: Slots


def models_of(target: PreTrainedModel, drafter: Drafter | None) -> list[PreTrainedModel]:
    """The target and, where there is one, the draft model."""
    return [target] if drafter is None or drafter.model is None else [target, drafter.model]


def count_ids(
    models: Sequence[PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase | None,
    vocabulary: int | None,
) -> int:
    """The number of token ids that count: those that both models know, at most `vocabulary`."""
    sizes = [int(model.config.get_text_config().vocab_size) for model in models]
    target = sizes[0]
    shared = min(sizes)
    if shared < target:
        if vocabulary is None and tokenizer is None:
            raise UserError(
                f"The draft model knows {shared} token ids and the target {target}; whether the"
                " target writes the others cannot be seen without its tokenizer. Pass"
                " tokenizer=..., or vocabulary= the number of ids in use."
            )
        needed = min(target, vocabulary or num_ids(tokenizer))
        if shared < needed:
            raise UserError(
                f"The draft model knows {shared} token ids and the target's tokenizer has {needed}."
                " Use a draft model with the target's tokenizer, or a drafter without a model such"
                " as 'lookup'."
            )
    return min(shared, vocabulary or shared)
