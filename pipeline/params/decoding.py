"""Blocks about running the decoder: shapes, mining of mismatches, labelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pipeline.params.reading import Between

Count = Annotated[int, Between(1)]
Share = Annotated[float, Between(0, 1)]


@dataclass(frozen=True)
class DecodingParams:
    """Shapes of decoding that all stages share."""

    block: Count = 8
    """K, drafted tokens per target forward, in tokens; the common length at which methods are compared."""
    strict_block: Count = 4
    """K at which strict decoding is timed, in tokens: its own best."""
    max_new_tokens: Count = 160
    """Longest answer where the task sets no limit of its own, in tokens."""
    batch_size: Count = 64
    """Rows decoded together where only ids matter, in prompts; speed is always measured with one."""


@dataclass(frozen=True)
class CollectParams:
    """Mining of mismatches on the training prompts."""

    shard_prompts: Count = 64
    """Prompts per shard, in prompts; an interruption loses at most one shard."""


@dataclass(frozen=True)
class LabelParams:
    """What a label of a mismatch costs and how sure it is."""

    shard_rows: Count = 512
    """Mismatches per shard, in rows; an interruption loses at most one shard."""
    rollouts: Count = 3
    """Most continuations per uncertain mismatch, in rollouts; the first is greedy."""
    temperature: Annotated[float, Between(0)] = 0.7
    """Temperature of the rollouts behind the first."""
