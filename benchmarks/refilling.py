"""Slots of finished rows: how many stay empty, and how far rounding in bfloat16 changes the answers that fill them.

    python -m benchmarks.refilling [--results FOLDER]

Needs nothing but the library. A random Llama of two layers and width 32 decodes; `idle` counts the slots without a row
when scripted answers of 4 to 40 tokens, most of them short, share a few slots, and when batches of as many rows run to
their end instead. `bfloat16` compares answers in eight slots with those of batch size 1; in exact arithmetic they would
be equal.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.bench import RESULTS, save
from gistgate.decoding.batches import decode_all
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.request.rows import Generation
from gistgate.request.slots import Slots, Usage
from gistgate.rules import make_rule
from pipeline.common.entry import run

RUNS = ((4, 48), (4, 80), (16, 192), (16, 320))
"""Slots, and rows that share them."""
SLOTS, ANSWERS, NUM = 8, 24, 24
"""Of the comparison in bfloat16: slots, prompts and new tokens."""


def main(results: Path = RESULTS) -> None:
    torch.set_num_threads(1)
    target = random_llama()
    plain = Decoder(target, None, make_rule("exact"), 0)
    idle = [{"slots": number, "rows": rows, **shares(plain, number, rows)} for number, rows in RUNS]
    save("refilling", {"idle": idle, "bfloat16": rounded(target)}, results)


def random_llama() -> LlamaForCausalLM:
    """Two layers of width 32."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 160}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=259, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False, **sizes)
    ).eval()


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    """Random prompts of these lengths."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 259, (length,), generator=generator).tolist() for length in lengths]


def lengths_of(num: int) -> list[int]:
    """Lengths of answers in tokens, most of them short and few long, as real ones are."""
    drawn = torch.rand(num, generator=torch.Generator().manual_seed(0))
    return (4 + 36 * drawn.square()).long().tolist()


def scripted(decoder: Decoder, number: int, ends: Sequence[int]) -> tuple[Usage, list[int]]:
    """Texts that share `number` slots, text i of `ends[i]` tokens: usage of the slots, and lengths of the answers."""
    num, usage = len(ends), Usage()
    done = decoder.resume(
        decoder.remember(prompts_of([5] * num)),
        [(5, [])] * num,
        [5] * num,
        max_new_tokens=99,
        is_decided=lambda row: "scripted" if len(row.answer) == ends[row.index] else None,
        remember=False,
        slots=Slots(number, usage=usage),
    )
    return usage, [len(answer.ids) for answer, _ in done]


def shares(decoder: Decoder, number: int, rows: int) -> dict[str, float]:
    """Shares of slots without a row: refilled, and in batches that run to their end."""
    ends = lengths_of(rows)
    found = {"refilled": scripted(decoder, number, ends)[0].idle, "to_their_end": to_their_end(number, ends)}
    print(
        f"{number} slots, {rows} rows: {', '.join(f'{name} {share:.1%}' for name, share in found.items())}", flush=True
    )
    return found


def to_their_end(number: int, ends: Sequence[int]) -> float:
    """Share of slots without a row where answers of these lengths run batch by batch: a batch ends with its longest."""
    rounds = sum(max(ends[start : start + number]) for start in range(0, len(ends), number))
    return 1 - sum(ends) / (rounds * number)


def rounded(target: LlamaForCausalLM) -> dict[str, Any]:
    """Answers in bfloat16 that differ from those of batch size 1, and the tokens written until then."""
    target = copy.deepcopy(target).to(torch.bfloat16)
    draft = copy.deepcopy(target)
    with torch.no_grad():
        for weight in draft.parameters():
            weight += 0.1 * weight.std() * torch.randn(weight.shape).to(weight.dtype) if weight.std() > 0 else 0
    prompts = prompts_of(torch.linspace(1, 60, ANSWERS).long().tolist())
    request: dict[str, Any] = {"max_new_tokens": NUM, "eos_ids": ()}
    plain = Decoder(target, None, make_rule("exact"), 0)
    strict = Decoder(target, ModelDrafter(draft), make_rule("exact"), 4)
    found: dict[str, Any] = {"answers": ANSWERS, "slots": SLOTS}
    for name, decoder in (("strict", strict), ("plain", plain)):
        alone = decode_all(decoder, prompts, batch_size=1, **request)
        found[name] = differing(alone, decode_all(decoder, prompts, batch_size=SLOTS, **request))
    batches = [plain.generate(prompts[at : at + SLOTS], **request) for at in range(0, ANSWERS, SLOTS)]
    found["to_their_end"] = differing(alone, [one for batch in batches for one in batch])  # `alone` is the plain one
    return found


def differing(alone: Sequence[Generation], together: Sequence[Generation]) -> dict[str, int]:
    """How many answers differ, of how many, and the tokens of all of them up to the first different one."""
    written, differ = 0, 0
    for one, other in zip(alone, together, strict=True):
        pairs = enumerate(zip(one.ids, other.ids, strict=True))
        first = next((at for at, (token, instead) in pairs if token != instead), len(one.ids))
        written, differ = written + first, differ + (first < len(one.ids))
    return {"differ": differ, "of": len(alone), "written": written}


if __name__ == "__main__":
    run(main, kept=False)
