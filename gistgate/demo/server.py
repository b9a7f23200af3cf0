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
from typing import Any

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
from gistgate.models.loading import Target
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
        self.send(rows[0])

    def send(self, row: Row | Generation) -> None:
        """The tokens that are new."""
        if tokens := self.new(row.answer if isinstance(row, Row) else row.ids, row.reasons):
            self.items.put((tokens, numbers(row.statistics)))


def stream(
    decoder: Decoder, ids: Sequence[int], tokenizer: Any, **request: Any
) -> Generator[Step, None, None]:
    """Continue one prompt and yield what every round adds; closing the iterator ends decoding
    within one round.
    """
    feed = Feed(tokenizer, ids)

    def decode() -> None:
        try:
            feed.send(decoder.watched_by(feed).generate([ids], **request)[0])
            feed.items.put(None)
        except Exception as error:
            feed.items.put(error)

    worker = Thread(target=decode, daemon=True, name="decoding")
    worker.start()
    try:
        while (item := feed.items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        feed.left.set()
        worker.join()


@dataclass(frozen=True)
class DemoSession:
    """A decoder with the settings of its rule between which the page's slider chooses."""

    decoder: Decoder
    target: Target
    rule: Rule  # the rule whose knob is on the slider, at the value where the slider begins
    claims: Mapping[float, str] = field(
        default_factory=dict
    )  # value of the knob -> what is certified about it
    name: str = "GistGate"  # the models, for the heading
    max_new_tokens: int = 256  # longest answer that the page suggests, in tokens
    request: Mapping[str, Any] = field(
        default_factory=dict
    )  # arguments of `Decoder.generate` that all questions share
    chat: bool = False  # whether prompts are wrapped in the chat template
    system: str | None = None  # system text of the chat template
    arguments: Mapping[str, Any] = field(default_factory=dict)  # its other ones

    @cached_property
    def settings(self) -> list[tuple[str, Decoder, str]]:
        """Label, decoder and claim of strict decoding, then of the values of the knob from strict
        to loose.
        """
        found = [(STRICT, self.decoder.strict(), "Strict decoding loses nothing.")]
        for value in knob_values(self.rule):
            rule: Any = self.rule.changed(**{str(self.rule.knob): value})
            claim = self.claims.get(value, "Nothing is certified here.")
            found.append((rule_name(rule), self.decoder.having(rule=rule), claim))
        return found

    @property
    def start(self) -> int:
        """Position at which the slider begins: the value of the decoder, or strict decoding."""
        knob = self.decoder.rule.knob
        return 0 if knob is None else 1 + knob_values(self.rule).index(getattr(self.rule, knob))

    def answer(
        self, prompt: str, setting: int, max_new_tokens: int
    ) -> Generator[dict[str, Any], None, None]:
        """Decode at a position of the slider, then strictly; yields an event per round, at last the
        differences.
        """
        ids = self.target.encode(prompt, self.chat, self.system, self.arguments)
        request = {**self.request, "max_new_tokens": max_new_tokens}
        texts: dict[str, list[str]] = {"loose": [], STRICT: []}
        for side, place in (("loose", setting), (STRICT, 0)):
            with closing(
                stream(self.settings[place][1], ids, self.target.tokenizer, **request)
            ) as steps:
                for tokens, counts in steps:
                    texts[side] += [token.text for token in tokens]
                    yield {
                        "side": side,
                        "tokens": [shown(token) for token in tokens],
                        "numbers": counts,
                    }
        found = [
            spans for number, spans in aligned(texts["loose"], texts[STRICT]) if number is not None
        ]
        yield {
            "differences": [
                {"loose": [a.start, a.stop], STRICT: [b.start, b.stop]} for a, b in found
            ]
        }


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
    load: Callable[[], DemoSession],
    port: int = 8765,
    *,
    browser: bool = True,
    say: Callable[[str], object] = print,
) -> None:
    """Serve the demo on this port of 127.0.0.1 (0: a free one) until Ctrl-C; `load` is called once
    it is taken.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise UserError(
            f"The demo needs '{error.name}'. Run `pip install '.[demo]'` in GistGate's clone."
        ) from error
    with claim(port) as listener:
        session = load()
        for _ in session.answer("Hello.", session.start, 2 * session.decoder.block + 2):
            pass  # the first forwards are slower than the others
        app = make_app(session)
        address = f"http://{HOST}:{listener.getsockname()[1]}/"
        say(f"The demo runs at {address}. Ctrl-C ends it.")
        has_display = sys.platform != "linux" or bool(
            os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        )
        if browser and has_display:  # without one, a text browser would block the terminal
            webbrowser.open(address)
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, timeout_graceful_shutdown=1
        )
        with suppress(
            KeyboardInterrupt
        ):  # uvicorn ends its connections first, then passes the signal on
            uvicorn.Server(config).run(sockets=[listener])
    say("The demo has ended.")


def claim(port: int) -> socket.socket:
    """A socket that listens on a port of this machine."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise UserError(
            f"Port {port} cannot be used ({why}). Name another with --port, or 0 for a free one."
        ) from error


def make_app(session: DemoSession) -> Any:
    """The ASGI application. It answers one question at a time, because all questions share the
    models.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
    from starlette.routing import Route

    turn = asyncio.Lock()
    html = render(
        "demo.html.j2",
        scripts=(TEMPLATES / "tokens.js", TEMPLATES / "demo.js"),
        styles=(TEMPLATES / "page.css", TEMPLATES / "tokens.css", TEMPLATES / "demo.css"),
        connects="'self'",
        name=session.name,
        settings=[{"label": label, "claim": claim} for label, _, claim in session.settings],
        start=session.start,
        max_new_tokens=session.max_new_tokens,
        meanings=MEANINGS,
    )

    async def show(request: Any) -> Any:
        return HTMLResponse(html)

    async def answer(request: Any) -> Any:
        if (
            request.headers.get("content-type") != "application/json"
        ):  # a foreign page could send a plain form
            return JSONResponse({"error": "Send JSON."}, status_code=415)
        try:
            asked = await request.json()
            prompt = str(asked["prompt"])
            setting = int(asked["setting"])
            num = int(asked["max_new_tokens"])
            if (
                not prompt.strip()
                or not 0 <= setting < len(session.settings)
                or not 1 <= num <= MOST_TOKENS
            ):
                raise ValueError(
                    f"A question has some text, and an answer 1 to {MOST_TOKENS} tokens. Change"
                    " that."
                )
        except (LookupError, TypeError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return StreamingResponse(
            lines(session.answer(prompt, setting, num), turn), media_type="application/x-ndjson"
        )

    routes = [Route("/", show), Route("/answer", answer, methods=["POST"])]
    hosts = Middleware(
        TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"]
    )  # no foreign page can pose as ours
    return Starlette(routes=routes, middleware=[hosts])


async def lines(
    events: Generator[dict[str, Any], None, None], turn: asyncio.Lock
) -> AsyncIterator[str]:
    """One JSON object per line, when it is this question's turn; a reader who leaves ends
    decoding.
    """
    from starlette.concurrency import iterate_in_threadpool

    if turn.locked():
        yield json.dumps({"waiting": True}) + "\n"
    async with turn:
        with closing(events):
            try:
                async for event in iterate_in_threadpool(events):
                    yield json.dumps(event) + "\n"
            except Exception as error:  # the page says it: a broken stream would say nothing
                failed = (
                    f"Decoding failed ({type(error).__name__}: {first_line(error)}). Ask for less"
                    " if memory"
                )
                said = str(error) if isinstance(error, UserError) else f"{failed} ran out."
                yield json.dumps({"error": said}) + "\n"
