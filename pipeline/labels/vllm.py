"""Rollouts and hidden states of a target that vLLM holds: for large targets, and in the numerics that will serve.

vLLM is imported when it is started; without it, or with a stand-in for it, everything else here works as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.block import Block, Sampling
from gistgate.core.features import decoder_layers, extract, layers_needed
from gistgate.core.reader import last_logits, num_ids
from gistgate.core.request import Row
from gistgate.core.utils import UserError
from gistgate.models.loading import weight_files
from pipeline.labels.features import batches, divergence
from pipeline.labels.rollouts import Cost, FinishedRollout, Rollout, RolloutSource, stop_of
from pipeline.labels.schema import Table, Texts, concatenated
from pipeline.pair.pair import ModelSource, Pair, load_model, load_shape, read_pair
from pipeline.params import Params
from pipeline.paths import SCRATCH

PORTION = 64
"""Tokens that the engine is asked for at a time; behind them it is decided what stays and what goes on."""
MOST_LIVE = 1024
"""Most rollouts under way; the engine makes its own batches of them."""
ON_CPU = {"kv_connector": "StatesOnCpu", "kv_connector_module_path": "gistgate.vllm.states"}
"""Instead of vLLM's own connector, which copies with CUDA."""
SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Settings of architectures that change logits behind the output layer."""


@dataclass(frozen=True)
class TextToExtend:
    """A text for the engine to go on with."""

    text: list[int]  # prompt and answer so far, as token ids
    num: int  # most new tokens
    seed: int  # of sampled tokens


Engine = Callable[[Sequence[TextToExtend], Sampling, Sequence[int]], list[list[int]]]
"""(texts, how tokens are drawn, ids that end a text) -> new tokens of each text; an id that ends one stays in it."""
States = Callable[[Sequence[Sequence[int]]], list[Tensor]]
"""Texts -> the states after each of their tokens [n, L, D], by the layers that were asked for."""


class EngineRunner:
    """Makes rollouts as `pipeline.labels.rollouts.RolloutRunner` does, with an engine."""

    def __init__(self, engine: Engine, tokenizer: PreTrainedTokenizerBase, cost: Cost, **request: Any) -> None:
        self.engine, self.cost, self.stop = engine, cost, stop_of(tokenizer, **request)

    def serve(self, source: RolloutSource, sampling: Sampling | None = None) -> None:
        """Make what `source` asks for until it asks for nothing more; greedily by default."""
        rows: dict[Rollout, Row] = {}
        while rows := self._live(rows, source):
            texts = [
                TextToExtend(row.text, min(PORTION, self.stop.max_new_tokens - len(row.answer)), seed_of(row))
                for row in rows.values()
            ]
            portions = self.engine(texts, sampling or Sampling(), sorted(self.stop.eos_ids))
            for row, portion in zip(rows.values(), portions, strict=True):
                self._add(row, portion)

    def _live(self, rows: dict[Rollout, Row], source: RolloutSource) -> dict[Rollout, Row]:
        """Those that have to go on, and new ones beside them."""
        live = self._going_on(rows, source)
        while len(live) < MOST_LIVE and (taken := source.take(MOST_LIVE - len(live))):
            fresh = {rollout: rollout.row(0) for rollout in taken}
            for rollout, row in fresh.items():
                self._add(row, [rollout.token])
            live |= self._going_on(fresh, source)
        return live

    def _going_on(self, rows: dict[Rollout, Row], source: RolloutSource) -> dict[Rollout, Row]:
        """Hand out the rollouts that have ended and return the others."""
        for rollout, row in rows.items():
            # A decoder would have found that it is decided first.
            row.finish = source.decided(rollout, row.answer) or row.finish
            if row.finish is not None:
                self.cost.rolled(len(row.answer) - rollout.position - 1)
                source.end(rollout, FinishedRollout(row.answer, row.finish))
        return {rollout: row for rollout, row in rows.items() if row.finish is None}

    def _add(self, row: Row, new: list[int]) -> None:
        keep, row.finish = self.stop.cut(row.answer, new)
        row.text += new[:keep]


def seed_of(row: Row) -> int:
    """Another seed for each portion of a text, so that no portion repeats the draws of the one before."""
    return (row.seed * 1_000_003 + len(row.text)) % 2**31


def check_alone(params: Params) -> None:
    """Refuse several workers: each would start a vLLM."""
    if params.decoding.workers > 1:
        raise UserError("Each worker would start a vLLM of its own. Set decoding.workers to 1 in params.yaml.")


def start_vllm(key: str, source: ModelSource, arguments: Mapping[str, Any], **more: Any) -> Any:
    """The `vllm.LLM` of a target that reads and writes token ids.

    Args:
        key: the parameter that asks for vLLM, such as engine.rollouts.
        source: the target.
        arguments: what the user adds; `more` is what the stage adds.

    Raises:
        UserError: vLLM is missing, or the target is one that it is not given.
    """
    instead = f"or set {key} to own in params.yaml."
    try:
        import vllm
    except ImportError as error:
        raise UserError(
            f"{key} is vllm, but vLLM is not installed here. Install the extra `vllm` into this environment, {instead}"
        ) from error
    if source.gguf_file:
        raise UserError(
            f"{source.model} is a GGUF file, which vLLM is not given. Name a folder of safetensors, {instead}"
        )
    return vllm.LLM(
        source.model, dtype=source.dtype, revision=source.revision, skip_tokenizer_init=True, **more, **arguments
    )


class VllmEngine:
    """A target that vLLM holds, for one process: an `Engine`."""

    def __init__(self, source: ModelSource, arguments: Mapping[str, Any]) -> None:
        """Start vLLM; `arguments` are those of `vllm.LLM` besides the model and its dtype."""
        self.llm = start_vllm("engine.rollouts", source, arguments, enable_prefix_caching=True)

    def __call__(self, texts: Sequence[TextToExtend], sampling: Sampling, eos_ids: Sequence[int]) -> list[list[int]]:
        """New tokens of every text."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                seed=None if sampling.greedy else one.seed,
                max_tokens=one.num,
                stop_token_ids=list(eos_ids),
                detokenize=False,
            )
            for one in texts
        ]
        outputs = self.llm.generate([prompt(one.text) for one in texts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


class VllmStates:
    """A target that vLLM holds, asked for the states of its layers: `States`."""

    def __init__(self, source: ModelSource, layers: Sequence[int], arguments: Mapping[str, Any], folder: Path) -> None:
        """Start vLLM.

        Args:
            source: the target.
            layers: numbers of layers whose outputs are wanted, counted from 1.
            arguments: those of `vllm.LLM` besides the model and its dtype.
            folder: where states wait until they are read.
        """
        folder.mkdir(parents=True, exist_ok=True)
        connector = {"kv_connector": "ExampleHiddenStatesConnector"} if torch.cuda.is_available() else ON_CPU
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
        from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as stored

        once = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
        done = self.llm.generate([prompt(text) for text in texts], once, use_tqdm=False)
        # States are written in the step behind their own, so a request without meaning follows; its own come last.
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
                raise UserError("vLLM returned the states of another text. Report this with the version of vLLM.")
            found.append(states["hidden_states"])
        return found


def prompt(text: Sequence[int]) -> dict[str, list[int]]:
    """A text as vLLM takes it."""
    return {"prompt_token_ids": list(text)}


@dataclass(frozen=True)
class OutputLayer:
    """The end of a target alone: what turns the states of the last layer into logits."""

    norm: nn.Module
    head: nn.Module

    @torch.no_grad()
    def post(self, pre: Tensor) -> Tensor:
        """States behind the final normalisation `[..., D]`, of those in front of it."""
        found: Tensor = self.norm(pre)
        return found

    @torch.no_grad()
    def logits(self, post: Tensor) -> Tensor:
        """Logits `[..., V]` in float32, of states behind the normalisation `[..., D]`."""
        found: Tensor = self.head(post)
        return found.float()


def load_output_layer(source: ModelSource) -> OutputLayer:
    """Read these two modules and nothing else of a model's weights.

    Raises:
        UserError: an architecture whose logits are more than the output layer of its normalised states, or weights
            that are not in safetensors.
    """
    model = load_shape(source)
    config = model.config.get_text_config()
    if any(getattr(config, name, None) not in (None, 1, 1.0) for name in SCALED):
        raise UserError(
            f"{source.model} changes its logits behind the output layer, so they cannot be computed from its states. "
            "Set engine.states to own in params.yaml."
        )
    head, norm = model.get_output_embeddings(), final_norm(model)
    assert isinstance(head, nn.Module)
    names = {id(weight): name for name, weight in model.named_parameters(remove_duplicate=False)}
    tied = {name for name, weight in model.named_parameters(remove_duplicate=False) if weight is head.weight}
    wanted = [(module, key, weight) for module in (norm, head) for key, weight in module.named_parameters()]
    stored = [weight_of(source, tied if weight is head.weight else {names[id(weight)]}) for _, _, weight in wanted]
    for (module, key, _), values in zip(wanted, stored, strict=True):
        setattr(module, key, nn.Parameter(values.to(getattr(torch, source.dtype)), requires_grad=False))
    return OutputLayer(norm, head)


def final_norm(model: PreTrainedModel) -> nn.Module:
    """The only module beside the layers whose weights are vectors."""
    layers = decoder_layers(model)
    norms = [
        child
        for child in model.base_model.children()
        if child is not layers and [*child.parameters()] and all(weight.ndim == 1 for weight in child.parameters())
    ]
    if len(norms) != 1:
        raise UserError(
            f"{type(model).__name__} has {len(norms)} normalisations behind its layers instead of one. "
            "Set engine.states to own in params.yaml."
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
        f"{source.model} has no weights {' or '.join(sorted(names))} in safetensors. "
        "Set engine.states to own in params.yaml."
    )


def numbers_of(names: Sequence[str], last: int) -> list[int]:
    """Numbers of the layers, counted from 1, that features read; the last one, which logits need, is among them."""
    numbers = {last}
    for layer in layers_needed(names) - {"post", "pre"}:
        number = int(layer.removeprefix("layer:")) + 1
        if number > last:
            raise UserError(f"There is no hidden state '{layer}'; the target has {last} layers. Change train.features.")
        numbers.add(number)
    return sorted(numbers)


class StateFeatures:
    """Reads the features of labelled mismatches as `FeatureReader` does, from the states of an engine."""

    def __init__(
        self,
        states: States,
        output: OutputLayer,
        draft: PreTrainedModel | None,
        prompts: Sequence[dict[str, Any]],
        names: Sequence[str],
        numbers: Sequence[int],
        vocabulary: int,
    ) -> None:
        """`numbers` are the layers of `states`; `vocabulary` is the number of ids that count."""
        self.states, self.output, self.draft, self.prompts = states, output, draft, prompts
        self.names, self.numbers, self.vocabulary = tuple(names), list(numbers), vocabulary

    @torch.no_grad()
    def read(self, table: Table, texts: Texts, batch_size: int, **_request: Any) -> Table:
        """The columns `kl` and `same_target` of the schema FEATURES and all features, for every row of `table`."""
        parts = []
        for part in batches(table, batch_size):
            block = self.block(part, texts)
            first = torch.zeros(len(block.draft_ids), dtype=torch.long)
            columns = {name: values[:, 0].float() for name, values in extract(block, self.names).items()}
            columns["kl"] = divergence(block, torch.arange(len(first)), first)
            columns["same_target"] = (block.top_ids[:, 0] == part["target_id"]).to(torch.int8)
            parts.append(columns)
        return concatenated(parts)

    def block(self, part: Table, texts: Texts) -> Block:
        """The blocks that begin with the mismatches of `part`."""
        x_BK = torch.cat([part["draft_id"][:, None], part["behind"].long()], dim=1)
        valid_BK = x_BK >= 0
        places = (part[name].tolist() for name in ("problem", "policy", "position"))
        fronts = [  # the text in front of every mismatch, prompt included
            [*self.prompts[problem]["ids"], *texts[problem, policy].ids[:position]]
            for problem, policy, position in zip(*places, strict=True)
        ]
        whole = [
            [*front, *row[: int(num)]] for front, row, num in zip(fronts, x_BK.tolist(), valid_BK.sum(-1), strict=True)
        ]
        rows = [states[len(front) - 1 :] for front, states in zip(fronts, self.states(whole), strict=True)]
        states_BRLD = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        missing = x_BK.shape[1] + 1 - states_BRLD.shape[1]
        states_BRLD = nn.functional.pad(states_BRLD, (0, 0, 0, 0, 0, missing))
        hidden = {f"layer:{number - 1}": states_BRLD[:, :, at] for at, number in enumerate(self.numbers)}
        hidden["pre"] = hidden[f"layer:{self.numbers[-1] - 1}"]
        hidden["post"] = self.output.post(hidden["pre"])
        logits = self.output.logits(hidden["post"])[..., : self.vocabulary]
        q_BKV = self.draft_probs(fronts, whole, x_BK.shape[1])
        return Block(x_BK.clamp_min(0), valid_BK, logits, q=q_BKV, hidden=hidden)

    def draft_probs(self, fronts: Sequence[list[int]], whole: Sequence[list[int]], num: int) -> Tensor | None:
        """q of every place of the blocks [B, K, V]; None without a draft model."""
        if self.draft is None:
            return None
        q_BKV = torch.zeros(len(whole), num, self.vocabulary)
        for row, (front, text) in enumerate(zip(fronts, whole, strict=True)):
            keep = len(text) - len(front)
            z = last_logits(self.draft, keep, input_ids=torch.tensor([text[:-1]], device=self.draft.device))[0]
            q_BKV[row, :keep] = z[..., : self.vocabulary].softmax(-1).cpu()
        return q_BKV


def served_features(
    params: Params, pair: Pair, prompts: Sequence[dict[str, Any]], names: Sequence[str]
) -> StateFeatures:
    """The reader of features whose states come from vLLM, as params.yaml asks for it; of `pair` only shapes count."""
    check_alone(params)
    source = read_pair(params.pair)
    numbers = numbers_of(names, pair.target.config.get_text_config().num_hidden_layers)
    states = VllmStates(source.target, numbers, params.engine.arguments, SCRATCH / "states")
    output = load_output_layer(source.target)
    draft = None if source.draft is None else load_model(source.draft)
    return StateFeatures(states, output, draft, prompts, names, numbers, num_ids(pair.tokenizer))
