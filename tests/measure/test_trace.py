"""Tokens of an answer with the reason why each is there."""

import pytest

from gistgate import Decoder, ModelDrafter, make_rule
from gistgate.measure.trace import trace
from tests.tiny import byte_tokenizer, tiny_pair

TOKENIZER = byte_tokenizer()
TARGET, DRAFT = tiny_pair(noise=0.3)
RULE = make_rule("prob", r=0.002)
DECODER = Decoder(TARGET, ModelDrafter(DRAFT), RULE, 4, tokenizer=TOKENIZER)
IDS = TOKENIZER.encode("Tom has")


@pytest.mark.parametrize("is_strict", [False, True])
def test_the_tokens_are_the_answer_and_the_decoder_stays_as_it_was(is_strict):
    decoder = DECODER.strict() if is_strict else DECODER
    answer, tokens = trace(decoder, IDS, TOKENIZER, max_new_tokens=24)
    plain = decoder.generate([IDS], max_new_tokens=24)[0]
    assert answer.ids == plain.ids and len(tokens) == 24
    text = "".join(token.text for token in tokens)
    assert text == TOKENIZER.decode(plain.ids).rstrip("\ufffd")
    loose = sum(token.reason == "loose" for token in tokens)
    assert loose == answer.statistics.loose and (loose == 0) == is_strict
    assert not decoder.parts.observers


def test_nothing_behind_a_stop_is_shown():
    """The last block is cut at its stop."""
    whole = TOKENIZER.decode(DECODER.generate([IDS], max_new_tokens=30)[0].ids)
    stop = next(sign for sign in whole[8:] if sign.isascii() and sign.isprintable())
    _, tokens = trace(DECODER, IDS, TOKENIZER, max_new_tokens=30, stops=[stop])
    assert "".join(token.text for token in tokens) == whole[: whole.index(stop) + 1]
