"""An OpenAI-compatible server that adds numbers, and that fails as a test wants it to."""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep
from types import MappingProxyType
from typing import Any


@dataclass
class Script:
    """What the server does."""

    wrong: frozenset[int] = frozenset()  # numbers n whose n + 1 it gets wrong
    fickle: frozenset[int] = frozenset()  # numbers whose second answer is wrong
    rambling: frozenset[int] = frozenset()  # numbers n whose answers run to the limit
    drops: dict[int, int] = field(
        default_factory=dict
    )  # how often it drops the connection at a number
    statuses: dict[int, int] = field(
        default_factory=dict
    )  # status with which it refuses a number, always
    busy: dict[int, int] = field(
        default_factory=dict
    )  # how often it asks for a pause of a second at a number
    tokens: int = 9  # length of every answer
    reasons: dict[int, str] = field(default_factory=dict)  # another reason for which an answer ends
    delays: dict[int, float] = field(default_factory=dict)  # seconds that it takes for a number
    texts: dict[int, str | None] = field(default_factory=dict)  # other answers
    pages: dict[int, Any] = field(
        default_factory=dict
    )  # a text or JSON with status 200 in place of an answer
    model: str = "adder"
    says: str = "adder"  # model that an answer names
    renamed: str = ""  # model that it lists once it has answered, if another
    lists: bool = True  # whether it lists its models
    lacks: str = ""  # an entry that it refuses in a request
    loading: int = 0  # how often it says that its model loads
    streams: bool = True  # whether it can answer in a stream
    pace: float = 0.0  # seconds between two of the three parts of a stream
    timings: dict[str, int] = field(default_factory=dict)  # what it tells of its tokens
    wrong_seeds: bool = False  # whether it gets a request with an odd seed wrong
    logins: set[str] = field(default_factory=set)  # headers with keys or passwords that came
    headers: dict[str, str] = field(default_factory=dict)  # those of the last request, lower case
    asked: list[dict[str, Any]] = field(
        default_factory=list
    )  # bodies of all requests that were answered


class Handler(BaseHTTPRequestHandler):
    """Speaks the part of the protocol that the client uses."""

    script: Script

    def log_message(self, *_: Any) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        if self.script.loading:
            self.script.loading -= 1
            self.send({"error": {"message": "Loading model"}}, 503)
        elif self.script.lists:
            model = (self.script.asked and self.script.renamed) or self.script.model
            self.send({"object": "list", "data": [{"id": model, "object": "model"}]})
        else:
            self.send({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = self.path.endswith("/chat/completions")
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        n = int((re.findall(r"(\d+) \+ 1", prompt) if isinstance(prompt, str) else prompt)[-1])
        if self.script.drops.get(n, 0) > 0:
            self.script.drops[n] -= 1
            self.close_connection = True
            return
        if self.script.busy.get(n, 0) > 0:
            self.script.busy[n] -= 1
            self.send({"error": {"message": "slow down"}}, 429, {"Retry-After": "1"})
            return
        if n in self.script.statuses:
            self.send({"error": {"message": f"no {n} today"}}, self.script.statuses[n])
            return
        if self.script.lacks in body:
            self.send({"error": {"message": f"'{self.script.lacks}' is not supported"}}, 400)
            return
        sleep(self.script.delays.get(n, 0.0))
        if n in self.script.pages:
            self.send(self.script.pages[n])
            return
        self.script.asked.append(body)
        is_second = [asked.get("prompt") for asked in self.script.asked].count(prompt) > 1
        self.script.headers = {name.lower(): value for name, value in self.headers.items()}
        self.script.logins.add(self.headers["Authorization"])
        is_wrong = n in self.script.wrong or (self.script.wrong_seeds and body["seed"] % 2)
        is_wrong = is_wrong or (is_second and n in self.script.fickle)
        text = f" It is so. #### {n + 1 + bool(is_wrong)}"
        text = self.script.texts.get(n, text)
        reason = self.script.reasons.get(n, "length" if n in self.script.rambling else "stop")
        if body.get("stream") and self.script.streams:
            self.stream(text or "", chat)
            return
        content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, "finish_reason": reason, **content}
        usage = {"prompt_tokens": 1, "completion_tokens": self.script.tokens, "total_tokens": 10}
        self.send(
            {
                "id": "1",
                "object": "x",
                "created": 1,
                "model": self.script.says,
                "choices": [choice],
                "usage": usage,
                "timings": self.script.timings,
            }
        )

    def stream(self, text: str, chat: bool) -> None:
        """Answer in three parts, the first of which has no text, and a page with the length."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for part in ("", text[:1], text[1:]):
            delta = {"delta": {"content": part}} if chat else {"text": part}
            page = {"model": self.script.says, "choices": [{"index": 0, **delta}], "usage": None}
            sleep(self.script.pace)
            self.wfile.write(f"data: {json.dumps(page)}\n\n".encode())
            self.wfile.flush()
        usage = {"completion_tokens": self.script.tokens}
        last = {"choices": [], "usage": usage, "timings": self.script.timings}
        self.wfile.write(f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode())
        self.close_connection = True

    def send(
        self, value: Any, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Answer with JSON, or with a text as a page."""
        page = isinstance(value, str)
        content = value.encode() if page else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if page else "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, said in headers.items():
            self.send_header(name, said)
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The address of a server on this machine that follows the script."""
    handler = type("Scripted", (Handler,), {"script": script})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
