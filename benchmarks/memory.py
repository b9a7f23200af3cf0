"""Peak memory beyond models and caches, plain, strict and gated, on both engines.

    python -m benchmarks.memory [--batch 8] [--results FOLDER]

In the folder of a finished run whose pair has a draft model; one test prompt alone, and `--batch` of them together. The
peak counts from where nothing of the decoding exists, so slots, the room that they keep in reserve, and graphs are in
it; caches are the keys and values of the tokens alone. On a GPU the allocator's own peak with the idle part of the
graphs' pools; on a CPU the growth of the process's largest resident size, where a few megabytes either way mean
nothing.
"""

from __future__ import annotations

import ctypes
import gc
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.speed import RESULTS, Workload, save
from gistgate.compiled.memory import store_of
from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.measure.speed import check_engine
from pipeline.run import run

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def main(batch: int = 8, threads: int = 1, results: Path = RESULTS) -> None:
    torch.set_num_threads(threads)
    workload = Workload.load(batch)
    held, own, found = megabytes(models(workload)), workload.params.decoding.strict_block, {}
    makers: dict[str, Callable[[str], Decoder]] = {
        "plain": workload.plain,
        "strict": lambda engine: workload.strict(own, engine),
        **{name: lambda engine, name=name: workload.method(name, engine) for name in workload.headline},
    }
    for name, make in makers.items():
        for engine in ("eager", "compiled"):
            for rows in (1, batch):
                found[f"{name}-{engine}-{rows}"] = entry = beyond(workload, make(engine), rows)
                print(f"{name}-{engine}-{rows}: {entry['beyond_mb']:.1f} MB beyond models and caches", flush=True)
    save("memory", {"pair": workload.pair.name, "models_mb": held, "decoders": found}, results)


def beyond(workload: Workload, decoder: Decoder, rows: int) -> dict[str, float]:
    """Megabytes of the peak, of the caches at their largest, and what is left of the one without the other."""
    ids, pair, on_gpu = workload.ids[:rows], workload.pair, torch.cuda.is_available()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if on_gpu:  # graphs know the addresses of slots, so both are built again behind this point
            before = emptied(pair.target, pair.draft)
        decoder.generate(ids, **workload.request)  # programs and kernels stay
        if not on_gpu:  # what the compiler took is no request's
            before = emptied(pair.target, pair.draft)
        reset()
        answers = decoder.generate(ids, **workload.request)
    check_engine(decoder)
    grown = peak() - before
    tokens = max(len(row) + len(answer.ids) for row, answer in zip(ids, answers, strict=True)) + decoder.block
    caches = rows * tokens * (per_token(pair.target) + per_token(pair.draft) * (decoder.block > 0))
    return {"peak_mb": megabytes(grown), "caches_mb": megabytes(caches), "beyond_mb": megabytes(grown - caches)}


def emptied(*models: PreTrainedModel) -> int:
    """Drop the slots that earlier requests left, on a GPU the graphs as well; bytes in use then."""
    for model in models:
        store_of(model).memories.clear()
        if torch.cuda.is_available():
            store_of(model).programs.clear()
    gc.collect()
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # else freed memory would count as used
        trim(0)
    return resident("VmRSS")


def per_token(model: torch.nn.Module) -> int:
    """Bytes of keys and values that one token takes."""
    config = model.config.get_text_config()  # type: ignore[operator, union-attr]
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = next(model.parameters()).element_size()
    return int(2 * config.num_hidden_layers * heads * width * size)


def models(workload: Workload) -> int:
    """Bytes of both models.

    Raises:
        UserError: the pair has no draft model.
    """
    both = [*workload.pair.target.parameters(), *workload.pair.draft_model.parameters()]
    return sum(one.numel() * one.element_size() for one in both)


def reset() -> None:
    """Forget the peak.

    Raises:
        UserError: this system does not count one.
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        CLEAR.write_text("5")
    except OSError as error:
        raise UserError("Without a GPU this needs Linux: /proc/self/clear_refs resets the peak.") from error


def peak() -> int:
    """Most bytes in use since `reset`."""
    if not torch.cuda.is_available():
        return resident("VmHWM")
    return torch.cuda.max_memory_allocated() + idle_in_pools(torch.cuda.memory_snapshot())


def idle_in_pools(segments: Iterable[dict[str, Any]]) -> int:
    """Bytes that graphs keep for their replays although no tensor lies there: the allocator's count leaves them out."""
    graphs = (one for one in segments if tuple(one.get("segment_pool_id", (0, 0))) != (0, 0))
    return sum(one["total_size"] - one["allocated_size"] for one in graphs)


def resident(name: str) -> int:
    """Bytes that the system counts under a name."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def megabytes(count: int) -> float:
    """Bytes in megabytes."""
    return round(count / 1e6, 3)


if __name__ == "__main__":
    run(main, kept=False)
