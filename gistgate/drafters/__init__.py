"""Drafters by id. A new drafter is one file and one line in DRAFTERS."""

from typing import Any

from gistgate.core.utils import Registry

DRAFTERS: Registry[Any] = Registry(
    "drafter",
    {
        "model": "gistgate.drafters.model:ModelDrafter",
        "tree": "gistgate.trees.drafter:TreeDrafter",
        "lookup": "gistgate.drafters.text:PromptLookup",
        "suffix": "gistgate.drafters.suffix:SuffixDrafter",
        "recycle": "gistgate.drafters.text:TokenRecycling",
        "hybrid": "gistgate.drafters.adaptive:ModelOrTextDrafter",
    },
)
"""Id -> class of the drafter, for those that are made of nothing or of the draft model alone.
`CorpusDrafter` and `SenseDrafter` are made of what they search, `AdaptiveDrafter` of the drafters
to choose from.
"""
