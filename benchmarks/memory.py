"""Peak memory beyond models and caches, plain, strict and gated, on both engines.

    python -m benchmarks.memory [--batch 8] [--results FOLDER]

In the folder of a finished run whose pair has a draft model; one test prompt alone, and `--batch` of them together. The
peak counts from where nothing of the decoding exists, so slots, the room that they keep in reserve, and graphs are in
it; caches are the keys and values of the tokens alone. On a GPU the allocator's own peak with the idle part of the
graphs' pools; on a CPU the growth of the process's largest resident size, where a few megabytes either way mean
nothing.
"""

import ctypes
import gc
import warnings
from pathlib import Path

import torch
from transformers import PreTrainedModel

from benchmarks.speed import RESULTS, Workload, save
from gistgate.compiled.memory import store_of
from gistgate.core.decoder import ENGINES, Decoder
from gistgate.core.utils import UserError
from gistgate.measure.speed import check_engine
from pipeline.run import run

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def main(batch: int = 8, threads: int = 1, results: Path = RESULTS) -> None:
    torch.set_num_threads(threads)
    workload, found = Workload.load(batch), {}
    both = [*workload.pair.target.parameters(), *workload.pair.draft_model.parameters()]
    for name in ("plain", "strict", *workload.learned):
        for engine in ENGINES:
            for rows in (1, batch):
                key = f"{name}-{engine}-{rows}"
                found[key] = beyond(workload, workload.decoder(name, engine), rows)
                print(f"{key}: {found[key]['beyond_mb']:.1f} MB beyond models and caches", flush=True)
    held = megabytes(sum(one.numel() * one.element_size() for one in both))
    save("memory", {"pair": workload.pair.name, "models_mb": held, "decoders": found}, results)


def beyond(workload: Workload, decoder: Decoder, rows: int) -> dict[str, float]:
    """Megabytes of the peak, of the caches at their largest, and what is left of the one without the other."""
    ids, models = workload.ids[:rows], [workload.pair.target, workload.pair.draft_model]
    on_gpu, before = torch.cuda.is_available(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if on_gpu:  # graphs know the addresses of slots, so both are built again behind this point
            before = emptied(models)
        decoder.generate(ids, **workload.request)  # programs and kernels stay
        if not on_gpu:  # what the compiler took is no request's
            before = emptied(models)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        else:
            try:
                CLEAR.write_text("5")  # the peak counts from here on
            except OSError as error:
                raise UserError(f"Without a GPU this needs Linux: {CLEAR} resets the peak.") from error
        answers = decoder.generate(ids, **workload.request)
    check_engine(decoder)
    grown = peak() - before
    tokens = max(len(row) + len(answer.ids) for row, answer in zip(ids, answers, strict=True)) + decoder.block
    caches = rows * tokens * sum(map(per_token, models if decoder.block else models[:1]))
    return {"peak_mb": megabytes(grown), "caches_mb": megabytes(caches), "beyond_mb": megabytes(grown - caches)}


def emptied(models: list[PreTrainedModel]) -> int:
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


def per_token(model: PreTrainedModel) -> int:
    """Bytes of keys and values that one token takes."""
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * next(model.parameters()).element_size())


def peak() -> int:
    """Most bytes in use since then, with what graphs keep for their replays although no tensor lies there."""
    if not torch.cuda.is_available():
        return resident("VmHWM")
    pools = [one for one in torch.cuda.memory_snapshot() if tuple(one.get("segment_pool_id", (0, 0))) != (0, 0)]
    return int(torch.cuda.max_memory_allocated() + sum(one["total_size"] - one["allocated_size"] for one in pools))


def resident(name: str) -> int:
    """Bytes that the system counts under a name."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def megabytes(count: int) -> float:
    return round(count / 1e6, 3)


if __name__ == "__main__":
    run(main)
