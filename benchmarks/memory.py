"""Peak memory beyond models and caches, plain, strict and gated, on both engines.

    python -m benchmarks.memory [--prompts 4] [--batch 8] [--results FOLDER]

In the folder of a finished run. On a GPU the allocator's own peak; on a CPU the growth of the process's largest
resident size, which rounds up to what the allocator keeps, so that small differences mean nothing there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.bench import RESULTS, command, save
from benchmarks.workload import Workload
from gistgate.decoding.decoder import Decoder
from gistgate.errors import UserError

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def main(prompts: int = 4, batch: int = 8, threads: int = 1, results: Path = RESULTS) -> None:
    torch.set_num_threads(threads)
    workload = Workload.load(max(prompts, batch))
    own, found = workload.params.decoding.strict_block, {}
    makers: dict[str, Callable[[str], Decoder]] = {
        "plain": workload.plain,
        "strict": lambda engine: workload.strict(own, engine),
        workload.headline: lambda engine: workload.method(workload.headline, engine),
    }
    for name, make in makers.items():
        for engine in ("eager", "compiled"):
            for rows in (1, batch):
                found[f"{name}-{engine}-{rows}"] = entry = beyond(workload, make(engine), rows)
                print(f"{name}-{engine}-{rows}: {entry['beyond_mb']:.1f} MB beyond models and caches", flush=True)
    save("memory", {"pair": workload.pair.name, "models_mb": megabytes(models(workload)), "decoders": found}, results)


def beyond(workload: Workload, decoder: Decoder, rows: int) -> dict[str, float]:
    """Megabytes of the peak, of the caches at their largest, and what is left of the one without the other."""
    ids = workload.ids[:rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decoder.generate(ids, **workload.request)  # programs and kernels stay
        before = reset()
        answers = decoder.generate(ids, **workload.request)
    grown = peak() - before
    tokens = max(len(row) + len(answer.ids) for row, answer in zip(ids, answers, strict=True)) + decoder.block
    caches = rows * tokens * (per_token(workload.pair.target) + per_token(workload.pair.draft) * (decoder.block > 0))
    return {"peak_mb": megabytes(grown), "caches_mb": megabytes(caches), "beyond_mb": megabytes(max(0, grown - caches))}


def per_token(model: torch.nn.Module) -> int:
    """Bytes of keys and values that one token takes."""
    config = model.config.get_text_config()  # type: ignore[operator, union-attr]
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = next(model.parameters()).element_size()
    return int(2 * config.num_hidden_layers * heads * width * size)


def models(workload: Workload) -> int:
    """Bytes of both models."""
    both = [*workload.pair.target.parameters(), *workload.pair.draft.parameters()]
    return sum(one.numel() * one.element_size() for one in both)


def reset() -> int:
    """Forget the peak; bytes in use now.

    Raises:
        UserError: this system does not say.
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    try:
        CLEAR.write_text("5")
    except OSError as error:
        raise UserError("Without a GPU this needs Linux: /proc/self/clear_refs resets the peak.") from error
    return resident("VmRSS")


def peak() -> int:
    """Most bytes in use since `reset`."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident("VmHWM")


def resident(name: str) -> int:
    """Bytes that the system counts under a name."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def megabytes(count: int) -> float:
    """Bytes in megabytes."""
    return round(count / 1e6, 3)


if __name__ == "__main__":
    command(main)
