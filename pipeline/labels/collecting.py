"""The two passes that collect mismatches: on the target's own and sequential texts, and on the texts of a gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gistgate.gates.gate import Gate
from gistgate.integrations.lm_eval.task import Task
from pipeline.common.decoders import make_decoder, request_of
from pipeline.labels.mining import mine
from pipeline.labels.mismatches import MismatchRecorder, stamped
from pipeline.labels.schema import Policy
from pipeline.labels.tables import Table, concatenated
from pipeline.labels.texts import AnswerText
from pipeline.pairs.pair import Pair
from pipeline.params import MethodParams, Params

PILOT = Path("models/pilot")

Collect = Callable[[Sequence[int]], tuple[Table, list[AnswerText]]]
"""Indices of problems -> records of their mismatches, and the texts that these lie on."""


def strict_collector(params: Params, pair: Pair, task: Task, prompts: Sequence[dict[str, Any]]) -> Collect:
    """Collects on strict texts and on the walk that keeps harmless replacements."""
    recorder = MismatchRecorder(params.decoding.block)
    decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block, observer=recorder)

    def same(problem: int, answer: list[int], reference: list[int]) -> bool | None:
        text, expected = task.text(pair.tokenizer, answer), task.text(pair.tokenizer, reference)
        return task.same_meaning(prompts[problem]["doc"], text, expected)

    def collect(problems: Sequence[int]) -> tuple[Table, list[AnswerText]]:
        ids = [prompts[problem]["ids"] for problem in problems]
        num_strict = round(params.collect.strict_share * len(ids))
        return mine(decoder, recorder, problems, ids, same, num_strict, **request_of(prompts, pair))

    return collect


def gated_collector(params: Params, pair: Pair, _task: Task, prompts: Sequence[dict[str, Any]]) -> Collect:
    """Collects on the pilot gate's own texts."""
    gate = Gate.load(PILOT, pair.target, pair.draft, pair.tokenizer)
    return lambda problems: gated_texts(params, pair, gate, prompts, problems, MismatchRecorder(params.decoding.block))


def gated_texts(
    params: Params,
    pair: Pair,
    gate: Gate,
    prompts: Sequence[dict[str, Any]],
    problems: Sequence[int],
    recorder: MismatchRecorder,
) -> tuple[Table, list[AnswerText]]:
    """Decode these problems with the gate at `collect.pilot_risk`; `recorder` sees the blocks."""
    settings = {"risk": params.collect.pilot_risk}
    decoder = make_decoder(pair, MethodParams("autojudge"), settings, params.decoding.block, gate, observer=recorder)
    answers = decoder.generate([prompts[problem]["ids"] for problem in problems], **request_of(prompts, pair))
    found = zip(problems, recorder.take(answers), strict=True)
    tables = [stamped(table, problem, Policy.GATED) for problem, table in found if table]
    texts = [AnswerText(problem, Policy.GATED, answer.ids) for problem, answer in zip(problems, answers, strict=True)]
    return (concatenated(tables) if tables else {}), texts
