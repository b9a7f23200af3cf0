"""Blocks about running the decoder: shapes, mining of mismatches, labelling."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from pipeline.common.reading import Count, Natural, Number, Share, between, block


@block
class DecodingParams:
    """Shapes of decoding that all stages share."""

    block: Count = 8
    """K, drafted tokens per target forward, in tokens; the common length at which methods are compared."""
    strict_block: Count = 4
    """K at which strict decoding is timed, in tokens: its own best."""
    max_new_tokens: Count = 160
    """Longest answer where the task sets no limit of its own, in tokens."""
    batch_size: Count = 128
    """Rows decoded together where only ids matter, in prompts; speed is always measured with one."""
    workers: Count = 2
    """Processes that share the methods or shards of a stage, each with one thread; more than one pays on a CPU."""
    prompt_memory_mb: Natural = 1000
    """Keys and values of prompts that calibration keeps between settings, and of texts that rollouts start from, in
    megabytes; 0 reads prompts anew."""

    @property
    def deciding(self) -> dict[str, int]:
        """What of this block decides about texts; the rest changes how fast they are written."""
        return {name: getattr(self, name) for name in ("block", "max_new_tokens", "batch_size")}


@block
class EngineParams:
    """What makes the rollouts of labels and reads the states of features."""

    rollouts: Literal["own", "vllm"] = "own"
    """"own" is this library's decoder; "vllm" is an engine that serves large targets, and needs the extra `vllm`."""
    states: Literal["own", "vllm"] = "own"
    """What the states of features come from: "own" is transformers, "vllm" as above."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of `vllm.LLM` besides model and dtype, such as tensor_parallel_size."""


@block
class CollectParams:
    """Mining of mismatches on the training prompts."""

    shard_prompts: Count = 160
    """Prompts per shard, in prompts; an interruption loses at most one shard."""
    solved_only: bool = True
    """Mine only problems that the target itself solves: what it gets wrong, any rewording may change, and nothing can
    be lost there."""
    strict_share: Share = 0.25
    """Share of the problems whose strict text is labelled whole as well, to report that policy apart."""
    pilot_risk: Share = 0.2
    """P(harm) up to which the pilot gate accepts while its texts are collected; looser than any served setting."""
    recipe: Literal["walk", "text"] = "walk"
    """Where strict mismatches come from: "walk", AutoJudge's recipe, takes them one after the other and keeps harmless
    draft tokens (arXiv 2504.20039); "text" takes those of the target's own texts, all at once."""
    rejoin: Count | None = None
    """As `label.rejoin`, for the rollouts of the walk; None lets each of them run until its answer is given."""


@block
class LabelParams:
    """What a label of a mismatch costs and how sure it is."""

    batch_size: Count = 128
    """Rollouts decoded together, in rows."""
    rejoin: Count | None = 16
    """Tokens in a row, behind the forced one, that have to equal the target's own answer before a rollout counts as
    harmless and stops; None lets every rollout end by itself."""
    audit: Natural = 96
    """Rollouts of each shard that always run to their end; if of those that rejoin fewer than 99 % keep the meaning,
    none of the shard stops early."""
    rollouts: Count = 3
    """Most continuations per uncertain mismatch, in rollouts; the first is greedy."""
    temperature: Annotated[Number, between(0)] = 0.7
    """Temperature of the rollouts behind the first."""
    way: Literal["auto", "plain", "speculative"] = "auto"
    """How rollouts are decoded: token by token or in speculative rounds; "auto" measures at the start of a stage what
    is faster for the greedy ones, and samples in speculative rounds."""
    budget: Count | None = None
    """Most mismatches of a pass whose outcome is found by rollouts, in labels; None labels all."""
    strategy: Literal["uncertain", "random"] = "random"
    """Which mismatches a budget buys: those whose harm the pilot gate is least sure of, or any. The strict pass, from
    which the pilot learns, always draws at random."""
