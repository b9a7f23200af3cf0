"""The reader of features whose states come from vLLM, as params.yaml asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gistgate.forward.context import num_ids
from pipeline.common.resume import SCRATCH
from pipeline.labels.output_layer import load_output_layer
from pipeline.labels.state_features import StateFeatures, numbers_of
from pipeline.labels.vllm_start import check_alone
from pipeline.labels.vllm_states import VllmStates
from pipeline.pairs.loading import load_model
from pipeline.pairs.pair import Pair
from pipeline.pairs.source import read_pair
from pipeline.params import Params


def served_features(
    params: Params, pair: Pair, prompts: Sequence[dict[str, Any]], names: Sequence[str]
) -> StateFeatures:
    """Start vLLM and put the parts together; of `pair` only the shapes are asked.

    Raises:
        UserError: several workers would each hold a target, or the target has no such states.
    """
    check_alone(params)
    source = read_pair(params.pair)
    numbers = numbers_of(names, pair.target.config.get_text_config().num_hidden_layers)
    states = VllmStates(source.target, numbers, params.engine.arguments, SCRATCH / "states")
    output = load_output_layer(source.target)
    draft = None if source.draft is None else load_model(source.draft)
    return StateFeatures(states, output, draft, prompts, names, numbers, num_ids(pair.tokenizer))
