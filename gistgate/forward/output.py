"""A smaller output layer for drafting: a frequent part of the vocabulary (FR-Spec, arXiv 2502.14856).

The draft model proposes these tokens alone: logits of all others are -inf, so its probabilities q are those over the
subset, renormalised. Verification knows nothing of it, and lossless tests stay exact.

Axis letters: V vocabulary, S subset, D width.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from gistgate.identity import identify_tokenizer, weights_fingerprint
from gistgate.protocol import added_ids
from gistgate.typed import dataclass_from


@dataclass(frozen=True)
class Subset:
    """Token ids that a draft model may propose."""

    ids: tuple[int, ...]
    """In rising order."""
    tokenizer: str
    """Hash of the tokenizer that the ids are of."""
    draft: str | None
    """Fingerprint of the draft model with its whole output layer."""
    coverage: float
    """Share of the counted tokens that the subset holds."""

    @classmethod
    def count(
        cls, texts: Iterable[Sequence[int]], size: int, tokenizer: Any, draft: PreTrainedModel, always: Iterable[int]
    ) -> Subset:
        """The `size` most frequent ids of some texts, of equals the lower one.

        Ids of `always`, which end answers, and the tokenizer's added tokens are among them.

        Raises:
            UserError: the size is below the number of ids that are always in, there is no text, or the draft was
                changed.
        """
        check_unchanged(draft)
        counts = Counter(token for text in texts for token in text)
        rows = draft.get_output_embeddings().weight.shape[0]
        needed = indispensable(tokenizer, always, rows)
        if not counts or not len(needed) <= size <= rows:
            raise UserError(
                f"A draft vocabulary of {size} tokens cannot be counted on {sum(counts.values())} tokens of text. Pass "
                f"texts, and a size from {len(needed)} (added tokens are always in) to {rows}."
            )
        ranked = sorted(set(range(rows)) - needed, key=lambda token: (-counts[token], token))
        ids = needed | set(ranked[: size - len(needed)])
        covered = sum(counts[token] for token in ids) / sum(counts.values())
        identity = identify_tokenizer(tokenizer).vocabulary
        return cls(tuple(sorted(ids)), identity, weights_fingerprint(draft), round(covered, 6))

    @classmethod
    def load(cls, path: str | Path) -> Subset:
        """A saved subset.

        Raises:
            UserError: the file is missing or damaged.
        """
        value = read_json(path)
        try:
            subset: Subset = dataclass_from(cls, {**value, "ids": tuple(int(one) for one in value["ids"])})
            if list(subset.ids) != sorted(set(subset.ids)) or not subset.ids or subset.ids[0] < 0:
                raise ValueError("its ids do not rise from zero on")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{path} is no draft vocabulary: {error}. Count it with `gistgate draft-vocabulary`."
            ) from (error)
        return subset

    def save(self, path: str | Path) -> None:
        """Write the subset as JSON."""
        write_json(path, asdict(self))

    @property
    def digest(self) -> str:
        """Hash of the ids."""
        return hashlib.sha256(repr(self.ids).encode()).hexdigest()[:16]

    def apply(self, draft: PreTrainedModel, tokenizer: Any = None, always: Iterable[int] = ()) -> PreTrainedModel:
        """Cut the output layer of a draft model down to the subset, in place, and return the model.

        Raises:
            UserError: the subset is of another tokenizer or draft, lacks an id of `always` or an added token, or the
                draft was changed.
        """
        known = getattr(draft, "subset", None)
        if known == self.digest:
            return draft
        check_unchanged(draft)
        if tokenizer is not None and identify_tokenizer(tokenizer).vocabulary != self.tokenizer:
            raise UserError("The draft vocabulary was counted with another tokenizer. Count it again for this one.")
        if self.draft is not None and weights_fingerprint(draft) not in (None, self.draft):
            raise UserError("The draft vocabulary was counted for another draft model. Count it again for this one.")
        head = draft.get_output_embeddings()
        if type(head) is not nn.Linear:
            raise UserError(
                "The draft's output layer is no nn.Linear, so it cannot be cut down. Use the whole vocabulary."
            )
        if self.ids[-1] >= head.out_features:
            raise UserError(
                f"The draft vocabulary names the token {self.ids[-1]}, and the draft has {head.out_features}. Count it "
                "again for this draft."
            )
        if lacking := sorted(indispensable(tokenizer, always, head.out_features) - set(self.ids)):
            raise UserError(
                f"The draft vocabulary lacks the token {lacking[0]}, which ends answers or steers the protocol. "
                "Count it again with `gistgate draft-vocabulary`, which always puts such tokens in."
            )
        draft.set_output_embeddings(SubsetHead(head, self.ids))
        draft.subset = self.digest
        return draft


def check_unchanged(draft: PreTrainedModel) -> None:
    """Refuse a draft model whose output layer is no longer that of its checkpoint.

    Raises:
        UserError: its vocabulary was cut down or its weights were quantised.
    """
    if getattr(draft, "subset", None) is not None or getattr(draft, "quantised", None):
        raise UserError("The draft's output layer was changed already. Load the draft anew to cut it down.")


def indispensable(tokenizer: Any, always: Iterable[int], rows: int) -> set[int]:
    """Ids that every subset holds: `always` and the added tokens, as far as an output layer of `rows` has them."""
    return {token for token in (*always, *added_ids(tokenizer)) if token < rows}


class SubsetHead(nn.Module):
    """An output layer that computes the logits of some tokens and gives -inf to all others."""

    def __init__(self, whole: nn.Linear, ids: Sequence[int]) -> None:
        super().__init__()
        self.vocabulary = whole.out_features
        self.index: Tensor
        self.register_buffer("index", torch.tensor(ids, device=whole.weight.device), persistent=False)
        self.part = nn.Linear(whole.in_features, len(ids), bias=whole.bias is not None, device="meta")
        for name, values in whole.named_parameters():
            part = values.detach()[self.index].contiguous()
            setattr(self.part, name, nn.Parameter(part, requires_grad=False))

    def forward(self, h: Tensor) -> Tensor:
        z: Tensor = self.part(h)
        return z.new_full((*z.shape[:-1], self.vocabulary), -torch.inf).index_copy_(-1, self.index, z)
