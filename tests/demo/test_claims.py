"""What a page says about the certificate of a gate, and the page that the command line writes."""

from types import SimpleNamespace

import pytest

from gistgate.build import build
from gistgate.demo.page import claim, tables_of, write_trace
from gistgate.demo.server import slider_rule
from gistgate.drafters.stopping import Stopping
from gistgate.models.loading import Target
from gistgate.models.options import DecodeOptions
from tests.certificates.proofs import linear_gate, point, proof_for
from tests.tiny import byte_tokenizer, tiny_pair

TOKENIZER, (TARGET, DRAFT) = byte_tokenizer(), tiny_pair(noise=0.3)


def options(*points, **named):
    """The tiny pair with a gate whose certificate has these points; without any it has no
    certificate.
    """
    gate = linear_gate(TARGET, DRAFT, provenance={"seed": 7})
    gate.certificate = proof_for(gate, *points) if points else None
    return DecodeOptions(draft=DRAFT, gate=gate, **named)


def loaded(wishes, made, uncovered=None):
    """What the command line loads."""
    target = Target(TARGET, TOKENIZER)
    return SimpleNamespace(
        decoder=made.decoder,
        coverage=made.coverage,
        target=target,
        options=wishes,
        uncovered=uncovered,
    )


def own_claim(wishes, made, uncovered=None):
    """The claim about the setting that the decoder runs with."""
    rule = made.decoder.rule
    return claim(loaded(wishes, made, uncovered), rule, rule.risk)


@pytest.fixture(scope="module")
def certified():
    return options(point(0.01, certified=False), point(0.03, settings={"risk": 0.2}))


def built(wishes, warned=None):
    """The decoder of these options, which warns as it is built."""
    if warned is None:
        return build(TARGET, TOKENIZER, wishes)
    with pytest.warns(UserWarning, match=warned):
        return build(TARGET, TOKENIZER, wishes)


def test_the_certified_value_is_told_with_its_bound_and_others_are_not_certified(certified):
    decoder = built(certified)
    told = (
        "loses at most 3 points with 95 % confidence (bound"
        f" {100 * certified.gate.certificate.points[1].bound:.2f})"
    )
    assert own_claim(certified, decoder).startswith(f"Certified: {told}")
    assert "not among the certified values (0.2)" in claim(
        loaded(certified, decoder), decoder.decoder.rule, 0.3
    )
    assert own_claim(certified, decoder, "another prompting").startswith(
        "Not certified: another prompting"
    )


def test_what_the_terminal_warns_of_is_not_called_certified(certified, tmp_path):
    Stopping(0.4).save(tmp_path / "stop.json")
    stop = {"stop_drafting": str(tmp_path / "stop.json")}
    for wish, said in (({"block": 5}, "block is"), (stop, "drafts end by an")):
        other = DecodeOptions(draft=DRAFT, gate=certified.gate, **wish)
        assert own_claim(other, built(other, said)).startswith(f"Not certified: {said}")


@pytest.mark.parametrize("named", [{"drafter": "none"}, {"block": 0}])
def test_plain_decoding_loses_nothing(certified, named):
    plain = DecodeOptions(draft=DRAFT, gate=certified.gate, settings={"risk": 0.7}, **named)
    decoder = built(plain)
    assert (
        claim(loaded(plain, decoder), decoder.decoder.rule, 0.5)
        == "Decoding is plain, so that nothing can be lost."
    )


def test_without_a_certificate_the_page_says_so():
    loose, strict = options(rule="autojudge", settings={"risk": 0.2}), options()
    decoder = built(loose, "no certificate")
    assert own_claim(loose, decoder) == "Not certified: there is no certificate."
    assert (
        tables_of(decoder.decoder, None).keys() == {"Provenance"}
        and tables_of(decoder.decoder, None)["Provenance"]["seed"] == 7
    )
    decoder = built(strict, "no certificate")
    assert decoder.decoder.rule.id == "exact"
    assert slider_rule(decoder.decoder).id == "autojudge"  # the slider has the rule of the gate


def test_the_written_page_holds_both_answers_and_the_certificate(certified, tmp_path):
    decoder = built(certified)
    write_trace(
        tmp_path / "trace.html",
        loaded(certified, decoder),
        "Tom has",
        Target(TARGET, TOKENIZER).encode("Tom has"),
        {"max_new_tokens": 12},
    )
    page = (tmp_path / "trace.html").read_text()
    assert page.count('role="listbox"') == 2 and "autojudge, risk 0.2" in page
    assert (
        "Certified: loses at most" in page
        and "budget 0.03.bound" in page
        and "target.architecture" in page
    )
