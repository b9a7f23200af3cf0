"""The models that `gistgate calibrate` decodes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.build.models import load_draft, load_target
from gistgate.errors import UserError
from gistgate.forward.allocation import keep_freed_memory
from gistgate.gates.gate import Gate
from gistgate.identity import ModelIdentity
from gistgate.integrations.lm_eval.calibrate_options import Options


@dataclass(frozen=True)
class Models:
    """What decodes."""

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    gate: Gate | None


def load_models(options: Options) -> Models:
    """The models that are named, else those that the gate was trained for; the draft is as light as the gate's.

    Raises:
        UserError: a model cannot be loaded, or the gate was trained for another one.
    """
    config = Gate.load(options.gate).config if options.gate else None
    name, dtype = (config.target.name, config.target.dtype) if config else ("", "auto")
    draft_name = options.draft or (config.draft.name if config and config.draft else None)
    if draft_name is None:
        check_no_draft(options)
    with recorded("target", name if not options.target else None):
        target = load_target(options.target or name, dtype, gguf=options.gguf)
    keep_freed_memory(target.model.device)
    lighter = lighter_as_trained(options, config.draft if config else None)
    with recorded("draft", draft_name if not options.draft else None):
        named = {"gguf": options.draft_gguf, **lighter}
        draft = load_draft(draft_name, target.model, target.tokenizer, **named) if draft_name else None
    for model in (target.model, draft):
        if model is not None:
            model.requires_grad_(False)
    target.tokenizer.padding_side = "left"
    gate = Gate.load(options.gate, target.model, draft, target.tokenizer, True) if options.gate else None
    return Models(target.model, draft, target.tokenizer, gate)


def check_no_draft(options: Options) -> None:
    """Refuse options about a draft model where there is none.

    Raises:
        UserError: one of them is named.
    """
    if options.quantise_draft not in (None, "none") or options.draft_vocabulary:
        raise UserError(
            "--quantise-draft and --draft-vocabulary make a draft model lighter, and there is none. Name one with "
            "--draft, or leave them out."
        )
    if options.draft_gguf is not None:
        raise UserError(
            "--draft-gguf names a file in the folder or repository of a draft, and no draft is named. Name one with "
            "--draft, or leave --draft-gguf out."
        )


@contextmanager
def recorded(role: str, name: str | None) -> Iterator[None]:
    """Where a model is loaded by the name that a gate records, say so if that fails; None was named by the user.

    Raises:
        UserError: it failed.
    """
    try:
        yield
    except UserError as error:
        if not name:
            raise
        raise UserError(
            f"{error} The gate records this name, and of a folder elsewhere the last part alone. Name the model with "
            f"--{role}."
        ) from error


def lighter_as_trained(options: Options, trained: ModelIdentity | None) -> dict[str, Any]:
    """How the draft is made lighter: as the user says, else as the draft was that the gate was trained with.

    Raises:
        UserError: that draft had a vocabulary of its own, of which a gate keeps no more than a hash.
    """
    if trained is not None and trained.draft_vocabulary and options.draft_vocabulary is None:
        raise UserError(
            "The gate was trained with a draft that proposes a part of the vocabulary. Name the file of that part with "
            "--draft-vocabulary."
        )
    bits = trained.quantisation if trained is not None else None
    return {"quantised": options.quantise_draft or bits, "vocabulary": options.draft_vocabulary}
