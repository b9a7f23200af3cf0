"""What has to hold before a runner is hooked; each refusal is one sentence."""

from __future__ import annotations

import inspect
import json
import logging
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gistgate.core.utils import UserError
from gistgate.models.loading import check_same_tokenizer, readable_tokenizer
from gistgate.vllm import patches as expand
from gistgate.vllm import v1, v2
from gistgate.vllm.judge import Judge
from gistgate.vllm.metrics import report
from gistgate.vllm.policy import KEY, MARK, Policy, Served, Settings, make_policy, read_served, read_settings

# ---- Let vLLM's workers install the hook once their device is ready. Nothing here loads torch.


def register() -> None:
    """Wrap the initialisation of vLLM's workers; a second call changes nothing."""
    wrapper = import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
    native = wrapper.init_device
    if hasattr(native, MARK):
        return
    from gistgate.vllm.metrics import collect

    collect()

    @wraps(native)
    def init_device(self: Any) -> None:
        native(self)
        configured = self.vllm_config.additional_config
        if isinstance(configured, dict) and KEY in configured:
            install(self.worker, self.vllm_config, configured[KEY])

    setattr(init_device, MARK, True)
    wrapper.init_device = init_device


TESTED = ("0.32",)
"""Versions of vLLM that the hooks were tested with."""
NAMES = {
    "V1": (
        "draft_token_ids", "num_draft_tokens", "max_spec_len", "cu_num_draft_tokens", "draft_probs", "target_logits",
        "bonus_token_ids", "sampling_metadata", "synthetic_mode", "synthetic_conditional_rates", "use_fp64_gumbel",
    ),
    "V2": (
        "target_logits", "draft_logits", "draft_sampled", "cu_num_logits", "pos", "idx_mapping",
        "expanded_idx_mapping", "expanded_local_pos", "temperature", "seed", "num_speculative_steps",
    ),
}  # fmt: skip
"""First parameters of `rejection_sample`."""
MODULES = {
    "V1": "vllm.v1.sample.rejection_sampler",
    "V2": "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
}
"""Where `rejection_sample` is looked up."""
FIELDS = {
    "V1": (
        ("vllm.v1.worker.gpu_model_runner", "ExecuteModelState", ("sample_hidden_states",)),
        ("vllm.v1.spec_decode.metadata", "SpecDecodeMetadata", ("logits_indices", "bonus_logits_indices")),
    ),
    "V2": (
        (
            "vllm.v1.worker.gpu.input_batch", "InputBatch",
            ("req_ids", "logits_indices", "cu_num_logits", "idx_mapping_np", "num_draft_tokens"),
        ),
    ),
}  # fmt: skip
"""Fields that are read: module, class, names."""
ATTRIBUTES = {
    "V1": ("sample_tokens", "rejection_sampler", "requests", "input_batch", "input_ids", "execute_model_state"),
    "V2": ("sample", "add_requests", "req_states", "sampler"),
}
"""Attributes of a runner that are used."""


def check_version(version: str, any_version: bool) -> None:
    """Refuse a version of vLLM that was not tested, unless the configuration says otherwise."""
    if any_version or version.startswith(tuple(f"{known}." for known in TESTED)):
        return
    raise UserError(
        f"gistgate was tested with vLLM {' and '.join(TESTED)}, and this is {version}: install that, or set "
        '"any_version" to true and compare its closed gate with plain vLLM first.'
    )


def check_surface(kind: str, runner: Any) -> None:
    """Refuse a vLLM that has moved what is hooked.

    Raises:
        UserError: which name is gone.
    """
    check_names(kind, import_module(MODULES[kind]).rejection_sample)
    if kind == "V2":
        have = tuple(inspect.signature(runner.sample).parameters)
        expect("sample", ("hidden_states", "input_batch", "grammar_output"), have)
    for place, name, wanted in FIELDS[kind]:
        known = getattr(import_module(place), name).__annotations__
        expect(name, wanted, tuple(field for field in wanted if field in known))
    expect(f"the model runner {kind}", ATTRIBUTES[kind], tuple(n for n in ATTRIBUTES[kind] if hasattr(runner, n)))


def check_names(kind: str, function: Any) -> None:
    """Refuse a `rejection_sample` with other parameters."""
    expect("rejection_sample", NAMES[kind], tuple(inspect.signature(function).parameters)[: len(NAMES[kind])])


def expect(what: str, wanted: tuple[str, ...], found: tuple[str, ...]) -> None:
    """Raise where two lists of names differ."""
    if wanted != found:
        raise UserError(
            f"gistgate cannot hook this vLLM: {what} should have {', '.join(wanted)}, but has "
            f"{', '.join(found) or 'none of them'}. Install a version that gistgate was tested with."
        )


