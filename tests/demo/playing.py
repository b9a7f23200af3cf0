"""A session of the demo with a tiny pair, and its server in a thread."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gistgate import Decoder, ModelDrafter, make_rule
from gistgate.demo.server import DemoSession, listen, make_app
from gistgate.models.loading import Target
from tests.tiny import byte_tokenizer, tiny_pair


def demo_session(**request: Any) -> DemoSession:
    """A tiny pair with a rule that tolerates most drafts."""
    tokenizer = byte_tokenizer()
    target, draft = tiny_pair(noise=0.3)
    rule = make_rule("prob", r=0.002)
    return DemoSession(
        Decoder(target, ModelDrafter(draft), rule, 4, tokenizer=tokenizer),
        Target(target, tokenizer).encode,
        rule,
        lambda rule: "Certified: loses nothing." if rule.r == 0.002 else "Not certified.",
        "target and draft",
        24,
        request,
    )


@contextmanager
def served(session: DemoSession) -> Iterator[str]:
    """The address of a server that runs until the end of the block."""
    import uvicorn

    with listen(0) as listener:
        app = make_app(session)
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


def decoding_threads() -> list[threading.Thread]:
    """The threads in which decoding runs."""
    return [thread for thread in threading.enumerate() if thread.name == "decoding"]


def wait_for(condition: Any, seconds: float = 30.0) -> bool:
    """Whether the condition comes true in time."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return bool(condition())
