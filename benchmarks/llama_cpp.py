"""The library beside llama.cpp (package `xllamacpp`): seconds per token from the same GGUF files,
with the same threads and prompts, with a draft model and without.

python -m benchmarks.llama_cpp TARGET.gguf DRAFT.gguf [--trained models/draft] [--prompts 8]

`--trained` names what the stage `draft` wrote for this target and the task `letters`.

Prompts are requests of the task `letters`. Every request is made twice, for one token and for
`--tokens` tokens; their difference counts, so that reading the prompt stands apart.
"""

import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
import typer

from gistgate.build import build
from gistgate.core.files import write_json
from gistgate.measure.speed import machine
from gistgate.measure.statistics import ratio_of_sums
from gistgate.models.loading import load_target, weight_bytes
from gistgate.models.options import DecodeOptions
from gistgate.tasks.free_text import letters

BLOCK = 4  # K, draft tokens per forward of the target
RESULT = Path("benchmarks/results/llama_cpp.json")
Answer = Callable[[str, int], None]  # a prompt, and how many tokens are written


def library(file: Path, options: DecodeOptions, weights: str | None = None) -> Answer:
    """Requests to a decoder of ours, with the weights as in the file or as `weights` says."""
    target = load_target(str(file), "bfloat16", quantise=weights)
    decoder = build(target.model, target.tokenizer, options).decoder

    def answer(prompt: str, tokens: int) -> None:
        ids = target.encode(prompt, chat=True)
        decoder.generate([ids], max_new_tokens=tokens, eos_ids=[])

    return answer


def llama_cpp(target: Path, draft: Path | None) -> Answer:
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
        settings.speculative.draft.n_max = BLOCK
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


@dataclass(frozen=True)
class Files:
    """The models of a run."""

    target: Path
    draft: Path
    trained: Path | None  # what the stage `draft` wrote for this target

    def options(self) -> DecodeOptions:
        """Decoding with the trained draft."""
        assert self.trained is not None
        return DecodeOptions(
            draft=str(self.trained),
            draft_vocabulary=str(self.trained / "vocabulary.json"),
            quantise_draft="int4",
            engine="compiled",
            block=2 * BLOCK,
        )

    def lacks(self, name: str) -> bool:
        """Whether a row needs the trained draft where there is none."""
        return "trained" in name and self.trained is None


PLAIN = DecodeOptions(drafter="none")
COMPILED = DecodeOptions(drafter="none", engine="compiled")
WAYS: dict[str, Callable[[Files], Answer]] = {
    "llama.cpp, plain": lambda files: llama_cpp(files.target, None),
    "library, plain": lambda files: library(files.target, PLAIN),
    "library, compiled, plain": lambda files: library(files.target, COMPILED),
    "library, w8a8, compiled, plain": lambda files: library(files.target, COMPILED, "w8a8"),
    "llama.cpp, draft of 0.5B, K = 4": lambda files: llama_cpp(files.target, files.draft),
    "library, compiled, draft of 0.5B, K = 4": lambda files: library(
        files.target, DecodeOptions(draft=str(files.draft), engine="compiled", block=BLOCK)
    ),
    "library, w8a8, compiled, draft of 0.5B, K = 4": lambda files: library(
        files.target, DecodeOptions(draft=str(files.draft), engine="compiled", block=BLOCK), "w8a8"
    ),
    "library, w8a8, compiled, trained draft, K = 8": lambda files: library(
        files.target, files.options(), "w8a8"
    ),
}


def timed(
    name: str, files: Files, prompts: int, tokens: int, threads: int
) -> dict[str, list[float]]:
    """Seconds to the first token, and for each further one, of every prompt."""
    torch.set_num_threads(threads)
    answer = WAYS[name](files)
    requests = [document["request"] for document in islice(letters()["test"], prompts + 1)]
    answer(requests[0], tokens)  # builds programs and fills caches
    first = []
    further = []
    for request in requests[1:]:
        times = [perf_counter()]
        for length in (1, tokens):
            answer(request, length)
            times.append(perf_counter())
        first.append(times[1] - times[0])
        further.append((times[2] - times[1] - first[-1]) / (tokens - 1))
    return {"first": first, "further": further}


def taken(target: Path, threads: int, weights: str | None) -> dict[str, Any]:
    """Seconds to load the file, memory of the model as a multiple of it, and seconds of a forward
    of the target by its rows.
    """
    torch.set_num_threads(threads)
    begin = perf_counter()
    loaded = load_target(str(target), "bfloat16", quantise=weights)
    seconds = perf_counter() - begin
    forwards = {}
    for rows in (1, 9, 17):
        ids = torch.full((1, rows), 100)
        times = []
        for _ in range(9):
            with torch.inference_mode():
                start = perf_counter()
                loaded.model(ids, logits_to_keep=rows)
                times.append(perf_counter() - start)
        forwards[rows] = median(times)
    memory = weight_bytes(loaded.model) / target.stat().st_size
    return {"load": seconds, "memory": memory, "forwards": forwards}


def main(
    target: Path,
    draft: Path,
    trained: Path | None = None,
    prompts: int = 8,
    tokens: int = 40,
    threads: int = 2,
) -> None:
    files = Files(target, draft, trained)
    loading = {}
    for weights in (None, "w8a8"):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            loading[weights or "packed"] = pool.submit(taken, target, threads, weights).result()
    print(loading, flush=True)
    seconds: dict[str, dict[str, list[float]]] = {}
    for name in WAYS:
        if files.lacks(name):
            continue
        # In a process of its own: idle threads of llama.cpp slow others down.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            work = pool.submit(timed, name, files, prompts, tokens, threads)
            seconds[name] = work.result()
        print(row_of(name, seconds), flush=True)
    settings = {"prompts": prompts, "tokens": tokens, "threads": threads}
    rows = [row_of(name, seconds) for name in seconds]
    about = {**machine(), "instructions": torch.backends.cpu.get_cpu_capability()}
    entries = {"loading": loading, "rows": rows, "seconds": seconds}
    write_json(RESULT, {"machine": about, **settings, **entries})


def row_of(name: str, seconds: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Mean seconds to the first token and for each further one, and the latter as ratios to
    llama.cpp's plain decoding, with 95 % intervals over prompts.
    """
    further = seconds[name]["further"]
    baseline = seconds["llama.cpp, plain"]["further"]
    return {
        "name": name,
        "first": fmean(seconds[name]["first"]),
        "further": fmean(further),
        "ratio": asdict(ratio_of_sums(further, baseline, level=0.95)),
    }


if __name__ == "__main__":
    typer.run(main)
