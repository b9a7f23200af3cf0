"""Drafting where most of an answer repeats its prompt: the draft model, the text, and both, on requests to edit code.

    python -m benchmarks.editing [--prompts 20] [--functions 6] [--blocks 8,12,16,24] [--max-new-tokens 256]
        [--seed 3] [--results FOLDER]

In the folder of a run whose pair has a draft model and can read code; batch 1, eager engine, strict decoding. `model`
drafts with the draft model, `suffix` copies from the text, `hybrid` takes the more promising of both and lets the model
end its drafts; a drafter that does not run with the pair is left out with the reason. Requests are made by
`benchmarks.edits`. Others of the same kind say what drafting costs, where drafts of the hybrid end, and which K of
`--blocks` is fastest for each drafter. `--seed` makes other requests, for a drafter that was changed after the times on
earlier ones were seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import RESULTS, ratios, save, side_by_side
from benchmarks.counts import counts
from benchmarks.edits import edits
from gistgate.build.choose import NONE, Choice
from gistgate.build.decoder import assemble
from gistgate.build.drafters import HYBRID, Sources, make_drafter
from gistgate.build.models import Target
from gistgate.decoding.checks import check_prompts
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.stopping import Stopping
from gistgate.errors import UserError
from gistgate.observing.drafting import DraftRecorder, fit
from gistgate.observing.outlook import measure
from gistgate.request.stopping import eos_ids
from pipeline.common.entry import run
from pipeline.pairs.pair import Pair, load_pair
from pipeline.pairs.source import MODEL
from pipeline.params import read_params
from pipeline.speed.baselines import fastest
from pipeline.speed.clock import Contender, ours

DRAFTERS = (MODEL, HYBRID, "suffix")
DEVELOPMENT, CHOSEN_ON = 3, 0
"""Requests on which costs, ends of drafts and K are chosen, and their seed; they are never timed."""
PLAIN = "plain"


def main(
    prompts: int = 20,
    functions: int = 6,
    blocks: str = "8,12,16,24",
    max_new_tokens: int = 256,
    seed: int = 3,
    threads: int = 2,
    results: Path = RESULTS,
) -> None:
    if seed == CHOSEN_ON:
        raise UserError(f"Requests of seed {CHOSEN_ON} choose K, and nothing is timed on them. Take another --seed.")
    torch.set_num_threads(threads)
    pair, tried = load_pair(read_params()), counts(blocks, "--blocks")
    if pair.draft is None:
        raise UserError("This pair has no draft model to compare with copying. Choose another pair.")
    request = {"max_new_tokens": max_new_tokens, "eos_ids": eos_ids(pair.target, pair.tokenizer)}
    development = encoded(pair, edits(DEVELOPMENT, functions, CHOSEN_ON))
    timed = encoded(pair, edits(prompts, functions, seed))
    check_prompts([pair.target, pair.draft], [*map(len, development), *map(len, timed)], max_new_tokens)
    policy = policy_on(pair, tried, development, request)
    chosen, left_out = best_blocks(pair, tried, policy, development, request)
    about = {"pair": pair.name, "functions": functions, "max_new_tokens": max_new_tokens, "seed": seed, "tried": tried}
    found = compare(pair, chosen, policy, timed, request)
    save("editing", {**about, "policy": policy.measured, "left_out": left_out, "contenders": found}, results)


def policy_on(
    pair: Pair, blocks: Sequence[int], development: Sequence[list[int]], request: Mapping[str, Any]
) -> Stopping:
    """What drafts cost and where they end, from strict drafts of the longest K on these requests."""
    decoder, recorder = decoder_of(pair, MODEL, max(blocks)), DraftRecorder()
    recording = decoder.having(observer=recorder)
    for ids in development:
        recording.generate([ids], **request)
    longest = max(blocks)
    costs = measure(decoder, development, sorted({1, (longest + 1) // 2, longest}), **request)
    return fit(recorder.rounds, costs, "exact", longest)


def best_blocks(
    pair: Pair,
    blocks: Sequence[int],
    policy: Stopping,
    development: Sequence[list[int]],
    request: Mapping[str, Any],
) -> tuple[dict[str, int], dict[str, str]]:
    """The K with which every drafter is fastest on these requests, and the reason of each that does not run."""
    chosen, left_out = {}, {}
    for drafter in DRAFTERS:
        try:
            field = [contender(pair, drafter, block, policy, request) for block in blocks]
            chosen[drafter] = fastest(field, development).block
        except UserError as error:  # the others can still be compared
            left_out[drafter] = str(error)
            print(f"'{drafter}' is left out: {error}")
    return chosen, left_out


def encoded(pair: Pair, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of requests, in the chat template where the tokenizer has one."""
    target = Target(pair.target, pair.tokenizer)
    return [target.encode(text, chat=pair.tokenizer.chat_template is not None) for text in texts]


def compare(
    pair: Pair, chosen: Mapping[str, int], policy: Stopping, ids: Sequence[list[int]], request: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Rates, ratios and tau of plain decoding and of every drafter at its K, request by request beside each other."""
    field = [Contender(PLAIN, ours(decoder_of(pair, NONE, 0), dict(request)), 0)]
    field += [contender(pair, drafter, block, policy, request) for drafter, block in chosen.items()]
    times = side_by_side(field, [[one] for one in ids])
    found = ratios(times, (PLAIN, MODEL))
    for name, entry in times.items():
        found[name]["tau"] = sum(entry["tokens"]) / sum(entry["target_forwards"])
    return found


def contender(pair: Pair, drafter: str, block: int, policy: Stopping, request: Mapping[str, Any]) -> Contender:
    """Strict decoding with one drafter as something that is timed; the hybrid alone has the policy."""
    decoder = decoder_of(pair, drafter, block, policy if drafter == HYBRID else None)
    return Contender(drafter, ours(decoder, dict(request)), block)


def decoder_of(pair: Pair, drafter: str, block: int, stopping: Stopping | None = None) -> Decoder:
    """Strict decoding with one drafter."""
    sources = Sources(pair.target, pair.tokenizer, pair.draft, stopping=stopping)
    return assemble(pair.target, pair.tokenizer, Choice("exact", {}, block, drafter), make_drafter(drafter, sources))


if __name__ == "__main__":
    run(main, kept=False)
