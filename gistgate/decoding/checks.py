"""What is refused before decoding starts, each with one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.block import Sampling
from gistgate.errors import UserError
from gistgate.optional.trees.masks import attention_kinds
from gistgate.optional.trees.walks import walk_of


def check_parts(target: PreTrainedModel, drafter: Any, rule: Any, block: int, gate: Any) -> None:
    """Refuse parts that cannot work together."""
    if block < 0:
        raise UserError(f"block is {block}, but K is a number of drafted tokens. Use 0 for plain decoding.")
    if "gate" in rule.needs and gate is None:
        raise UserError(f"The rule '{rule.id}' needs a gate. Pass gate=Gate.load(folder), or choose another rule.")
    if "gate" in rule.needs and gate.wants_q and drafter is not None and not drafter.gives_q:
        raise UserError(
            "The gate reads draft probabilities, which this drafter has not. Use the drafter 'model', or a gate that "
            "was trained without the feature 'draft'."
        )
    if "q" in rule.needs and drafter is not None and not drafter.gives_q:
        raise UserError(
            f"The rule '{rule.id}' needs draft probabilities, which this drafter has not. Use the drafter 'model', or "
            "a rule that reads the target alone, such as 'prob-ratio'."
        )
    if getattr(drafter, "nodes", None):
        check_trees(target, drafter, rule)
    for model in models_of(target, drafter):
        if getattr(model, "_is_stateful", False):
            raise UserError(
                f"{type(model).__name__} keeps a recurrent state that cannot be rolled back. "
                "Use a model with attention alone."
            )


def count_ids(
    target: PreTrainedModel, drafter: Any, tokenizer: PreTrainedTokenizerBase | None, vocabulary: int | None
) -> int:
    """The number of token ids that count: those that both models know, and no more than `vocabulary`.

    Output layers are often padded beyond the tokenizer, and by different amounts in target and draft. What is padding
    is known where `vocabulary` or the tokenizer is given; no token of theirs may be lost to a smaller draft model.

    Raises:
        UserError: the draft model has no embedding for a token that the target may write.
    """
    sizes = [model.config.get_text_config().vocab_size for model in models_of(target, drafter)]
    known = min(sizes)
    if known < sizes[0] and (vocabulary or tokenizer is not None):
        needed = min(sizes[0], vocabulary or len(tokenizer))  # type: ignore[arg-type]
        if known < needed:
            raise UserError(
                f"The draft model knows {known} token ids and the target's tokenizer has {needed}. Use a draft model "
                "with the target's tokenizer, or a drafter without a model such as 'lookup'."
            )
    return min(vocabulary, known) if vocabulary else known


def check_trees(target: PreTrainedModel, drafter: Any, rule: Any) -> None:
    """Refuse models that cannot read a tree, and rules that cannot judge one."""
    if "second" in rule.needs:
        raise UserError(
            f"The rule '{rule.id}' reads a draft twice, which is possible for chains only. Use a drafter of chains, "
            "such as 'model'."
        )
    for model in models_of(target, drafter):
        attention_kinds(model)


def check_temperature(rule: Any, sampling: Sampling, drafter: Any = None) -> None:
    """Refuse a temperature that the rule does not define, alone or together with a drafter of trees."""
    if not sampling.greedy and getattr(drafter, "nodes", None):
        walk_of(rule)
    if rule.temperatures != "all" and sampling.greedy != (rule.temperatures == "greedy"):
        asked = "greedy decoding" if sampling.greedy else f"temperature {sampling.temperature:g}"
        raise UserError(f"The rule '{rule.id}' is not defined for {asked}. Use {rule.alternative} there.")


def models_of(target: PreTrainedModel, drafter: Any) -> list[PreTrainedModel]:
    """The target and, where there is one, the draft model."""
    draft = getattr(drafter, "model", None)
    return [target] if draft is None else [target, draft]


def check_prompts(target: PreTrainedModel, drafter: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Refuse empty prompts and those that leave no room for the answer."""
    for index, prompt in enumerate(prompts):
        if not len(prompt):
            raise UserError(f"Prompt {index} is empty. Give at least one token, for instance the tokenizer's bos.")
    longest = max(map(len, prompts), default=0)
    for model in models_of(target, drafter):
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if context and longest + max_new_tokens > context:
            raise UserError(
                f"A prompt of {longest} tokens and an answer of up to {max_new_tokens} exceed the context of "
                f"{type(model).__name__}, {context} tokens. Shorten the prompt or lower max_new_tokens."
            )
