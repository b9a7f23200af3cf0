"""Rollouts of a target that vLLM holds: for large targets, and in the numerics that will serve.
vLLM is imported when it is started; without it, or with a stand-in for it, everything else here
works as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from gistgate.core.block import Sampling
from gistgate.core.request import Row
from pipeline.engine import check_source, folder_of, start, vllm_version
from pipeline.labels.rollouts import Cost, FinishedRollout, Rollout, RolloutSource, stop_of
from pipeline.pair.pair import ModelSource

PORTION = 64
"""Tokens that the engine is asked for at a time; behind them it is decided what goes on."""
MOST_LIVE = 1024  # most rollouts under way; the engine makes its own batches of them


class TextToExtend(NamedTuple):
    """A text for the engine to go on with."""

    text: list[int]  # prompt and answer so far, as token ids
    num: int  # most new tokens
    seed: int  # of sampled tokens


Engine = Callable[[Sequence[TextToExtend], Sampling, Sequence[int]], list[list[int]]]
"""(texts, how tokens are drawn, ids that end a text) -> new tokens of each text; an id that ends
one stays in it.
"""


class EngineRunner:
    """Makes rollouts as `pipeline.labels.rollouts.RolloutRunner` does, with an engine."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: PreTrainedTokenizerBase,
        cost: Cost,
        **request: Any,
    ) -> None:
        self.engine = engine
        self.cost = cost
        self.stop = stop_of(tokenizer, **request)

    def serve(self, source: RolloutSource, sampling: Sampling) -> None:
        """Make what `source` asks for until it asks for nothing more."""
        live: dict[Rollout, Row] = {}
        while self._fill(live, source):
            texts = [self._to_extend(row) for row in live.values()]
            portions = self.engine(texts, sampling, sorted(self.stop.eos_ids))
            live = self._extended(live, portions, source)

    def _fill(self, live: dict[Rollout, Row], source: RolloutSource) -> bool:
        """Begin as many rollouts as there is room for; False if none is left."""
        while len(live) < MOST_LIVE:
            rollouts = source.take(MOST_LIVE - len(live))
            if not rollouts:
                break
            rows = {rollout: rollout.row(0) for rollout in rollouts}
            live |= self._extended(rows, [[rollout.token] for rollout in rollouts], source)
        return bool(live)

    def _to_extend(self, row: Row) -> TextToExtend:
        """The next portion of a text; none repeats the draws of the one before."""
        num = min(PORTION, self.stop.max_new_tokens - len(row.answer))
        return TextToExtend(row.text, num, (row.seed * 1_000_003 + len(row.text)) % 2**31)

    def _extended(
        self,
        rows: dict[Rollout, Row],
        portions: Sequence[list[int]],
        source: RolloutSource,
    ) -> dict[Rollout, Row]:
        """Extend these rollouts, hand out those that have ended and return the others."""
        for (rollout, row), portion in zip(rows.items(), portions):
            keep, row.finish = self.stop.cut(row.answer, portion, row.text[: row.prompt_length])
            row.text += portion[:keep]
            # A decoder would have found that it is decided first.
            row.finish = source.decided(rollout, row.answer) or row.finish
            if row.finish is not None:
                self.cost.rolled(len(row.answer) - rollout.position - 1)
                source.end(rollout, FinishedRollout(row.answer, row.finish))
        return {rollout: row for rollout, row in rows.items() if row.finish is None}


class VllmEngine:
    """A target that vLLM holds, for one process: an `Engine`."""

    def __init__(self, source: ModelSource, arguments: Mapping[str, Any]) -> None:
        """Start vLLM; `arguments` are those of `vllm.LLM` besides the model and its dtype."""
        vllm_version()
        check_source("target", source)
        options = {"skip_tokenizer_init": True, "enable_prefix_caching": True, **arguments}
        options.pop("speculative_config", None)  # of answers
        self.llm = start(folder_of(source), source.dtype, options)

    def __call__(
        self,
        texts: Sequence[TextToExtend],
        sampling: Sampling,
        eos_ids: Sequence[int],
    ) -> list[list[int]]:
        """New tokens of every text."""
        from vllm import SamplingParams

        shared: Any = {**asdict(sampling), "stop_token_ids": list(eos_ids), "detokenize": False}
        params = []
        for entry in texts:
            seed = None if sampling.greedy else entry.seed
            params.append(SamplingParams(seed=seed, max_tokens=entry.num, **shared))
        prompts = [{"prompt_token_ids": entry.text} for entry in texts]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]
