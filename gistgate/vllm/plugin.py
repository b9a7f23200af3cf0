"""Put the hook into one worker of vLLM, after checking what has to hold; each refusal is one
sentence.
"""

import json
import logging
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gistgate.core.utils import UserError
from gistgate.models.tokenizers import check_same_tokenizer, readable_tokenizer
from gistgate.vllm import v1, v2
from gistgate.vllm.judge import VllmJudge
from gistgate.vllm.metrics import report
from gistgate.vllm.policy import Policy, make_policy, read_served, read_settings

log = logging.getLogger("vllm.gistgate")

TESTED = "0.32"
"""Version of vLLM that the hooks were tested with."""


def install(worker: Any, config: Any, value: Any) -> None:
    """Hook the model runner of a worker as `value` says; a UserError keeps the engine from
    starting.
    """
    settings = read_settings(value)
    kind = "V2" if config.use_v2_model_runner else "V1"
    if settings.strict:
        check_strict(config)
        announce(Policy(), kind, None)
        return
    check_version(import_module("vllm").__version__, settings.any_version)
    check_engine(config)
    runner = worker.model_runner
    served = read_served(config)
    check_draft(config, served.tokenizer)
    policy = make_policy(settings, served)
    protected = tuple(sorted({*served.protected, *settings.protected}))
    with torch.inference_mode(False):  # ordinary tensors, which every mode of inference may change
        judge = VllmJudge(
            policy,
            protected,
            served.max_requests,
            runner.device,
            settings.loop_guard,
            share,
            served.tokenizer,
        )
    (v2 if kind == "V2" else v1).install(runner, judge)

    def counts() -> dict[str, Any]:
        """Totals and the counts of each remembered request; `LLM.collective_rpc("gistgate_counts")`
        calls it.
        """
        total = judge.counters.total
        entries = judge.requests.entries
        requests = {name: total(entry.slot) for name, entry in entries.items()}
        return {"totals": total(), "requests": requests}

    def judge_by(value: Any) -> None:
        """Judge later requests by another configuration;
        `LLM.collective_rpc("gistgate_judge_by", args=(value,))` calls it between requests.
        """
        with torch.inference_mode(False):
            judge.follow(make_policy(read_settings(value), served))

    worker.gistgate_counts = counts
    worker.gistgate_judge_by = judge_by
    is_first = tensor_parallel_group().rank_in_group == 0  # one rank counts for its group
    announce(policy, kind, judge if is_first else None)


def check_version(version: str, any_version: bool) -> None:
    """Refuse a version of vLLM that was not tested, unless the configuration says otherwise."""
    if not any_version and not version.startswith(f"{TESTED}."):
        raise UserError(
            f"gistgate was tested with vLLM {TESTED}, and this is {version}: install that, or set"
            ' "any_version" to true and compare its closed gate with plain vLLM first.'
        )


def check_strict(config: Any) -> None:
    """Refuse an engine that was promised strictness and is lossy by itself."""
    speculation = config.speculative_config
    method = "standard" if speculation is None else speculation.rejection_sample_method
    if method not in ("standard", "block"):
        raise UserError(
            f"gistgate: the server has to be strict, but rejection_sample_method '{method}' is"
            " lossy."
        )


def check_engine(config: Any) -> None:
    """Refuse an engine that decides acceptance elsewhere, or lossily by itself."""
    speculation = config.speculative_config
    parallel = config.parallel_config
    if speculation is None:
        raise UserError("gistgate: the engine does not speculate. Give it a --speculative-config.")
    if speculation.method == "extract_hidden_states":
        raise UserError(
            "gistgate: 'extract_hidden_states' drafts nothing. Take a method that drafts."
        )
    method = speculation.rejection_sample_method
    if method != "standard":
        raise UserError(
            f"gistgate: rejection_sample_method is '{method}', but only 'standard' is exact where"
            " the gate is closed. Leave the option away."
        )
    features = {
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "prefill context parallelism": getattr(parallel, "prefill_context_parallel_size", 1) > 1,
        "data parallelism": parallel.data_parallel_size > 1,
        "batch-sharded sampling": getattr(parallel, "enable_batch_sharded_sampling", False),
        "adaptive verification": getattr(speculation, "enable_adaptive_verification", False),
        "heterogeneous vocabularies": getattr(speculation, "use_heterogeneous_vocab", False),
        "watermarking": getattr(config, "watermark_config", None) is not None,
        "LoRA": config.lora_config is not None,
    }
    for name, is_on in features.items():
        if is_on:
            raise UserError(
                f"gistgate: {name} is not served yet. Switch it off, or serve without the gate."
            )


def check_draft(config: Any, tokenizer: Any) -> None:
    """Refuse a draft model whose token ids mean something else than the target's, where both
    tokenizers can be read.
    """
    speculation = config.speculative_config
    target = config.model_config
    if speculation.method != "draft_model":
        return
    draft = speculation.draft_model_config
    if tokenizer is None:
        tokenizer = readable_tokenizer("target", str(target.tokenizer), target.tokenizer_revision)
    if tokenizer is None:
        return
    # vLLM's configuration of the draft names the target's tokenizer, so the draft's own is read
    # from its model.
    own_tokenizer = readable_tokenizer("draft", str(draft.model), draft.revision)
    check_same_tokenizer(tokenizer, own_tokenizer)


def tensor_parallel_group() -> Any:
    """The processes that share each layer of the model."""
    return import_module("vllm.distributed.parallel_state").get_tp_group()


def share(mask: Tensor) -> Tensor:
    """The mask of the first rank: ranks that disagree in a last bit would corrupt the request."""
    group = tensor_parallel_group()
    if group.world_size == 1:
        return mask
    shared: Tensor = group.broadcast(mask.to(torch.uint8), src=0)
    return shared.bool()


def announce(policy: Policy, kind: str, judge: VllmJudge | None) -> None:
    """One line in the log, and a sign of life for the metrics."""
    rule = policy.rule
    setting = ""
    if rule is not None and rule.knob is not None:
        setting = f"{rule.knob}={getattr(rule, rule.knob):g}"
    about = {
        "rule": "strict" if rule is None else rule.id,
        "setting": setting,
        "runner": kind,
        "source": policy.source,
    }
    log.info("gistgate: %s", json.dumps(about))
    if judge is not None:
        proof = "and nothing is certified about it"
        if policy.covered_only and not policy.source.startswith("uncertified"):
            proof = "certified for requests like its prompts"
        log.warning(
            "gistgate: verification is lossy: %s %s, %s, %s.",
            about["rule"],
            setting,
            policy.source,
            proof,
        )
    report(about, None if judge is None else judge.counters.total)
