"""`generate` as transformers calls it with `custom_generate=FOLDER`: speculative decoding under a
gate. What it has prepared becomes arguments of our decoder, and the rest is refused; its lists of
processors and criteria hold whatever a caller, a model's defaults or a task asked for, so that
nothing is ignored in silence."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import (
    EosTokenCriteria,
    GenerateDecoderOnlyOutput,
    MaxLengthCriteria,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.utils import cached_file

from gistgate.build import Built, build, options_from
from gistgate.core.block import Sampling
from gistgate.core.request import Generation
from gistgate.core.utils import UserError
from gistgate.coverage.ask import Ask, stops_of
from gistgate.coverage.certificate import CERTIFICATE_FILE
from gistgate.coverage.covers import joined, refusal
from gistgate.gate import CONFIG_FILE, WEIGHTS_FILE, Gate
from gistgate.models.loading import load_draft
from gistgate.models.options import DecodeOptions
from gistgate.models.tuned import tuned_certificate

MODES = ("greedy_search", "sample")
OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
# What is prepared for the model's forward; the decoder makes its own except for the mask.
INPUTS = {
    "attention_mask",
    "cache_position",
    "logits_to_keep",
    "past_key_values",
    "position_ids",
    "use_cache",
}


def check_supported(
    model: PreTrainedModel, config: GenerationConfig, prepared: dict[str, Any]
) -> None:
    """Refuse what the decoder does not do."""
    mode = str(config.get_generation_mode().value)
    if mode not in MODES or model.config.is_encoder_decoder:
        kind = mode.replace("_", " ")
        raise UserError(
            "This decoder does greedy decoding and sampling of decoder-only models, but got"
            f" {kind} of {type(model).__name__}."
        )
    for name in OUTPUTS:
        if getattr(config, name, False):
            raise UserError(
                f"generate got {name}=True, which this decoder does not collect. Turn it off."
            )
    for name, value in prepared.items():
        if name not in INPUTS and value is not None:
            raise UserError(
                f"generate got {name}=, which this decoder does not pass to the model. Leave it"
                " away."
            )


def read_sampling(do_sample: bool, processors: Iterable[Any]) -> Sampling:
    """How tokens are drawn."""
    settings: dict[str, Any] = {}
    for processor in processors:
        kind = type(processor)
        if kind is TemperatureLogitsWarper:
            settings["temperature"] = float(processor.temperature)
        elif kind is TopKLogitsWarper:
            settings["top_k"] = int(processor.top_k)
        elif kind is TopPLogitsWarper:
            settings["top_p"] = float(processor.top_p)
        else:
            raise UserError(
                f"generate asks for a {kind.__name__}, but this decoder knows temperature, top_k"
                " and top_p alone. Remove the argument behind it. If you passed none, the model's"
                " generation_config asks for it: pass its neutral value, such as"
                " repetition_penalty=1.0."
            )
    return Sampling(**{"temperature": 1.0, **settings}) if do_sample else Sampling()


@dataclass(frozen=True)
class Ends:
    """Where answers end."""

    max_length: int  # tokens of the longest row, prompt and padding included
    eos_ids: tuple[int, ...]
    stops: tuple[str, ...]  # texts
    tokenizer: Any  # that of a criterion which looks for a text; None without one


def read_ends(criteria: Iterable[Any]) -> Ends:
    """Where answers end by transformers' stopping criteria."""
    lengths: list[int] = []
    eos_ids: list[int] = []
    stops: list[str] = []
    tokenizer = None
    for criterion in criteria:
        if isinstance(criterion, MaxLengthCriteria):
            lengths.append(int(criterion.max_length))
        elif isinstance(criterion, EosTokenCriteria):
            eos_ids += [int(token) for token in torch.as_tensor(criterion.eos_token_id).reshape(-1)]
        elif isinstance(criterion, StopStringCriteria):
            stops += criterion.stop_strings
        elif isinstance(getattr(criterion, "sequence", None), str):
            # How lm-evaluation-harness writes a stop.
            stops.append(criterion.sequence)
            tokenizer = tokenizer or criterion.tokenizer
        else:
            raise UserError(
                f"generate got the stopping criterion {type(criterion).__name__}, which cannot look"
                " inside a block of tokens. Use max_new_tokens, eos_token_id or stop_strings."
            )
    if not lengths:
        raise UserError("generate has no length limit. Pass max_new_tokens=.")
    return Ends(min(lengths), tuple(eos_ids), tuple(stops), tokenizer)


