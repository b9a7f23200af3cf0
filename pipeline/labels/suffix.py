"""Labels without rollouts: does the target still like its own text behind a draft token? (after arXiv 2510.02329)

At a mismatch the draft's first choice z differs from the target's token y, both reading the target's text. The target
reads z and then the next N tokens of its own text, aligned in three ways: behind z in place of y (substitute), behind
z in front of y (insert), and behind z where z is one of the next tokens of the text itself (delete). `loss` is what
these N tokens lose in log-probability against the text as it was written, in nats, at the best of the three, and
`ratio` is ln p(y) - ln p(z). A label is their sum: what follows a wrong name or hour may not depend on it at all, so
that the loss alone calls it harmless.

Both models read a text once: all candidates of a text stand behind it in one row, each sees the text up to its
mismatch and itself, as the nodes of a tree do. No rollout, no score of an answer, no draft block is needed.

Axis letters: B texts, T slots of a row, C candidates, N tokens of the window, M mismatches, V vocabulary, D width.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.block import Block
from gistgate.core.features import extract, layers_needed, tap
from gistgate.trees.tree import attention_kinds

Table = dict[str, Tensor]  # columns by name, all with leading axis M
WAYS = ("substitute", "insert", "delete")
SKIPPED = 3  # tokens of the text among which z may stand for a deletion


@dataclass(frozen=True)
class Text:
    """A strict answer of the target behind its prompt."""

    problem: int  # index of its prompt
    prompt: Sequence[int]
    answer: Sequence[int]  # with the token that ends it, where one does


class Candidate(NamedTuple):
    """What the target reads behind the text in front of a mismatch: z, then its own text from `start` on."""

    mismatch: int  # number of the mismatch in its text
    way: int  # place in WAYS
    at: int  # tokens of the answer in front of the mismatch
    start: int  # token of the answer that follows z


@dataclass
class Packed:
    """One text with its mismatches, as a row for the target."""

    text: Text
    at: list[int]  # tokens of the answer in front of each mismatch [M]
    z: list[int]  # the draft's first choices there [M]
    q: Tensor | None  # draft logits there [M, V], in the model's dtype; None where no feature reads them
    candidates: list[Candidate]
    window: int

    @property
    def prefix(self) -> list[int]:
        """Prompt and answer; its last token is a prediction only."""
        return [*self.text.prompt, *self.text.answer][:-1]

    def behind(self, candidate: Candidate) -> list[int]:
        """The tokens of the text that follow z."""
        return list(self.text.answer[candidate.start : candidate.start + self.window])

    @property
    def length(self) -> int:
        return len(self.prefix) + sum(len(self.behind(one)) for one in self.candidates)


class SuffixLabeller:
    """Finds the mismatches of texts and labels them."""

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel | None,
        names: Sequence[str],
        vocabulary: int,
        eos_ids: Collection[int],
        protocol_ids: Collection[int] = (),
        window: int = 16,
        chunk: int = 1024,
    ) -> None:
        """`draft`: finds the mismatches of `label`; `names`: features that need no look ahead; `window`: N; `chunk`:
        rows of logits in memory at a time.

        Where z or y is of `protocol_ids`, or z of `eos_ids`, no gate is asked, so that there is no label.
        """
        self.target, self.draft, self.names, self.vocabulary = target, draft, tuple(names), vocabulary
        self.eos, self.never = frozenset(eos_ids), {*eos_ids, *protocol_ids}
        self.window, self.chunk = window, chunk
        self.layers = sorted(layers_needed(names) - {"post"})
        attention_kinds(target)  # refuses models that cannot read a tree

    @torch.inference_mode()
    def label(
        self, texts: Sequence[Text], tokens: int, progress: Callable[[int, int], object] = lambda _texts, _labels: None
    ) -> Table:
        """The columns of all mismatches, in the order of the texts; a forward reads about `tokens` tokens."""
        tables: dict[int, Table] = {}
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index].prompt) - len(texts[index].answer))
        some, labels = max(1, tokens // 256), 0
        for start in range(0, len(order), some):
            group = order[start : start + some]
            tables |= zip(group, self.read_all(self.mismatches([texts[index] for index in group]), tokens), strict=True)
            labels += sum(len(tables[index].get("loss", ())) for index in group)
            progress(start + len(group), labels)
        found = [tables[index] for index in range(len(texts)) if tables[index]]
        return {name: torch.cat([table[name] for table in found]) for name in found[0]} if found else {}

    @torch.inference_mode()
    def read_all(self, packed: Sequence[Packed], tokens: int) -> list[Table]:
        """Labels and features of the mismatches of every text, none for a text without; the target reads in batches."""
        tables: list[Table] = [{} for _ in packed]
        waiting = [index for index, one in enumerate(packed) if one.candidates]
        waiting.sort(key=lambda index: -packed[index].length)  # a batch holds rows of about one length
        while waiting:
            fits = max(1, tokens // packed[waiting[0]].length)
            batch, waiting = waiting[:fits], waiting[fits:]
            for index, table in zip(batch, self.read([packed[index] for index in batch]), strict=True):
                tables[index] = table
        return tables

    def mismatches(self, texts: Sequence[Text]) -> list[Packed]:
        """Every text with its mismatches and their candidates; the draft reads the texts at once."""
        assert self.draft is not None
        rows = [[*text.prompt, *text.answer][:-1] for text in texts]
        longest, device = max(map(len, rows)), self.draft.device
        ids_BT = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
        h_BTD = self.draft.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state  # padding stands behind
        head, packed = self.draft.get_output_embeddings(), []
        for text, h_TD in zip(texts, h_BTD, strict=True):
            first = len(text.prompt) - 1
            q_TV = head(h_TD[first : first + len(text.answer)])[:, : self.vocabulary]
            z_T, y_T = q_TV.argmax(-1).tolist(), list(text.answer)
            at = [place for place, (z, y) in enumerate(zip(z_T, y_T, strict=True)) if z != y]
            packed.append(self.packed(text, at, [z_T[place] for place in at], q_TV))
        return packed

    def packed(self, text: Text, at: Sequence[int], z: Sequence[int], q_TV: Tensor | None = None) -> Packed:
        """The row of a text with draft tokens z in front of its tokens `at`, without those that get no label."""
        y_T = list(text.answer)
        usable = len(y_T) if y_T[-1] in self.eos else len(y_T) - self.window
        rows = [
            (place, token)
            for place, token in zip(at, z, strict=True)
            if token not in self.never and (y_T[place] in self.eos or y_T[place] not in self.never) and place < usable
        ]
        candidates = [one for number, row in enumerate(rows) for one in aligned(number, *row, y_T)]
        places = [place for place, _ in rows]
        q_MV = None if q_TV is None else q_TV[places]
        return Packed(text, places, [token for _, token in rows], q_MV, candidates, self.window)

    def read(self, packed: Sequence[Packed]) -> list[Table]:
        """Labels and features of some texts, in one forward of the target."""
        device = self.target.device
        ids_BT, positions_BT, mask = (part.to(device) for part in rows_of(packed, self.target.dtype))
        with tap(self.target, self.layers) as states:
            kinds = attention_kinds(self.target)
            given = mask if len(kinds) == 1 else dict.fromkeys(kinds, mask)
            post = self.target.base_model(
                input_ids=ids_BT, position_ids=positions_BT, attention_mask=given, use_cache=False
            ).last_hidden_state
            states = {**states, "post": post}
        return [
            self.of_text(one, {name: state[row] for name, state in states.items()}) for row, one in enumerate(packed)
        ]

    def of_text(self, one: Packed, states: dict[str, Tensor]) -> Table:
        """The columns of the mismatches of one text; `states [T, D]` are those of its row."""
        first, slot = len(one.text.prompt) - 1, len(one.prefix)
        own_T, _ = self.logprobs(states["post"][first : first + len(one.text.answer)], one.text.answer)
        behind = [one.behind(candidate) for candidate in one.candidates]
        flat = [token for tokens in behind for token in tokens]
        new_T, hit_T = self.logprobs(states["post"][slot : slot + len(flat)], flat)
        loss_MW = torch.full((len(one.at), len(WAYS)), torch.inf)
        kept_MW, read = torch.zeros(len(one.at), len(WAYS), dtype=torch.long), [0] * len(one.at)
        offset = 0
        for candidate, tokens in zip(one.candidates, behind, strict=True):
            new = slice(offset, offset + len(tokens))
            was = own_T[candidate.start : candidate.start + len(tokens)]
            place = candidate.mismatch, candidate.way
            loss_MW[place] = float((was - new_T[new]).sum())
            kept_MW[place] = int(hit_T[new].sum()) + self.window - len(tokens)
            read[candidate.mismatch] = slot + offset  # the slot of z, whose state no text behind it changes
            offset += len(tokens)
        best_M = loss_MW.argmin(1, keepdim=True)
        z_M, _ = self.logprobs(states["post"][[first + at for at in one.at]], one.z)
        return {
            "problem": torch.full((len(one.at),), one.text.problem, dtype=torch.int32),
            "position": torch.tensor(one.at, dtype=torch.int32),
            "draft_id": torch.tensor(one.z, dtype=torch.int32),
            "target_id": torch.tensor([one.text.answer[at] for at in one.at], dtype=torch.int32),
            "ratio": own_T[one.at] - z_M,
            "loss": loss_MW.gather(1, best_M)[:, 0],
            **{way: loss_MW[:, number] for number, way in enumerate(WAYS)},
            "kept_first": kept_MW.gather(1, best_M)[:, 0].to(torch.int8),
            **self.features(one, states, read),
        }

    def features(self, one: Packed, states: dict[str, Tensor], read: Sequence[int]) -> Table:
        """The features of every mismatch [M, F], by the code that serves a gate: a block of one draft token each."""
        before = [len(one.text.prompt) - 1 + at for at in one.at]
        rows_M2, device = torch.tensor([before, list(read)]).T, self.target.device
        found: dict[str, list[Tensor]] = {name: [] for name in self.names}
        few = max(1, self.chunk // 4)  # a block holds several tensors of the logits' size
        for part in torch.arange(len(one.at) if self.names else 0).split(few):
            hidden = {layer: state[rows_M2[part].to(device)] for layer, state in states.items()}
            logits = self.target.get_output_embeddings()(hidden["post"])[..., : self.vocabulary].float()
            z_M1 = torch.tensor([[one.z[index]] for index in part.tolist()], device=device)
            q = None if one.q is None else one.q[part.to(one.q.device)].float().softmax(-1)[:, None].to(device)
            block = Block(z_M1, torch.ones_like(z_M1, dtype=torch.bool), logits, q=q, hidden=hidden)
            for name, values in extract(block, self.names).items():
                found[name].append(values[:, 0].float().cpu())
        return {name: torch.cat(values) for name, values in found.items()}

    def logprobs(self, h_TD: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """ln p of a token behind each state [T], and whether it is the most probable one."""
        found, first = [], []
        for h_CD, wanted in zip(h_TD.split(self.chunk), torch.tensor(tokens).split(self.chunk), strict=True):
            z_CV = self.target.get_output_embeddings()(h_CD)[:, : self.vocabulary].float()
            wanted_C1 = wanted.to(z_CV.device)[:, None]
            found.append((z_CV.gather(-1, wanted_C1) - z_CV.logsumexp(-1, keepdim=True))[:, 0])
            first.append(z_CV.argmax(-1) == wanted_C1[:, 0])
        return torch.cat(found).cpu(), torch.cat(first).cpu()


def aligned(mismatch: int, at: int, z: int, answer: Sequence[int]) -> Iterator[Candidate]:
    """The ways in which the text may go on behind z in front of token `at`; one without any text behind it is none."""
    after = [at + 1, at]
    ahead = list(answer[at + 1 : at + 1 + SKIPPED])
    if z in ahead:
        after.append(at + 2 + ahead.index(z))
    return (Candidate(mismatch, way, at, start) for way, start in enumerate(after) if start < len(answer))


def rows_of(packed: Sequence[Packed], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Ids [B, T], positions [B, T] and what is added to the attention of every pair [B, 1, T, T]."""
    width = -(-max(one.length for one in packed) // 8) * 8  # attention with a mask is fast at multiples of 8
    ids, positions, owners, limits = (torch.zeros(len(packed), width, dtype=torch.long) for _ in range(4))
    owners -= 1  # padding
    for row, one in enumerate(packed):
        prefix = one.prefix
        ids[row, : len(prefix)] = torch.tensor(prefix)
        positions[row, : len(prefix)] = torch.arange(len(prefix))
        owners[row, : len(prefix)], limits[row, : len(prefix)] = 0, torch.arange(len(prefix)) + 1
        slot = len(prefix)
        for number, candidate in enumerate(one.candidates, 1):
            tokens = [one.z[candidate.mismatch], *one.behind(candidate)][:-1]
            new, start = slice(slot, slot + len(tokens)), len(one.text.prompt) + candidate.at
            ids[row, new] = torch.tensor(tokens)
            positions[row, new] = torch.arange(start, start + len(tokens))
            owners[row, new], limits[row, new] = number, start
            slot += len(tokens)
    place = torch.arange(width)
    in_text = (owners[:, None] == 0) & (place < limits[..., None])
    in_itself = (owners[..., None] == owners[:, None]) & (owners[..., None] != 0) & (place <= place[:, None])
    mask = torch.zeros((), dtype=dtype).masked_fill(~(in_text | in_itself)[:, None], torch.finfo(dtype).min)
    return ids, positions, mask
