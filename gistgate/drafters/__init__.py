"""Drafters by id. A new drafter is one file and one line in DRAFTERS."""

from __future__ import annotations

from typing import Any

from gistgate.drafters.cascade import CascadeDrafter
from gistgate.drafters.lookup import PromptLookup
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.recycle import TokenRecycling
from gistgate.drafters.suffix import SuffixDrafter
from gistgate.optional.trees.drafter import TreeDrafter
from gistgate.optional.trees.lookup import LookupTree

DRAFTERS: dict[str, Any] = {
    "model": ModelDrafter,
    "tree": TreeDrafter,
    "lookup": PromptLookup,
    "lookup-tree": LookupTree,
    "suffix": SuffixDrafter,
    "recycle": TokenRecycling,
    "cascade": CascadeDrafter,
}
"""The drafters that need nothing but a request, or the draft model; `CorpusDrafter` wants its corpus, `ChoiceDrafter`
what there is to choose from."""
