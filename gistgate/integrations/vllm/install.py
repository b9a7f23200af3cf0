"""Put the hook into one worker."""

from __future__ import annotations

import json
import logging
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gistgate.integrations.vllm import expand, v1, v2
from gistgate.integrations.vllm.checks import check_draft, check_engine, check_strict, check_surface, check_version
from gistgate.integrations.vllm.judge import Judge
from gistgate.integrations.vllm.metrics import report
from gistgate.integrations.vllm.policy import Policy, make_policy
from gistgate.integrations.vllm.served import Served, read_served
from gistgate.integrations.vllm.settings import Settings, read_settings

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
