"""The server over HTTP: answers, refusals, readers who leave, and a port in use."""

import http.client
import json
import re
from html import unescape
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from gistgate.core.utils import UserError
from gistgate.demo.server import listen
from tests.demo.playing import decoding_threads, demo_session, served, wait_for


@pytest.fixture(scope="module")
def address():
    with served(demo_session()) as address:
        yield address


def send(address, body, **headers):
    """Ask a question, or one for so many tokens; returns the response, of which nothing was read
    yet.
    """
    if isinstance(body, int):
        body = {"prompt": "Tom has", "setting": 1, "max_new_tokens": body}
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    text = body if isinstance(body, str) else json.dumps(body)
    connection.request("POST", "/answer", text, {"Content-Type": "application/json", **headers})
    return connection, connection.getresponse()


def test_an_answer_arrives_as_lines_of_both_sides(address):
    _, response = send(address, 12)
    events = [json.loads(line) for line in response.read().splitlines()]
    assert events[0]["side"] == "loose"
    assert events[-2]["side"] == "strict" and events[-2]["numbers"]["tokens"] == "12"
    assert "differences" in events[-1]


def test_the_page_forbids_foreign_scripts_and_addresses(address):
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", "/")
    page = connection.getresponse().read().decode()
    policy = unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1))
    for rule in ("default-src 'none'", "connect-src 'self'", "script-src 'sha256-"):
        assert rule in policy
    assert "unsafe" not in policy


def test_a_reader_who_leaves_ends_decoding_and_the_next_one_is_served(address):
    connection, response = send(address, 450)
    response.readline()
    assert decoding_threads()
    response.close()
    connection.close()
    assert wait_for(lambda: not decoding_threads())
    _, response = send(address, 4)
    assert b"differences" in response.read()


def test_a_request_that_the_decoder_refuses_is_a_sentence_in_the_stream(address):
    _, response = send(address, 4000)
    assert "exceed the context" in json.loads(response.read())["error"]


@pytest.mark.parametrize("body, headers, status", [
    ({"prompt": "", "setting": 0, "max_new_tokens": 4}, {}, 400),
    ({"prompt": "x", "setting": 99, "max_new_tokens": 4}, {}, 400),
    ("no json", {}, 400),
    ({"prompt": "x", "setting": 0, "max_new_tokens": 4}, {"Content-Type": "text/plain"}, 415),
    ({"prompt": "x", "setting": 0, "max_new_tokens": 4}, {"Host": "elsewhere.example"}, 400),
])  # fmt: skip
def test_bad_and_foreign_questions_are_refused(address, body, headers, status):
    assert send(address, body, **headers)[1].status == status


def test_an_unexpected_error_is_a_sentence_too():
    """Memory that runs out is no UserError; the page shows it instead of a stream that breaks
    off.
    """
    with served(demo_session(eos_ids=object())) as address:
        _, response = send(address, 4)
        assert json.loads(response.read())["error"].startswith("Decoding failed (TypeError")


def test_a_port_in_use_is_one_sentence():
    with listen(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {port} cannot be used"):
            listen(port)
