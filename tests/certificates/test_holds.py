"""What a certificate does not cover is refused where parts are put together and where a request
arrives.
"""

import pytest
import torch

from gistgate.certificates.calibration import Method
from gistgate.core.files import fingerprint, named_files
from gistgate.core.utils import UserError
from gistgate.coverage.certificate import check_parts, check_request
from tests.certificates.proofs import certificate, gate_with
from tests.tiny import byte_tokenizer, tiny_pair

PLAIN = {"guards": [], "drafting": None, "engine": "eager"}


def checked(scope=PLAIN, *, dtype=torch.float32, engine="eager", guards=(), **more):
    """Check a tiny pair against a certificate of that scope."""
    target = tiny_pair()[0].to(dtype)
    parts = {"engine": engine, "guards": guards, "data": None, **more}
    check_parts(certificate(scope=dict(scope)), None, target, None, None, **parts)


def test_parts_that_agree_are_taken():
    checked()
    both = {"guards": ["loops"], "drafting": {"stop": "paying"}}
    checked({**PLAIN, **both}, **both)
    checked(drafting={})  # a drafter that binds nothing

    for message, wanted in (("guards", ["loops"]), ("drafting", {"stop": "paying"})):
        with pytest.raises(UserError, match=message):
            checked(**{message: wanted})


def test_other_counts_of_a_rule_are_refused(tmp_path):
    counts = tmp_path / "pairs.safetensors"
    counts.write_text("old")
    scope, settings = (
        {**PLAIN, "rule_data": fingerprint(counts)},
        {"counts": str(counts), "tau_c": 0.1},
    )
    checked(scope, settings=settings)
    checked(settings=settings)  # a certificate of an earlier version does not say it
    counts.write_text("new")
    with pytest.raises(UserError, match="another rule_data"):
        checked(scope, settings=settings)
    counts.unlink()
    with pytest.raises(UserError, match=r"is not here \(counts=.*pairs.safetensors\)"):
        checked(scope, settings=settings)


def test_costs_and_a_table_that_changes_with_every_answer_are_not_certified(tmp_path):
    with pytest.raises(UserError, match="Leave kappa at 0"):
        Method("wisv", "model", 4, "risk", (0.1,), fixed={"kappa": 0.1})
    counts = tmp_path / "pairs.safetensors"
    counts.write_text("old")
    assert named_files(Method("csd", "model", 4, fixed={"counts": str(counts)}).fixed) == [counts]
    for where in ({"fixed": {"table": "online"}}, {"variants": ({}, {"table": "online"})}):
        with pytest.raises(UserError, match="an online table changes with every answer"):
            Method("csd", "model", 4, **where)


def test_the_engine_counts_where_rounding_does():
    """In float32 both engines give the same ids."""
    checked(engine="compiled")
    checked(dtype=torch.bfloat16)
    with pytest.raises(UserError, match="engine"):
        checked(dtype=torch.bfloat16, engine="compiled")


@pytest.mark.parametrize("part", ["target", "draft", "gate", "tokenizer"])
def test_every_part_is_compared(part):
    """A scope that names another part than the one that is there."""
    target, draft = tiny_pair()
    given = {"gate": gate_with(), "draft": draft, "tokenizer": byte_tokenizer()}
    gate, other, tokenizer = (one if name == part else None for name, one in given.items())
    certified = certificate(
        scope={**PLAIN, part: {"weights": "x"} if part in ("target", "draft") else "x"}
    )
    with pytest.raises(UserError, match=part):
        check_parts(certified, gate, target, other, tokenizer, engine="eager", guards=(), data=None)


def test_a_request_is_asked_as_the_prompts_were():
    prompting = {"chat_template": False, "system": None}
    certified = certificate(scope={"temperature": 0.0, "prompting": prompting})
    check_request(certified)
    for asked in ({"temperature": 0.7}, {"chat": True}, {"system": "Be short."}):
        with pytest.raises(UserError):
            check_request(certified, **asked)
    chat = certificate(
        scope={"temperature": 0.0, "prompting": {"chat_template": True, "system": "Be short."}}
    )
    check_request(chat, chat=True, system="Be short.")
    for asked in (
        {},
        {"chat": True},
        {"chat": True, "system": "Be long."},
        {"system": "Be short."},
    ):
        with pytest.raises(UserError, match="prompting"):
            check_request(chat, **asked)
    with pytest.raises(
        UserError, match="argument enable_thinking none certified, argument enable_thinking False"
    ):
        check_request(chat, chat=True, system="Be short.", arguments={"enable_thinking": False})
    check_request(
        chat, chat=True, system="Be short.", num_fewshot=3
    )  # it does not say how many there were
    for scope in (
        {"prompting": {**chat.scope["prompting"], "num_fewshot": 2}},
        {**chat.scope, "examples": 2},
    ):
        few = certificate(scope={**chat.scope, **scope})
        check_request(few, chat=True, system="Be short.", num_fewshot=2)
        with pytest.raises(UserError, match="num_fewshot 2 certified, num_fewshot 0 here"):
            check_request(few, chat=True, system="Be short.", num_fewshot=0)
    thinking = {"chat": True, "system": "Be short.", "arguments": {"enable_thinking": False}}
    prompting = {**chat.scope["prompting"], "arguments": thinking["arguments"]}
    ended = certificate(scope={**chat.scope, "prompting": prompting, "stops": ["Q:"]})
    for asked in (
        {**thinking, "stops": ["Q:"]},
        thinking,
        {"chat": None, "stops": ["Q:"]},
    ):  # None is unknown
        check_request(ended, **asked)
    for asked, said in (
        ({"stops": []}, "another stops"),
        ({"arguments": {}}, "enable_thinking False certified, .*none"),
    ):
        with pytest.raises(UserError, match=said):
            check_request(ended, **{**thinking, **asked})
    with pytest.raises(UserError, match="prompting"):
        check_request(
            certificate(scope={"temperature": 0.0})
        )  # it does not say how its prompts were asked
