"""What a page says about the certificate of a gate, and the page that the command line writes."""

from types import SimpleNamespace

import pytest

from gistgate.build import build
from gistgate.drafters.stopping import Stopping
from gistgate.measure.trace_page import claim, write_trace
from gistgate.models.loading import Target
from gistgate.models.options import DecodeOptions
from tests.certificates.proofs import linear_gate, point, proof_for
from tests.tiny import byte_tokenizer, tiny_pair

TOKENIZER = byte_tokenizer()
TARGET, DRAFT = tiny_pair(noise=0.3)


def options(*points, **named):
    """The tiny pair with a gate whose certificate has these points; without any it has no
    certificate.
    """
    gate = linear_gate(TARGET, DRAFT)
    gate.certificate = proof_for(gate, *points) if points else None
    return DecodeOptions(draft=DRAFT, gate=gate, **named)


def built(wishes, warning=None, uncovered=None):
    """What the command line loads with these options; it may warn as it is built."""
    if warning is None:
        made = build(TARGET, TOKENIZER, wishes)
    else:
        with pytest.warns(UserWarning, match=warning):
            made = build(TARGET, TOKENIZER, wishes)
    target = Target(TARGET, TOKENIZER)
    return SimpleNamespace(
        decoder=made.decoder,
        coverage=made.coverage,
        target=target,
        options=wishes,
        ids=[target.encode("Tom has")],
        request={"max_new_tokens": 12},
        uncovered=uncovered,
    )


@pytest.fixture(scope="module")
def certified():
    return options(point(0.01, certified=False), point(0.03, settings={"risk": 0.2}))


def test_the_certified_value_is_told_with_its_bound_and_others_are_not_certified(certified):
    loaded = built(certified)
    bound = 100 * certified.gate.certificate.points[1].bound
    sentence = claim(loaded)
    assert sentence.startswith("Certified: loses at most 3 points with 95 % confidence")
    assert f"(bound {bound:.2f})" in sentence
    uncovered = built(certified, uncovered="another prompting")
    assert claim(uncovered).startswith("Not certified: another prompting")


def test_what_the_terminal_warns_of_is_not_called_certified(certified, tmp_path):
    Stopping(0.4).save(tmp_path / "stop.json")
    stop = {"stop_drafting": str(tmp_path / "stop.json")}
    looser = {"settings": {"risk": 0.3}}
    doubts = ((looser, "risk 0.3 is not"), ({"block": 5}, "block is"), (stop, "drafts end by an"))
    for wish, doubt in doubts:
        loaded = built(DecodeOptions(draft=DRAFT, gate=certified.gate, **wish), doubt)
        assert claim(loaded).startswith(f"Not certified: {doubt}")


@pytest.mark.parametrize("named", [{"drafter": "none"}, {"block": 0}])
def test_plain_decoding_loses_nothing(certified, named):
    plain = DecodeOptions(draft=DRAFT, gate=certified.gate, settings={"risk": 0.7}, **named)
    assert claim(built(plain)) == "Decoding is plain, so that nothing can be lost."


def test_without_a_certificate_the_page_says_so():
    loose = built(options(rule="autojudge", settings={"risk": 0.2}), "no certificate")
    assert claim(loose) == "Not certified: there is no certificate."
    assert claim(built(options(), "no certificate")) is None  # it runs strictly


def test_the_written_page_holds_both_answers_and_the_claim(certified, tmp_path):
    write_trace(tmp_path / "trace.html", built(certified), "Tom has")
    page = (tmp_path / "trace.html").read_text()
    assert page.count('role="listbox"') == 2
    for text in ("autojudge, risk 0.2", "Certified: loses at most"):
        assert text in page
