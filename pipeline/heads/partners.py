"""The pair that a gate is trained for, as the gate's config.json names it."""

from __future__ import annotations

from dataclasses import dataclass

from gistgate.identity import ModelIdentity, TokenizerIdentity, identify_model, identify_tokenizer
from pipeline.pairs.pair import Pair


@dataclass(frozen=True)
class Partners:
    """Identities of the pair whose states and drafts were labelled."""

    target: ModelIdentity
    draft: ModelIdentity | None
    tokenizer: TokenizerIdentity


def partners_of(pair: Pair) -> Partners:
    """The identities of a loaded pair, under the names that the pair's file gives its models."""
    return Partners(
        identify_model(pair.target, pair.names.get("target")),
        identify_model(pair.draft, pair.names.get("draft")) if pair.draft is not None else None,
        identify_tokenizer(pair.tokenizer, pair.names.get("tokenizer")),
    )
