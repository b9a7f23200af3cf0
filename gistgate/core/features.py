"""Features of a gate: numbers and states of every draft token, from the forward that verifies it.

Axis letters: B rows, K drafted tokens, V vocabulary, D width, F features. Everything is tensor code
without a host synchronisation.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from gistgate.core.block import Block, entropy_of, of_tokens
from gistgate.core.utils import Registry, UserError


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The list of decoder layers of any decoder-only transformer."""
    num_layers = model.config.get_text_config().num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return module
    raise UserError(
        f"{type(model).__name__} has no list of {num_layers} decoder layers. Use the layer 'post'"
        " instead."
    )


def layer_module(model: PreTrainedModel, layer: str) -> nn.Module:
    """The decoder layer whose output is the state `layer` ("pre" or "layer:i")."""
    layers = decoder_layers(model)
    names = [f"layer:{number}" for number in range(len(layers))]
    layer = names[-1] if layer == "pre" else layer
    if layer not in names:
        raise UserError(
            f"There is no hidden state '{layer}'. Use 'post', 'pre' or 'layer:0' to '{names[-1]}'."
        )
    return layers[names.index(layer)]


@contextmanager
def tap(model: PreTrainedModel, layers: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """While open, every forward leaves the states of `layers` in the yielded dictionary.

    Each is [B, rows, D].
    """
    states: dict[str, Tensor] = {}

    def keep(layer: str, _module: nn.Module, args: Any, output: Any = None) -> None:
        """A hook before a module, which has no output yet, or behind it."""
        state = args if output is None else output
        states[layer] = state[0] if isinstance(state, tuple) else state

    with ExitStack() as hooks:
        for layer in layers:
            hook = partial(keep, layer)
            hooks.enter_context(
                model.get_output_embeddings().register_forward_pre_hook(hook)
                if layer == "post"
                else layer_module(model, layer).register_forward_hook(hook)
            )
        yield states


# smallest ln p that a head sees: below it a probability carries no meaning, and -inf would end in
# NaN
FLOOR = -20.0
LOOK_AHEAD = 2  # draft tokens behind x_j that `lookahead` reads
SCALARS = (
    "logprob",  # ln p(x_j)
    "top_logprob",  # ln p(t*_j)
    "entropy",  # H(p_j), nats
    "entropy3",  # E3(p_j), nats
    "gap",  # ln p(t*_j) - ln p(x_j)
    "rank",  # ln(1 + number of tokens more probable than x_j)
    "next_entropy",  # H(p_{j+1}): is the target surprised by what it has just read?
    "next_top_logprob",  # ln p(t*_{j+1})
)
"""Columns of the feature `scalars`, in this order."""
DRAFT = ("log_q", "log_q_of_top", "q_entropy")
"""Columns of the feature `draft`: ln q(x_j), ln q(t*_j), H(q_j) in nats."""


def scalars(block: Block, _layer: str) -> Tensor:
    """Numbers from the target's own row and the one behind it [B, K, len(SCALARS)]."""
    logprob_BK = block.draft_logprob.clamp_min(FLOOR)
    top_BK = block.top_logprob[:, :-1]
    columns = (
        logprob_BK,
        top_BK,
        block.entropy[:, :-1],
        block.entropy3[:, :-1],
        top_BK - logprob_BK,
        block.draft_rank.float().log1p(),
        block.entropy[:, 1:],
        block.top_logprob[:, 1:],
    )
    return torch.stack(columns, dim=-1)


def lookahead(block: Block, _layer: str, tokens: int = LOOK_AHEAD) -> Tensor:
    """Of each of the next tokens: is there one, does it match, its ln p; 0 behind the end.

    [B, K, 3 * tokens].
    """
    is_there_BK = block.valid.float()
    logprob_BK = block.draft_logprob.clamp_min(FLOOR) * is_there_BK
    columns = (is_there_BK, block.match.float(), logprob_BK)
    padded = F.pad(torch.stack(columns, dim=-1), (0, 0, 0, tokens))
    starts = range(1, tokens + 1)
    following = [padded[:, start : start + block.width] for start in starts]
    return torch.cat(following, dim=-1)


def draft_confidence(block: Block, _layer: str) -> Tensor:
    """What the draft model makes of its token [B, K, len(DRAFT)].

    In a wording of its own it has no doubts.
    """
    if not block.width:  # nothing was drafted, so nobody named probabilities
        return block.logits.new_zeros(len(block.draft_ids), 0, len(DRAFT))
    if block.q is None:
        raise UserError(
            "The feature 'draft' needs draft probabilities. Use the drafter 'model', or a gate"
            " without it."
        )
    log_q_BKV = block.q.float().clamp_min(math.exp(FLOOR)).log()
    of_draft_BK = of_tokens(log_q_BKV, block.draft_ids)
    of_top_BK = of_tokens(log_q_BKV, block.top_ids[:, :-1])
    return torch.stack((of_draft_BK, of_top_BK, entropy_of(log_q_BKV)), dim=-1)


FEATURES: Registry[Callable[[Block, str], Tensor]] = Registry(
    "feature",
    {
        # the target's state after reading x_j (AutoJudge's DT, arXiv 2504.20039), and the one
        # before, each [B, K, D]
        "h_tok": lambda block, layer: block.hidden[layer][:, 1:],
        "h_pred": lambda block, layer: block.hidden[layer][:, :-1],
        "scalars": scalars,
        "lookahead": lookahead,
        "lookahead-6": partial(lookahead, tokens=6),  # the window of FLy (arXiv 2511.22972)
        "draft": draft_confidence,
    },
)
"""Feature families. An id is `family` or `family:layer`, for example "scalars" or
"h_tok:layer:2"."""


def split_id(feature_id: str) -> tuple[str, str]:
    """Family and layer ("" where the family has none) of a feature id."""
    family, _, layer = feature_id.partition(":")
    _ = FEATURES[family]
    reads_states = family in ("h_tok", "h_pred")
    if reads_states and not layer:
        raise UserError(f"The feature '{feature_id}' names no hidden layer. Write '{family}:post'.")
    if layer and not reads_states:
        raise UserError(f"The feature '{feature_id}' has no layers. Write '{family}'.")
    return family, layer


def extract(block: Block, ids: Iterable[str]) -> dict[str, Tensor]:
    """The features of every draft token, id -> [B, K, F], in the dtype and on the device of their
    source.
    """
    features = {}
    for feature_id in ids:
        family, layer = split_id(feature_id)
        features[feature_id] = FEATURES[family](block, layer)
    return features


def needs_q(ids: Iterable[str]) -> bool:
    """Whether these features read draft probabilities."""
    return "draft" in ids


def layers_needed(ids: Iterable[str]) -> frozenset[str]:
    """Hidden layers that these features read ("post", "pre", "layer:2")."""
    return frozenset(split_id(feature_id)[1] for feature_id in ids) - {""}
