"""The loop: draft, verify, accept, commit. It knows no particular rule, drafter or gate.

Axis letters: B rows, K drafted tokens, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.block import Acceptance, Block, Sampling
from gistgate.decoding.cache import RowCache
from gistgate.decoding.checks import check_parts, check_prompts
from gistgate.decoding.commit import commit
from gistgate.decoding.reader import Reader, left_padded
from gistgate.decoding.rows import Generation, Memory, Row, finished, texts_of
from gistgate.decoding.states import tap
from gistgate.decoding.stopping import Stop
from gistgate.drafters.base import Draft, Drafter
from gistgate.errors import UserError
from gistgate.rules.base import Rule, State, settle


class GateLike(Protocol):
    """What the decoder asks of a gate."""

    layers: frozenset[str]

    def __call__(self, block: Block) -> Tensor: ...


class Observer(Protocol):
    """Sees every block with its acceptance, before anything is committed."""

    layers: Collection[str]
    """Hidden states that the block shall carry."""
    wants_q: bool
    """Whether it shall carry draft probabilities, where the drafter has them."""

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None: ...


class Decoder:
    """Speculative decoding of a target with any drafter and any acceptance rule (arXiv 2211.17192 and relatives)."""

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
    ) -> None:
        """Put the parts together; nothing runs yet.

        Args:
            target: any decoder-only transformers model with attention caches.
            drafter: proposes tokens; None is plain decoding, one token per forward.
            rule: decides which proposed tokens stay.
            block: K, drafted tokens per round; 0 is plain decoding.
            gate: gives the rule probabilities, when the rule needs them.
            tokenizer: finds stop strings; needed only when some are given.
            protocol_ids: tokens such as chat or think markers that are never accepted loosely; eos ids always are.
            vocabulary: ids that count, when the models' output layers are padded; default: what both have.
            observer: sees every block with its acceptance.

        Raises:
            UserError: parts that do not fit together.
        """
        self.target, self.drafter, self.rule, self.gate = target, drafter, rule, gate
        self.block = block if drafter is not None else 0
        self.tokenizer, self.protocol_ids = tokenizer, tuple(protocol_ids)
        self.observer = observer
        watched = frozenset(observer.layers) if observer else frozenset()
        self.layers = watched | (gate.layers if gate and "gate" in rule.needs else frozenset())
        self.wants_q = "q" in rule.needs or (observer is not None and observer.wants_q)
        self.vocabulary = check_parts(target, drafter, rule, block, gate, vocabulary)

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
    ) -> list[Generation]:
        """Continue every prompt; rows do not influence each other.

        Args:
            prompts: token ids of each row, at least one token each.
            max_new_tokens: longest answer in tokens.
            eos_ids: ids that end an answer.
            stops: strings that end an answer; the token completing one stays.
            sampling: how tokens are drawn; greedy by default.
            seeds: one per row, for sampling and for rules that draw; default: the row's place.

        Raises:
            UserError: an empty or over-long prompt, stop strings without a tokenizer.
        """
        rows = [
            Row(index, list(prompt), len(prompt), seeds[index] if seeds else index)
            for index, prompt in enumerate(prompts)
        ]
        session = Session(self, rows, self._stop(max_new_tokens, eos_ids, stops), sampling or Sampling())
        check_prompts(self.target, self.drafter, prompts, max_new_tokens)
        session.begin()
        return [generation for generation, _ in session.run()]

    @torch.inference_mode()
    def resume(
        self,
        memories: Sequence[Memory],
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
    ) -> list[tuple[Generation, Memory | None]]:
        """Go on from the middle of remembered texts: keep `length` tokens of each, append others, decode on.

        Args:
            memories: what is known of each text; one may appear several times.
            continuations: for each row (tokens of the text to keep, token ids to put behind them).
            prompt_lengths: tokens of each text that are prompt; the answer begins behind them.
            max_new_tokens: longest answer, counted from the end of the prompt.
            eos_ids, stops, sampling, seeds: as in `generate`.
            is_decided: may end a row early by naming a reason.
            remember: return each row's memory as well.

        Returns:
            For each row the answer (kept tokens included) and its memory.
        """
        rows = [
            Row(index, [*memory.text[:kept], *added], prompt_lengths[index], seeds[index] if seeds else index)
            for index, (memory, (kept, added)) in enumerate(zip(memories, continuations, strict=True))
        ]
        for row in rows:
            row.reasons = [0] * len(row.answer)
        stop = self._stop(max_new_tokens, eos_ids, stops)
        session = Session(self, rows, stop, sampling or Sampling(), is_decided, remember)
        session.restore(memories, [kept for kept, _ in continuations])
        return session.run()

    @torch.inference_mode()
    def remember(self, texts: Sequence[Sequence[int]]) -> list[Memory]:
        """Read texts with both models and return what they remember, to `resume` from any token of them."""
        reader = Reader(self.target, len(texts))
        reader.read(*left_padded(texts, self.target.device), keep=1)
        targets, drafts = reader.snapshot(range(len(texts))), [RowCache([]) for _ in texts]
        if self.drafter is not None:
            drafts = self.drafter.read(texts)
        return [Memory(list(text), *both) for text, *both in zip(texts, targets, drafts, strict=True)]

    def _stop(self, max_new_tokens: int, eos_ids: Collection[int], stops: Sequence[str]) -> Stop:
        strings = tuple(string for string in stops if string)
        if strings and self.tokenizer is None:
            raise UserError("Stop strings are looked for in decoded text. Pass tokenizer=... to the decoder.")
        return Stop(max_new_tokens, frozenset(eos_ids), strings, self.tokenizer)


class Session:
    """One batch on its way through the loop."""

    def __init__(
        self,
        decoder: Decoder,
        rows: list[Row],
        stop: Stop,
        sampling: Sampling,
        is_decided: Callable[[Row], str | None] | None = None,
        remember: bool = False,
    ) -> None:
        self.decoder, self.rows, self.stop, self.sampling = decoder, rows, stop, sampling
        self.is_decided, self.remember = is_decided, remember
        self.reader = Reader(decoder.target, len(rows))
        self.state: State = {}
        self.protocol = torch.tensor([*stop.eos_ids, *decoder.protocol_ids], device=decoder.target.device)
        self.results: dict[int, tuple[Generation, Memory | None]] = {}

    def begin(self) -> None:
        """Start with nothing read."""
        if self.decoder.drafter is not None:
            self.decoder.drafter.start(len(self.rows))

    def restore(self, memories: Sequence[Memory], lengths: Sequence[int]) -> None:
        """Start with the first `lengths[b]` tokens of each text read, as far as they are remembered."""
        # The last token has to be read again: its row predicts the next one.
        most = [len(row.text) - 1 for row in self.rows]
        known = [min(n, memory.target.length, top) for n, memory, top in zip(lengths, memories, most, strict=True)]
        self.reader.restore([memory.target for memory in memories], known)
        if self.decoder.drafter is not None:
            known = [min(n, memory.draft.length, top) for n, memory, top in zip(lengths, memories, most, strict=True)]
            self.decoder.drafter.restore([memory.draft for memory in memories], known)

    def run(self) -> list[tuple[Generation, Memory | None]]:
        """Round after round until every row has ended."""
        num_rows = len(self.rows)
        self._retire([row for row in self.rows if self._over(row)])
        with tap(self.decoder.target, self.decoder.layers) as states:
            while self.rows:
                self._round(states)
        return [self.results[index] for index in range(num_rows)]

    def _over(self, row: Row) -> bool:
        if row.answer and row.finish is None:
            _, row.finish = self.stop.cut(row.answer[:-1], row.answer[-1:])
        return row.finish is not None or self.stop.max_new_tokens <= len(row.answer)

    def _round(self, states: dict[str, Tensor]) -> None:
        started = perf_counter()
        room = torch.tensor([self.stop.max_new_tokens - len(row.answer) - 1 for row in self.rows])
        uniforms = self._uniforms()
        draft = self._draft(room, uniforms)  # 1. draft    x_1 .. x_K
        drafted = perf_counter()
        block = self._verify(draft, uniforms, states)  # 2. verify   one target forward
        verified = perf_counter()
        if self.decoder.gate is not None and "gate" in self.decoder.rule.needs:
            block = block.with_gate(self.decoder.gate)
        acceptance = settle(self.decoder.rule, block, self.state)  # 3. accept   strict OR rule, longest prefix
        if self.decoder.observer is not None:
            self.decoder.observer(block, acceptance, self.rows)
        accepted = perf_counter()
        self._commit(acceptance, draft)  # 4. commit   cut at the stop, roll back, count
        parts = {"draft": drafted - started, "verify": verified - drafted, "accept": accepted - verified}
        self._spend({**parts, "total": perf_counter() - started})
        self._retire([row for row in self.rows if row.finish is not None])

    def _uniforms(self) -> Tensor | None:
        """Fresh numbers [B, 2K + 1]: K for drafting, K for accepting, one for the own token."""
        if self.sampling.greedy and "uniforms" not in self.decoder.rule.needs:
            return None
        return torch.stack([row.uniforms(2 * self.decoder.block + 1) for row in self.rows])

    def _draft(self, room: Tensor, uniforms: Tensor | None) -> Draft | None:
        num_draft = min(self.decoder.block, int(room.max()))
        if self.decoder.drafter is None or num_draft < 1:
            return None
        draft = self.decoder.drafter.propose(
            texts_of(self.rows),
            num_draft,
            vocabulary=self.decoder.vocabulary,
            sampling=self.sampling,
            uniforms=uniforms,
            want_q=self.decoder.wants_q,
        )
        fits = torch.arange(draft.ids.shape[1]) < room[:, None]
        device = self.decoder.target.device
        q = None if draft.q is None else draft.q.to(device)
        return Draft(draft.ids.to(device), draft.valid.to(device) & fits.to(device), q, draft.forwards)

    def _verify(self, draft: Draft | None, uniforms: Tensor | None, states: dict[str, Tensor]) -> Block:
        device = self.decoder.target.device
        ids, valid = left_padded(self.reader.unread(texts_of(self.rows)), device)
        if draft is None:
            draft = Draft(ids[:, :0], ids[:, :0].bool())
        num = draft.ids.shape[1]
        if valid is not None or not bool(draft.valid.all()):
            pending = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
            valid = torch.cat([pending, draft.valid], dim=1)
        z = self.reader.read(torch.cat([ids, draft.ids], dim=1), valid, keep=num + 1)[..., : self.decoder.vocabulary]
        return Block(
            draft.ids,
            draft.valid,
            self.sampling.logits(z),
            q=draft.q,
            hidden={layer: state[:, -num - 1 :] for layer, state in states.items()},
            uniforms=None if uniforms is None else self._to_accept(uniforms, num).to(device),
            greedy=self.sampling.greedy,
            protocol=self.protocol,
        )

    def _to_accept(self, uniforms: Tensor, num: int) -> Tensor:
        """The numbers [B, num + 1] for accepting `num` tokens and drawing the own one."""
        block = self.decoder.block
        return torch.cat([uniforms[:, block : block + num], uniforms[:, -1:]], dim=1)

    def _commit(self, acceptance: Acceptance, draft: Draft | None) -> None:
        num = 0 if draft is None else draft.ids.shape[1]
        lengths: list[int] = acceptance.length.tolist()
        ids = [[]] * len(self.rows) if draft is None else draft.ids.tolist()
        reasons = acceptance.reasons.tolist()
        for row, length, own, x, why in zip(self.rows, lengths, acceptance.own_ids.tolist(), ids, reasons, strict=True):
            commit(row, x[:length], why[:length], own, self.stop, 0 if draft is None else draft.forwards)
            if row.finish is None and self.is_decided is not None:
                row.finish = self.is_decided(row)
        # Refused tokens were read by both models; what a stop cut off needs no forgetting, its row leaves.
        if num:
            valid = draft.valid.sum(-1).tolist() if draft is not None else []
            self._forget(num, lengths, valid)

    def _forget(self, num: int, lengths: list[int], valid: list[int]) -> None:
        self.reader.settle(num, lengths, valid)
        assert self.decoder.drafter is not None
        self.decoder.drafter.settle(lengths)

    def _spend(self, parts: dict[str, float]) -> None:
        for row in self.rows:
            for part, seconds in parts.items():
                row.statistics.spend(part, seconds / len(self.rows))

    def _retire(self, leaving: list[Row]) -> None:
        """Hand out the rows that ended; the others go on without them."""
        if not leaving:
            return
        gone = {row.index for row in leaving}
        places = [place for place, row in enumerate(self.rows) if row.index in gone]
        memories = self._memories(places) if self.remember else [None] * len(places)
        for place, memory in zip(places, memories, strict=True):
            row = self.rows[place]
            row.finish = row.finish or "length"
            self.results[row.index] = (finished(row), memory)
        stay = [place for place, row in enumerate(self.rows) if row.index not in gone]
        self.rows = [self.rows[place] for place in stay]
        if self.rows:
            self.reader.select(stay)
            self.state = {name: value[stay] for name, value in self.state.items()}
            if self.decoder.drafter is not None:
                self.decoder.drafter.select(stay)

    def _memories(self, places: list[int]) -> list[Any]:
        drafter = self.decoder.drafter
        targets = self.reader.snapshot(places)
        drafts = drafter.snapshot(places) if drafter is not None else [RowCache([])] * len(places)
        return [
            Memory(list(self.rows[place].text), target, draft)
            for place, target, draft in zip(places, targets, drafts, strict=True)
        ]
