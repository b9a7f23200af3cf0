"""Load a target and its draft as models/pairs/<pair>.yaml names them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.build.checks import check_smaller
from pipeline.common.paths import PAIRS
from pipeline.pairs.loading import (
    check_room,
    check_vocabularies,
    load_config,
    load_draft_tokenizer,
    load_model,
    load_tokenizer,
)
from pipeline.pairs.source import ModelSource, read_pair


class NamesPair(Protocol):
    """What is needed of the parameters."""

    @property
    def pair(self) -> str:
        """File name in models/pairs/ without its ending."""


@dataclass(frozen=True)
class Pair:
    """A target, a draft and their common tokenizer, ready for inference."""

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    files: tuple[Path, ...] = field(default=())
    """Local files and folders that the pair was read from; fingerprints take them in."""


def load_pair(params: NamesPair, folder: Path = PAIRS) -> Pair:
    """Load both models and the tokenizer, frozen and in evaluation mode.

    Raises:
        UserError: unknown pair, a model that cannot be read or reached, vocabularies that differ, or too little memory.
    """
    source = read_pair(params.pair, folder)
    tokenizer = load_tokenizer(source)
    check_room([source.target, source.draft])
    target, draft = load_model(source.target), load_model(source.draft)
    sizes = {"target": num_embeddings(target), "draft": num_embeddings(draft)}
    check_vocabularies(tokenizer, load_draft_tokenizer(source), sizes)
    check_smaller(target, draft)
    return Pair(target, draft, tokenizer, params.pair, pair_files(params.pair, folder))


def pair_files(name: str, folder: Path = PAIRS) -> tuple[Path, ...]:
    """The local files and folders that a pair is read from."""
    source = read_pair(name, folder)
    local = [Path(one.model) for one in (source.target, source.draft) if one.is_folder]
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
    identities = {"target": identity(source.target), "draft": identity(source.draft)}
    sizes = {role: identity["vocabulary"] for role, identity in identities.items()}
    check_vocabularies(tokenizer, load_draft_tokenizer(source), sizes)
    return {"pair": name, "tokens": len(tokenizer), **identities}


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
