"""Rules beside `exact` that leave the target's distribution alone: a draft is judged whole, deepest
token first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.core.block import Block
from gistgate.core.rule import Rule, own_token

TINY = torch.finfo(torch.float64).tiny  # keeps quotients finite


@dataclass(frozen=True)
class BlockVerification(Rule, id="block", knob=None, looser="up", lossless=True, superset=False):
    """Block Verification (arXiv 2403.10444): keep the longest prefix j whose own number passes, u_j
    <= h_j.
    """

    def accept(self, block: Block) -> Tensor:
        if block.greedy:
            return block.strict
        passed_BK = (block.tests <= passing(block)) & block.valid
        # accept(j)  <=>  u_i <= h_i for some i >= j
        return passed_BK.flip(-1).long().cumsum(-1).flip(-1) > 0

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        """A draw from norm([P p - q]_+) behind the accepted prefix, from p behind a whole draft."""
        return own_token(block, length_B, None if block.greedy else path_ratios(block))


def path_ratios(block: Block) -> Tensor:
    """P_0 = 1, P_j = min(1, P_{j-1} p(x_j) / q(x_j)) [B, K + 1], float64."""
    p_BK = block.draft_logprob.double().exp()
    q_BK = block.draft_q.double()
    ratios = [torch.ones_like(block.logits[:, 0, 0], dtype=torch.float64)]
    for p_B, q_B in zip(p_BK.unbind(1), q_BK.unbind(1)):
        reached_B = ratios[-1] * p_B
        # A token with p = 0 ends the path for every q.
        full_B = (reached_B >= q_B) & (reached_B > 0)
        ratios.append(torch.where(full_B, 1.0, reached_B / q_B.clamp_min(TINY)))
    return torch.stack(ratios, dim=1)


def passing(block: Block) -> Tensor:
    """h_j, with which probability the prefix x_1 .. x_j is kept if no longer one is [B, K].

    h_j = S_j / (S_j + 1 - P_j) with S_j = sum [P_j p - q]_+ over the tokens behind x_j, and h_j =
    P_j at the end.
    """
    ratio_BK = path_ratios(block)[:, 1:]
    if block.width < 2:
        return ratio_BK
    here_BK = ratio_BK[:, :-1]
    if block.q is None:  # q is 1 for x_{j+1}, so only the other tokens contribute
        mass_BK = here_BK * (1 - block.draft_logprob[:, 1:].double().exp())
    else:
        p_BKV = block.logprobs[:, 1:-1].double().exp()
        q_BKV = block.q[:, 1:].double()
        mass_BK = (here_BK[..., None] * p_BKV - q_BKV).clamp_min(0).sum(-1)
    whole_BK = mass_BK + (1 - here_BK)
    # 0 / 0 means P = 1 and p = q: the next prefix passes in any case.
    inner_BK = torch.where(whole_BK > 0, mass_BK / whole_BK.clamp_min(TINY), 1.0)
    is_inner_BK = F.pad(block.valid[:, 1:], (0, 1))  # another drafted token follows
    return torch.where(is_inner_BK, F.pad(inner_BK, (0, 1)), ratio_BK)


@dataclass(frozen=True)
class Traversal(BlockVerification, id="traversal"):
    """Traversal Verification (arXiv 2505.12398), `gistgate.trees.tree.traverse`; on a chain it
    equals `block`.
    """
