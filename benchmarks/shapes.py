"""Real shapes without weights: how fast the engines are when the accepted length is given.

    python -m benchmarks.shapes [--pairs 7B/0.5B,8B/1B] [--block 8] [--error 0.08] [--tokens 128] [--results FOLDER]

Needs torch, transformers and safetensors. On a GPU in bfloat16; 32B/0.5B where memory allows. Without a GPU the
default is a pair of small shapes in float32, which shows that the script runs, not what a GPU would say. What does not
run on this machine stands under `failed` with the reason; the result is written after every pair.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.bench import RESULTS, ratios, save, side_by_side
from benchmarks.counts import entries, names
from benchmarks.parts import DraftStep, Forward, Verification, bandwidth, once, seconds_of, warm
from benchmarks.scripted import SHAPES, VOCABULARY, random_gate, scripted, scripts
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.errors import UserError
from gistgate.rules import make_rule
from pipeline.common.entry import run
from pipeline.speed.clock import Contender, compiled, ours, theirs
from pipeline.speed.race import working

PROMPT = 128
"""Tokens of every prompt."""


@dataclass
class Shaped:
    """A pair of shapes."""

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: None = None


def main(
    pairs: str = "",
    block: int = 8,
    error: float = 0.08,
    tokens: int = 128,
    repeats: int = 6,
    threads: int = 1,
    results: Path = RESULTS,
) -> None:
    torch.set_num_threads(threads)
    on_gpu = torch.cuda.is_available()
    found: dict[str, Any] = {}
    payload = {"prompt": PROMPT, "tokens": tokens, "error": error, "pairs": found}
    for name in pairs_of(pairs or ("7B/0.5B,8B/1B" if on_gpu else "150M/20M")):
        found[name] = one(name, block, error, tokens, repeats, on_gpu)
        save("shapes", payload, results, lambda: figure(payload))


def pairs_of(text: str) -> list[str]:
    """The pairs of shapes that a list with commas names.

    Raises:
        UserError: one of them is no pair, or there is no such shape.
    """
    found = entries(text)
    for name in found:
        if name.count("/") != 1:
            raise UserError(f"'{name}' is no pair of shapes. Write TARGET/DRAFT, such as 7B/0.5B.")
        names(name.replace("/", ","), SHAPES, "is no shape")
    return found


def one(name: str, block: int, error: float, tokens: int, repeats: int, on_gpu: bool) -> dict[str, Any]:
    """Everything about one pair of shapes; `failed` has the reason of each contender that does not run."""
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    vocabulary = VOCABULARY if on_gpu else 8192
    text, draft_text = scripts(PROMPT + tokens + 64, vocabulary, error, seed=0)
    sizes = name.split("/")
    pair = Shaped(
        scripted(sizes[0], text, vocabulary, dtype, device), scripted(sizes[1], draft_text, vocabulary, dtype, device)
    )
    request, decoders = {"max_new_tokens": tokens, "eos_ids": []}, decoders_of(pair, block)
    field = [
        Contender("generate", theirs(pair, request), 0),
        Contender("generate-static-compiled", compiled(theirs(pair, request), pair, PROMPT + tokens), 0),
        Contender("assisted", theirs(pair, request, block), block),
        *(Contender(label, ours(decoder, request), decoder.block) for label, decoder in decoders.items()),
    ]
    prompt, found = text[:PROMPT].tolist(), dict[str, float]()
    able, failed = working(field, [prompt])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = side_by_side(able, [[prompt]] * repeats)
        measured = ratios(times, ("generate", "assisted", "plain-eager", "plain-compiled"))
        if "strict-compiled" in measured:
            answer = decoders["strict-compiled"].generate([prompt], **request)[0]
            found = limit(pair, block, answer, measured["strict-compiled"])
    for label in ("strict", "closed-gate"):
        if f"{label}-compiled" in measured:
            found[f"judging_{label}"] = judging(pair, decoders[f"{label}-compiled"], request)
    return {"contenders": measured, "failed": failed, "limit": found, "block": block}


def decoders_of(pair: Shaped, block: int) -> dict[str, Decoder]:
    """Ours on both engines: plain, strict, and with a gate that is asked about every token and lets none pass."""
    decoders = {}
    for engine in ("eager", "compiled"):
        decoders[f"plain-{engine}"] = Decoder(pair.target, None, make_rule("exact"), 0, engine=engine)
        decoders[f"strict-{engine}"] = Decoder(
            pair.target, ModelDrafter(pair.draft), make_rule("exact"), block, engine=engine
        )
        decoders[f"closed-gate-{engine}"] = Decoder(
            pair.target,
            ModelDrafter(pair.draft),
            make_rule("autojudge", risk=-1.0),
            block,
            gate=random_gate(pair.target),
            engine=engine,
        )
    return decoders


@torch.inference_mode()
def judging(pair: Shaped, decoder: Decoder, request: dict[str, Any], calls: int = 30) -> float:
    """Share of gate and rule in a compiled round: verification with and without them, each behind the draft's steps."""
    draft = warm(DraftStep(pair.draft, decoder.block), "compiled")
    parts = [
        warm(Forward(pair.target, decoder.block + 1), "compiled"),
        warm(Verification(decoder, request), "compiled"),
    ]
    spent = [[seconds for part in parts for seconds in (once(draft), once(part))] for _ in range(calls)]
    first, bare, second, judged = (median(column) for column in zip(*spent, strict=True))
    return (judged - bare) / (judged + (first + second) / 2)


def limit(pair: Shaped, block: int, answer: Any, strict: dict[str, Any]) -> dict[str, float]:
    """Parts of a compiled round, and the share of tau / (v + K c) that is reached, prompt reading included."""
    step = seconds_of(Forward(pair.target, 1), "compiled", 30)
    verify = seconds_of(Forward(pair.target, block + 1), "compiled", 30)
    draft = seconds_of(DraftStep(pair.draft, block), "compiled", 30) / block
    tau = answer.statistics.mean_accepted_length
    c, v = draft / step, verify / step
    possible = tau / (v + block * c)
    return {
        "target_step_ms": 1000 * step,
        "c": c,
        "v": v,
        "tau": tau,
        "possible": possible,
        "reached_with_prompt": strict["tokens_per_second"] * step / possible,
        **bandwidth(pair.target, step),
    }


def figure(payload: dict[str, Any]) -> Any:
    """Drawn only where matplotlib is installed."""
    from benchmarks.figures import shapes_figure

    return shapes_figure(payload)


if __name__ == "__main__":
    run(main, kept=False)
