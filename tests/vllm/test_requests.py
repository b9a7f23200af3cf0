"""What judges a request of a server: its wish, its scope, and what its certificate covers."""

from types import SimpleNamespace
from typing import Any

import pytest

from gistgate.core.utils import UserError
from gistgate.rules import make_rule
from gistgate.vllm.policy import Policy
from gistgate.vllm.requests import Requests, check_wish

OPEN = make_rule("prob", r=1e-30)


def test_a_scope_without_a_tokenizer_or_beside_a_grammar_is_strict():
    prose, grammar = ({"extra_args": {"gistgate": "prose"}}, {"structured_outputs": "json"})
    for tokenizer, more in ((None, {}), (object(), grammar)):
        requests = Requests(Policy(OPEN), 4, tokenizer=tokenizer)
        assert requests.find("a", SimpleNamespace(**prose, **more)).rule is None


def test_a_scope_that_does_not_exist_is_refused_and_other_nonsense_is_not():
    for extra in ({}, None, {"gistgate": "{"}, {"gistgate": '{"scope": "all"}'}):
        check_wish(extra)
    with pytest.raises(UserError, match="no scope '7'. Known: prose, thinking, all."):
        check_wish({"gistgate": '{"scope": 7}'})


@pytest.mark.parametrize(
    ("asked", "judged"),
    [
        ({}, True),
        ({"repetition_penalty": 1.0, "logit_bias": None}, True),
        ({"repetition_penalty": 1.1}, False),
        ({"presence_penalty": 0.5}, False),
        ({"logit_bias": {5: 2.0}}, False),
        ({"min_tokens": 3}, False),
        ({"stop": ["Q:"]}, True),
        ({"stop": []}, False),
    ],
)
def test_a_certificate_covers_no_request_that_changes_the_logits(
    asked: dict[str, Any], judged: bool
):
    """Calibration knew no penalties. A setting that the user named has no certificate, and goes on
    to judge.
    """
    rule, params = make_rule("prob", r=0.5), SimpleNamespace(**asked)
    stops = ["Q:"] if "stop" in asked else None
    certified = Requests(Policy(rule, covered_only=True, stops=stops), 4)
    named = Requests(Policy(rule), 4)
    assert certified.find("a", params).rule is (rule if judged else None)
    assert named.find("a", params).rule is rule
