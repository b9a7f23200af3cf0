"""The page of a trace as text: differences, what stands in it, and that no text of a model becomes
HTML.
"""

import re
from html.parser import HTMLParser

import pytest

from gistgate.measure.trace_page import aligned, trace_page, visible
from tests.measure.answers import LOOSE, STRICT, answer

HOSTILE = (
    "<script>alert(1)</script>",
    "\" onmouseover='x'",
    "</span><img src=http://x.y/z>",
    "{{ 7 * 7 }}",
    "]]>&amp;",
)


class Reader(HTMLParser):
    """Collects the elements of a page and the text outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("left, right, expected", [
    (["a", "b"], ["a", "b"], []),
    (["a", "x", "c"], ["a", "y", "c"], [(1, 2, 1, 2)]),
    (["a", "c"], ["a", "b", "c"], [(1, 1, 1, 2)]),
    (["x", "b", "y"], ["b"], [(0, 1, 0, 0), (2, 3, 1, 1)]),
])  # fmt: skip
def test_a_difference_names_the_spans_of_both_answers(left, right, expected):
    spans = [span for span in aligned(left, right) if span["number"]]
    assert [(*span["loose"], *span["strict"]) for span in spans] == expected


def test_the_page_shows_tokens_differences_and_numbers_and_forbids_requests():
    html = trace_page("Tom has", LOOSE, STRICT, None)
    page = Reader(html)
    tokens = [
        values
        for tag, values in page.elements
        if "token" in (values.get("class") or "") and "role" in values
    ]
    reasons = [values["class"].removeprefix("token ") for values in tokens[:4]]
    assert reasons == ["strict", "loose", "carried", "own"]
    assert tokens[1]["data-note"] == "loose, gate 0.934, target 0.081"
    assert tokens[3]["data-note"] == "own, target 0.703"
    marks = [values for tag, values in page.elements if tag == "mark"]
    assert [values["data-difference"] for values in marks] == ["1", "1"]
    text = re.sub(r"\s+", " ", page.text)
    assert "mean accepted length (tau)2.00" in text and "loose tokens per hundred25.0" in text
    assert "seconds2.00" in text and "tokens per second2.0" in text
    policy = next(values["content"] for _, values in page.elements if "http-equiv" in values)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", html.replace("// ", ""))
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy
    assert "unsafe" not in policy


def test_hostile_text_stays_text():
    """Whatever a model says, the page has the elements of a harmless one."""

    def page_of(name, texts):
        run = answer(name, *[(text, "strict", None, 0.5) for text in texts])
        page = Reader(trace_page(name, run, run, name))
        return page, [(tag, sorted(values)) for tag, values in page.elements]

    _, harmless = page_of("x", ["x"] * len(HOSTILE))
    page, hostile = page_of(HOSTILE[0], HOSTILE)
    assert hostile == harmless and all(text in page.text for text in HOSTILE)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("\u200f", "⟨U+200F⟩"),
        ("\x00\x1b", "⟨U+0000⟩⟨U+001B⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("a\nb", "a↵\nb"),
        ("", "∅"),
        ("é שלום 👩‍🚀", "é שלום 👩‍🚀"),
    ],
)
def test_what_cannot_be_seen_or_reorders_text_is_written_out(text, expected):
    assert visible(text) == expected
