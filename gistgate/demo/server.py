"""The demo's server: one page and one stream of events, on this machine alone."""

import asyncio
import json
import os
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gistgate.core.block import Acceptance, Block
from gistgate.core.decoder import Decoder
from gistgate.core.request import Generation, Row
from gistgate.core.rule import Rule
from gistgate.core.utils import UserError, first_line
from gistgate.coverage.choose import GATED
from gistgate.demo.page import (
    MEANINGS,
    STRICT,
    TEMPLATES,
    aligned,
    numbers,
    render,
    rule_name,
    shown,
)
from gistgate.measure.trace import TracedToken, Watch
from gistgate.rules import make_rule

HOST = "127.0.0.1"
MOST_TOKENS = 4096  # longest answer that a question may ask for

Step = tuple[list[TracedToken], dict[str, str]]
"""What one round adds to the answer: tokens, and the counters of the answer up to here,
formatted.
"""


class Left(Exception):  # noqa: N818 (nothing is wrong)
    """The reader has gone; decoding ends."""


class Feed(Watch):
    """An observer that hands every committed token to another thread."""

    def __init__(self, tokenizer: Any, before: Sequence[int]) -> None:
        super().__init__(tokenizer, before)
        # Steps, then None at the end, or the exception that ended decoding.
        self.items: SimpleQueue[Step | Exception | None] = SimpleQueue()
        self.left = Event()

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        """Send what the rounds before this one committed: only then is it known where the answer
        was cut.
        """
        if self.left.is_set():
            raise Left
        super().__call__(block, acceptance, rows)
        self.send(rows[0].answer, rows[0])

    def send(self, ids: Sequence[int], answer: Row | Generation) -> None:
        """Send the tokens of an answer that are new."""
        if tokens := self.new(ids, answer.reasons):
            self.items.put((tokens, numbers(answer.statistics)))

    def decode(self, decoder: Decoder, **request: Any) -> None:
        """Continue the prompt and send what every round adds."""
        try:
            answer = decoder.watched_by(self).generate([self.before], **request)[0]
            self.send(answer.ids, answer)
            self.items.put(None)
        except Exception as error:
            self.items.put(error)


def stream(decoder: Decoder, ids: Sequence[int], **request: Any) -> Generator[Step, None, None]:
    """Continue one prompt and yield what every round adds; closing the iterator ends decoding
    within one round.
    """
    feed = Feed(decoder.tokenizer, ids)
    worker = Thread(
        target=feed.decode, args=[decoder], kwargs=request, daemon=True, name="decoding"
    )
    worker.start()
    try:
        while (item := feed.items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        feed.left.set()
        worker.join()


class Position(NamedTuple):
    """A position of the slider."""

    label: str
    decoder: Decoder
    claim: str  # what is certified there, as a sentence


@dataclass(frozen=True)
class DemoSession:
    """A decoder with the settings of its rule between which the page's slider chooses."""

    decoder: Decoder
    encode: Callable[[str], list[int]]  # token ids of a prompt
    rule: Rule  # the rule whose knob is on the slider, at the value where the slider begins
    claim: Callable[[Any], str]  # what is certified about a rule, as a sentence
    name: str  # the models, for the heading
    max_new_tokens: int  # longest answer that the page suggests, in tokens
    request: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `Decoder.generate` that all questions share."""

    @cached_property
    def positions(self) -> list[Position]:
        """Strict decoding, then the values of the knob from strict to loose."""
        strict = self.decoder.strict()
        positions = [Position(STRICT, strict, "Strict decoding loses nothing.")]
        for value in knob_values(self.rule):
            rule = self.rule.changed(**{str(self.rule.knob): value})
            decoder = self.decoder.having(rule=rule)
            positions.append(Position(rule_name(rule), decoder, self.claim(rule)))
        return positions

    @property
    def start(self) -> int:
        """Position at which the slider begins: the value of the decoder, or strict decoding."""
        knob = self.decoder.rule.knob
        return 0 if knob is None else 1 + knob_values(self.rule).index(getattr(self.rule, knob))

    def answer(
        self, prompt: str, position: int, max_new_tokens: int
    ) -> Generator[dict[str, Any], None, None]:
        """Decode at a position of the slider, then strictly; yields an event per round, at last the
        differences.
        """
        ids = self.encode(prompt)
        request = {**self.request, "max_new_tokens": max_new_tokens}
        texts: dict[str, list[str]] = {"loose": [], STRICT: []}
        for side, place in (("loose", position), (STRICT, 0)):
            with closing(stream(self.positions[place].decoder, ids, **request)) as steps:
                for tokens, counters in steps:
                    texts[side] += [token.text for token in tokens]
                    new = [shown(token) for token in tokens]
                    yield {"side": side, "tokens": new, "numbers": counters}
        spans = aligned(texts["loose"], texts[STRICT])
        yield {"differences": [span for span in spans if span["number"]]}


def knob_values(rule: Any) -> list[float]:
    """Values of the rule's knob from strict to loose, its present one included; none for a rule
    without a knob.
    """
    if rule.knob is None:
        return []
    return sorted({*rule.grid, getattr(rule, rule.knob)}, reverse=rule.looser == "down")


def slider_rule(decoder: Decoder) -> Any:
    """The rule whose knob is on the slider: the decoder's, or that of its gate where the decoder
    runs strictly.
    """
    runs_strictly = decoder.rule.knob is None and decoder.parts.gate is not None
    return make_rule(GATED) if runs_strictly else decoder.rule


def launch(
    load: Callable[[], DemoSession], port: int, browser: bool, say: Callable[[str], object]
) -> None:
    """Serve the demo on this port of 127.0.0.1 (0: a free one) until Ctrl-C; `load` is called once
    it is taken.
    """
    with listen(port) as listener:
        session = load()
        for _ in session.answer("Hello.", session.start, 2 * session.decoder.block + 2):
            pass  # the first forwards are slower than the others
        address = f"http://{HOST}:{listener.getsockname()[1]}/"
        say(f"The demo runs at {address}. Ctrl-C ends it.")
        # without a display, a text browser would block the terminal
        if browser and (sys.platform != "linux" or {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ}):
            webbrowser.open(address)
        config = uvicorn.Config(
            make_app(session), log_level="critical", access_log=False, timeout_graceful_shutdown=1
        )
        # uvicorn ends its connections first, then passes the signal on
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
    say("The demo has ended.")


def listen(port: int) -> socket.socket:
    """A socket that listens on a port of this machine."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise UserError(
            f"Port {port} cannot be used ({why}). Name another with --port, or 0 for a free one."
        ) from error


