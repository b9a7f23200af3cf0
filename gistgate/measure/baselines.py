"""How transformers itself decodes, as contenders of a race: `generate` without a draft, with a
compiled step and a static cache, assisted, and with prompt lookup."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
import transformers
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    StaticCache,
    StoppingCriteriaList,
    StopStringCriteria,
)

from gistgate.core.utils import replaced
from gistgate.measure.speed import Answers, Contender, Decode, Prompts, race, working

KS = (2, 3, 4, 6, 8, 10)
"""Block lengths of transformers' speculation; its prompt lookup proposes 10 by itself."""
DEFAULTS = 0
"""In place of a K: assisted generation with the length, schedule and threshold of transformers
itself."""
ASSISTED = "transformers_assisted"
LOOKUP = "transformers_lookup"


def theirs(
    pair: Any, request: dict[str, Any], block: int | None = None, **generation: Any
) -> Decode:
    """transformers' `generate` with left padding; assisted at K = `block` (or `DEFAULTS`) where one
    is given.
    """
    ends = list(request.get("eos_ids", ()))
    pad = 0 if pair.tokenizer is None else pair.tokenizer.pad_token_id
    if request.get("stops"):
        # As a criterion: `stop_strings` would reach the draft without its tokenizer.
        stop = StopStringCriteria(pair.tokenizer, list(request["stops"]))
        generation["stopping_criteria"] = StoppingCriteriaList([stop])

    def decode(prompts: Prompts, **cache: Any) -> Answers:
        assistant = {} if block is None else {"assistant_model": drafting(pair.draft, block)}
        rows = [torch.tensor(ids, device=pair.target.device) for ids in prompts]
        ids = pad_sequence(rows, True, pad, "left")
        mask = pad_sequence([torch.ones_like(row) for row in rows], True, 0, "left")
        # Our decoder reads no configuration of a model (a repetition penalty), and other texts have
        # another speed.
        with torch.inference_mode(), replaced(pair.target, "generation_config", GenerationConfig()):
            out = pair.target.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=request["max_new_tokens"],
                eos_token_id=ends or None,
                pad_token_id=pad,
                **assistant,
                **generation,
                **cache,
            )
        return [row[: written(row, ends, pad)] for row in out[:, ids.shape[1] :].tolist()], None

    return decode


def written(answer: list[int], ends: Collection[int], pad: int) -> int:
    """Tokens of an answer up to its end, without the padding behind it."""
    for place, token in enumerate(answer):
        if token in ends or token == pad:
            return place + (token in ends)
    return len(answer)


def static(pair: Any, request: dict[str, Any], slots: int) -> Contender:
    """transformers' compiled step on a static cache of one size, on a CPU as well: not every
    machine can have it.
    """
    everywhere = transformers.CompileConfig()
    everywhere._compile_all_devices = True
    caches: dict[int, StaticCache] = {}
    decode = theirs(pair, request)

    def run(prompts: Prompts) -> Answers:
        num = len(prompts)
        if num not in caches:
            caches[num] = StaticCache(pair.target.config, max_cache_len=slots)
        with torch.inference_mode():
            caches[num].reset()
        return decode(prompts, past_key_values=caches[num], compile_config=everywhere)

    return Contender("transformers_static", run, is_baseline=True)


def drafting(draft: PreTrainedModel, block: int) -> PreTrainedModel:
    """The draft, told to propose `block` tokens every time, or left to the defaults of transformers
    (`DEFAULTS`).
    """
    settings = GenerationConfig()
    if block != DEFAULTS:
        # These are read from the draft's own configuration; left alone they stop drafts early.
        settings.num_assistant_tokens = block
        settings.num_assistant_tokens_schedule = "constant"
        settings.assistant_confidence_threshold = 0.0
    draft.generation_config = settings
    return draft


def speculation(pair: Any, request: dict[str, Any]) -> dict[str, list[Contender]]:
    """Assisted generation (with a draft model) and prompt lookup of transformers, each at every
    K.
    """
    ways = {LOOKUP: {k: theirs(pair, request, prompt_lookup_num_tokens=k) for k in KS}}
    if pair.draft is not None:
        ways[ASSISTED] = {k: theirs(pair, request, k) for k in (*KS, DEFAULTS)}
    contenders: dict[str, list[Contender]] = {name: [] for name in ways}
    for name, decodes in ways.items():
        for k, decode in decodes.items():
            contenders[name].append(Contender(f"{name} {k}", decode, k, is_baseline=True))
    return contenders


def chosen(
    pair: Any, request: dict[str, Any], development: Prompts
) -> tuple[list[Contender], dict[str, str]]:
    """transformers' speculation, each at the K that is fastest on development prompts, and by name
    what cannot run.
    """
    able = []
    failed = {}
    for name, variants in speculation(pair, request).items():
        running, reasons = working(variants, development[:1])
        if running:
            able.append(replace(fastest(running, development), name=name))
        else:  # a draft whose vocabulary is padded otherwise, for instance; others can be timed
            failed[name] = next(iter(reasons.values()))
    return able, failed


def fastest(variants: Sequence[Contender], development: Prompts) -> Contender:
    """The variant that decodes these development prompts in the least time, all of them side by
    side.
    """
    spent = {variant.name: 0.0 for variant in variants}
    for lap in race(variants, [[ids] for ids in development]):
        for name, (run,) in lap.items():
            spent[name] += run.seconds
    return min(variants, key=lambda variant: spent[variant.name])
