"""Answers of vLLM with the plug-in of `gistgate.vllm`, for targets that are too large for this
library's decoder: `engine.answers: vllm`. The process of a stage starts vLLM with one drafter at
one K, and changes the setting of the rule between requests.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gistgate.core.decoder import Decoder
from gistgate.core.identity import identify_model
from gistgate.core.request import Generation, Statistics, Stop
from gistgate.core.utils import UserError
from gistgate.coverage.choose import Choice
from gistgate.gate import Gate
from gistgate.vllm import KEY
from gistgate.vllm.plugin import check_version
from gistgate.vllm.policy import (
    LOOKUP,
    Served,
    engine_id,
    folder_fingerprint,
    make_policy,
    read_settings,
)
from pipeline.decode import make_decoder
from pipeline.engine import REMEDY, check_source, folder_of, start, vllm_version
from pipeline.methods import MODEL, kind_of_rule
from pipeline.pair.pair import Pair, PairSource, load_pair, read_pair
from pipeline.params import EAGER, Params

AT_ONCE = 1024
"""Requests that vLLM gets together; the plug-in remembers the counts of as many."""
STRICT = {"rule": "prob", "settings": {"r": 1.0}}
"""A closed gate, which counts as other rules do and accepts what the strict test accepts."""


def load_answering(params: Params) -> Pair:
    """The pair of params.yaml with what makes its answers: weights in memory for this library's
    decoder, or shapes and a server.
    """
    if params.engine.answers == "own":
        return load_pair(params)
    check_version(vllm_version(), any_version=False)
    server = VllmServer(read_pair(params.pair), params)
    pair = load_pair(params, weights=False)
    pair.target.fingerprint = folder_fingerprint(server.folders["target"])
    if pair.draft is not None:
        pair.draft.fingerprint = folder_fingerprint(server.folders["draft"])
        # vLLM computes both models in the target's type.
        pair.draft.to(pair.target.dtype)
    return replace(pair, server=server)


def answering_decoder(pair: Pair, choice: Choice, gate: Gate | None, engine: str = EAGER) -> Any:
    """What answers prompts by a choice: a `Decoder` on this engine of the library, or a
    `ServedDecoder` where the pair has a server.
    """
    if pair.server is None:
        decoder: Decoder = make_decoder(pair, choice, gate, engine=engine)
        return decoder
    return pair.server.decoder(pair, choice, gate)


class VllmServer:
    """vLLM in the process of a stage, with the pair's models; it starts with the first answer."""

    def __init__(self, source: PairSource, params: Params) -> None:
        """Check what can be checked before vLLM starts; its arguments are `engine.arguments`."""
        for role, model in source.roles.items():
            check_source(role, model)
        if source.vocabulary:
            raise UserError(
                "vLLM's drafts propose every token, and the pair's draft has a vocabulary. Remove"
                f" it from the file of the pair, {REMEDY}"
            )
        self.source = source
        self.arguments = dict(params.engine.arguments)
        self.rows = params.decoding.batch_size
        self.llm: Any = None
        self.setting: dict[str, Any] | None = None  # what the plug-in judges by

    @cached_property
    def folders(self) -> dict[str, str]:
        """The folder of each model, here or in the cache of the hub."""
        return {role: folder_of(model) for role, model in self.source.roles.items()}

    @property
    def scope(self) -> dict[str, Any]:
        """What a certificate says of the engine that made its answers."""
        return {"engine": engine_id(), "engine_arguments": self.arguments}

    def decoder(self, pair: Pair, choice: Choice, gate: Gate | None) -> "ServedDecoder":
        """What answers by a choice; UserError where the plug-in cannot judge by it."""
        speculation = self.speculation(choice)
        if speculation is None:
            return ServedDecoder(self, pair, None, None)
        setting = {"rule": choice.rule, "settings": dict(choice.settings)}
        if choice.rule == "exact":
            setting = dict(STRICT)
        if gate is not None:
            assert gate.folder is not None, "gates of methods are read from folders"
            setting["gate"] = str(gate.folder.resolve())
        served = Served(
            method=speculation["method"],
            num_draft=choice.block,
            probabilistic="draft_sample_method" in speculation,
            target=replace(identify_model(pair.target), name=self.folders["target"]),
            tokenizer=pair.tokenizer,
        )
        make_policy(read_settings(setting), served)
        return ServedDecoder(self, pair, speculation, {**setting, "loop_guard": False})

    def speculation(self, choice: Choice) -> dict[str, Any] | None:
        """vLLM's speculative configuration for the drafter of a choice; None to decode plainly."""
        if choice.drafter == "none":
            return None
        config: dict[str, Any] = {"num_speculative_tokens": choice.block}
        if choice.drafter == MODEL and self.source.draft is not None:
            config |= {"method": "draft_model", "model": self.folders["draft"]}
        else:
            shortest, longest = LOOKUP
            config |= {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}
            config["method"] = "ngram"
        if "q" in kind_of_rule(choice.rule).needs:
            config["draft_sample_method"] = "probabilistic"
        config |= self.arguments.get("speculative_config", {})
        return config

    def judge_by(self, speculation: dict[str, Any] | None, setting: dict[str, Any] | None) -> Any:
        """vLLM, started where it does not run yet, with this setting in force."""
        if self.llm is None:
            self.llm = start(
                self.folders["target"],
                self.source.target.dtype,
                {
                    "max_num_seqs": self.rows,
                    **self.arguments,
                    "speculative_config": speculation,
                    "additional_config": {} if setting is None else {KEY: setting},
                },
            )
        elif setting != self.setting:
            self.llm.collective_rpc("gistgate_judge_by", args=(setting,))
        self.setting = setting
        return self.llm


