"""What a certificate says of texts: vocabulary, how a text is divided, what ends it, and for chats the template."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gistgate.certificates.calibration import task_scope
from gistgate.core.identity import identify_tokenizer, tokenizer_scope
from gistgate.core.request import eos_ids
from tests.certificates.proofs import certificate
from tests.tiny import byte_tokenizer, tiny_pair

NAMES = ("encoding", "template")
ALL = tokenizer_scope(byte_tokenizer(), NAMES)


def with_template(text: str) -> Any:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = text
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "differing"),
    [(byte_tokenizer(), None), (byte_tokenizer(bos=False), "encoding"), (with_template("{{ messages }}"), "template")],
)
def test_the_same_vocabulary_is_not_enough(tokenizer: Any, differing: str | None) -> None:
    assert identify_tokenizer(tokenizer).vocabulary == ALL["tokenizer"]
    said = certificate(scope=ALL).mismatch(tokenizer=tokenizer)
    assert said is None if differing is None else f"because of another {differing} (" in str(said)


def test_what_an_older_certificate_does_not_say_is_not_asked() -> None:
    older = certificate(scope={"tokenizer": ALL["tokenizer"]})
    assert older.mismatch(tokenizer=byte_tokenizer(bos=False)) is None


def test_another_end_of_text_is_noticed_where_the_certificate_names_its_own() -> None:
    target, tokenizer = tiny_pair()[0], byte_tokenizer()
    certified = certificate(scope={"tokenizer": ALL["tokenizer"], "ends": eos_ids(target, tokenizer)})
    older = certificate(scope={"tokenizer": ALL["tokenizer"]})
    assert certified.mismatch(target=target, tokenizer=tokenizer) is None
    target.generation_config.eos_token_id = [7, 9]
    assert "because of another ends (" in str(certified.mismatch(target=target, tokenizer=tokenizer))
    assert older.mismatch(target=target, tokenizer=tokenizer) is None


def test_the_template_counts_for_chats_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gistgate.certificates.calibration.task_hash", lambda _: "t")
    for chat in (True, False):
        asked = SimpleNamespace(num_fewshot=0, chat_template=chat, system=None)
        task = SimpleNamespace(prompting=asked)
        assert ("template" in task_scope(task, [], byte_tokenizer())) is chat
        assert "template" not in task_scope(task, [])
