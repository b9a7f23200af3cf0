"""The engines that the vLLM plug-in refuses, and what it reads of those that it takes."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gistgate.core.identity import weights_fingerprint
from gistgate.core.utils import UserError
from gistgate.vllm import plugin as checks
from gistgate.vllm import v1
from gistgate.vllm.judge import wrap_once
from gistgate.vllm.policy import folder_fingerprint, is_rounded
from tests.tiny import tiny_pair


def test_an_unknown_version_is_refused_unless_it_is_asked_for():
    checks.check_version("0.32.1", False)
    for version in ("0.33.0", "0.31.0", "0.3.2"):
        checks.check_version(version, True)
        with pytest.raises(UserError, match="was tested with vLLM"):
            checks.check_version(version, False)


def test_a_renamed_parameter_is_refused():
    def moved(draft_ids: Any, num_draft_tokens: Any) -> None: ...

    with pytest.raises(UserError, match="rejection_sample should have draft_token_ids"):
        wrap_once(SimpleNamespace(rejection_sample=moved), v1.verify)


def engine(speculation: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A configuration of vLLM with which nothing is wrong but the changes."""
    parallel = {"pipeline_parallel_size": 1, "data_parallel_size": 1, **changes.pop("parallel", {})}
    asked = {"method": "draft_model", "rejection_sample_method": "standard", **(speculation or {})}
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**asked), parallel_config=SimpleNamespace(**parallel),
        **{"lora_config": None, "watermark_config": None, **changes},
    )  # fmt: skip


@pytest.mark.parametrize(
    "config, words",
    [
        (engine(lora_config=object()), "LoRA"), (engine(watermark_config=object()), "watermarking"),
        (engine({"use_heterogeneous_vocab": True}), "heterogeneous"),
        (engine({"method": "extract_hidden_states"}), "drafts"),
        (engine({"rejection_sample_method": "synthetic"}), "synthetic"),
        (engine({"rejection_sample_method": "fly"}), "fly"),
        (engine(parallel={"pipeline_parallel_size": 2}), "pipeline"),
        (engine(parallel={"prefill_context_parallel_size": 2}), "prefill context"),
        (engine(parallel={"data_parallel_size": 2}), "data parallelism"),
        (engine(parallel={"enable_batch_sharded_sampling": True}), "batch-sharded"),
        (engine({"enable_adaptive_verification": True}), "adaptive verification"),
        (SimpleNamespace(speculative_config=None, parallel_config=None), "does not speculate"),
    ],
)  # fmt: skip
def test_an_engine_that_does_not_fit_is_refused(config: Any, words: str):
    checks.check_engine(engine())
    off = {"prefill_context_parallel_size": 1, "enable_batch_sharded_sampling": None}  # vLLM's own defaults
    checks.check_engine(engine({"enable_adaptive_verification": False}, parallel=off))
    with pytest.raises(UserError, match=words):
        checks.check_engine(config)


@pytest.mark.parametrize("method", ["synthetic", "fly"])
def test_a_strict_server_refuses_lossy_options_of_vllm(method: str):
    checks.check_strict(engine())
    checks.check_strict(engine({"rejection_sample_method": "block"}))
    with pytest.raises(UserError, match="lossy"):
        checks.check_strict(engine({"rejection_sample_method": method}))


def test_parameters_are_expanded_to_tokens():
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    found = v1.expand(torch.tensor([0.0, 0.7, 2.0]), ends, 5, 0, 1)
    assert found.tolist() == [1.0, 1.0, 2.0, 2.0, 2.0]
    assert v1.is_right(v1.expand) and not v1.is_right(lambda x, ends, num: x.new_zeros(num))


@pytest.mark.parametrize(
    "model, draft, cache, expected",
    [
        (None, None, "auto", False), (None, None, "bfloat16", False), ("fp8", None, "auto", True),
        (None, "awq", "auto", True), (None, None, "fp8_e4m3", True),
    ],
)  # fmt: skip
def test_an_engine_that_rounds_is_known(model: str | None, draft: str | None, cache: str, expected: bool):
    config = SimpleNamespace(
        model_config=SimpleNamespace(quantization=model), cache_config=SimpleNamespace(cache_dtype=cache),
        speculative_config=SimpleNamespace(draft_model_config=SimpleNamespace(quantization=draft)),
    )  # fmt: skip
    assert is_rounded(config) is expected


def test_buffers_and_consolidated_copies_are_no_weights(tmp_path: Path):
    target = tiny_pair()[0]
    target.save_pretrained(tmp_path / "plain")
    shutil.copytree(tmp_path / "plain", tmp_path / "full")
    weights = load_file(tmp_path / "full/model.safetensors")
    save_file({"tok.weight": torch.ones(2)}, tmp_path / "full/consolidated.safetensors")
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file({**weights, **buffer}, tmp_path / "full/model.safetensors", {"format": "pt"})
    found = [folder_fingerprint(str(tmp_path / name)) for name in ("plain", "full")]
    assert found[0] == found[1] == weights_fingerprint(target)
