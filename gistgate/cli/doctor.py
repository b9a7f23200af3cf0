"""The command that says whether speculation can pay for a pair, before hours are spent on a gate."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from gistgate.build.asking import Asking
from gistgate.build.drafters import HYBRID
from gistgate.build.wishes import Wishes
from gistgate.cli.options import (
    AsJson,
    Chat,
    Dtype,
    Gguf,
    Length,
    Prompts,
    Stops,
    System,
    TargetName,
    refuse_wishes,
    with_wishes,
)
from gistgate.cli.reading import read_prompts
from gistgate.errors import UserError

BLOCKS = (2, 4, 6, 8, 10, 12)
"""K of the table; costs are measured at the first, the fourth and the last."""
IGNORED = ("rule", "settings", "block", "segments", "guards", "stop_drafting", "speculate_up_to")
"""Wishes that are no part of what is measured: strict decoding, with whole drafts and at every K of the table."""
MOST = 20
"""Prompts that are enough for one recommendation."""


@with_wishes
def doctor(
    target: TargetName,
    prompts: Prompts,
    *,
    wishes: Wishes,
    dtype: Dtype = "auto",
    gguf: Gguf = None,
    max_new_tokens: Length = 64,
    stop: Stops = [],  # noqa: B006 (Typer's form of an option that can be repeated)
    chat: Chat = False,
    system: System = None,
    as_json: AsJson = False,
) -> None:
    """Measure what drafts cost and how many tokens of 20 answers are accepted; say which K, and if a gate can pay.

    It also says how many of these answers reached the limit of tokens, and which limit answers like them ask for.
    """
    from gistgate.cli import show
    from gistgate.cli.decode import load
    from gistgate.observing.lengths import lengths_of, limit_advice
    from gistgate.observing.outlook import Mismatches, advice, labelling, measure, outlook, strict_answers
    from gistgate.request.statistics import total

    refuse_wishes(wishes, IGNORED, "is no part of what is measured: strict decoding with whole drafts at several K")
    if wishes.drafter == HYBRID:
        raise UserError(f"'{HYBRID}' drafts in two ways, and one is measured at a time. Name model or suffix.")
    asking = Asking(read_prompts(prompts)[:MOST], chat, system)
    loaded = load(target, dtype, wishes, asking, gguf)
    ids = asking.encode(loaded.target)
    request = loaded.request(max_new_tokens, stop)
    costs = measure(loaded.decoder, ids, (BLOCKS[0], BLOCKS[3], BLOCKS[-1]), **request)
    mismatches = Mismatches()
    answers = strict_answers(loaded.decoder, ids, BLOCKS[-1], mismatches, **request)
    counted, lengths = total([answer.statistics for answer in answers]), lengths_of(answers, max_new_tokens)
    outlooks = [outlook(costs, counted.histogram, block) for block in BLOCKS]
    effort = labelling(counted, mismatches.number, len(ids))
    if as_json:
        found = {"costs": asdict(costs), "outlooks": [asdict(one) for one in outlooks], "labels": asdict(effort)}
        told = {"lengths": {**asdict(lengths), "advice": limit_advice(lengths)}, "advice": advice(outlooks)}
        typer.echo(json.dumps({**found, **told, "prompts": len(ids)}))
        return
    show.say(show.promised(costs, outlooks, effort))
    typer.echo(f"{limit_advice(lengths)}\n")
    typer.echo(advice(outlooks))
