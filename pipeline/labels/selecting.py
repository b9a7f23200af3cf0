"""Which mismatches to label when not all of them are paid for.

Only mismatches of training prompts are there to choose from. Those of the problems that a head's training keeps for
measuring, for its probability map and for stopping are drawn at random whatever the strategy is: a part that is chosen
for being hard would say nothing of the mismatches that a gate meets. The two groups of problems get parts of the budget
by their numbers of mismatches; within a group the draw does not look at problems.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.heads.split import split_by_problem
from pipeline.labels.tables import Table, num_rows
from pipeline.params import Params


def chosen_rows(table: Table, params: Params) -> Tensor:
    """The records to label as a mask [N]; all of them within the budget, and those whose outcome is known anyway."""
    unknown, budget = table["greedy_kept"] < 0, params.label.budget
    if budget is None or budget >= int(unknown.sum()):
        return torch.ones(num_rows(table), dtype=torch.bool)
    order = torch.randperm(num_rows(table), generator=torch.Generator().manual_seed(params.seed))
    if params.label.strategy == "random" or "probability" not in table:
        return ~unknown | first_of(order, unknown, budget)
    fits = split_by_problem(table["problem"], params.train, params.seed).train
    for_fitting = round(budget * int((unknown & fits).sum()) / int(unknown.sum()))
    doubt = (table["probability"] - 0.5).abs()
    by_doubt = order[torch.argsort(doubt[order], stable=True)]
    return (
        ~unknown
        | first_of(by_doubt, unknown & fits, for_fitting)
        | first_of(order, unknown & ~fits, budget - for_fitting)
    )


def first_of(order: Tensor, among: Tensor, num: int) -> Tensor:
    """The first `num` rows in this order that lie in the mask `among`, as a mask [N]."""
    mask = torch.zeros(len(among), dtype=torch.bool)
    mask[order[among[order]][:num]] = True
    return mask
