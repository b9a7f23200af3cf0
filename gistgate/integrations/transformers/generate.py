"""`generate` as transformers calls it with `custom_generate=FOLDER`: speculative decoding under a gate.

model.generate(**inputs, custom_generate=FOLDER, trust_remote_code=True, draft_model=DRAFT, gate=FOLDER)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from gistgate.errors import UserError
from gistgate.gates.gate import Gate
from gistgate.integrations.transformers.choice import choose, default_rule, take_settings
from gistgate.integrations.transformers.decoding import GatedDecoding
from gistgate.integrations.transformers.parts import load_draft, load_gate, make_drafter

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
    gate: Gate | str | Path | None = None,
    budget: float | None = None,
    rule: str | None = None,
    block: int | None = None,
    drafter: str | None = None,
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
        budget: certified loss at which the gate runs, as a share (0.03 is 3 points); default: the gate's headline.
        rule: rule id; default: the rule that the gate was certified with, "exact" without a gate.
        block: K, drafted tokens per round; default: the certified one, 8 without a gate.
        drafter: "model" (default) or "lookup", which copies from the text and needs no draft model.
        stop_strings: texts that end an answer; needs `tokenizer`.
        tokenizer: finds stop strings, and lets the gate check the vocabulary.
        report: a list that receives one Generation per row (new ids, reasons, finish, statistics).
        kwargs: settings of the rule (risk=0.05), and the arguments of `generate`.

    Raises:
        UserError: parts that do not fit together, or an argument that this decoder does not support.
    """
    arguments = supported(kwargs, stop_strings, tokenizer)
    draft = load_draft(draft_model, model)
    judge = load_gate(gate, model, draft, tokenizer)
    rule, drafter = rule or default_rule(judge), drafter or "model"
    decoding = GatedDecoding(
        choose(judge, rule, budget, block, drafter, take_settings(rule, arguments)),
        make_drafter(drafter, draft),
        judge,
        tokenizer,
        strings_of(stop_strings),
        report,
    )
    # Entering generate a second time, now with a callable, leaves merging and checking of all settings, lengths,
    # special tokens and masks to transformers. Through the type: on a model that was loaded together with a folder
    # like this one, `model.generate` is this very function.
    return type(model).generate(model, custom_generate=decoding, **arguments)


def supported(kwargs: dict[str, Any], stop_strings: str | Sequence[str] | None, tokenizer: Any) -> dict[str, Any]:
    """What was said, without the arguments that were left open.

    Raises:
        UserError: one that this decoder does not support, or stop strings without a tokenizer.
    """
    # Callers may hand over None for everything that they leave open; transformers passes it on.
    arguments = {name: value for name, value in kwargs.items() if value is not None}
    for name, remedy in REFUSED.items():
        if arguments.pop(name, False) is not False:
            raise UserError(f"generate got {name}=, which this decoder does not support. {remedy}.")
    if stop_strings and tokenizer is None:
        raise UserError("stop_strings are found in the text, and no tokenizer was given. Pass tokenizer= as well.")
    return arguments


def strings_of(stop_strings: str | Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings in whichever form they come."""
    return (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings or ())
