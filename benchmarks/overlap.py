"""Could the draft write the next block while the target verifies this one? Both alone, and both at the same time.

    python -m benchmarks.overlap [--block 4] [--calls 30] [--results FOLDER]

In the folder of a run whose pair has a draft model, batch 1, with two threads or more. A round drafts K tokens and
verifies them with all threads, one after the other (`serial`). With overlap the threads are shared: the target verifies
with some of them while the draft writes the next block with the others, and in front of it the target's own token,
which it has to guess (`both`). A round that keeps less, or another own token, throws that block away and drafts again.
So serial / both is the most that overlap could give (`most`), and serial / (both + (1 - w) draft) what it gives where
the share w of the rounds keeps the K + 1 tokens (`strict`). That share is measured with strict decoding of development
prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.bench import RESULTS, save
from benchmarks.parts import DraftStep, Forward, once, warm
from gistgate.errors import UserError
from gistgate.observing.intervals import ratio_of_sums
from gistgate.observing.outlook import strict_run
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.entry import run
from pipeline.pairs.pair import Pair, load_pair
from pipeline.params import MethodParams, read_params

Call = Callable[[], object]


def main(
    block: int = 4,
    calls: int = 30,
    prompts: int = 8,
    max_new_tokens: int = 64,
    threads: int = 2,
    results: Path = RESULTS,
) -> None:
    if threads < 2:
        raise UserError(f"Target and draft share the threads, and --threads is {threads}. Pass 2 or more.")
    torch.set_num_threads(threads)
    pair = load_pair(read_params())
    if pair.draft is None:
        raise UserError("This pair has no draft model, so there is nothing to overlap. Choose another pair.")
    times = seconds(pair, block, calls, threads)
    kept = share_kept(pair, block + 1, prompts, max_new_tokens)
    again = [both + (1 - kept) * draft for both, draft in zip(times["both"], times["draft"], strict=True)]
    found = {
        "seconds": {name: sum(some) / len(some) for name, some in times.items()},
        "share_kept": kept,
        "most": ratio_of_sums(times["serial"], times["both"]).as_dict(),
        "strict": ratio_of_sums(times["serial"], again).as_dict(),
    }
    print(found)
    save("overlap", {"pair": pair.name, "block": block, "n": calls, "prompts": prompts, **found}, results)


@torch.inference_mode()
def seconds(pair: Pair, block: int, calls: int, threads: int) -> dict[str, list[float]]:
    """Seconds of every repetition: each part with all threads, and both at once with a share of the threads each."""
    verify = warm(Forward(pair.target, block + 1), "eager")
    draft, ahead = (warm(DraftStep(pair.draft, num), "eager") for num in (block, block + 1))
    times: dict[str, list[float]] = {name: [] for name in ("serial", "draft", "both")}
    with ThreadPoolExecutor(2) as pool:
        shares = (threads - threads // 2, threads // 2)
        for _ in range(calls):
            torch.set_num_threads(threads)
            drafted = once(draft)
            times["draft"].append(drafted)
            times["serial"].append(drafted + once(verify))
            times["both"].append(at_once(pool, (verify, ahead), shares))
    return times


def at_once(pool: ThreadPoolExecutor, calls: Sequence[Call], shares: Sequence[int]) -> float:
    """Seconds until all calls have ended, each with its number of threads."""

    def alone(call: Call, share: int) -> None:
        torch.get_num_threads()  # before its first use a thread would take over what another one has set last
        torch.set_num_threads(share)
        with torch.inference_mode():
            call()

    started = perf_counter()
    for future in [pool.submit(alone, call, share) for call, share in zip(calls, shares, strict=True)]:
        future.result()
    return perf_counter() - started


def share_kept(pair: Pair, num: int, prompts: int, max_new_tokens: int) -> float:
    """The share of the rounds of strict decoding that keep all of `num` drafted tokens."""
    some = read_prompts("development")[:prompts]
    request = {**request_of(some, pair), "max_new_tokens": max_new_tokens}
    decoder = make_decoder(pair, MethodParams("exact"), {}, num)
    counted = strict_run(decoder, [prompt["ids"] for prompt in some], num, **request).histogram
    return counted.get(num, 0) / sum(counted.values())


if __name__ == "__main__":
    run(main, kept=False)
