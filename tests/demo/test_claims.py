"""What a page says about the certificate of a gate, and the page that the command line writes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gistgate.cli.tools import slider_rule
from gistgate.core.gate import Gate, GateConfig
from gistgate.core.identity import identify_model, identify_tokenizer
from gistgate.demo.page import certificate_table, claim, own_claim, provenance_table, write_trace
from gistgate.models.build import build_decoder
from gistgate.models.loading import Target
from gistgate.models.options import DecodeOptions
from tests.certificates.proofs import point, proof_for
from tests.tiny import byte_tokenizer, tiny_pair

TOKENIZER, (TARGET, DRAFT) = byte_tokenizer(), tiny_pair(noise=0.3)


def options(*points, **named):
    """The tiny pair with a gate whose certificate has these points; without any it has no certificate."""
    identities = identify_model(TARGET), identify_model(DRAFT), identify_tokenizer(TOKENIZER)
    gate = Gate(GateConfig({"type": "linear"}, {"h_tok:post": 32}, *identities, provenance={"seed": 7}))
    gate.certificate = proof_for(gate, *points) if points else None
    return DecodeOptions(draft=DRAFT, gate=gate, **named)


@pytest.fixture(scope="module")
def certified():
    return options(point(0.01, certified=False), point(0.03, settings={"risk": 0.2}))


def test_the_certified_value_is_told_with_its_bound_and_others_are_not_certified(certified):
    decoder = build_decoder(TARGET, TOKENIZER, certified)
    bound = 100 * certified.gate.certificate.points[1].bound
    assert own_claim(certified, decoder).startswith(
        f"Certified: loses at most 3 points with 95 % confidence (bound {bound:.2f})"
    )
    assert "not among the certified values (0.2)" in claim(certified, decoder, decoder.rule, 0.3)


def test_another_k_is_not_certified(certified):
    other = DecodeOptions(draft=DRAFT, gate=certified.gate, block=certified.gate.certificate.block + 1)
    with pytest.warns(UserWarning, match="block"):
        decoder = build_decoder(TARGET, TOKENIZER, other)
    assert own_claim(other, decoder).startswith("Not certified: block is")


def test_a_preset_is_judged_by_its_own_settings():
    named = options(point(0.03, settings={"theta": 0.9}), rule="fly-amd", settings={"theta": 0.9})
    named.gate.certificate = replace(named.gate.certificate, rule="fly", knob="theta")
    with pytest.warns(UserWarning, match="window is 5, but 6 was certified"):
        decoder = build_decoder(TARGET, TOKENIZER, named)
    assert own_claim(named, decoder) == "Not certified: window is 5, but 6 was certified."


def test_what_the_terminal_warns_of_is_not_called_certified(certified):
    ending = DecodeOptions(draft=DRAFT, gate=certified.gate, stop_drafting="0.4")
    with pytest.warns(UserWarning, match="drafts end by another policy"):
        decoder = build_decoder(TARGET, TOKENIZER, ending)
    assert own_claim(ending, decoder).startswith("Not certified: drafts end by another policy")
    decoder = build_decoder(TARGET, TOKENIZER, certified)
    assert own_claim(certified, decoder, "another prompting").startswith("Not certified: another prompting")


@pytest.mark.parametrize("named", [{"drafter": "none"}, {"block": 0}])
def test_plain_decoding_loses_nothing(certified, named):
    plain = DecodeOptions(draft=DRAFT, gate=certified.gate, settings={"risk": 0.7}, **named)
    decoder = build_decoder(TARGET, TOKENIZER, plain)
    assert claim(plain, decoder, decoder.rule, 0.5) == "Decoding is plain, so that nothing can be lost."


def test_without_a_certificate_the_page_says_so():
    loose = options(rule="autojudge", settings={"risk": 0.2})
    with pytest.warns(UserWarning, match="no certificate"):
        decoder = build_decoder(TARGET, TOKENIZER, loose)
    assert own_claim(loose, decoder) == "Not certified: there is no certificate."
    assert certificate_table(decoder) == {} and provenance_table(decoder)["seed"] == 7


def test_the_slider_has_the_rule_of_the_gate_where_decoding_is_strict():
    strict = options()
    with pytest.warns(UserWarning, match="no certificate"):
        decoder = build_decoder(TARGET, TOKENIZER, strict)
    assert decoder.rule.id == "exact" and own_claim(strict, decoder) is None
    assert slider_rule(decoder).id == "autojudge"


def test_the_written_page_holds_both_answers_and_the_certificate(certified, tmp_path):
    decoder = build_decoder(TARGET, TOKENIZER, certified)
    loaded = SimpleNamespace(decoder=decoder, target=Target(TARGET, TOKENIZER), options=certified, uncovered=None)
    ids = loaded.target.encode("Tom has")
    write_trace(tmp_path / "trace.html", loaded, "Tom has", ids, {"max_new_tokens": 12})
    page = (tmp_path / "trace.html").read_text()
    assert page.count('role="listbox"') == 2 and "autojudge, risk 0.2" in page
    assert "Certified: loses at most" in page and "budget 0.03.bound" in page and "target.architecture" in page
