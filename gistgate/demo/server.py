"""The demo's server: one page and one stream of events, on this machine alone."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from gistgate.demo.playground import Playground, Question
from gistgate.errors import UserError
from gistgate.pages.rendering import TEMPLATES, render
from gistgate.pages.tokens import MEANINGS

HOST = "127.0.0.1"
HERE = Path(__file__).parent / "templates"


def launch(
    load: Callable[[], Playground], port: int = 8765, *, browser: bool = True, say: Callable[[str], object] = print
) -> None:
    """Serve the demo until Ctrl-C.

    Args:
        load: loads the models; called once the port is taken, so that a port in use is said at once.
        port: port on 127.0.0.1; 0 takes a free one.
        browser: open the page in the user's browser, where there is a display.
        say: shows the address to the user.

    Raises:
        UserError: the extra is not installed, the port cannot be used, or the models cannot be loaded.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise UserError(
            f"The demo needs the package '{error.name}'. Run `pip install '.[demo]'` in the clone of GistGate."
        ) from error
    with claim(port) as listener:
        playground = load()
        warm_up(playground)
        app = make_app(playground)
        address = f"http://{HOST}:{listener.getsockname()[1]}/"
        say(f"The demo runs at {address}. Ctrl-C ends it.")
        if browser and has_display():
            webbrowser.open(address)
        config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
        with suppress(KeyboardInterrupt):  # uvicorn ends its connections first, then passes the signal on
            uvicorn.Server(config).run(sockets=[listener])
    say("The demo has ended.")


def warm_up(playground: Playground) -> None:
    """Decode a few tokens, because the first forwards are slower than the others.

    Raises:
        UserError: the decoder refuses such requests, which is better known before the page opens.
    """
    for _ in playground.answer(Question("Hello.", playground.start, 2 * playground.decoder.block + 2)):
        pass


def claim(port: int) -> socket.socket:
    """A socket that listens on a port of this machine.

    Raises:
        UserError: the port is in use or not permitted.
    """
    listener = socket.socket()
    if os.name == "posix":  # elsewhere this option would take a port from another process
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UserError(
            f"Port {port} cannot be used ({error.strerror}). Name another one with --port; --port 0 takes a free one."
        ) from error
    return listener


def has_display() -> bool:
    """Whether a browser can show a window; without one, a text browser would block the terminal."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def make_app(playground: Playground) -> Any:
    """The ASGI application. It answers one question at a time, because all questions share the models.

    Host names other than this machine's are refused, so that no foreign page can pose as ours.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
    from starlette.routing import Route

    html, turn = page(playground), asyncio.Lock()

    async def show(request: Any) -> Any:
        return HTMLResponse(html)

    async def answer(request: Any) -> Any:
        if request.headers.get("content-type") != "application/json":  # a foreign page could send a plain form
            return JSONResponse({"error": "Send JSON."}, status_code=415)
        try:
            question = playground.question(await request.json())
        except (UserError, ValueError) as error:  # the latter where the body is no JSON
            return JSONResponse({"error": str(error)}, status_code=400)
        return StreamingResponse(lines(playground.answer(question), turn), media_type="application/x-ndjson")

    routes = [Route("/", show), Route("/answer", answer, methods=["POST"])]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    return Starlette(routes=routes, middleware=[hosts])


async def lines(events: Generator[dict[str, Any], None, None], turn: asyncio.Lock) -> AsyncIterator[str]:
    """One JSON object per line, when it is this question's turn; a reader who leaves ends decoding."""
    from starlette.concurrency import iterate_in_threadpool

    if turn.locked():
        yield json.dumps({"waiting": True}) + "\n"
    async with turn:
        with closing(events):
            try:
                async for event in iterate_in_threadpool(events):
                    yield json.dumps(event) + "\n"
            except Exception as error:  # the page says it: a broken stream would say nothing
                yield json.dumps({"error": sentence(error)}) + "\n"


def sentence(error: Exception) -> str:
    """What the user reads about an error; memory that runs out is the likely one besides those that we raise."""
    if isinstance(error, UserError):
        return str(error)
    first = (str(error).splitlines() or [""])[0]
    return f"Decoding failed ({type(error).__name__}: {first}). If memory ran out, ask for fewer tokens."


def page(playground: Playground) -> str:
    """The page, whose slider knows all settings."""
    settings = [{"label": one.label, "claim": one.claim} for one in playground.settings]
    return render(
        str(HERE / "demo.html.j2"),
        scripts=(TEMPLATES / "tokens.js", HERE / "demo.js"),
        styles=(TEMPLATES / "page.css", TEMPLATES / "tokens.css", HERE / "demo.css"),
        connects="'self'",
        name=playground.name,
        settings=settings,
        start=playground.start,
        max_new_tokens=playground.max_new_tokens,
        meanings=MEANINGS,
    )
