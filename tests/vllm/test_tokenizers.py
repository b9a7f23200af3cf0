"""The vLLM plug-in compares the draft model's tokenizer with the target's before it hooks anything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gistgate.core.utils import UserError
from gistgate.vllm import plugin as checks
from gistgate.vllm import plugin as install
from gistgate.vllm.policy import read_served
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

OTHER = "another tokenizer: id 3 is .* for the target and .* for the draft"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target/ and draft/ of one tokenizer, other/ with another one, and bare/ without any."""
    place = tmp_path_factory.mktemp("served")
    target, draft = tiny_pair()
    save_pair(place, target, draft, byte_tokenizer())
    for name in ("other", "bare", "damaged"):
        draft.save_pretrained(place / name)
    byte_tokenizer(reverse=True).save_pretrained(place / "other")
    (place / "damaged/tokenizer.json").write_text("{}")
    return place


def config_of(folder: Path, draft: str = "draft", method: str = "draft_model", skips: bool = False) -> Any:
    """A `VllmConfig` of a pair. As vLLM's own, it gives the draft model the target's tokenizer."""
    text = SimpleNamespace(
        model_type="llama", hidden_size=32, num_hidden_layers=2, vocab_size=259, eos_token_id=2
    )  # fmt: skip
    words = {"tokenizer": str(folder / "target"), "tokenizer_revision": None, "trust_remote_code": False}
    model = SimpleNamespace(
        **words, model=str(folder / "target"), revision=None, dtype=torch.float32, skip_tokenizer_init=skips,
        quantization=None, hf_config=SimpleNamespace(get_text_config=lambda: text),
        try_get_generation_config=lambda: {"eos_token_id": 2},
    )  # fmt: skip
    speculation = SimpleNamespace(
        method=method, num_speculative_tokens=5, draft_sample_method="greedy", rejection_sample_method="standard",
        prompt_lookup_min=1, prompt_lookup_max=4, num_speculative_tokens_per_batch_size=None,
        draft_model_config=SimpleNamespace(**words, model=str(folder / draft), revision=None, quantization=None),
    )  # fmt: skip
    parallel = SimpleNamespace(pipeline_parallel_size=1, data_parallel_size=1)
    return SimpleNamespace(
        model_config=model, speculative_config=speculation, use_v2_model_runner=False, parallel_config=parallel,
        scheduler_config=SimpleNamespace(max_num_seqs=8), lora_config=None,
        cache_config=SimpleNamespace(cache_dtype="auto"),
    )  # fmt: skip


@pytest.mark.parametrize("skips", [False, True], ids=["engine with a tokenizer", "engine without"])
def test_a_draft_model_with_another_tokenizer_is_refused(folder: Path, skips: bool):
    fitting, other = (config_of(folder, name, skips=skips) for name in ("draft", "other"))
    assert (read_served(fitting).tokenizer is None) == skips
    checks.check_draft(fitting, read_served(fitting).tokenizer)
    with pytest.raises(UserError, match=OTHER):
        checks.check_draft(other, read_served(other).tokenizer)


def test_an_engine_does_not_start_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(install, "import_module", lambda _name: SimpleNamespace(__version__="0.32.0"))
    worker = SimpleNamespace(model_runner=SimpleNamespace(device=torch.device("cpu")))
    with pytest.raises(UserError, match=OTHER):
        install.install(worker, config_of(folder, "other"), {"rule": "prob", "settings": {"r": 0.3}})


def test_what_cannot_be_read_is_trusted_and_other_methods_have_none(folder: Path):
    checks.check_draft(config_of(folder, "bare"), byte_tokenizer())
    checks.check_draft(config_of(folder, "other", method="ngram"), byte_tokenizer())
    with pytest.warns(UserWarning, match="tokenizer of the draft .* could not be read from tokenizer.json"):
        checks.check_draft(config_of(folder, "damaged"), byte_tokenizer())
    nowhere = config_of(folder, "other", skips=True)
    nowhere.model_config.tokenizer = str(folder / "bare")
    checks.check_draft(nowhere, None)
