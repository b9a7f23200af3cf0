"""Token batches for the training: documents of similar length together, every batch known beforehand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from pipeline.pairs.world.corpus import prompt_text

IGNORED = -100
"""Label of positions without loss: the question and the padding."""


def encode(tokenizer: PreTrainedTokenizerBase, documents: Sequence[dict[str, str]]) -> list[tuple[list[int], int]]:
    """Ids of each document with the end token, and the length of its question in tokens."""
    prompts = tokenizer([prompt_text(doc["question"]) for doc in documents], add_special_tokens=False)["input_ids"]
    answers = tokenizer([f" {doc['answer']}" for doc in documents], add_special_tokens=False)["input_ids"]
    eos = tokenizer.eos_token_id
    return [([*prompt, *answer, eos], len(prompt)) for prompt, answer in zip(prompts, answers, strict=True)]


def plan(lengths: Sequence[int], batch_size: int, steps: int, seed: int) -> list[list[int]]:
    """Which documents form the batch of each step.

    A pass shuffles the documents, sorts neighbourhoods of 16 batches by length and shuffles the batches again, so a
    batch pads little and still is random. Incomplete batches are left out unless there is nothing else.
    """
    rng, batches = random.Random(seed), list[list[int]]()
    order = list(range(len(lengths)))
    size = min(batch_size, len(order))
    while len(batches) < steps:
        rng.shuffle(order)
        of_pass = []
        for begin in range(0, len(order), 16 * size):
            near = sorted(order[begin : begin + 16 * size], key=lambda i: lengths[i])
            of_pass += [near[i : i + size] for i in range(0, len(near) - size + 1, size)]
        rng.shuffle(of_pass)
        batches += of_pass
    return batches[:steps]


def collate(rows: Sequence[tuple[list[int], int]], pad: int) -> tuple[Tensor, Tensor]:
    """Ids and labels [B, T] of a batch, padded on the right; only solutions bear loss."""
    width = max(len(ids) for ids, _ in rows)
    ids_BT = torch.full((len(rows), width), pad)
    labels_BT = torch.full((len(rows), width), IGNORED)
    for i, (ids, prompt) in enumerate(rows):
        ids_BT[i, : len(ids)] = torch.tensor(ids)
        labels_BT[i, prompt : len(ids)] = torch.tensor(ids[prompt:])
    return ids_BT, labels_BT
