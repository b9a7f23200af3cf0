"""What rounded weights of a draft model change and save, and what a part of its vocabulary saves.

    python -m benchmarks.weights [--prompts 60] [--tokens 48] [--calls 30] [--sizes 8192,16384,32768] [--results FOLDER]

In the folder of a run whose stage `reference` is done and whose pair has a draft model, on a processor. `agrees` counts
the tokens of the target's own greedy answers to training prompts at which the draft's most probable token is that of
the unquantised draft, and is the answer's. The answers are read in pieces of `PIECE` tokens, so that the kernels of
drafting compute them. All timed calls take turns; `step` and `c` are seconds of one draft step over those of the
unquantised draft and of the target, and `output_layer` those of a layer over the whole one, for one row. `megabytes` is
the memory that the draft's weights take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from benchmarks.bench import RESULTS, save
from benchmarks.counts import counts
from benchmarks.parts import CONTEXT, once
from gistgate.errors import UserError
from gistgate.files import read_json_lines
from gistgate.forward.logits import last_logits
from gistgate.forward.output import SubsetHead
from gistgate.forward.quantised import KINDS, quantise
from gistgate.observing.intervals import ratio_of_sums
from pipeline.common.decoders import read_prompts
from pipeline.common.entry import run
from pipeline.labels.schema import REFERENCE
from pipeline.pairs.loading import load_model
from pipeline.pairs.pair import Pair, load_pair
from pipeline.pairs.source import read_pair
from pipeline.params import read_params

PIECE = 8
"""Tokens that are read at once: few enough for the kernels of packed weights."""
WARM = 3
"""Calls of everything before the first that is timed."""
WHOLE, TARGET = "none", "target"
Call = Callable[[], object]


def main(
    prompts: int = 60,
    tokens: int = 48,
    calls: int = 30,
    sizes: str = "8192,16384,32768",
    batch: int = 8,
    threads: int = 2,
    results: Path = RESULTS,
) -> None:
    torch.set_num_threads(threads)
    widths, pair = counts(sizes, "--sizes"), load_pair(read_params())
    drafts = drafts_of(pair)
    read = list(zip(read_prompts("train"), answers(), strict=False))[:prompts]
    agreed = agreement(drafts, [(prompt["ids"], answer["ids"][:tokens]) for prompt, answer in read])
    models = {TARGET: pair.target, **drafts}
    narrow = taking_turns({name: step(model, 1) for name, model in models.items()}, calls)
    wide = taking_turns({name: step(model, batch) for name, model in drafts.items()}, calls)
    heads = taking_turns(output_layers(drafts, widths), calls)
    found = {
        "agrees": agreed,
        "step": {"batch 1": over(narrow, WHOLE), f"batch {batch}": over(wide, WHOLE)},
        "c": over(narrow, TARGET),
        "output_layer": over(heads, WHOLE),
        "megabytes": {kind: round(held(model) / 1e6) for kind, model in drafts.items()},
    }
    print(found)
    save("weights", {"pair": pair.name, "prompts": len(read), "n": calls, **found}, results)


def drafts_of(pair: Pair) -> dict[str, PreTrainedModel]:
    """The pair's draft model with every kind of weights.

    Raises:
        UserError: the pair has no draft model.
    """
    source = read_pair(read_params().pair).draft
    if source is None:
        raise UserError(f"The pair '{pair.name}' has no draft model to round. Choose a pair with a draft model.")
    return {kind: quantise(load_model(replace(source, quantise="none")), kind) for kind in KINDS}


def answers() -> list[dict[str, Any]]:
    """The target's own answers to training prompts.

    Raises:
        UserError: the stage `reference` has not run here.
    """
    if not REFERENCE.exists():
        raise UserError(f"This folder has no {REFERENCE}. Run the stage `reference` here first.")
    return read_json_lines(REFERENCE)


@torch.inference_mode()
def agreement(
    drafts: Mapping[str, PreTrainedModel], texts: Sequence[tuple[list[int], list[int]]]
) -> dict[str, dict[str, int]]:
    """For every kind of weights: tokens that are read, and agreement with the unquantised draft and with the target."""
    written = torch.tensor([token for _, answer in texts for token in answer])
    chosen = {kind: torch.cat([choices(model, *text) for text in texts]) for kind, model in drafts.items()}
    return {
        kind: {"of": len(own), "draft": int((own == chosen[WHOLE]).sum()), "target": int((own == written).sum())}
        for kind, own in chosen.items()
    }


def choices(model: PreTrainedModel, prompt: list[int], answer: list[int]) -> Tensor:
    """The model's most probable token in place of every token of the answer [N]."""
    cache = DynamicCache(config=model.config)
    read, found = prompt + answer, []
    last_logits(model, 1, input_ids=torch.tensor([prompt[:-1]]), past_key_values=cache)
    for first in range(len(prompt) - 1, len(read) - 1, PIECE):
        piece = torch.tensor([read[first : min(first + PIECE, len(read) - 1)]])
        found.append(model(piece, past_key_values=cache, use_cache=True).logits[0].argmax(-1))
    return torch.cat(found)


@torch.inference_mode()
def step(model: PreTrainedModel, rows: int) -> Call:
    """One token more for each of these rows, behind `CONTEXT` tokens; the cache is left as it was found."""
    cache = DynamicCache(config=model.config)
    last_logits(model, 1, input_ids=torch.ones(rows, CONTEXT, dtype=torch.long), past_key_values=cache)
    ids = torch.ones(rows, 1, dtype=torch.long)

    def call() -> Tensor:
        chosen: Tensor = model(ids, past_key_values=cache, use_cache=True).logits.argmax(-1)
        cache.crop(CONTEXT - cache.get_seq_length())
        return chosen

    return call


def output_layers(drafts: Mapping[str, PreTrainedModel], sizes: Sequence[int]) -> dict[str, Call]:
    """The output layer of one row: with each kind of weights, and with the first tokens of the vocabulary alone."""
    layers: dict[str, nn.Module] = {kind: model.get_output_embeddings() for kind, model in drafts.items()}
    layers |= {str(size): SubsetHead(drafts[WHOLE].get_output_embeddings(), range(size)) for size in sizes}
    h = torch.randn(1, 1, drafts[WHOLE].config.hidden_size).to(drafts[WHOLE].dtype)
    return {name: lambda layer=layer: layer(h) for name, layer in layers.items()}


@torch.inference_mode()
def taking_turns(calls: Mapping[str, Call], times: int) -> dict[str, list[float]]:
    """Seconds of every repetition of every call; each repetition calls everything once."""
    for _ in range(WARM):
        for call in calls.values():
            call()
    turns = [{name: once(call) for name, call in calls.items()} for _ in range(times)]
    return {name: [turn[name] for turn in turns] for name in calls}


def held(model: PreTrainedModel) -> int:
    """Bytes of a model's weights, each piece of memory once: layers may share one."""
    pieces = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors_of(model)}
    return sum(pieces.values())


def tensors_of(model: PreTrainedModel) -> Sequence[Tensor]:
    """All weights, those included that are no parameters."""
    return [*model.parameters(), *model.buffers()]


def over(times: Mapping[str, Sequence[float]], reference: str) -> dict[str, dict[str, float]]:
    """Seconds of everything over those of the reference, with intervals."""
    return {name: ratio_of_sums(own, times[reference]).as_dict() for name, own in times.items() if name != reference}


if __name__ == "__main__":
    run(main, kept=False)