def decode_gated(
    built: Built,
    strings: Sequence[str] | None,
    report: list[Generation] | None,
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: GenerationConfig,
    **prepared: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Continue the rows of `input_ids [B, T]`, as `model.generate(custom_generate=...)` asks;
    returns [B, T + new].
    """
    check_supported(model, generation_config, prepared)
    sampling = read_sampling(bool(generation_config.do_sample), logits_processor)
    ends = read_ends(stopping_criteria)
    decoder = built.decoder
    if decoder.tokenizer is None:
        decoder = decoder.having(tokenizer=ends.tokenizer)
    texts = [*(strings or ()), *ends.stops]
    is_open = strings is None and not ends.stops and decoder.tokenizer is not None
    stops = built.coverage.stops(None if is_open else texts)
    built.coverage.meet(
        Ask(temperature=sampling.temperature, stops=stops_of(stops, decoder.tokenizer))
    )
    seeds = None
    if not sampling.greedy:  # of torch's own generator, so that `torch.manual_seed` repeats a run
        seeds = torch.randint(2**62, (len(input_ids),)).tolist()
    answers = decoder.generate(
        prompts_of(input_ids, prepared.get("attention_mask")),
        max_new_tokens=ends.max_length - input_ids.shape[1],
        eos_ids=ends.eos_ids,
        stops=stops,
        sampling=sampling,
        seeds=seeds,
    )
    if report is not None:
        report.extend(answers)
    pad = generation_config.pad_token_id
    if pad is None:  # an eos then fills ended rows, as in `generate`
        pad = ends.eos_ids[0] if ends.eos_ids else 0
    longest = max(len(answer.ids) for answer in answers)
    padded = [answer.ids + [pad] * (longest - len(answer.ids)) for answer in answers]
    ids = torch.cat([input_ids, torch.tensor(padded, dtype=torch.long).to(input_ids)], dim=1)
    if generation_config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=ids)
    return ids


def prompts_of(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    """The ids of each row without its padding."""
    if mask is None:
        return input_ids.tolist()
    return [row[keep.bool()].tolist() for row, keep in zip(input_ids, mask, strict=True)]


T = TypeVar("T")

# What was loaded for a target: `generate` is called once per batch, and loading takes longer than a
# batch.
LOADED: WeakKeyDictionary[PreTrainedModel, dict[Any, Any]] = WeakKeyDictionary()


def loaded_parts(options: DecodeOptions, target: PreTrainedModel, tokenizer: Any) -> DecodeOptions:
    """The options with models, gates and probes in place of their names."""
    draft = options.draft
    gate = options.gate
    segments = options.segments
    lighter = options.lighter
    if draft is not None:  # made lighter before anything is compared with it
        loading = partial(load_draft, draft, target, tokenizer, **lighter)
        key = ("draft", *key_of(draft), *lighter.values(), target.dtype, target.device)
        draft = once(target, key, loading) if isinstance(draft, str | Path) else loading()
    partners = draft, tokenizer
    if gate is not None:
        key = ("gate", *key_of(gate), *map(id, partners))
        gate = once(target, key, partial(checked_gate, gate, target, *partners), gate, *partners)
    if isinstance(segments, str | Path) and draft is not None and tokenizer is not None:
        from gistgate.segments.probes import load_probes

        key = ("segments", *key_of(segments), *map(id, partners))
        segments = once(
            target, key, partial(load_probes, folder_of(segments), target, *partners), *partners
        )
    return replace(options, draft=draft, gate=gate, segments=segments)


def checked_gate(
    gate: Gate | str | Path, target: PreTrainedModel, draft: PreTrainedModel | None, tokenizer: Any
) -> Gate:
    """The gate, checked against its partners; a loaded one loses a certificate that does not hold,
    with a warning.
    """
    if isinstance(gate, str | Path):
        return Gate.load(gate, target, draft, tokenizer, other_weights=True)
    gate.check(target, draft, tokenizer)
    fitting = copy(gate)
    differences = fitting.take(gate.certificate, target, draft, tokenizer)
    if not differences:
        return gate
    warnings.warn(refusal(joined(differences)), stacklevel=2)
    return fitting


def once(target: PreTrainedModel, key: tuple[Any, ...], load: Callable[[], T], *partners: Any) -> T:
    """What `load` returned first for this target and key; `partners`, whose ids are in the key,
    keep them.
    """
    parts = LOADED.setdefault(target, {})
    if key not in parts:
        parts[key] = load(), partners
    value: T = parts[key][0]
    return value


def key_of(part: Any) -> tuple[Any, ...]:
    """A loaded part by its id; a folder or hub id by its name, and when configuration and
    certificate were written.
    """
    if not isinstance(part, str | Path):
        return (id(part),)
    files = [Path(part) / file for file in (CONFIG_FILE, CERTIFICATE_FILE)]
    return str(part), *(file.stat().st_mtime_ns for file in files if file.is_file())


def folder_of(name: str | Path) -> Path:
    """The folder of a gate or of probes; a hub id is fetched."""
    if Path(name).is_dir():
        return Path(name)
    try:
        config = cached_file(str(name), CONFIG_FILE)
        cached_file(str(name), WEIGHTS_FILE)
        cached_file(str(name), CERTIFICATE_FILE, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"The gate '{name}' is neither a folder nor a reachable hub id. Check the name."
        ) from error
    return Path(str(config)).parent


REFUSED = {  # arguments of `generate` that make no sense here, and what to do instead
    "assistant_model": "Pass the draft as draft_model=",
    "assistant_tokenizer": "Draft and target have to share one tokenizer",
    "streamer": "Tokens come in blocks; read the ids when they are complete",
    "synced_gpus": "Turn it off",
    "inputs_embeds": "Pass input_ids=",
    "position_ids": "Left-padded rows get theirs from attention_mask=",
    "past_key_values": "The decoder keeps its own caches, so pass the whole text as input_ids=",
}


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
        draft_model: the draft, loaded or as a folder or hub id; then it gets the target's dtype and
            device.
        gate: a loaded gate, or the folder or hub id of one; it is checked against target, draft and
            tokenizer.
        stop_strings: texts that end an answer; needs `tokenizer`.
        tokenizer: finds stop strings, lets the gate check the vocabulary, and knows the chat, think
            and tool markers that are never accepted loosely; without it a warning says so.
        report: a list that receives one Generation per row (new ids, reasons, finish, statistics).
        kwargs: what else the decoder may be told: budget (0.03 is 3 points), rule, block, drafter
            and the other fields of `DecodeOptions`; settings of the rule (risk=0.05); and the
            arguments of transformers' `generate`.
    """
    if isinstance(gate, str | Path):
        gate = folder_of(gate)
    named = {**kwargs, "draft": draft_model, "gate": gate}
    arguments = supported_arguments(named)
    strings = stops_named(model, arguments, stop_strings)
    if strings and tokenizer is None:
        raise UserError(
            "stop_strings are found in the text, and no tokenizer was given. Pass tokenizer= as"
            " well."
        )
    options = options_from(arguments)
    # What `gistgate tune` prefers is taken where the gate's folder is named, and not for a gate
    # that was loaded.
    tuned = tuned_certificate(options)
    built = build(model, tokenizer, loaded_parts(options, model, tokenizer), tuned=tuned)
    if tokenizer is None and built.decoder.rule.knob is not None:
        warnings.warn(
            "Without tokenizer= the chat, think and tool markers are unknown, so that they may be"
            " accepted loosely. Pass tokenizer= as well.",
            stacklevel=2,
        )
    decoding = partial(decode_gated, built, strings, report)
    # Entering generate a second time, now with a callable, leaves merging and checking of all
    # settings, lengths, special tokens and masks to transformers. Through the type: on a model that
    # was loaded together with a folder like this one, `model.generate` is this very function.
    return type(model).generate(model, custom_generate=decoding, **arguments)


def supported_arguments(named: dict[str, Any]) -> dict[str, Any]:
    """The arguments without those that are None, which transformers passes on for everything that a
    caller leaves open; UserError for what makes no sense here.
    """
    arguments = {name: value for name, value in named.items() if value is not None}
    for name, remedy in REFUSED.items():
        if arguments.pop(name, False) is not False:
            raise UserError(f"generate got {name}=, which this decoder does not support. {remedy}.")
    if isinstance(arguments.get("guards"), str):
        arguments["guards"] = [arguments["guards"]]
    return arguments


def stops_named(
    model: PreTrainedModel, arguments: dict[str, Any], stop_strings: str | Sequence[str] | None
) -> Sequence[str] | None:
    """The texts that end answers, by an argument or by `generation_config`; they are taken out of
    the latter, since transformers would look for their tokenizer in vain.
    """
    if getattr(model.generation_config, "stop_strings", None):
        raise UserError(
            "The model's generation_config names stop_strings. Set them to None. Pass them as"
            " stop_strings=."
        )
    configured = getattr(arguments.get("generation_config"), "stop_strings", None)
    if configured:
        arguments["generation_config"] = copy(arguments["generation_config"])
        arguments["generation_config"].stop_strings = None
    strings = configured if stop_strings is None else stop_strings
    return (strings,) if isinstance(strings, str) else strings
