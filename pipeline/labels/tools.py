"""What mining and labelling share: rollouts that go the faster way, verdicts on them, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gistgate.decoding.decoder import Decoder
from gistgate.integrations.lm_eval.task import Task
from pipeline.common.decoders import make_decoder, request_of
from pipeline.labels.cost import Cost
from pipeline.labels.kept_rollouts import KeptRollouts
from pipeline.labels.memories import Memories
from pipeline.labels.pace import Way, plain_of
from pipeline.labels.rolling import Roller
from pipeline.labels.served_rollouts import GoOn, ServedRoller
from pipeline.labels.verdicts import Judge, Meaning
from pipeline.labels.vllm_start import check_alone
from pipeline.pairs.pair import Pair
from pipeline.pairs.source import read_pair
from pipeline.params import MethodParams, Params


class Tools:
    """The rollouts of one piece of a stage, and the verdicts on them."""

    def __init__(
        self,
        decoder: Decoder,
        meaning: Meaning,
        params: Params,
        way: Way,
        cost: Cost,
        engine: GoOn | None = None,
        kept: KeptRollouts | None = None,
        **request: Any,
    ) -> None:
        """Put the parts together; nothing is read yet.

        Args:
            decoder: decodes strictly with the pair, speculatively.
            meaning: compares answers.
            params: `label` says how many rollouts share a batch, and how many are audited.
            way: how greedy rollouts are decoded; sampled ones speculate unless `label.way` says "plain", because their
                draws depend on it.
            cost: counts what is spent.
            engine: makes the rollouts instead of the decoder; `way` means nothing to it.
            kept: keeps rollouts over an interruption.
            request: arguments of the decoder that all prompts share.
        """
        self.decoder, self.meaning, self.cost, self.request = decoder, meaning, cost, request
        self.batch_size, self._audit = params.label.batch_size, params.label.audit
        self.memories = Memories(decoder, self.batch_size, params.decoding.prompt_memory_mb)
        self.roller: Roller | ServedRoller
        self.sampler: Roller | ServedRoller
        if engine is None:
            self.roller = self._rolling(way)
            self.sampler = self._rolling("plain" if params.label.way == "plain" else "speculative")
        else:
            self.roller = ServedRoller(engine, self.memories, meaning.tokenizer, cost, **request)
            self.sampler = self.roller
        self.roller.kept = self.sampler.kept = kept

    def _rolling(self, way: Way) -> Roller:
        decoder = plain_of(self.decoder) if way == "plain" else self.decoder
        return Roller(decoder, self.memories, self.batch_size, self.cost, **self.request)

    def judge(self, rejoin: int | None) -> Judge:
        """A judge who has not audited anything yet; `rejoin` as in `label.rejoin`."""
        return Judge(self.roller, self.meaning.same, self.meaning.is_given, audit=self._audit, rejoin=rejoin)


def engine_of(params: Params) -> GoOn | None:
    """What makes rollouts instead of the decoder, started once for a stage; None lets the decoder make them.

    Raises:
        UserError: several workers would each hold a target, or the engine cannot be started.
    """
    if params.engine.rollouts == "own":
        return None
    check_alone(params)
    from pipeline.labels.vllm_engine import VllmEngine

    return VllmEngine(read_pair(params.pair).target, params.engine.arguments)


def tools_of(
    params: Params,
    pair: Pair,
    task: Task,
    prompts: Sequence[dict[str, Any]],
    references: dict[int, list[int]],
    way: Way,
    cost: Cost,
    engine: GoOn | None = None,
    kept: KeptRollouts | None = None,
) -> Tools:
    """The tools of a pair and a task; `references` by problem, as token ids, the rest as in `Tools`."""
    decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)
    meaning = Meaning(task, pair.tokenizer, [prompt["doc"] for prompt in prompts], references)
    return Tools(decoder, meaning, params, way, cost, engine, kept, **request_of(prompts, pair))
