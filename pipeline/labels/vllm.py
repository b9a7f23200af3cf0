"""Rollouts and hidden states of a target that vLLM holds: for large targets, and in the numerics
that will serve. vLLM is imported when it is started; without it, or with a stand-in for it,
everything else here works as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from gistgate.core.architecture import num_ids
from gistgate.core.block import Block, Sampling
from gistgate.core.features import layers_needed
from gistgate.core.reader import last_logits
from gistgate.core.request import Row
from gistgate.core.utils import UserError
from gistgate.models import loading
from pipeline.labels.features import at_mismatch, batches, blocks_of, recorded_draft
from pipeline.labels.rollouts import Cost, FinishedRollout, Rollout, RolloutSource, stop_of
from pipeline.labels.schema import PLACE, Table, Texts, concatenated, plain_rows
from pipeline.pair.pair import ModelSource, Pair, load_config, load_model, read_pair
from pipeline.params import Params
from pipeline.paths import SCRATCH

PORTION = 64
"""Tokens that the engine is asked for at a time; behind them it is decided what goes on."""
MOST_LIVE = 1024  # most rollouts under way; the engine makes its own batches of them
ON_CPU = {"kv_connector": "StatesOnCpu", "kv_connector_module_path": "gistgate.vllm.states"}
"""Instead of vLLM's own connector, which copies with CUDA."""
SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Entries of a configuration that change logits behind the output layer."""


class TextToExtend(NamedTuple):
    """A text for the engine to go on with."""

    text: list[int]  # prompt and answer so far, as token ids
    num: int  # most new tokens
    seed: int  # of sampled tokens


Engine = Callable[[Sequence[TextToExtend], Sampling, Sequence[int]], list[list[int]]]
"""(texts, how tokens are drawn, ids that end a text) -> new tokens of each text; an id that ends
one stays in it.
"""
States = Callable[[Sequence[Sequence[int]]], list[Tensor]]
"""Texts -> the states after each of their tokens [n, L, D], by the layers that were asked for."""


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


def check_alone(params: Params) -> None:
    """Refuse several workers: each would start a vLLM."""
    if params.decoding.workers > 1:
        raise UserError(
            "Each worker would start a vLLM of its own. Set decoding.workers to 1 in params.yaml."
        )


def start_vllm(key: str, source: ModelSource, **arguments: Any) -> Any:
    """The `vllm.LLM` of a target on token ids; the parameter `key` asks for it."""
    remedy = f"or set {key} to own in params.yaml."
    try:
        from vllm import LLM
    except ImportError as error:
        raise UserError(
            f"{key} is vllm, but vLLM is not installed here. Install the extra `vllm` into this"
            f" environment, {remedy}"
        ) from error
    if source.gguf_file:
        raise UserError(
            f"{source.model} is a GGUF file, which vLLM is not given. Name a folder of safetensors,"
            f" {remedy}"
        )
    place = {"model": source.model, "dtype": source.dtype, "revision": source.revision}
    return LLM(**place, skip_tokenizer_init=True, **arguments)


class VllmEngine:
    """A target that vLLM holds, for one process: an `Engine`."""

    def __init__(self, source: ModelSource, arguments: Mapping[str, Any]) -> None:
        """Start vLLM; `arguments` are those of `vllm.LLM` besides the model and its dtype."""
        self.llm = start_vllm("engine.rollouts", source, enable_prefix_caching=True, **arguments)

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
        prompts = [prompt(entry.text) for entry in texts]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


class VllmStates:
    """A target that vLLM holds, asked for the states of its layers: `States`."""

    def __init__(
        self,
        source: ModelSource,
        layers: Sequence[int],
        arguments: Mapping[str, Any],
        folder: Path,
    ) -> None:
        """Start vLLM; the outputs of `layers`, counted from 1, are wanted, and wait in `folder`
        until they are read.
        """
        folder.mkdir(parents=True, exist_ok=True)
        on_gpu = {"kv_connector": "ExampleHiddenStatesConnector"}
        aux = {"eagle_aux_hidden_state_layer_ids": list(layers)}
        self.behind = ""  # file of the last request without meaning
        self.llm = start_vllm(
            "engine.states",
            source,
            enable_prefix_caching=False,
            speculative_config={
                "method": "extract_hidden_states",
                "num_speculative_tokens": 1,
                "draft_model_config": {"hf_config": aux},
            },
            kv_transfer_config={
                "kv_role": "kv_producer",
                "kv_connector_extra_config": {"shared_storage_path": str(folder)},
                **(on_gpu if torch.cuda.is_available() else ON_CPU),
            },
            **arguments,
        )

    def __call__(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """The states after every token of each text [n, layers, D]."""
        from vllm import SamplingParams
        from vllm.distributed.kv_transfer.kv_connector.v1 import (
            example_hidden_states_connector as stored,
        )

        once = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
        done = self.llm.generate([prompt(text) for text in texts], once, use_tqdm=False)
        # States are written in the step behind their own, so a request without meaning follows; its
        # own come last.
        (behind,) = self.llm.generate([prompt([0])], once, use_tqdm=False)
        if self.behind:
            stored.cleanup_hidden_states(self.behind)
        self.behind = behind.kv_transfer_params["hidden_states_path"]
        states = []
        for text, output in zip(texts, done):
            path = output.kv_transfer_params["hidden_states_path"]
            content = stored.load_hidden_states(path)
            stored.cleanup_hidden_states(path)
            if content["token_ids"].tolist() != list(text):
                raise UserError(
                    "vLLM returned the states of another text. Report this with the version of"
                    " vLLM."
                )
            states.append(content["hidden_states"])
        return states


def prompt(text: Sequence[int]) -> dict[str, list[int]]:
    """A text as vLLM takes it."""
    return {"prompt_token_ids": list(text)}


def load_output_layer(source: ModelSource) -> tuple[nn.Module, nn.Module]:
    """The final normalisation and the layer of the logits, read without the layers in front of
    them.
    """
    whole = load_config(source)
    config = whole.get_text_config()
    config.num_hidden_layers = 0
    if getattr(config, "layer_types", None):
        config.layer_types = []
    if any(getattr(config, name, None) not in (None, 1, 1.0) for name in SCALED):
        raise UserError(
            f"{source.model} changes its logits behind the output layer. Set engine.states to own."
        )
    logging.set_verbosity_error()  # it would list all weights of the layers as unexpected
    options = {"dtype": getattr(torch, source.dtype), **source.place}
    model = loading.load_model("model", source.model, "cpu", config=whole, **options)
    norms = list(filter(holds_vectors, model.base_model.children()))
    if len(norms) != 1:
        raise UserError(
            f"{type(model).__name__} has not one normalisation at its end. Set engine.states to"
            " own."
        )
    return norms[0], model.get_output_embeddings()


def holds_vectors(module: nn.Module) -> bool:
    """Whether a module has weights, and all of them are vectors."""
    return {weight.ndim for weight in module.parameters()} == {1}


def numbers_of(names: Sequence[str], last: int) -> list[int]:
    """Numbers of the layers, counted from 1, that features read; the last one, which logits need,
    is among them.
    """
    numbers = {last}
    for layer in layers_needed(names) - {"post", "pre"}:
        number = int(layer.removeprefix("layer:")) + 1
        if number > last:
            raise UserError(
                f"There is no hidden state '{layer}'; the target has {last} layers. Change"
                " train.features."
            )
        numbers.add(number)
    return sorted(numbers)


@dataclass
class StateFeatures:
    """Reads the features of labelled mismatches as `FeatureReader` does, from the states of an
    engine.
    """

    states: States
    output: tuple[nn.Module, nn.Module]  # as of `load_output_layer`
    draft: PreTrainedModel | None
    prompts: Sequence[dict[str, Any]]
    names: Sequence[str]  # feature ids
    numbers: Sequence[int]  # layers of `states`
    vocabulary: int  # number of ids that count

    @torch.no_grad()
    def read(self, table: Table, texts: Texts, batch_size: int, **_request: Any) -> Table:
        """The columns `kl` and `same_target` of the schema FEATURES and all features, for every row
        of `table`.
        """
        return concatenated(
            [
                at_mismatch(self.block(part, texts), self.names, part["target_id"])
                for part in batches(table, batch_size)
            ]
        )

    def block(self, part: Table, texts: Texts) -> Block:
        """The blocks that begin with the mismatches of `part`."""
        draft = recorded_draft(blocks_of(part))
        lengths = draft.valid.sum(-1).tolist()  # of the drafts
        whole = []
        for place, ids, length in zip(plain_rows(part, *PLACE), draft.ids.tolist(), lengths):
            problem, policy, position = place
            front = texts[problem, policy].ids[:position]
            whole.append([*self.prompts[problem]["ids"], *front, *ids[:length]])
        num = draft.ids.shape[1]
        rows = []
        for states, length in zip(self.states(whole), lengths):
            rows.append(nn.functional.pad(states[-length - 1 :], (0, 0, 0, 0, 0, num - length)))
        states_BRLD = torch.stack(rows)
        hidden = {
            f"layer:{number - 1}": states_BRLD[:, :, at] for at, number in enumerate(self.numbers)
        }
        hidden["pre"] = states_BRLD[:, :, -1]
        norm, head = self.output
        hidden["post"] = norm(hidden["pre"])
        logits = head(hidden["post"]).float()[..., : self.vocabulary]
        q_BKV = self.draft_probs(whole, lengths, num)
        return Block(draft.ids, draft.valid, logits, q=q_BKV, hidden=hidden)

    def draft_probs(
        self,
        texts: Sequence[list[int]],
        lengths: Sequence[int],
        num: int,
    ) -> Tensor | None:
        """q of every place of the blocks [B, K, V], which end the texts; None without a draft
        model.
        """
        if self.draft is None:
            return None
        q_BKV = torch.zeros(len(texts), num, self.vocabulary)
        for q_KV, text, length in zip(q_BKV, texts, lengths):
            ids = torch.tensor([text[:-1]], device=self.draft.device)
            z_KV = last_logits(self.draft, length, input_ids=ids)[0]
            q_KV[:length] = z_KV[:, : self.vocabulary].softmax(-1).cpu()
        return q_BKV


def served_features(
    params: Params,
    pair: Pair,
    prompts: Sequence[dict[str, Any]],
    names: Sequence[str],
) -> StateFeatures:
    """The reader of features whose states come from vLLM, as params.yaml asks for it; of `pair`
    only shapes count.
    """
    check_alone(params)
    source = read_pair(params.pair)
    numbers = numbers_of(names, pair.target.config.get_text_config().num_hidden_layers)
    states = VllmStates(source.target, numbers, params.engine.arguments, SCRATCH / "states")
    output = load_output_layer(source.target)
    draft = None if source.draft is None else load_model(source.draft)
    return StateFeatures(states, output, draft, prompts, names, numbers, num_ids(pair.tokenizer))
