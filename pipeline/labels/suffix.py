"""Labels without rollouts (after arXiv 2510.02329): what the next N tokens of the target's own text
lose in log-probability behind a draft token z, in nats, at the best of three alignments (z in place
of the target's token y, in front of it, or as one of the next tokens itself), and ln p(y) - ln
p(z). What follows a wrong name may not depend on it at all, so that the loss alone calls it
harmless. Letters: B texts, T slots of a row, C of a part, M mismatches of a text, V vocabulary, D
width."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.trees.tree import attention_kinds

SKIPPED = 3  # tokens of the text among which z may stand for a deletion
CHUNK = 1024  # rows of logits in memory at a time


class Candidate(NamedTuple):
    """What the target reads behind the text in front of a mismatch: z, then its own text from
    `start` on.
    """

    mismatch: int  # number of the mismatch in its text
    start: int  # token of the answer that follows z
    tokens: list[int]  # those of the answer from there on that count


@dataclass
class Text:
    """A text of the target with its mismatches."""

    prompt: Sequence[int]
    answer: Sequence[int]  # with the token that ends it, where one does
    at: Sequence[int]  # tokens of the answer in front of each mismatch [M]
    z: Sequence[int]  # the draft's first choices there [M]

    @property
    def prefix(self) -> list[int]:
        """Prompt and answer; its last token is a prediction only."""
        return [*self.prompt, *self.answer][:-1]


Packed = tuple[Text, list[Candidate]]  # a row for the target


class SuffixLabeller:
    """Labels the mismatches of texts, each of which is read once: all candidates stand behind it in
    one row, and each sees the text up to its mismatch and itself, as the nodes of a tree do."""

    def __init__(
        self,
        target: PreTrainedModel,
        vocabulary: int,
        eos_ids: Collection[int],
        protocol_ids: Collection[int] = (),
        window: int = 16,
    ) -> None:
        """`window`: N. Where z or y is of `protocol_ids`, or z of `eos_ids`, no gate is asked, so
        there is no label.
        """
        self.target = target
        self.vocabulary = vocabulary
        self.window = window
        self.eos = frozenset(eos_ids)
        self.never = {*eos_ids, *protocol_ids}
        self.kinds = attention_kinds(target)  # refuses models that cannot read a tree

    @torch.inference_mode()
    def losses(self, texts: Sequence[Text], tokens: int) -> list[Tensor]:
        """The labels of every text [M] in nats, nan where there is none; a forward reads about
        `tokens` tokens.
        """
        packed = {
            index: (text, found)
            for index, text in enumerate(texts)
            if (found := self.candidates(text))
        }
        losses = [torch.full((len(text.at),), torch.nan) for text in texts]
        waiting = sorted(
            packed, key=lambda index: -length(packed[index])
        )  # a batch holds rows of about one length
        while waiting:
            fits = max(1, tokens // length(packed[waiting[0]]))
            batch = waiting[:fits]
            waiting = waiting[fits:]
            rows = [packed[index] for index in batch]
            for index, row, states_TD in zip(batch, rows, self.states(rows), strict=True):
                self.fill(losses[index], row, states_TD)
        return losses

    def candidates(self, text: Text) -> list[Candidate]:
        """The ways in which a text may go on behind every z that gets a label."""
        y = list(text.answer)
        found = []
        usable = len(y) if y[-1] in self.eos else len(y) - self.window
        for number, (at, z) in enumerate(zip(text.at, text.z, strict=True)):
            if at >= usable or z in self.never or (y[at] in self.never and y[at] not in self.eos):
                continue
            ahead = y[at + 1 : at + 1 + SKIPPED]
            starts = [at + 1, at, *([at + 2 + ahead.index(z)] if z in ahead else [])]
            found += [
                Candidate(number, one, y[one : one + self.window]) for one in starts if one < len(y)
            ]
        return found

    def states(self, packed: Sequence[Packed]) -> Tensor:
        """The target's last states along some rows [B, T, D], read in one forward."""
        ids_BT, positions_BT, mask = (
            part.to(self.target.device) for part in rows_of(packed, self.target.dtype)
        )
        given = mask if len(self.kinds) == 1 else dict.fromkeys(self.kinds, mask)
        read = self.target.base_model(
            input_ids=ids_BT, position_ids=positions_BT, attention_mask=given, use_cache=False
        )
        states_BTD: Tensor = read.last_hidden_state
        return states_BTD

    def fill(self, loss_M: Tensor, packed: Packed, states_TD: Tensor) -> None:
        """Put in the labels of one text, whose row has these states."""
        text, candidates = packed
        first = len(text.prompt) - 1
        slot = len(text.prefix)
        own_T = self.logprobs(states_TD[first : first + len(text.answer)], text.answer)
        flat = [token for one in candidates for token in one.tokens]
        new_T = self.logprobs(states_TD[slot : slot + len(flat)], flat)
        best: dict[int, float] = {}
        for one, new in zip(
            candidates, new_T.split([len(one.tokens) for one in candidates]), strict=True
        ):
            loss = float((own_T[one.start : one.start + len(one.tokens)] - new).sum())
            best[one.mismatch] = min(loss, best.get(one.mismatch, loss))
        at = [text.at[number] for number in best]
        z_M = self.logprobs(
            states_TD[[first + place for place in at]], [text.z[number] for number in best]
        )
        loss_M[list(best)] = torch.tensor(list(best.values())) + (own_T[at] - z_M)

    def logprobs(self, h_TD: Tensor, tokens: Sequence[int]) -> Tensor:
        """ln p of a token behind each state [T]."""
        found = []
        for h_CD, wanted in zip(h_TD.split(CHUNK), torch.tensor(tokens).split(CHUNK), strict=True):
            z_CV = self.target.get_output_embeddings()(h_CD)[:, : self.vocabulary].float()
            found.append(
                (
                    z_CV.gather(-1, wanted.to(z_CV.device)[:, None])
                    - z_CV.logsumexp(-1, keepdim=True)
                )[:, 0]
            )
        return torch.cat(found).cpu()


