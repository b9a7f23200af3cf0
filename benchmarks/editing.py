"""Drafting where most of an answer repeats its prompt: the draft model, the text, and both, on requests to edit code.

    python -m benchmarks.editing [--prompts 20] [--functions 6] [--max-new-tokens 256] [--results FOLDER]

In the folder of a run whose pair has a draft model and can read code; batch 1, eager engine, strict decoding with K
tokens. `model` drafts with the draft model, `suffix` copies from the text, `hybrid` takes the more promising of both at
the costs that were measured on other such requests. Requests are made by `benchmarks.edits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import RESULTS, ratios, save, side_by_side
from benchmarks.edits import edits
from gistgate.build.choose import NONE, Choice
from gistgate.build.decoder import assemble
from gistgate.build.drafters import HYBRID, Sources, make_drafter
from gistgate.build.models import Target
from gistgate.decoding.checks import check_prompts
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.stopping import Stopping
from gistgate.errors import UserError
from gistgate.observing.outlook import Costs, measure
from gistgate.request.stopping import eos_ids
from pipeline.common.entry import run
from pipeline.pairs.pair import Pair, load_pair
from pipeline.pairs.source import MODEL
from pipeline.params import read_params
from pipeline.speed.clock import Contender, ours

DRAFTERS = (MODEL, HYBRID, "suffix")
DEVELOPMENT = 2
"""Requests on which costs are measured; they are never timed."""
PLAIN = "plain"


def main(
    prompts: int = 20,
    functions: int = 6,
    max_new_tokens: int = 256,
    threads: int = 2,
    results: Path = RESULTS,
) -> None:
    torch.set_num_threads(threads)
    params = read_params()
    pair, block = load_pair(params), params.decoding.strict_block
    if pair.draft is None:
        raise UserError("This pair has no draft model to compare with copying. Choose another pair.")
    request = {"max_new_tokens": max_new_tokens, "eos_ids": eos_ids(pair.target, pair.tokenizer)}
    development, timed = (encoded(pair, edits(num, functions, seed)) for num, seed in ((DEVELOPMENT, 0), (prompts, 1)))
    check_prompts([pair.target, pair.draft], [*map(len, development), *map(len, timed)], max_new_tokens)
    costs = measure(decoder_of(pair, MODEL, block), development, sorted({1, block}), **request)
    found = compare(pair, block, costs, timed, request)
    about = {"pair": pair.name, "block": block, "functions": functions, "max_new_tokens": max_new_tokens}
    save("editing", {**about, "costs": asdict(costs), "contenders": found}, results)


def encoded(pair: Pair, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of requests, in the chat template where the tokenizer has one."""
    target = Target(pair.target, pair.tokenizer)
    return [target.encode(text, chat=pair.tokenizer.chat_template is not None) for text in texts]


def compare(
    pair: Pair, block: int, costs: Costs, ids: Sequence[list[int]], request: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Rates, ratios and tau of plain decoding and of every drafter, request by request beside each other."""
    policy = Stopping(0.0, measured={"cost": costs.draft, "verify": costs.verification(block), "block": block})
    field = [Contender(PLAIN, ours(decoder_of(pair, NONE, 0), dict(request)), 0)]
    for drafter in DRAFTERS:
        decoder = decoder_of(pair, drafter, block, policy if drafter == HYBRID else None)
        field.append(Contender(drafter, ours(decoder, dict(request)), block))
    times = side_by_side(field, [[one] for one in ids])
    found = ratios(times, (PLAIN, MODEL))
    for name, entry in times.items():
        found[name]["tau"] = sum(entry["tokens"]) / sum(entry["target_forwards"])
    return found


def decoder_of(pair: Pair, drafter: str, block: int, stopping: Stopping | None = None) -> Decoder:
    """Strict decoding with one drafter."""
    sources = Sources(pair.target, pair.tokenizer, pair.draft, stopping=stopping)
    return assemble(pair.target, pair.tokenizer, Choice("exact", {}, block, drafter), make_drafter(drafter, sources))


if __name__ == "__main__":
    run(main)
