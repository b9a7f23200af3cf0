"""A recorded answer and its strict counterpart on a tiny pair."""

import pytest

from gistgate import Decoder, ModelDrafter, make_rule
from gistgate.demo.page import record, strict_run
from tests.tiny import byte_tokenizer, tiny_pair


@pytest.fixture(scope="module")
def decoder():
    target, draft = tiny_pair(noise=0.3)
    return Decoder(target, ModelDrafter(draft), make_rule("prob", r=0.001), 4, tokenizer=byte_tokenizer())


def test_the_strict_run_is_what_a_strict_decoder_writes(decoder):
    tokenizer = decoder.tokenizer
    ids = tokenizer("Tom has").input_ids
    strict = Decoder(decoder.target, decoder.drafter, make_rule("exact"), 4, tokenizer=tokenizer)
    answer = strict.generate([ids], max_new_tokens=24)[0]
    run = strict_run(decoder, ids, tokenizer, max_new_tokens=24)
    assert "".join(token.text for token in run.tokens) == tokenizer.decode(answer.ids).rstrip("\ufffd")
    assert run.statistics.loose == 0 and run.name == "strict"


def test_recording_leaves_the_decoder_as_it_was(decoder):
    ids = decoder.tokenizer("Tom has").input_ids
    strict_run(decoder, ids, decoder.tokenizer, max_new_tokens=8)
    run = record(decoder, ids, decoder.tokenizer, max_new_tokens=24)
    assert run.name == "prob, r 0.001" and run.statistics.loose > 0 and decoder.parts.observer is None
