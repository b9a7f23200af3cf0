"""`generate` as transformers calls it with `custom_generate=FOLDER`: speculative decoding under a gate.

model.generate(
    **inputs, custom_generate=FOLDER, trust_remote_code=True, draft_model=DRAFT, gate=FOLDER, tokenizer=TOKENIZER
)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from gistgate.build.decoder import build_decoder, wishes_from
from gistgate.build.preference import preferred
from gistgate.build.wishes import AUTO, MEASURED_BY
from gistgate.errors import UserError
from gistgate.integrations.transformers.decoding import GatedDecoding
from gistgate.integrations.transformers.parts import loaded_parts

REFUSED = {
    "assistant_model": "Pass the draft as draft_model=",
    "assistant_tokenizer": "Draft and target have to share one tokenizer",
    "streamer": "Tokens come in blocks; read the ids when they are complete",
    "synced_gpus": "Turn it off",
    "inputs_embeds": "Pass input_ids=",
    "position_ids": "Left-padded rows get theirs from attention_mask=",
    "past_key_values": "The decoder keeps its own caches, so pass the whole text as input_ids=",
}
"""Arguments of `generate` that make no sense here, and what to do instead."""


def generate(
    model: PreTrainedModel,
    draft_model: PreTrainedModel | str | Path | None = None,
    gate: Any = None,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    report: list[Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Continue `input_ids [B, T]`, left-padded or not; returns [B, T + new], as `generate` does.

    Args:
        model: the target.
        draft_model: the draft, loaded or as a folder or hub id; then it gets the target's dtype and device.
        gate: a loaded gate, or the folder or hub id of one; it is checked against target, draft and tokenizer.
        stop_strings: texts that end an answer; needs `tokenizer`.
        tokenizer: finds stop strings, lets the gate check the vocabulary, and knows the chat, think and tool markers
            that are never accepted loosely; without it a warning says so.
        report: a list that receives one Generation per row (new ids, reasons, finish, statistics).
        kwargs: what else the decoder may be told: budget (0.03 is 3 points), rule, block, drafter and the other fields
            of `Wishes`; settings of the rule (risk=0.05); and the arguments of transformers' `generate`.

    Raises:
        UserError: parts that do not fit together, or an argument that this decoder does not support.
    """
    arguments = {**kwargs, "draft": draft_model, "gate": gate}
    if getattr(model.generation_config, "stop_strings", None):  # transformers would look for their tokenizer in vain
        raise UserError(
            "The model's generation_config names stop_strings. Pass them as stop_strings=, and set "
            "model.generation_config.stop_strings to None."
        )
    arguments["generation_config"], of_config = without_strings(arguments.get("generation_config"))
    stop_strings = stop_strings or of_config
    arguments = supported(arguments, stop_strings, tokenizer)
    if isinstance(arguments.get("guards"), str):
        arguments["guards"] = [arguments["guards"]]
    wishes = wishes_from(arguments, lambda named: loaded_parts(named, model, tokenizer))
    # What `gistgate tune` prefers is taken where the gate's folder is named, and not for a gate that was loaded.
    wishes = replace(wishes, certificate=preferred(replace(wishes, gate=gate)).certificate)
    strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings or ())
    if wishes.speculate_up_to == AUTO:
        raise UserError(MEASURED_BY)
    decoder = build_decoder(model, tokenizer, wishes)
    if tokenizer is None and decoder.rule.knob is not None:
        warnings.warn(
            "Without tokenizer= the chat, think and tool markers are unknown, so that they may be accepted loosely. "
            "Pass tokenizer= as well.",
            stacklevel=2,
        )
    is_gated = wishes.gate is not None or wishes.segments is not None
    decoding = GatedDecoding(decoder, strings, report, is_gated, decoder.certificate)
    # Entering generate a second time, now with a callable, leaves merging and checking of all settings, lengths,
    # special tokens and masks to transformers. Through the type: on a model that was loaded together with a folder
    # like this one, `model.generate` is this very function.
    return type(model).generate(model, custom_generate=decoding, **arguments)


def without_strings(config: GenerationConfig | None) -> tuple[GenerationConfig | None, Any]:
    """A configuration without the texts that end an answer, and these: transformers would not find their tokenizer."""
    strings = getattr(config, "stop_strings", None)
    if config is None or not strings:
        return config, None
    config = copy(config)
    config.stop_strings = None
    return config, strings


def supported(kwargs: dict[str, Any], stop_strings: str | Sequence[str] | None, tokenizer: Any) -> dict[str, Any]:
    """What was said, without the arguments that were left open.

    Raises:
        UserError: an argument that this decoder does not support, or stop strings without a tokenizer.
    """
    # Callers may hand over None for everything that they leave open; transformers passes it on.
    arguments = {name: value for name, value in kwargs.items() if value is not None}
    for name, remedy in REFUSED.items():
        if arguments.pop(name, False) is not False:
            raise UserError(f"generate got {name}=, which this decoder does not support. {remedy}.")
    if stop_strings and tokenizer is None:
        raise UserError("stop_strings are found in the text, and no tokenizer was given. Pass tokenizer= as well.")
    return arguments
