"""What the dials are judged by: greedy accuracy of both models and strict verification. No gate takes part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.pairs.world.corpus import answer_of, prompt_text


@torch.inference_mode()
def greedy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    batch_size: int = 100,
    max_new_tokens: int = 160,
) -> list[list[int]]:
    """Greedy solutions as ids, end token included."""
    solutions = []
    for begin in range(0, len(questions), batch_size):
        texts = [prompt_text(question) for question in questions[begin : begin + batch_size]]
        batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
        out = model.generate(**batch.to(model.device), max_new_tokens=max_new_tokens, do_sample=False)
        for row in out[:, batch["input_ids"].shape[1] :].tolist():
            end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
            solutions.append(row[:end])
    return solutions


def accuracy(tokenizer: PreTrainedTokenizerBase, solutions: Sequence[list[int]], answers: Sequence[str]) -> float:
    """Share of the solutions whose `#### answer` is the one of `answers`."""
    texts = tokenizer.batch_decode(list(solutions), skip_special_tokens=True)
    right = [answer_of(text) == answer_of(answer) for text, answer in zip(texts, answers, strict=True)]
    return sum(right) / len(right)


@torch.inference_mode()
def strict_mean_accepted_length(
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    solutions: Sequence[list[int]],
    block: int = 8,
) -> float:
    """Tokens per target forward that strict greedy verification of `block` drafted tokens would emit.

    Exact without decoding: all accepted tokens equal the target's own text, so one forward of the draft over that text
    tells which of its tokens would have been accepted.
    """
    tokens = rounds = 0
    for question, solution in zip(questions, solutions, strict=True):
        prompt = tokenizer(prompt_text(question))["input_ids"]
        ids = torch.tensor([prompt + solution], device=draft.device)
        choice = draft(ids[:, :-1]).logits[0, len(prompt) - 1 :].argmax(-1)
        match = (choice == ids[0, len(prompt) :]).tolist()
        position = 0
        while position < len(match):
            run = 0
            while run < block and position + run < len(match) and match[position + run]:
                run += 1
            position = min(position + run + 1, len(match))
            rounds += 1
        tokens += len(match)
    return tokens / max(1, rounds)