def length(packed: Packed) -> int:
    """Slots of a row."""
    text, candidates = packed
    return len(text.prefix) + sum(len(one.tokens) for one in candidates)


def rows_of(packed: Sequence[Packed], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Ids [B, T], positions [B, T] and what is added to the attention of every pair [B, 1, T,
    T].
    """
    width = -(-max(map(length, packed)) // 8) * 8  # attention with a mask is fast at multiples of 8
    ids, positions, owners, limits = (
        torch.zeros(len(packed), width, dtype=torch.long) for _ in range(4)
    )
    owners -= 1  # padding
    for row, (text, candidates) in enumerate(packed):
        slot = len(text.prefix)
        ids[row, :slot] = torch.tensor(text.prefix)
        positions[row, :slot] = torch.arange(slot)
        owners[row, :slot] = 0
        limits[row, :slot] = torch.arange(slot) + 1
        for number, one in enumerate(candidates, 1):
            tokens = [text.z[one.mismatch], *one.tokens][:-1]
            new = slice(slot, slot + len(tokens))
            start = len(text.prompt) + text.at[one.mismatch]
            ids[row, new] = torch.tensor(tokens)
            positions[row, new] = torch.arange(start, start + len(tokens))
            owners[row, new] = number
            limits[row, new] = start
            slot += len(tokens)
    place = torch.arange(width)
    in_text = (owners[:, None] == 0) & (place < limits[..., None])
    in_itself = (
        (owners[..., None] == owners[:, None])
        & (owners[..., None] != 0)
        & (place <= place[:, None])
    )
    mask = torch.zeros((), dtype=dtype).masked_fill(
        ~(in_text | in_itself)[:, None], torch.finfo(dtype).min
    )
    return ids, positions, mask
