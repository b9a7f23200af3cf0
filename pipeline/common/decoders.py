"""Decoding as the stages need it: a method of params.yaml as a decoder, and a whole split through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gistgate.build.choose import Choice
from gistgate.build.decoder import assemble
from gistgate.decoding.batches import decode_all
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.prompt_cache import Prefilled
from gistgate.files import read_json_lines
from gistgate.request.slots import Usage
from gistgate.request.statistics import Statistics
from gistgate.request.stopping import eos_ids
from pipeline.common.drafters import make_drafter
from pipeline.common.paths import prompts_of
from pipeline.common.progress import bar, decoding
from pipeline.pairs.pair import Pair
from pipeline.params import MethodParams, Params

if TYPE_CHECKING:
    from gistgate.gates.gate import Gate  # a changed gate feature leaves stages that decode without a gate alone
    from gistgate.integrations.lm_eval.task import Task  # brings lm-eval along


@dataclass(frozen=True)
class Outcome:
    """One decoded prompt."""

    id: str
    """Name of the prompt in its split."""
    ids: list[int]
    """Answer as token ids."""
    text: str
    """Answer as the task scores it."""
    score: float
    """The task's metric against the document, in [0, 1]."""
    statistics: Statistics
    """What was counted."""
    cut: bool = False
    """Whether the limit of tokens ended the answer."""


def read_prompts(split: str) -> list[dict[str, Any]]:
    """The prompts of a split as the stage `prompts` wrote them."""
    return read_json_lines(prompts_of(split))


def make_decoder(
    pair: Pair, method: MethodParams, settings: dict[str, Any], block: int, gate: Gate | None = None, **parts: Any
) -> Decoder:
    """The decoder of a method with these settings of its rule; `parts` go to `Decoder`."""
    choice = Choice(method.rule, settings, block, method.drafter)
    return assemble(pair.target, pair.tokenizer, choice, make_drafter(pair, method.drafter), gate, **parts)


def request_of(prompts: Sequence[dict[str, Any]], pair: Pair) -> dict[str, Any]:
    """What all prompts of a split have in common, as arguments of `Decoder.generate`."""
    return {
        "max_new_tokens": prompts[0]["max_new_tokens"],
        "stops": prompts[0]["stops"],
        "eos_ids": eos_ids(pair.target, pair.tokenizer),
    }


def seeds_of(params: Params, prompts: Sequence[dict[str, Any]], first: int = 0) -> list[int]:
    """One seed for each prompt of a split from its place `first` on."""
    return [params.seed * 1_000_003 + first + index for index in range(len(prompts))]


def run_split(
    decoder: Decoder,
    task: Task,
    pair: Pair,
    prompts: Sequence[dict[str, Any]],
    params: Params,
    title: str = "decode",
    prefilled: Prefilled | None = None,
    first: int = 0,
    usage: Usage | None = None,
) -> list[Outcome]:
    """Decode and score prompts in batches; a progress bar shows rate and time left.

    `prefilled` remembers the prompts for the next setting that decodes them; `first` is the place of the first prompt
    in its split, which decides the seeds; `usage` counts how many slots had a row.
    """
    decode, usage = decode_all if prefilled is None else prefilled.decode_all, usage or Usage()
    with bar(title=title, unit="prompt", total=len(prompts)) as shown:
        answers = decode(
            decoder,
            [prompt["ids"] for prompt in prompts],
            batch_size=params.decoding.batch_size,
            seeds=seeds_of(params, prompts, first),
            progress=decoding(shown, usage),
            usage=usage,
            **request_of(prompts, pair),
        )
        tau = f"tau {usage.mean_accepted_length:.2f}"
        shown.set_postfix_str(f"{tau}, {usage.idle:.1%} of the slots idle")
    outcomes = []
    for prompt, answer in zip(prompts, answers, strict=True):
        text = task.text(pair.tokenizer, answer.ids)
        score = task.score(prompt["doc"], text)
        outcomes.append(Outcome(prompt["id"], answer.ids, text, score, answer.statistics, answer.finish == "length"))
    return outcomes
