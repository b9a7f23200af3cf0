"""What a model's own configuration of `generate` asks for is named where this decoder leaves it out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from gistgate.core.utils import UserError
from gistgate.models.loading import Target, asked_by_model, load_target, warn_generation_config
from tests.architectures import tiny_model
from tests.tiny import byte_tokenizer


def test_entries_that_change_the_text_are_named() -> None:
    model = tiny_model("llama")
    assert asked_by_model(model) == {}
    model.generation_config.update(repetition_penalty=1.05, no_repeat_ngram_size=0, temperature=0.7)
    assert asked_by_model(model) == {"repetition_penalty": 1.05}
    with pytest.warns(UserWarning, match=r"asks for repetition_penalty=1\.05, which GistGate does not"):
        warn_generation_config(model)


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_loading_a_target_says_so(penalty: float, tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.generation_config.repetition_penalty = penalty
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        load_target(str(tmp_path), device="cpu")
    assert any("repetition_penalty=1.2" in str(one.message) for one in told) is (penalty != 1.0)


@pytest.mark.parametrize(("system", "remedy"), [("Be brief.", "Leave --system away"), (None, "leave --chat away")])
def test_a_chat_template_that_refuses_is_one_sentence(system: str | None, remedy: str) -> None:
    tokenizer: Any = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    target = Target(tiny_model("llama"), tokenizer)
    with pytest.raises(UserError, match=f"System role not supported.*{remedy}"):
        target.encode("Tom has 5 apples.", chat=True, system=system)
