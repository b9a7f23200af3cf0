"""The library beside llama.cpp (package `xllamacpp`): seconds per token from the same GGUF files,
with the same threads and prompts, with a draft model and without, request by request in turn.

python -m benchmarks.llama_cpp TARGET.gguf DRAFT.gguf [--prompts 12] [--tokens 60] [--block 4]

Prompts are requests of the task `letters`. Every request is made twice, for one token and for
`--tokens` tokens; their difference counts, so that reading the prompt stands apart.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import typer

from gistgate.build import build
from gistgate.core.files import write_json
from gistgate.measure.speed import machine
from gistgate.measure.statistics import ratio_of_sums
from gistgate.models.loading import Target, load_target
from gistgate.models.options import DecodeOptions
from gistgate.tasks.free_text import letters

RESULT = Path("benchmarks/results/llama_cpp.json")
Answer = Callable[[str, int], None]  # a prompt, and how many tokens are written


def library(target: Target, options: DecodeOptions) -> Answer:
    """Requests to a decoder of ours."""
    decoder = build(target.model, target.tokenizer, options).decoder

    def answer(prompt: str, tokens: int) -> None:
        ids = target.encode(prompt, chat=True)
        decoder.generate([ids], max_new_tokens=tokens, eos_ids=[])

    return answer


def llama_cpp(target: Path, draft: Path | None, block: int) -> Answer:
    """Requests to llama.cpp in this process."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = str(target)
    settings.n_ctx = 2048
    settings.n_parallel = 1
    for processors in (settings.cpuparams, settings.cpuparams_batch):
        processors.n_threads = torch.get_num_threads()
    if draft is not None:
        kinds = xllamacpp.common_speculative_type
        settings.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        settings.speculative.draft.mparams.path = str(draft)
        settings.speculative.draft.n_max = block
        for processors in (
            settings.speculative.draft.cpuparams,
            settings.speculative.draft.cpuparams_batch,
        ):
            processors.n_threads = torch.get_num_threads()
    server = xllamacpp.Server(settings)

    def answer(prompt: str, tokens: int) -> None:
        request = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "cache_prompt": False,
            "ignore_eos": True,
        }
        response = server.handle_chat_completions(request)
        response = json.loads(response) if isinstance(response, str | bytes) else response
        if response["usage"]["completion_tokens"] != tokens:
            raise RuntimeError(f"llama.cpp answered {response}")

    return answer


def main(
    target: Path, draft: Path, prompts: int = 12, tokens: int = 60, block: int = 4, threads: int = 2
) -> None:
    torch.set_num_threads(threads)
    loaded = load_target(str(target))
    with_draft = DecodeOptions(draft=str(draft), block=block)
    ways = {
        "library, plain": library(loaded, DecodeOptions(drafter="none")),
        "library, compiled, plain": library(
            loaded, DecodeOptions(drafter="none", engine="compiled")
        ),
        "library, draft": library(loaded, with_draft),
        "llama.cpp, plain": llama_cpp(target, None, block),
        "llama.cpp, draft": llama_cpp(target, draft, block),
    }
    requests = [document["request"] for document in islice(letters()["test"], prompts + 1)]
    for answer in ways.values():  # builds programs and fills caches
        answer(requests[0], tokens)
    first: dict[str, list[float]] = {name: [] for name in ways}
    further: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number, request in enumerate(requests[1:]):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            times = [perf_counter()]
            for length in (1, tokens):
                ways[name](request, length)
                times.append(perf_counter())
            first[name].append(times[1] - times[0])
            further[name].append((times[2] - times[1] - first[name][-1]) / (tokens - 1))
        print(f"{number + 1} of {prompts} prompts", flush=True)
    rows = [row_of(name, first, further) for name in ways]
    for row in rows:
        print(row)
    settings = {"prompts": prompts, "tokens": tokens, "block": block, "threads": threads}
    write_json(RESULT, {"machine": machine(), **settings, "rows": rows})


def row_of(
    name: str, first: dict[str, list[float]], further: dict[str, list[float]]
) -> dict[str, Any]:
    """Seconds to the first token and for each further one, and the latter as ratios to llama.cpp's
    plain decoding, with 95 % intervals.
    """
    baseline = further["llama.cpp, plain"]
    return {
        "name": name,
        "first": sum(first[name]) / len(first[name]),
        "further": sum(further[name]) / len(further[name]),
        "ratio": asdict(ratio_of_sums(further[name], baseline, level=0.95)),
        "seconds": {"first": first[name], "further": further[name]},
    }


if __name__ == "__main__":
    typer.run(main)
