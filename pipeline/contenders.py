"""Everything that is timed against each other: transformers' own decoding, ours plain and strict, every method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from transformers import StoppingCriteriaList, StopStringCriteria

from gistgate.decoding.decoder import Decoder
from gistgate.decoding.stopping import eos_ids
from pipeline.decode import make_decoder, request_of
from pipeline.operating import operating_point
from pipeline.pairs import Pair
from pipeline.params import MethodParams, Params
from pipeline.served import load_gate
from pipeline.tasks import Task


@dataclass(frozen=True)
class Timed:
    """One decoded prompt."""

    seconds: float
    """Wall-clock time, prefill included."""
    tokens: int
    """New tokens."""
    forwards: int | None
    """Target forwards; None where the library does not count them."""


@dataclass(frozen=True)
class Contender:
    """Something that continues a prompt."""

    name: str
    decode: Callable[[list[int]], tuple[int, int | None]]
    """Prompt ids -> (new tokens, target forwards)."""
    block: int
    """K; 0 without a draft."""
    is_baseline: bool = False
    also: tuple[str, ...] = ()
    """Methods that decode exactly like this and share its times."""

    def timed(self, ids: list[int]) -> Timed:
        """Decode with a clock on both sides, the device idle at either end."""
        synchronise()
        started = perf_counter()
        tokens, forwards = self.decode(ids)
        synchronise()
        return Timed(perf_counter() - started, tokens, forwards)


def contenders(params: Params, pair: Pair, task: Task, prompts: list[dict[str, Any]]) -> list[Contender]:
    """The baselines, then every method at its operating point for the headline budget."""
    request, common, own = request_of(prompts, pair), params.decoding.block, params.decoding.strict_block
    exact = MethodParams("exact")
    points = {name: operating_point(params, name) for name in params.methods}
    strictly = tuple(name for name, point in points.items() if point.rule == "exact" and point.drafter == "model")
    plain = make_decoder(pair, MethodParams("exact", drafter="none"), {}, 0)
    field = [
        Contender("plain", ours(plain, request), 0, True),
        Contender("strict", ours(make_decoder(pair, exact, {}, own), request), own, True, strictly),
        Contender(f"strict_{common}", ours(make_decoder(pair, exact, {}, common), request), common, True),
        Contender("transformers_generate", theirs(pair, request, None), 0, True),
        Contender("transformers_assisted", theirs(pair, request, own), own, True),
        Contender(f"transformers_assisted_{common}", theirs(pair, request, common), common, True),
    ]
    for name, point in points.items():
        if name not in strictly:
            gate = load_gate(point.head, pair) if point.head else None
            decoder = make_decoder(pair, point.as_method(), point.settings, point.block, gate=gate)
            field.append(Contender(name, ours(decoder, request), point.block))
    return field


def ours(decoder: Decoder, request: dict[str, Any]) -> Callable[[list[int]], tuple[int, int | None]]:
    """Our decoder, one row at a time."""

    def decode(ids: list[int]) -> tuple[int, int | None]:
        answer = decoder.generate([ids], **request)[0]
        return len(answer.ids), answer.statistics.forwards

    return decode


def theirs(pair: Pair, request: dict[str, Any], block: int | None) -> Callable[[list[int]], tuple[int, int | None]]:
    """transformers' `generate`, with assisted decoding at K = `block` where one is given."""
    extra: dict[str, Any] = {}
    if request["stops"]:  # as a criterion: the argument `stop_strings` would reach the draft without its tokenizer
        extra["stopping_criteria"] = StoppingCriteriaList([StopStringCriteria(pair.tokenizer, list(request["stops"]))])

    def decode(ids: list[int]) -> tuple[int, int | None]:
        assistant = {}
        if block is not None:
            # These three are read from the draft's own configuration; left alone they stop drafts early.
            settings = pair.draft.generation_config
            settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = block, "constant"
            settings.assistant_confidence_threshold = 0.0
            assistant = {"assistant_model": pair.draft}
        prompt = torch.tensor([ids], device=pair.target.device)
        with torch.inference_mode():
            out = pair.target.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                max_new_tokens=request["max_new_tokens"],
                eos_token_id=eos_ids(pair.target, pair.tokenizer),
                pad_token_id=pair.tokenizer.pad_token_id,
                **assistant,
                **extra,
            )
        return out.shape[1] - len(ids), None

    return decode


def synchronise() -> None:
    """Wait for the device, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
