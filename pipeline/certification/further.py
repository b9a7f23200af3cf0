"""Calibration prompts beside those of the run, for studies whose certificates are claims of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gistgate.integrations.lm_eval.prompts import Prompt, PromptMaker, unused_prompts, used_prompts
from pipeline.pairs.pair import load_pair
from pipeline.pairs.source import read_pair
from pipeline.pairs.world.supply import further_documents
from pipeline.params import Params
from pipeline.stages.prompts import context_length, of_the_world, training_prompts
from pipeline.tasks.loading import load_task


def new_prompts(params: Params, count: int, purpose: str, draw: int = 1, beside: Sequence[Prompt] = ()) -> list[Prompt]:
    """The draw number `draw` of at most `count` prompts that no stage of the run and no other purpose uses.

    Names tell purpose and draw, because the names of documents may be those of the run's prompts. Where the documents
    are given, calibration prompts of the run's earlier draws are left out as well; those of the embedded world are new
    for every purpose and draw.

    Args:
        params: the run's.
        count: prompts of a draw.
        purpose: one of PURPOSES. On a task other than the embedded world, `certify` draws from the start of the unused
            documents, and everything else from their end.
        draw: from 1 on.
        beside: prompts whose problems are left out as well.
    """
    source, task = read_pair(params.pair), load_task(params)
    maker = PromptMaker(task, load_pair(params).tokenizer, context_length(source))
    used = [*used_prompts(), *beside]
    if of_the_world(params):
        docs = further_documents(params.world, params.seed, purpose, count, draw)
        return named(unused_prompts(maker, docs, count, params.seed, used), purpose, draw)
    docs = task.documents("train")
    used += earlier_draws(maker, params)
    unused = unused_prompts(maker, docs, len(docs), params.seed, used)
    ordered = unused if purpose == "certify" else unused[::-1]
    return named(ordered[(draw - 1) * count : draw * count], purpose, draw)


def earlier_draws(maker: PromptMaker, params: Params) -> list[Prompt]:
    """The calibration prompts of all draws before the run's own."""
    if params.prompts.draw == 1:
        return []
    taken = {maker.problem(prompt["doc"]) for prompt in maker.test_prompts(params.prompts.test)}
    return [prompt for draw in range(1, params.prompts.draw) for prompt in calibration_of(maker, params, draw, taken)]


def calibration_of(maker: PromptMaker, params: Params, draw: int, taken: Iterable[str]) -> list[Prompt]:
    """The calibration prompts of another draw of the run.

    Args:
        maker: makes prompts of documents.
        params: the run's.
        draw: from 1 on.
        taken: problems of the test prompts.

    Raises:
        UserError: too few documents are left for this draw.
    """
    other = replace(params, prompts=replace(params.prompts, draw=draw))
    return training_prompts(maker, other, set(taken))["calibration"]


def named(prompts: Sequence[Prompt], purpose: str, draw: int) -> list[Prompt]:
    """The prompts with names of their own."""
    return [{**prompt, "id": f"{purpose}-{draw}-{place}"} for place, prompt in enumerate(prompts)]
