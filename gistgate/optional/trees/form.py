"""Trees in the loop: how the target reads one, which path of it stays, and what of it the caches keep.

Axis letters: B rows, N nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedModel

from gistgate.block import Block, Draft
from gistgate.decoding.form import Chains, Judged, Settle
from gistgate.drafters.base import Drafter
from gistgate.errors import UserError
from gistgate.forward.reader import Layout, Reader
from gistgate.optional.trees.judging import judge, walked
from gistgate.optional.trees.masks import attention_kinds, tree_layout
from gistgate.optional.trees.shape import depths
from gistgate.optional.trees.walks import walk_of
from gistgate.rules.base import Rule


class Trees(Chains):
    """Drafts that may branch; one that does not is treated as the chain that it is."""

    def check(self, models: Sequence[PreTrainedModel], rule: Rule) -> None:
        if rule.verifier != "once":
            raise UserError(
                f"The rule '{rule.id}' reads a draft twice, which is possible for chains only. Use a drafter of "
                "chains, such as 'model'."
            )
        for model in models:
            attention_kinds(model)

    def check_sampled(self, rule: Rule) -> None:
        walk_of(rule)

    def places(self, draft: Draft) -> Tensor:
        return super().places(draft) if draft.parents is None else depths(draft.parents) - 1

    def layout(self, draft: Draft) -> Layout | None:
        return None if draft.parents is None else tree_layout(draft.parents)

    def judge(self, block: Block, draft: Draft, rule: Rule, settle: Settle) -> Judged:
        if draft.parents is None:
            return super().judge(block, draft, rule, settle)
        if block.greedy:
            return judge(block, draft.parents, settle)
        return walked(block, draft.parents, walk_of(rule))

    def keep(self, reader: Reader, drafter: Drafter, draft: Draft, judged: Judged) -> None:
        if judged.paths is None:
            super().keep(reader, drafter, draft, judged)
            return
        reader.keep_paths(draft.ids.shape[1], judged.paths, draft.valid.sum(-1).tolist())
        drafter.keep_paths(judged.paths)