def check_engine(config: Any) -> None:
    """Refuse an engine that decides acceptance elsewhere, or lossily by itself.

    Raises:
        UserError: which feature stands in the way.
    """
    speculation, parallel = config.speculative_config, config.parallel_config
    if speculation is None:
        raise UserError("gistgate: the engine does not speculate. Give it a --speculative-config.")
    if speculation.method == "extract_hidden_states":
        raise UserError("gistgate: 'extract_hidden_states' drafts nothing. Take a method that does.")
    if speculation.rejection_sample_method != "standard":
        raise UserError(
            f"gistgate: rejection_sample_method is '{speculation.rejection_sample_method}', but only 'standard' is "
            "exact where the gate is closed. Leave the option away."
        )
    hindrances = {
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "prefill context parallelism": getattr(parallel, "prefill_context_parallel_size", 1) > 1,
        "data parallelism": parallel.data_parallel_size > 1,
        "batch-sharded sampling": bool(getattr(parallel, "enable_batch_sharded_sampling", False)),
        "adaptive verification": bool(getattr(speculation, "enable_adaptive_verification", False)),
        "heterogeneous vocabularies": bool(getattr(speculation, "use_heterogeneous_vocab", False)),
        "watermarking": getattr(config, "watermark_config", None) is not None,
        "LoRA": config.lora_config is not None,
    }
    for name, present in hindrances.items():
        if present:
            raise UserError(f"gistgate does not work with {name} yet. Switch it off, or serve without the gate.")


def check_draft(config: Any, tokenizer: Any) -> None:
    """Refuse a draft model whose token ids mean something else than the target's, where both tokenizers can be read.

    vLLM's configuration of the draft model names the target's tokenizer, so the draft's own one is read from its model.

    Args:
        config: a `VllmConfig` with speculation.
        tokenizer: the target's; None: the one that the configuration names.

    Raises:
        UserError: the tokenizers differ.
    """
    speculation, target = config.speculative_config, config.model_config
    if speculation.method != "draft_model":
        return
    draft = speculation.draft_model_config
    if tokenizer is None:
        tokenizer = readable_tokenizer("target", str(target.tokenizer), target.tokenizer_revision)
    own = None if tokenizer is None else readable_tokenizer("draft", str(draft.model), draft.revision)
    if own is not None:
        check_same_tokenizer(tokenizer, own)


def check_strict(config: Any) -> None:
    """Refuse an engine that was promised strictness and is lossy by itself."""
    speculation = config.speculative_config
    method = "standard" if speculation is None else speculation.rejection_sample_method
    if method not in ("standard", "block"):
        raise UserError(
            f"gistgate: the server is configured as strict, but rejection_sample_method '{method}' is lossy. Leave "
            "that option away."
        )


# ---- Put the hook into one worker.


log = logging.getLogger("vllm.gistgate")


def install(worker: Any, config: Any, value: Any) -> None:
    """Hook the model runner of a worker as the configuration `value` says.

    Raises:
        UserError: the configuration, the engine or this version of vLLM does not fit; the engine then does not start.
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
    check_surface(kind, runner)
    served = read_served(config)
    check_draft(config, served.tokenizer)
    policy = make_policy(settings, served)
    judge = make_judge(policy, settings, served, runner.device)
    if kind == "V1" and runner.device.type == "cpu":
        expand.repair()
    (v2 if kind == "V2" else v1).install(runner, judge)
    worker.gistgate_counts = lambda: counts(judge)
    announce(policy, kind, judge if is_first() else None)


def make_judge(policy: Policy, settings: Settings, served: Served, device: torch.device) -> Judge:
    """The judge of a worker; its memory is of ordinary tensors, which every mode of inference may change."""
    protected = tuple(sorted({*served.protected, *settings.protected}))
    with torch.inference_mode(False):
        return Judge(policy, protected, served.max_requests, device, settings.loop_guard, share)


def share(mask: Tensor) -> Tensor:
    """The mask of the first rank: ranks that disagree in a last bit would corrupt the request."""
    group = import_module("vllm.distributed.parallel_state").get_tp_group()
    if group.world_size == 1:
        return mask
    shared: Tensor = group.broadcast(mask.to(torch.uint8), src=0)
    return shared.bool()


def is_first() -> bool:
    """Whether this rank counts for its tensor-parallel group."""
    return bool(import_module("vllm.distributed.parallel_state").get_tp_group().rank_in_group == 0)


def counts(judge: Judge) -> dict[str, Any]:
    """Totals and the counts of each remembered request; `LLM.collective_rpc("gistgate_counts")` calls it."""
    requests = {name: judge.counters.of(entry.slot) for name, entry in judge.requests.entries.items()}
    return {"totals": judge.counters.total(), "requests": requests}


def announce(policy: Policy, kind: str, judge: Judge | None) -> None:
    """One line in the log, and a sign of life for the metrics."""
    rule = policy.rule
    setting = "" if rule is None or rule.knob is None else f"{rule.knob}={getattr(rule, rule.knob):g}"
    about = {"rule": "strict" if rule is None else rule.id, "setting": setting, "runner": kind, "source": policy.source}
    log.info("gistgate: %s", json.dumps(about))
    report(about, None if judge is None else judge.counters.total)
