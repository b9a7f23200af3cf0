"""Lighter draft models, whose output layer computes a part of the vocabulary."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gistgate.core.files import read_json, write_json
from gistgate.core.identity import identify_tokenizer, weights_fingerprint
from gistgate.core.utils import UserError, added_ids, dataclass_from, refusing
from gistgate.models.packed import frozen


@dataclass(frozen=True)
class Subset:
    """Token ids that a draft model may propose: a frequent part of the vocabulary (FR-Spec, arXiv
    2502.14856).
    """

    ids: tuple[int, ...]  # in rising order
    tokenizer: str  # hash of the tokenizer that the ids are of
    draft: str | None  # fingerprint of the draft model with its whole output layer
    coverage: float  # share of the counted tokens that the subset holds

    @classmethod
    def count(
        cls,
        texts: Iterable[Sequence[int]],
        size: int,
        tokenizer: Any,
        draft: PreTrainedModel,
        always: Iterable[int],
    ) -> Subset:
        """The `size` most frequent ids of some texts, of equals the lower one; `always` and added
        tokens are in it.
        """
        counts = Counter(chain.from_iterable(texts))
        rows = draft.get_output_embeddings().weight.shape[0]
        needed = {token for token in (*always, *added_ids(tokenizer)) if token < rows}
        if not counts or not len(needed) <= size <= rows:
            raise UserError(
                f"A draft vocabulary of {size} tokens cannot be counted on {counts.total()} tokens"
                f" of text. Pass texts, and a size from {len(needed)} (added tokens are always in)"
                f" to {rows}."
            )
        order = sorted(range(rows), key=lambda token: (token not in needed, -counts[token], token))
        ids = tuple(sorted(order[:size]))
        covered = sum(counts[token] for token in ids) / counts.total()
        identity = identify_tokenizer(tokenizer).vocabulary
        return cls(ids, identity, weights_fingerprint(draft), round(covered, 6))

    @classmethod
    def load(cls, path: str | Path) -> Subset:
        """A saved subset."""
        with refusing(f"{path} is no draft vocabulary", "Count it by `gistgate draft-vocabulary`."):
            subset = dataclass_from(cls, read_json(path))
        return replace(subset, ids=tuple(subset.ids))

    def save(self, path: str | Path) -> None:
        """Write the subset as JSON."""
        write_json(path, asdict(self))

    @property
    def digest(self) -> str:
        """Hash of the ids."""
        return hashlib.sha256(repr(self.ids).encode()).hexdigest()[:16]

    def apply(self, draft: PreTrainedModel, tokenizer: Any = None) -> PreTrainedModel:
        """Cut the output layer of a draft model down to the subset, in place, and return the
        model.
        """
        if getattr(draft, "subset", None) == self.digest:
            return draft
        fits = self.draft is None or weights_fingerprint(draft) in (None, self.draft)
        if tokenizer is not None:
            fits &= identify_tokenizer(tokenizer).vocabulary == self.tokenizer
        if not fits:
            raise UserError(
                "The draft vocabulary is of another tokenizer or another draft model. Count it"
                " again."
            )
        head = draft.get_output_embeddings()
        if type(head) is not nn.Linear:
            raise UserError(
                "The draft's output layer is no nn.Linear and cannot be cut. Use the whole"
                " vocabulary."
            )
        draft.set_output_embeddings(SubsetHead(head, self.ids))
        draft.subset = self.digest
        return draft


class SubsetHead(nn.Module):
    """An output layer that computes the logits of some tokens and gives -inf to all others."""

    def __init__(self, whole: nn.Linear, ids: Sequence[int]) -> None:
        super().__init__()
        self.vocabulary = whole.out_features
        self.index: Tensor
        index = torch.tensor(ids, device=whole.weight.device)
        self.register_buffer("index", index, persistent=False)
        has_bias = whole.bias is not None
        self.part = nn.Linear(whole.in_features, len(ids), bias=has_bias, device="meta")
        for name, values in whole.named_parameters():
            setattr(self.part, name, frozen(values.detach()[index]))

    def forward(self, h: Tensor) -> Tensor:
        """Logits [..., vocabulary] of states [..., D]."""
        z: Tensor = self.part(h)
        impossible = z.new_full((*z.shape[:-1], self.vocabulary), -torch.inf)
        return impossible.index_copy_(-1, self.index, z)
