"""What is refused before decoding starts, each with one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.block import Sampling
from gistgate.decoding.parts import GateLike
from gistgate.drafters.base import Drafter
from gistgate.errors import UserError
from gistgate.forward.context import context_of, num_ids
from gistgate.rules.base import Rule


def check_parts(
    target: PreTrainedModel, drafter: Drafter | None, rule: Rule, block: int, gate: GateLike | None
) -> None:
    """Refuse parts that cannot work together."""
    if block < 0:
        raise UserError(f"block is {block}, but K is a number of drafted tokens. Use 0 for plain decoding.")
    if "gate" in rule.needs and gate is None:
        raise UserError(f"The rule '{rule.id}' needs a gate. Pass gate=Gate.load(folder), or choose another rule.")
    if "gate" in rule.needs and gate and gate.wants_q and drafter is not None and not drafter.gives_q:
        raise UserError(
            "The gate reads draft probabilities, which this drafter has not. Use the drafter 'model', or a gate that "
            "was trained without the feature 'draft'."
        )
    if "q" in rule.needs and drafter is not None and not drafter.gives_q:
        raise UserError(
            f"The rule '{rule.id}' needs draft probabilities, which this drafter has not. Use the drafter 'model', or "
            "a rule that reads the target alone, such as 'prob-ratio'."
        )
    for model in models_of(target, drafter):
        if getattr(model, "_is_stateful", False):  # not every version of transformers has it
            raise UserError(
                f"{type(model).__name__} keeps a recurrent state that cannot be rolled back. "
                "Use a model with attention alone."
            )


def count_ids(
    target: PreTrainedModel, drafter: Drafter | None, tokenizer: PreTrainedTokenizerBase | None, vocabulary: int | None
) -> int:
    """The number of token ids that count: those that both models know, and no more than `vocabulary`.

    Output layers are often padded beyond the tokenizer, and by different amounts in target and draft. What is padding
    is known where `vocabulary` or the tokenizer is given; no token of theirs may be lost to a smaller draft model.

    Raises:
        UserError: the draft model lacks a token that the target may write, or nobody can tell.
    """
    sizes: list[int] = [model.config.get_text_config().vocab_size for model in models_of(target, drafter)]
    known = min(sizes)
    if known < sizes[0]:
        check_padding(sizes[0], known, vocabulary or (None if tokenizer is None else num_ids(tokenizer)))
    return min(vocabulary, known) if vocabulary else known


def check_padding(target: int, draft: int, tokens: int | None) -> None:
    """Refuse a draft model of fewer ids than the target unless all that it lacks is padding beyond the `tokens`.

    Raises:
        UserError: it lacks tokens, or their number is not known.
    """
    if tokens is None:
        raise UserError(
            f"The draft model knows {draft} token ids and the target {target}; whether the target writes the others "
            "cannot be seen without its tokenizer. Pass tokenizer=..., or vocabulary= the number of ids in use."
        )
    needed = min(target, tokens)
    if draft < needed:
        raise UserError(
            f"The draft model knows {draft} token ids and the target's tokenizer has {needed}. Use a draft model "
            "with the target's tokenizer, or a drafter without a model such as 'lookup'."
        )


def check_temperature(rule: Rule, sampling: Sampling) -> None:
    """Refuse a temperature that the rule does not define."""
    if rule.temperatures != "all" and sampling.greedy != (rule.temperatures == "greedy"):
        asked = "greedy decoding" if sampling.greedy else f"temperature {sampling.temperature:g}"
        raise UserError(f"The rule '{rule.id}' is not defined for {asked}. Use {rule.alternative} there.")


def models_of(target: PreTrainedModel, drafter: Drafter | None) -> list[PreTrainedModel]:
    """The target and, where there is one, the draft model."""
    return [target] if drafter is None or drafter.model is None else [target, drafter.model]


def check_ids(models: Sequence[PreTrainedModel], prompts: Sequence[Sequence[int]]) -> None:
    """Refuse prompts with ids that a model has no embedding for, which a tokenizer with added tokens may give."""
    known = min(model.get_input_embeddings().weight.shape[0] for model in models)
    for index, prompt in enumerate(prompts):
        strange = next((token for token in prompt if not 0 <= token < known), None)
        if strange is not None:
            raise UserError(
                f"Prompt {index} holds the token id {strange}, and the models know the ids 0 to {known - 1}. Use the "
                "tokenizer that belongs to them, or leave this token out."
            )


def check_seeds(seeds: Sequence[int] | None, rows: int) -> None:
    """Refuse seeds that are not one for each row, or that no generator takes."""
    if seeds is not None and len(seeds) != rows:
        raise UserError(f"There are {len(seeds)} seeds for {rows} prompts. Give one for each.")
    for seed in seeds or ():
        if not -(2**63) <= seed < 2**64:
            raise UserError(f"The seed {seed} does not fit into 64 bits. Give a smaller one.")


def check_costs(costs: Sequence[float] | None, rows: int) -> None:
    """Refuse costs that are not one for each row between 0 and 1, beyond which a rule would be looser than promised."""
    if costs is not None and len(costs) != rows:
        raise UserError(f"There are {len(costs)} costs for {rows} prompts. Give one for each.")
    for cost in costs or ():
        if not 0 <= cost <= 1:
            raise UserError(f"A round costs {cost}, but costs are shares from 0 to 1. Divide by the largest.")


def check_prompts(models: Sequence[PreTrainedModel], lengths: Sequence[int], max_new_tokens: int) -> None:
    """Refuse empty prompts and those that leave no room for the answer, by their lengths in tokens."""
    for index, length in enumerate(lengths):
        if not length:
            raise UserError(f"Prompt {index} is empty. Give at least one token, for instance the tokenizer's bos.")
    longest = max(lengths, default=0)
    for model in models:
        context = context_of(model.config.get_text_config())
        if context and longest + max_new_tokens > context:
            raise UserError(
                f"A prompt of {longest} tokens and an answer of up to {max_new_tokens} exceed the context of "
                f"{type(model).__name__}, {context} tokens. Shorten the prompt or lower max_new_tokens."
            )
