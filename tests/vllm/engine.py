"""Answer prompts with vLLM in a process of its own: `python -m tests.vllm.engine job.json
answers.json`.

A job names the pair's folders, how to draft, and phases: what stands under "gistgate" in the
configuration, and requests. One process holds one engine, because vLLM keeps global state. An
engine that lives in this process is hooked anew for each phase, and not at all where its
configuration is null.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def prepare(job: dict[str, Any]) -> None:
    """Everything that vLLM reads before it is imported."""
    os.environ.update(
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        DO_NOT_TRACK="1",
        VLLM_CACHE_ROOT=job["cache"],
        VLLM_LOGGING_LEVEL="WARNING",
        TOKENIZERS_PARALLELISM="false",
        VLLM_CPU_KVCACHE_SPACE="1",
        OMP_NUM_THREADS="1",
    )
    if job.get("alone", True):  # engine and worker in this process
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if job.get("tensor_parallel", 1) > 1:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    if job.get("runner") == "V2":
        # Triton's interpreter stands in for a GPU; the entry lets vLLM believe that there is a
        # driver.
        os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")
        import triton.backends as backends

        driver = SimpleNamespace(is_active=lambda: False)
        backends.backends["cpu"] = SimpleNamespace(driver=driver, compiler=None)


def start(job: dict[str, Any]) -> Any:
    """The engine of a job, configured for its first phase."""
    from vllm import LLM

    first = job["phases"][0]["gistgate"]
    speculation = {"num_speculative_tokens": job["block"], **job["speculation"]}
    return LLM(
        job["target"],
        speculative_config=speculation if job["block"] else None,
        seed=0,
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=8,
        disable_log_stats=False,
        skip_tokenizer_init=not job.get("reads"),
        tensor_parallel_size=job.get("tensor_parallel", 1),
        additional_config={} if first is None else {"gistgate": first},
        **{"enable_prefix_caching": False, "dtype": "float32", **job.get("engine", {})},
    )


def hook(llm: Any, value: Any) -> None:
    """Take the hook away, and put another one in its place."""
    from gistgate.vllm.plugin import install

    core = llm.llm_engine.engine_core.engine_core
    worker = core.model_executor.driver_worker.worker
    runner = worker.model_runner
    vars(runner.rejection_sampler).pop("forward", None)
    for name in ("sample_tokens", "sample", "add_requests"):
        vars(runner).pop(name, None)
    if value is not None:
        install(worker, core.vllm_config, value)


def answer(llm: Any, phase: dict[str, Any]) -> dict[str, Any]:
    """Texts and counts of a phase, and how much vLLM's own metrics grew."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    before = metrics(llm)
    prompts = [{"prompt_token_ids": request["prompt"]} for request in phase["requests"]]
    params = [
        SamplingParams(
            **{"temperature": 0.0, "max_tokens": 24, "ignore_eos": True, "detokenize": False, **own}
        )
        for own in (request.get("params", {}) for request in phase["requests"])
    ]
    for request, own in zip(phase["requests"], params):
        if "regex" in request:
            own.structured_outputs = StructuredOutputsParams(regex=request["regex"])
    outputs = llm.generate(prompts, params, use_tqdm=False)
    first = [output.outputs[0] for output in outputs]
    counts = llm.collective_rpc("gistgate_counts")[0] if "rule" in (phase["gistgate"] or {}) else {}
    return {
        "ids": [list(output.token_ids) for output in first],
        "logprobs": [
            [step[t].logprob for step, t in zip(o.logprobs, o.token_ids)]
            for o in first
            if o.logprobs
        ],
        "metrics": {name: value - before[name] for name, value in metrics(llm).items()},
        "counts": [
            next(
                (
                    found
                    for name, found in counts["requests"].items()
                    if name.startswith(output.request_id)
                ),
                {},
            )
            for output in outputs
            if counts
        ],
    }


def metrics(llm: Any) -> dict[str, int]:
    """vLLM's own counters of speculation."""
    found = [
        metric
        for metric in llm.get_metrics()
        if "spec_decode" in metric.name and hasattr(metric, "value")
    ]
    return {metric.name.removeprefix("vllm:spec_decode_num_"): metric.value for metric in found}


def main(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of all phases."""
    llm = start(job)
    answers = []
    for phase in job["phases"]:
        if job.get("alone", True):
            hook(llm, phase["gistgate"])
        answers.append(answer(llm, phase))
    return answers


if __name__ == "__main__":
    task = json.loads(Path(sys.argv[1]).read_text())
    prepare(task)
    Path(sys.argv[2]).write_text(json.dumps(main(task)))
