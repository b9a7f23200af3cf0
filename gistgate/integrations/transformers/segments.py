"""`generate` as transformers calls it with `custom_generate=FOLDER` of segment probes.

model.generate(**inputs, custom_generate=FOLDER, trust_remote_code=True, draft_model=DRAFT, segments=FOLDER,
               tokenizer=TOKENIZER)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from gistgate.errors import UserError
from gistgate.gates.gate import Gate
from gistgate.integrations.transformers.choice import Choice
from gistgate.integrations.transformers.decoding import GatedDecoding
from gistgate.integrations.transformers.generate import strings_of, supported
from gistgate.integrations.transformers.parts import changed, gate_folder, load_draft, load_gate, once
from gistgate.optional.segments.building import chosen_decoder, own_gate, speaking_gate
from gistgate.optional.segments.files import Probes, load_probes
from gistgate.optional.segments.serving import choose_segments, take_segment_settings


def generate(
    model: PreTrainedModel,
    draft_model: PreTrainedModel | str | Path | None = None,
    segments: str | Path | None = None,
    gate: Gate | str | Path | None = None,
    rule: str | None = None,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    report: list[Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Continue `input_ids [B, T]`, left-padded or not; returns [B, T + new], as `generate` does.

    Args:
        model: the target.
        draft_model: the draft, loaded or as a folder or hub id.
        segments: the folder or hub id of the probes; they are checked against target and draft.
        gate: a token gate for refused segments; default: the folder's own.
        rule: "segment" or "segment-draw"; default: the certified one.
        stop_strings: texts that end an answer.
        tokenizer: tells where segments end.
        report: a list that receives one Generation per row (new ids, reasons, finish, statistics).
        kwargs: settings of segments (opinion="ratio", threshold=0.9), and the arguments of `generate`.

    Raises:
        UserError: parts that do not fit together, or an argument that this decoder does not support.
    """
    arguments = supported(kwargs, stop_strings, tokenizer)
    if segments is None or draft_model is None or tokenizer is None:
        raise UserError("Segments need segments=<folder>, draft_model= and tokenizer=. Pass all three.")
    draft = load_draft(draft_model, model)
    assert draft is not None
    probes, own = loaded(str(segments), model, draft, tokenizer)
    choice = choose_segments(probes, rule, take_segment_settings(arguments))
    judge, choice = speaking_gate(choice, load_gate(gate, model, draft, tokenizer), own)
    decoder = chosen_decoder(probes, choice, model, draft, tokenizer, judge)
    drafter, opinion = decoder.drafter, decoder.parts.gate
    assert drafter is not None
    decoding = GatedDecoding(
        Choice(choice.rule, probes.limit, choice.doubts), drafter, opinion, tokenizer, strings_of(stop_strings), report
    )
    return type(model).generate(model, custom_generate=decoding, **arguments)


def loaded(name: str, target: PreTrainedModel, draft: PreTrainedModel, tokenizer: Any) -> tuple[Probes, Gate | None]:
    """Probes and the gate beside them, read once per target."""

    def load() -> tuple[Probes, Gate | None]:
        folder = gate_folder(name)
        return load_probes(folder, target, draft), own_gate(folder, target, draft, tokenizer)

    return once(target, ("segments", name, changed(name), id(draft), id(tokenizer)), load)