@dataclass(frozen=True)
class ServedDecoder:
    """A rule at one setting in a server."""

    server: VllmServer
    pair: Pair
    speculation: dict[str, Any] | None  # None decodes plainly
    setting: dict[str, Any] | None  # configuration of the plug-in

    def answers(
        self,
        prompts: Sequence[list[int]],
        progress: Callable[[int], object],
        *,
        max_new_tokens: int,
        eos_ids: Sequence[int],
        stops: Sequence[str],
    ) -> list[Generation]:
        """Greedy answers to prompts, given as token ids."""
        from vllm import SamplingParams

        llm = self.server.judge_by(self.speculation, self.setting)
        texts = tuple(filter(None, stops))
        stop = Stop(max_new_tokens, frozenset(eos_ids), texts, self.pair.tokenizer)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_new_tokens,
            stop_token_ids=list(eos_ids),
            stop=list(texts),
            include_stop_str_in_output=True,
            detokenize=bool(texts),
            skip_special_tokens=False,
        )
        answers = []
        for first in range(0, len(prompts), AT_ONCE):
            part = prompts[first : first + AT_ONCE]
            requests = [{"prompt_token_ids": ids} for ids in part]
            outputs = llm.generate(requests, params, use_tqdm=False)
            counts = self.counts(llm)
            for ids, output in zip(part, outputs):
                answers.append(generation(output, ids, stop, counts.get(output.request_id)))
            progress(len(part))
        return answers

    def counts(self, llm: Any) -> Mapping[str, dict[str, float]]:
        """What the plug-in counted of each request, by its id; nothing without drafts."""
        if self.setting is None:
            return {}
        requests = llm.collective_rpc("gistgate_counts")[0]["requests"]
        # The engine adds a random ending to the id of a request.
        return {name.rpartition("-")[0]: counts for name, counts in requests.items()}


def generation(
    output: Any, prompt: Sequence[int], stop: Stop, counts: Mapping[str, float] | None
) -> Generation:
    """One answer of vLLM as the library's decoder would have ended it."""
    reply = output.outputs[0]
    num, finish = stop.cut([], list(reply.token_ids), prompt)
    if finish is None and reply.finish_reason == "length":
        raise UserError(
            f"vLLM ended an answer after {num} of {stop.max_new_tokens} tokens, because prompt and"
            " answer fill its context. Raise max_model_len in engine.arguments, or lower"
            " decoding.max_new_tokens."
        )
    ids = list(reply.token_ids)[:num]
    return Generation(ids, [], finish or "stop", statistics(num, counts))


def statistics(num: int, counts: Mapping[str, float] | None) -> Statistics:
    """What is known of an answer of `num` tokens.

    vLLM writes the first token while it reads the prompt, which is a target forward without drafts.
    The plug-in counts tokens of the last round also behind the end of the answer, so that a few
    loose tokens may be counted there.
    """
    if counts is None:
        return Statistics(forwards=num, own=num)
    rounds = int(counts["blocks"])
    written = rounds + int(counts["accepted"])
    undrafted = max(0, num - 1 - written)  # tokens of rounds in which nothing was drafted
    forwards = 1 + rounds + undrafted
    own = min(num, forwards)
    loose = min(int(counts["loose"]), num - own)
    carried = min(int(counts["carried"]), num - own - loose)
    return Statistics(
        forwards=forwards,
        draft_forwards=int(counts["drafted"]),
        strict=num - own - loose - carried,
        loose=loose,
        carried=carried,
        own=own,
    )
