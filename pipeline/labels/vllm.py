"""Rollouts and hidden states of a target that vLLM holds: for large targets, and in the numerics
that will serve. vLLM is imported when it is started; without it, or with a stand-in for it,
everything else here works as well."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.block import Block, Sampling
from gistgate.core.features import decoder_layers, layers_needed
from gistgate.core.reader import last_logits, num_ids
from gistgate.core.request import Row
from gistgate.core.utils import UserError
from gistgate.models.places import weight_files
from pipeline.labels.features import at_mismatch, batches, blocks_of
from pipeline.labels.rollouts import Cost, FinishedRollout, Rollout, RolloutSource, stop_of
from pipeline.labels.schema import Table, Texts, concatenated
from pipeline.pair.pair import ModelSource, Pair, load_model, load_shape, read_pair
from pipeline.params import Params
from pipeline.paths import SCRATCH

# tokens that the engine is asked for at a time; behind them it is decided what stays and what goes
# on
PORTION = 64
MOST_LIVE = 1024  # most rollouts under way; the engine makes its own batches of them
ON_CPU = {"kv_connector": "StatesOnCpu", "kv_connector_module_path": "gistgate.vllm.states"}
"""Instead of vLLM's own connector, which copies with CUDA."""
SCALED = (
    "final_logit_softcapping",
    "logits_scaling",
    "logit_scale",
)  # change logits behind the output layer


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
        self, engine: Engine, tokenizer: PreTrainedTokenizerBase, cost: Cost, **request: Any
    ) -> None:
        self.engine = engine
        self.cost = cost
        self.stop = stop_of(tokenizer, **request)

    def serve(self, source: RolloutSource, sampling: Sampling | None = None) -> None:
        """Make what `source` asks for until it asks for nothing more; greedily by default."""
        live: dict[Rollout, Row] = {}
        while True:
            while len(live) < MOST_LIVE and (taken := source.take(MOST_LIVE - len(live))):
                fresh = {rollout: rollout.row(0) for rollout in taken}
                live |= self._extended(fresh, [[rollout.token] for rollout in taken], source)
            if not live:
                return
            texts = [  # no portion of a text repeats the draws of the one before
                TextToExtend(
                    row.text,
                    min(PORTION, self.stop.max_new_tokens - len(row.answer)),
                    seed=(row.seed * 1_000_003 + len(row.text)) % 2**31,
                )
                for row in live.values()
            ]
            portions = self.engine(texts, sampling or Sampling(), sorted(self.stop.eos_ids))
            live = self._extended(live, portions, source)

    def _extended(
        self, rows: dict[Rollout, Row], new: Sequence[list[int]], source: RolloutSource
    ) -> dict[Rollout, Row]:
        """Extend these rollouts, hand out those that have ended and return the others."""
        for (rollout, row), portion in zip(rows.items(), new, strict=True):
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


def start_vllm(key: str, source: ModelSource, arguments: Mapping[str, Any], **more: Any) -> Any:
    """The `vllm.LLM` of a target on token ids; the parameter `key` asks for it, `arguments` are the
    user's.
    """
    instead = f"or set {key} to own in params.yaml."
    try:
        import vllm
    except ImportError as error:
        raise UserError(
            f"{key} is vllm, but vLLM is not installed here. Install the extra `vllm` into this"
            f" environment, {instead}"
        ) from error
    if source.gguf_file:
        raise UserError(
            f"{source.model} is a GGUF file, which vLLM is not given. Name a folder of safetensors,"
            f" {instead}"
        )
    return vllm.LLM(
        source.model,
        dtype=source.dtype,
        revision=source.revision,
        skip_tokenizer_init=True,
        **more,
        **arguments,
    )


