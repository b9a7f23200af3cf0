"""A session of the demo with a tiny pair, and its server in a thread."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gistgate import Decoder, ModelDrafter, make_rule
from gistgate.demo.server import DemoSession, claim, make_app
from gistgate.models.loading import Target
from tests.tiny import byte_tokenizer, tiny_pair


def demo_session(**changes: Any) -> DemoSession:
    """A tiny pair with a rule that tolerates most drafts."""
    tokenizer, (target, draft) = byte_tokenizer(), tiny_pair(noise=0.3)
    rule = make_rule("prob", r=0.002)
    decoder = Decoder(target, ModelDrafter(draft), rule, 4, tokenizer=tokenizer)
    claims = {
        0.002: (
            "Certified: loses at most 3 points with 95 % confidence (bound 2.10), from 500 prompts."
        )
    }
    return DemoSession(
        decoder,
        Target(target, tokenizer),
        rule,
        **{"claims": claims, "max_new_tokens": 24, **changes},
    )


@contextmanager
def served(ground: DemoSession) -> Iterator[str]:
    """The address of a server that runs until the end of the block."""
    import uvicorn

    with claim(0) as listener:
        server = uvicorn.Server(
            uvicorn.Config(make_app(ground), log_level="error", timeout_graceful_shutdown=1)
        )
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
