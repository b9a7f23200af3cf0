"""Load a target and what drafts for it as models/pairs/<pair>.yaml names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.build.checks import check_smaller
from gistgate.errors import UserError
from pipeline.common.paths import PAIRS
from pipeline.pairs.loading import (
    check_room,
    check_vocabularies,
    load_config,
    load_model,
    load_shape,
    load_tokenizer,
)
from pipeline.pairs.source import MODEL, ModelSource, read_pair


class NamesPair(Protocol):
    """What is needed of the parameters."""

    @property
    def pair(self) -> str:
        """File name in models/pairs/ without its ending."""


@dataclass(frozen=True)
class Pair:
    """A target, a draft model or another drafter, and the tokenizer, ready for inference."""

    target: PreTrainedModel
    draft: PreTrainedModel | None
    """None where `drafter` proposes without a model."""
    tokenizer: PreTrainedTokenizerBase
    name: str
    files: tuple[Path, ...] = field(default=())
    """Local files and folders that the pair was read from; fingerprints take them in."""
    drafter: str = MODEL
    """Id of the drafter that stands for the pair wherever a method says "model"."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What gates call `target`, `draft` and `tokenizer` where their folders' names say too little."""

    @property
    def models(self) -> list[PreTrainedModel]:
        """The target and, where there is one, the draft model."""
        return [self.target] if self.draft is None else [self.target, self.draft]

    @property
    def draft_model(self) -> PreTrainedModel:
        """The draft model, for what cannot do without one.

        Raises:
            UserError: the pair has none.
        """
        if self.draft is None:
            raise UserError(
                f"The pair '{self.name}' drafts with '{self.drafter}' and has no draft model, which this needs. "
                "Choose a pair with a draft model."
            )
        return self.draft


def load_pair(params: NamesPair, folder: Path = PAIRS, weights: bool = True) -> Pair:
    """Load both models and the tokenizer, frozen and in evaluation mode; without `weights` only their shapes.

    Raises:
        UserError: unknown pair, a model that cannot be read or reached, vocabularies that differ, or too little memory.
    """
    source = read_pair(params.pair, folder)
    tokenizer = load_tokenizer(source)
    if weights:
        check_room(source)
    load = load_model if weights else load_shape
    target, draft = load(source.target), None if source.draft is None else load(source.draft)
    models = {"target": target} if draft is None else {"target": target, "draft": draft}
    sizes = {role: num_embeddings(model) for role, model in models.items()}
    check_vocabularies(source, tokenizer, sizes)
    if draft is not None:
        check_smaller(target, draft)
    files = pair_files(params.pair, folder)
    return Pair(target, draft, tokenizer, params.pair, files, source.drafter, source.names)


def pair_files(name: str, folder: Path = PAIRS) -> tuple[Path, ...]:
    """The local files and folders that a pair is read from."""
    source = read_pair(name, folder)
    local = [Path(one.model) for one in source.models if one.is_folder]
    return (folder / f"{name}.yaml", *local)


def num_embeddings(model: PreTrainedModel) -> int:
    """Ids that a model can read."""
    return int(model.get_input_embeddings().weight.shape[0])


def check_pair(name: str, folder: Path = PAIRS) -> dict[str, Any]:
    """Check configurations and vocabularies without loading weights; returns what identifies the pair.

    Raises:
        UserError: as `load_pair`.
    """
    source = read_pair(name, folder)
    tokenizer = load_tokenizer(source)
    identities = {role: identity(model) for role, model in source.roles.items()}
    sizes = {role: identity["vocabulary"] for role, identity in identities.items()}
    check_vocabularies(source, tokenizer, sizes)
    return {"pair": name, "tokens": len(tokenizer), "draft": None, "drafter": source.drafter, **identities}


def identity(source: ModelSource) -> dict[str, Any]:
    """Name and shape of a model, from its configuration."""
    config = load_config(source).get_text_config()
    return {
        "model": source.model,
        "revision": source.revision,
        "architecture": config.model_type,
        "hidden_size": config.hidden_size,
        "layers": config.num_hidden_layers,
        "vocabulary": config.vocab_size,
    }
