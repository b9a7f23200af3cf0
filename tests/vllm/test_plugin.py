"""The engines and draft models that the vLLM plug-in refuses, and what it reads of those that it
takes.
"""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gistgate.core.identity import weights_fingerprint
from gistgate.core.utils import UserError
from gistgate.rules import make_rule
from gistgate.vllm import plugin, v1, wrap_once
from gistgate.vllm.judge import VllmJudge
from gistgate.vllm.policy import Policy, folder_fingerprint, is_rounded, read_served
from tests.tiny import byte_tokenizer, tiny_pair

OTHER = "another tokenizer: id 3 is .* for the target and .* for the draft"


def test_an_unknown_version_is_refused_unless_it_is_asked_for():
    plugin.check_version("0.32.1", False)
    for version in ("0.33.0", "0.31.0", "0.3.2"):
        plugin.check_version(version, True)
        with pytest.raises(UserError, match="was tested with vLLM"):
            plugin.check_version(version, False)


def test_a_renamed_parameter_is_refused():
    def moved(draft_ids: Any, num_draft_tokens: Any) -> None: ...

    with pytest.raises(UserError, match="rejection_sample should have draft_token_ids"):
        wrap_once(SimpleNamespace(rejection_sample=moved), v1.verify)


def engine(speculation: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A configuration of vLLM with which nothing is wrong but the changes."""
    parallel = {"pipeline_parallel_size": 1, "data_parallel_size": 1, **changes.pop("parallel", {})}
    asked = {"method": "draft_model", "rejection_sample_method": "standard", **(speculation or {})}
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**asked),
        parallel_config=SimpleNamespace(**parallel),
        **{"lora_config": None, "watermark_config": None, **changes},
    )


@pytest.mark.parametrize(
    "config, words",
    [
        (engine(lora_config=object()), "LoRA"),
        (engine(watermark_config=object()), "watermarking"),
        (engine({"use_heterogeneous_vocab": True}), "heterogeneous"),
        (engine({"method": "extract_hidden_states"}), "drafts"),
        (engine({"rejection_sample_method": "synthetic"}), "synthetic"),
        (engine(parallel={"pipeline_parallel_size": 2}), "pipeline"),
        (engine(parallel={"data_parallel_size": 2}), "data parallelism"),
        (SimpleNamespace(speculative_config=None, parallel_config=None), "does not speculate"),
    ],
)
def test_an_engine_that_does_not_fit_is_refused(config: Any, words: str):
    off = {
        "prefill_context_parallel_size": 1,
        "enable_batch_sharded_sampling": None,
    }  # vLLM's own defaults
    plugin.check_engine(engine({"enable_adaptive_verification": False}, parallel=off))
    with pytest.raises(UserError, match=words):
        plugin.check_engine(config)


def test_a_worker_says_that_it_is_lossy_and_what_is_certified(monkeypatch: Any, caplog: Any):
    monkeypatch.setattr(plugin, "report", lambda *what: None)
    for source in ("operating point for 3 %", "uncertified operating point for 3 %"):
        policy = Policy(make_rule("prob", r=0.3), None, source, covered_only=True)
        plugin.announce(policy, "V1", VllmJudge(policy, (), 1, torch.device("cpu")))
    assert (
        "verification is lossy: prob r=0.3, operating point for 3 %, certified for" in caplog.text
    )
    assert "uncertified operating point for 3 %, and nothing is certified" in caplog.text


def test_a_strict_server_refuses_lossy_options_of_vllm():
    plugin.check_strict(engine({"rejection_sample_method": "block"}))
    with pytest.raises(UserError, match="lossy"):
        plugin.check_strict(engine({"rejection_sample_method": "fly"}))


def test_parameters_are_expanded_to_tokens():
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    found = v1.expand(torch.tensor([0.0, 0.7, 2.0]), ends, 5, 0, 1)
    assert found.tolist() == [1.0, 1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "model, draft, cache, expected",
    [
        (None, None, "bfloat16", False),
        ("fp8", None, "auto", True),
        (None, "awq", "auto", True),
        (None, None, "fp8_e4m3", True),
    ],
)
def test_an_engine_that_rounds_is_known(
    model: str | None, draft: str | None, cache: str, expected: bool
):
    draft_config = SimpleNamespace(quantization=draft)
    config = SimpleNamespace(
        model_config=SimpleNamespace(quantization=model),
        cache_config=SimpleNamespace(cache_dtype=cache),
        speculative_config=SimpleNamespace(draft_model_config=draft_config),
    )
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target/ and draft/ of one tokenizer, other/ with another one."""
    place = tmp_path_factory.mktemp("served")
    for name in ("target", "draft", "other"):
        byte_tokenizer(reverse=name == "other").save_pretrained(place / name)
    return place


def config_of(folder: Path, draft: str, skips: bool) -> Any:
    """A `VllmConfig` of a pair. As vLLM's own, it gives the draft model the target's tokenizer."""
    text = SimpleNamespace(
        model_type="llama", hidden_size=32, num_hidden_layers=2, vocab_size=259, eos_token_id=2
    )
    common = {
        "tokenizer": str(folder / "target"),
        "tokenizer_revision": None,
        "trust_remote_code": False,
        "revision": None,
        "quantization": None,
    }
    config = engine(
        {
            "num_speculative_tokens": 5,
            "draft_sample_method": "greedy",
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 4,
            "num_speculative_tokens_per_batch_size": None,
            "draft_model_config": SimpleNamespace(**common, model=str(folder / draft)),
        },
        use_v2_model_runner=False,
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        cache_config=SimpleNamespace(cache_dtype="auto"),
    )
    config.model_config = SimpleNamespace(
        **common,
        model=str(folder / "target"),
        dtype=torch.float32,
        skip_tokenizer_init=skips,
        hf_config=SimpleNamespace(get_text_config=lambda: text),
        try_get_generation_config=lambda: {"eos_token_id": 2},
    )
    return config


@pytest.mark.parametrize("method", ["draft_model", "ngram", "suffix"])
def test_drafts_from_texts_have_no_probabilities(folder: Path, method: str):
    config = config_of(folder, "draft", True)
    vars(config.speculative_config).update(method=method, draft_sample_method="probabilistic")
    assert read_served(config).probabilistic is (method == "draft_model")


@pytest.mark.parametrize("skips", [False, True], ids=["engine with a tokenizer", "engine without"])
def test_a_draft_model_with_another_tokenizer_is_refused(folder: Path, skips: bool):
    fitting, other = (config_of(folder, name, skips) for name in ("draft", "other"))
    assert (read_served(fitting).tokenizer is None) == skips
    plugin.check_draft(fitting, read_served(fitting).tokenizer)
    with pytest.raises(UserError, match=OTHER):
        plugin.check_draft(other, read_served(other).tokenizer)
