"""The two passes that collect mismatches: on the target's own and sequential texts, and on the texts of a gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gistgate.block import Block
from gistgate.decoding.decoder import Decoder
from gistgate.gates.gate import Gate
from gistgate.request.slots import Slots
from pipeline.common.decoders import make_decoder, request_of
from pipeline.common.paths import PILOT
from pipeline.labels.mining import Miner
from pipeline.labels.mismatches import MismatchRecorder, stamped
from pipeline.labels.schema import Policy
from pipeline.labels.tables import Table, concatenated, num_rows
from pipeline.labels.texts import AnswerText
from pipeline.labels.tools import Tools
from pipeline.pairs.pair import Pair
from pipeline.params import MethodParams, Params

Collect = Callable[[Sequence[int]], tuple[Table, list[AnswerText]]]
"""Indices of problems -> records of their mismatches, and the texts that these lie on."""


def strict_collector(params: Params, tools: Tools, prompts: Sequence[dict[str, Any]]) -> Collect:
    """Collects on the target's own texts and, if that is the recipe, on the walk that keeps harmless replacements."""
    walks = params.collect.recipe == "walk"

    def collect(problems: Sequence[int]) -> tuple[Table, list[AnswerText]]:
        sound = [problem for problem in problems if tools.meaning.is_comparable(problem)]
        num = round(params.collect.strict_share * len(problems)) if walks else len(sound)
        recorder = MismatchRecorder(tools.decoder.block)
        decoder, slots = tools.decoder.having(observer=recorder), Slots(tools.batch_size)
        tables, texts = written(decoder, recorder, prompts, sound[:num], Policy.STRICT, slots, **tools.request)
        tools.cost.use(slots.usage)
        if walks:
            ids, own = [prompts[n]["ids"] for n in sound], [tools.meaning.references[n] for n in sound]
            miner = Miner(tools.decoder, tools.judge(params.collect.rejoin), tools.batch_size, **tools.request)
            walked, walked_texts = miner.walk(sound, ids, own)
            tools.cost.labels += sum(num_rows(table) for table in walked)
            tables, texts = tables + walked, texts + walked_texts
        return (concatenated(tables) if tables else {}), texts

    return collect


def written(
    decoder: Decoder,
    recorder: MismatchRecorder,
    prompts: Sequence[dict[str, Any]],
    problems: Sequence[int],
    policy: Policy,
    slots: Slots,
    **request: Any,
) -> tuple[list[Table], list[AnswerText]]:
    """Decode these problems while `recorder` observes the blocks: the records of every text, and the texts.

    The texts are the answers of this very decoding. In bfloat16 another one may differ in near ties, and the places of
    a record would then mean nothing in it.
    """
    answers = decoder.generate([prompts[problem]["ids"] for problem in problems], slots=slots, **request)
    found = zip(problems, recorder.take(answers), strict=True)
    tables = [stamped(table, problem, policy) for problem, table in found if table]
    return tables, [AnswerText(problem, policy, answer.ids) for problem, answer in zip(problems, answers, strict=True)]


def gated_collector(params: Params, pair: Pair, prompts: Sequence[dict[str, Any]]) -> Collect:
    """Collects on the pilot gate's own texts; a record names the pilot's P(kept) as `probability`."""
    gate = Gate.load(PILOT, pair.target, pair.draft, pair.tokenizer)

    def collect(problems: Sequence[int]) -> tuple[Table, list[AnswerText]]:
        recorder = MismatchRecorder(params.decoding.block, more=opinion)
        return gated_texts(params, pair, gate, prompts, problems, recorder)

    return collect


def opinion(block: Block) -> Table:
    """The gate's P(kept) at every place of a block [B, K]."""
    assert block.gate_probs is not None
    return {"probability": block.gate_probs}


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
    request, slots = request_of(prompts, pair), Slots(params.decoding.batch_size)
    tables, texts = written(decoder, recorder, prompts, problems, Policy.GATED, slots, **request)
    return (concatenated(tables) if tables else {}), texts
