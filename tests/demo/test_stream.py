"""Tokens arrive round by round, are those of the decoder, and stop arriving when the reader leaves."""

import pytest

from gistgate.core.utils import UserError
from gistgate.demo.server import stream
from gistgate.measure.trace import trace
from tests.demo.playing import decoding_threads, playground

GROUND = playground()
TOKENIZER = GROUND.target.tokenizer
IDS = GROUND.target.encode("Tom has")


def test_the_steps_are_the_traced_answer():
    answer, tokens = trace(GROUND.decoder, IDS, TOKENIZER, max_new_tokens=30)
    steps = list(stream(GROUND.decoder, IDS, TOKENIZER, max_new_tokens=30))
    assert [token for step in steps for token in step.tokens] == tokens
    assert len(steps) == answer.statistics.forwards
    assert steps[-1].numbers["target forwards"] == str(answer.statistics.forwards)


def test_nothing_behind_a_stop_is_shown():
    """The last block is cut at its stop before its tokens are sent."""
    whole = TOKENIZER.decode(GROUND.decoder.generate([IDS], max_new_tokens=30)[0].ids)
    stop = next(character for character in whole[8:] if character.isascii() and character.isprintable())
    steps = list(stream(GROUND.decoder, IDS, TOKENIZER, max_new_tokens=30, stops=[stop]))
    text = "".join(token.text for step in steps for token in step.tokens)
    assert text == whole[: whole.index(stop) + 1]


def test_a_reader_who_leaves_ends_decoding():
    steps = stream(GROUND.decoder, IDS, TOKENIZER, max_new_tokens=400)
    next(steps)
    assert decoding_threads()
    steps.close()
    assert not decoding_threads()


def test_a_refused_request_reaches_the_reader():
    with pytest.raises(UserError, match="exceed the context"):
        list(stream(GROUND.decoder, IDS, TOKENIZER, max_new_tokens=4000))
