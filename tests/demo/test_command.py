"""`gistgate demo` as a process: the address it prints, a port in use, Ctrl-C."""

import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.tiny import byte_tokenizer, save_pair, tiny_pair

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    save_pair(folder, *tiny_pair(noise=0.3), byte_tokenizer())
    return folder


def start(pair, *arguments):
    """Begin the command; the browser stays closed."""
    line = [sys.executable, "-m", "gistgate", "demo", pair / "target", "--draft", pair / "draft"]
    line += ["--no-browser", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*map(str, line)], **pipes)


@pytest.mark.parametrize("is_answering", [False, True])
def test_ctrl_c_ends_the_demo_cleanly(pair, is_answering):
    process = start(pair, "--port", 0, "--rule", "prob", "--set", "r=0.002")
    address = process.stdout.readline().split(" at ")[1].split()[0].rstrip(".")
    assert b"GistGate demo" in urllib.request.urlopen(address).read()
    if is_answering:
        body = b'{"prompt": "Tom has", "setting": 1, "max_new_tokens": 480}'
        asked = urllib.request.Request(
            f"{address}answer", body, {"Content-Type": "application/json"}
        )
        assert urllib.request.urlopen(asked).readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (
        process.returncode == 0 and out.strip() == "The demo has ended." and "Traceback" not in err
    )
