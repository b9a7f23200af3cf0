"""Labels without rollouts (after arXiv 2510.02329): what the next N tokens of the target's own text
lose in log-probability behind a draft token z, in nats, at the best of three alignments (z in place
of the target's token y, in front of it, or as one of the next tokens itself), and ln p(y) - ln
p(z). What follows a wrong name may not depend on it at all, so that the loss alone calls it
harmless. Letters: B texts, T slots of a row, C of a part, M mismatches of a text, V vocabulary, D
width.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from gistgate.trees.tree import attention_kinds

SKIPPED = 3  # tokens of the text among which z may stand for a deletion
CHUNK = 1024  # rows of logits in memory at a time
TEXT = 1  # number of the text among the owners of slots; 0 is padding, continuations come behind


@dataclass
class Continuation:
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


@dataclass
class Packed:
    """A row for the target: a text, then all of its continuations."""

    text: Text
    continuations: list[Continuation]
    loss: Tensor  # the labels of the text [M]

    def __post_init__(self) -> None:
        text = self.text
        self.prefix = [*text.prompt, *text.answer][:-1]  # its last token is a prediction only
        self.suffix = list(chain(*(continuation.tokens for continuation in self.continuations)))
        self.length = len(self.prefix) + len(self.suffix)


@dataclass
class SuffixLabeller:
    """Labels the mismatches of texts, each of which is read once: all continuations stand behind it
    in one row, and each sees the text up to its mismatch and itself, as the nodes of a tree do.
    """

    target: PreTrainedModel
    vocabulary: int
    eos_ids: Collection[int]  # where z is one of them, no gate is asked, and there is no label
    protocol_ids: Collection[int] = ()  # likewise, and also where y is one of them
    window: int = 16  # N

    def __post_init__(self) -> None:
        self.kinds = attention_kinds(self.target)  # refuses models that cannot read a tree

    @torch.inference_mode()
    def losses(self, texts: Sequence[Text], tokens: int) -> list[Tensor]:
        """The labels of every text [M] in nats, nan where there is none; a forward reads about
        `tokens` tokens.
        """
        rows = [
            Packed(text, self.continuations(text), torch.full((len(text.at),), torch.nan))
            for text in texts
        ]
        waiting = [row for row in rows if row.continuations]
        waiting.sort(key=lambda row: -row.length)  # a batch holds rows of about one length
        while waiting:
            num = max(1, tokens // waiting[0].length)
            for row, states_TD in zip(waiting[:num], self.states(waiting[:num])):
                self.fill(row, states_TD)
            del waiting[:num]
        return [row.loss for row in rows]

    def continuations(self, text: Text) -> list[Continuation]:
        """The ways in which a text may go on behind every z that gets a label."""
        y = list(text.answer)
        continuations = []
        usable = len(y) if y[-1] in self.eos_ids else len(y) - self.window
        steering = {*self.protocol_ids} - {*self.eos_ids}
        for number, (at, z) in enumerate(zip(text.at, text.z)):
            if at >= usable or z in self.eos_ids or not steering.isdisjoint((z, y[at])):
                continue
            starts = [at + 1, at]
            ahead = y[at + 1 : at + 1 + SKIPPED]
            if z in ahead:
                starts.append(at + 2 + ahead.index(z))
            continuations += [
                Continuation(number, start, y[start : start + self.window])
                for start in starts
                if start < len(y)
            ]
        return continuations

    def states(self, rows: Sequence[Packed]) -> Tensor:
        """The target's last states along some rows [B, T, D], read in one forward."""
        ids_BT, positions_BT, mask = (
            part.to(self.target.device) for part in inputs_of(rows, self.target.dtype)
        )
        masks = mask if len(self.kinds) == 1 else dict.fromkeys(self.kinds, mask)
        read = self.target.base_model(
            input_ids=ids_BT,
            position_ids=positions_BT,
            attention_mask=masks,
            use_cache=False,
        )
        states_BTD: Tensor = read.last_hidden_state
        return states_BTD

    def fill(self, row: Packed, states_TD: Tensor) -> None:
        """Put in the labels of one text, whose row has these states."""
        text = row.text
        text_TD = states_TD[len(text.prompt) - 1 :]
        own_T = self.logprobs(text_TD, text.answer)
        new_T = self.logprobs(states_TD[len(row.prefix) :], row.suffix)
        best: dict[int, float] = {}
        for continuation in row.continuations:
            num = len(continuation.tokens)
            lost = own_T[continuation.start : continuation.start + num] - new_T[:num]
            loss = float(lost.sum())
            best[continuation.mismatch] = min(loss, best.get(continuation.mismatch, loss))
            new_T = new_T[num:]
        at = [text.at[number] for number in best]
        z_M = self.logprobs(text_TD[at], [text.z[number] for number in best])
        row.loss[list(best)] = torch.tensor(list(best.values())) + (own_T[at] - z_M)

    def logprobs(self, h_TD: Tensor, tokens: Sequence[int]) -> Tensor:
        """ln p of a token behind each of the first states [T]."""
        logp = []
        ids = torch.tensor(tokens, device=h_TD.device)
        for h_CD, ids_C in zip(h_TD[: len(ids)].split(CHUNK), ids.split(CHUNK)):
            z_CV = self.target.get_output_embeddings()(h_CD)[:, : self.vocabulary].float()
            z_C1 = z_CV.gather(-1, ids_C[:, None])
            logp.append((z_C1 - z_CV.logsumexp(-1, keepdim=True))[:, 0])
        return torch.cat(logp).cpu()


def inputs_of(rows: Sequence[Packed], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Ids [B, T], positions [B, T] and what is added to the attention of every pair [B, 1, T,
    T].
    """
    longest = max(row.length for row in rows)
    width = -(-longest // 8) * 8  # attention with a mask is fast at multiples of 8
    tables = []
    for row in rows:
        slots = [(token, place, TEXT, place + 1) for place, token in enumerate(row.prefix)]
        for owner, continuation in enumerate(row.continuations, TEXT + 1):
            start = len(row.text.prompt) + row.text.at[continuation.mismatch]
            tokens = [row.text.z[continuation.mismatch], *continuation.tokens][:-1]
            slots += [(token, start + n, owner, start) for n, token in enumerate(tokens)]
        tables.append(pad(torch.tensor(slots), (0, 0, 0, width - len(slots))))
    # Of every slot its id and position, whose it is, and how many tokens of the text it sees.
    ids, positions, owners, limits = torch.stack(tables).unbind(-1)
    place = torch.arange(width)
    in_text = (owners[:, None] == TEXT) & (place < limits[..., None])
    in_itself = (owners[..., None] == owners[:, None]) & (owners[..., None] != TEXT)
    visible = in_text | (in_itself & (place <= place[:, None]))
    mask = torch.zeros((), dtype=dtype).masked_fill(~visible[:, None], torch.finfo(dtype).min)
    return ids, positions, mask