def make_app(session: DemoSession) -> Starlette:
    """The ASGI application. It answers one question at a time, because all questions share the
    models.
    """
    turn = asyncio.Lock()
    html = render(
        "demo.html.j2",
        scripts=(TEMPLATES / "tokens.js", TEMPLATES / "demo.js"),
        styles=(TEMPLATES / "page.css", TEMPLATES / "tokens.css", TEMPLATES / "demo.css"),
        connects="'self'",
        name=session.name,
        settings=[{"label": place.label, "claim": place.claim} for place in session.positions],
        start=session.start,
        max_new_tokens=session.max_new_tokens,
        meanings=MEANINGS,
    )

    async def page(request: Request) -> Response:
        return HTMLResponse(html)

    async def answer(request: Request) -> Response:
        # a foreign page could send a plain form
        if request.headers.get("content-type") != "application/json":
            return JSONResponse({"error": "Send JSON."}, status_code=415)
        try:
            question = parsed_question(await request.json(), len(session.positions))
        except (LookupError, TypeError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        events = lines(session.answer(*question), turn)
        return StreamingResponse(events, media_type="application/x-ndjson")

    routes = [Route("/", page), Route("/answer", answer, methods=["POST"])]
    # no foreign page can pose as ours
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    return Starlette(routes=routes, middleware=[hosts])


def parsed_question(question: Mapping[str, Any], num_positions: int) -> tuple[str, int, int]:
    """Return prompt, position of the slider and longest answer in tokens; other questions raise
    LookupError, TypeError or ValueError.
    """
    prompt = str(question["prompt"])
    position = int(question["setting"])
    num_tokens = int(question["max_new_tokens"])
    is_whole = prompt.strip() and 0 <= position < num_positions
    if not is_whole or not 1 <= num_tokens <= MOST_TOKENS:
        raise ValueError(
            f"A question has some text, and an answer 1 to {MOST_TOKENS} tokens. Change that."
        )
    return prompt, position, num_tokens


async def lines(
    events: Generator[dict[str, Any], None, None], turn: asyncio.Lock
) -> AsyncIterator[str]:
    """One JSON object per line, when it is this question's turn; a reader who leaves ends
    decoding.
    """
    if turn.locked():
        yield json.dumps({"waiting": True}) + "\n"
    async with turn:
        with closing(events):
            try:
                async for event in iterate_in_threadpool(events):
                    yield json.dumps(event) + "\n"
            except UserError as error:
                yield json.dumps({"error": str(error)}) + "\n"
            except Exception as error:  # the page says it: a broken stream would say nothing
                sentence = (
                    f"Decoding failed ({type(error).__name__}: {first_line(error)}). Ask for less"
                    " if memory ran out."
                )
                yield json.dumps({"error": sentence}) + "\n"