class VllmEngine:
    """A target that vLLM holds, for one process: an `Engine`."""

    def __init__(self, source: ModelSource, arguments: Mapping[str, Any]) -> None:
        """Start vLLM; `arguments` are those of `vllm.LLM` besides the model and its dtype."""
        self.llm = start_vllm("engine.rollouts", source, arguments, enable_prefix_caching=True)

    def __call__(
        self, texts: Sequence[TextToExtend], sampling: Sampling, eos_ids: Sequence[int]
    ) -> list[list[int]]:
        """New tokens of every text."""
        from vllm import SamplingParams

        shared: Any = {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
        }
        shared |= {"stop_token_ids": list(eos_ids), "detokenize": False}
        params = [
            SamplingParams(seed=None if sampling.greedy else one.seed, max_tokens=one.num, **shared)
            for one in texts
        ]
        outputs = self.llm.generate([prompt(one.text) for one in texts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


class VllmStates:
    """A target that vLLM holds, asked for the states of its layers: `States`."""

    def __init__(
        self, source: ModelSource, layers: Sequence[int], arguments: Mapping[str, Any], folder: Path
    ) -> None:
        """Start vLLM; the outputs of `layers`, counted from 1, are wanted, and wait in `folder`
        until they are read.
        """
        folder.mkdir(parents=True, exist_ok=True)
        connector = (
            {"kv_connector": "ExampleHiddenStatesConnector"}
            if torch.cuda.is_available()
            else ON_CPU
        )
        extra = {"kv_connector_extra_config": {"shared_storage_path": str(folder)}}
        aux = {"eagle_aux_hidden_state_layer_ids": list(layers)}
        self.behind = ""  # file of the last request without meaning
        self.llm = start_vllm(
            "engine.states",
            source,
            arguments,
            enable_prefix_caching=False,
            speculative_config={
                "method": "extract_hidden_states",
                "num_speculative_tokens": 1,
                "draft_model_config": {"hf_config": aux},
            },
            kv_transfer_config={"kv_role": "kv_producer", **extra, **connector},
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
        found = []
        for text, output in zip(texts, done, strict=True):
            path = output.kv_transfer_params["hidden_states_path"]
            states = stored.load_hidden_states(path)
            stored.cleanup_hidden_states(path)
            if states["token_ids"].tolist() != list(text):
                raise UserError(
                    "vLLM returned the states of another text. Report this with the version of"
                    " vLLM."
                )
            found.append(states["hidden_states"])
        return found


def prompt(text: Sequence[int]) -> dict[str, list[int]]:
    """A text as vLLM takes it."""
    return {"prompt_token_ids": list(text)}


def load_output_layer(source: ModelSource) -> tuple[nn.Module, nn.Module]:
    """The final normalisation and the layer of the logits, read without the rest of a model's
    weights.
    """
    model = load_shape(source)
    config = model.config.get_text_config()
    if any(getattr(config, name, None) not in (None, 1, 1.0) for name in SCALED):
        raise UserError(
            f"{source.model} changes its logits behind the output layer. Set engine.states to own."
        )
    head = model.get_output_embeddings()
    norm = final_norm(model)
    assert isinstance(head, nn.Module)
    for module in (norm, head):
        for key, weight in list(module.named_parameters()):
            names = {
                name
                for name, one in model.named_parameters(remove_duplicate=False)
                if one is weight
            }
            values = weight_of(source, names).to(getattr(torch, source.dtype))
            setattr(module, key, nn.Parameter(values, requires_grad=False))
    return norm, head


def final_norm(model: PreTrainedModel) -> nn.Module:
    """The only module beside the layers whose weights are vectors."""
    layers = decoder_layers(model)
    norms: list[nn.Module] = [
        child
        for child in model.base_model.children()
        if child is not layers
        and [*child.parameters()]
        and all(weight.ndim == 1 for weight in child.parameters())
    ]
    if len(norms) != 1:
        raise UserError(
            f"{type(model).__name__} has not one normalisation at its end. Set engine.states to"
            " own."
        )
    return norms[0]


def weight_of(source: ModelSource, names: set[str]) -> Tensor:
    """The first stored tensor that has one of these names."""
    for file in weight_files(source.model, source.revision, local=False):
        with safe_open(file, framework="pt") as stored:
            for name in names & set(stored.keys()):
                found: Tensor = stored.get_tensor(name)
                return found
    raise UserError(
        f"{source.model} has no weights {' or '.join(sorted(names))}. Set engine.states to own."
    )


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
        parts = batches(table, batch_size)
        return concatenated(
            [at_mismatch(self.block(one, texts), self.names, one["target_id"]) for one in parts]
        )

    def block(self, part: Table, texts: Texts) -> Block:
        """The blocks that begin with the mismatches of `part`."""
        x_BK = blocks_of(part)
        valid_BK = x_BK >= 0
        places = (part[name].tolist() for name in ("problem", "policy", "position"))
        fronts = [  # the text in front of every mismatch, prompt included
            [*self.prompts[problem]["ids"], *texts[problem, policy].ids[:position]]
            for problem, policy, position in zip(*places, strict=True)
        ]
        whole = [
            [*front, *row[: int(num)]]
            for front, row, num in zip(fronts, x_BK.tolist(), valid_BK.sum(-1), strict=True)
        ]
        rows = [
            states[len(front) - 1 :]
            for front, states in zip(fronts, self.states(whole), strict=True)
        ]
        states_BRLD = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        missing = x_BK.shape[1] + 1 - states_BRLD.shape[1]
        states_BRLD = nn.functional.pad(states_BRLD, (0, 0, 0, 0, 0, missing))
        hidden = {
            f"layer:{number - 1}": states_BRLD[:, :, at] for at, number in enumerate(self.numbers)
        }
        hidden["pre"] = hidden[f"layer:{self.numbers[-1] - 1}"]
        norm, head = self.output
        hidden["post"] = norm(hidden["pre"])
        logits = head(hidden["post"]).float()[..., : self.vocabulary]
        q_BKV = self.draft_probs(fronts, whole, x_BK.shape[1])
        return Block(x_BK.clamp_min(0), valid_BK, logits, q=q_BKV, hidden=hidden)

    def draft_probs(
        self, fronts: Sequence[list[int]], whole: Sequence[list[int]], num: int
    ) -> Tensor | None:
        """q of every place of the blocks [B, K, V]; None without a draft model."""
        if self.draft is None:
            return None
        q_BKV = torch.zeros(len(whole), num, self.vocabulary)
        for row, (front, text) in enumerate(zip(fronts, whole, strict=True)):
            keep = len(text) - len(front)
            z = last_logits(
                self.draft, keep, input_ids=torch.tensor([text[:-1]], device=self.draft.device)
            )[0]
            q_BKV[row, :keep] = z[..., : self.vocabulary].softmax(-1).cpu()
        return q_BKV


def served_features(
    params: Params, pair: Pair, prompts: Sequence[dict[str, Any]], names: Sequence[str]
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
