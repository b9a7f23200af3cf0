"""Answers of vLLM as stages take them, with a stand-in for vLLM that decodes with a tiny model."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gistgate.core.decoder import Decoder
from gistgate.core.rule import Exact
from gistgate.core.utils import UserError
from gistgate.coverage.choose import Choice
from pipeline.engine import check_source
from pipeline.pair.pair import DraftSource, ModelSource, Pair, PairSource
from pipeline.served import VllmServer, answering_decoder, statistics
from tests.pipeline.parameters import parameters
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

TOKENIZER = byte_tokenizer()
TARGET, DRAFT = tiny_pair()
PROMPTS = [[1, 40, 50], [1, 60, 61, 62], [1, 90]]
STRICT = Choice("exact", {}, 4, "model")
OPEN = Choice("prob", {"r": 0.001}, 4, "model")


class Vllm:
    """Writes the target's own tokens, four more than a stop asks for, as a cut round does."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.settings = [arguments["additional_config"].get("gistgate")]
        self.limit = 10**6  # tokens of a text, prompt included
        self.written: list[int] = []

    def generate(self, requests: list[Any], params: Any, use_tqdm: bool) -> list[Any]:
        self.written = []
        outputs = []
        for number, request in enumerate(requests):
            prompt = request["prompt_token_ids"]
            num = min(params.max_tokens, self.limit - len(prompt))
            decoder = Decoder(TARGET, None, Exact(), tokenizer=TOKENIZER)
            ends = {"eos_ids": params.stop_token_ids, "max_new_tokens": num}
            (whole,) = decoder.generate([prompt], **ends)
            (cut,) = decoder.generate([prompt], **ends, stops=params.stop)
            ids = whole.ids[: len(cut.ids) + 4]
            reason = "length" if cut.finish == "length" else "stop"
            reply = SimpleNamespace(token_ids=ids, finish_reason=reason)
            outputs.append(SimpleNamespace(outputs=[reply], request_id=str(number)))
            self.written.append(len(ids))
        return outputs

    def collective_rpc(self, name: str, args: tuple[Any, ...] = ()) -> list[Any]:
        if name == "gistgate_judge_by":
            self.settings.append(args[0])
            return [None]
        counts = {}
        for number, written in enumerate(self.written):
            accepted = (written - 1) // 2
            counts[f"{number}-0a1b2c3d"] = {
                "blocks": written - 1 - accepted,
                "accepted": accepted,
                "drafted": 2 * accepted,
                "loose": 1,
                "carried": 0,
            }
        return [{"requests": counts, "totals": {}}]


@pytest.fixture
def pair(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The tiny pair with a server whose vLLM is the stand-in."""
    save_pair(tmp_path, TARGET, DRAFT, TOKENIZER)
    target = ModelSource(str(tmp_path / "target"), dtype="float32")
    draft = DraftSource(model=str(tmp_path / "draft"), dtype="float32")
    stand_in = SimpleNamespace(LLM=Vllm, SamplingParams=SimpleNamespace, __version__="0.32.0")
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    arguments = {"speculative_config": {"draft_tensor_parallel_size": 1}}
    params = parameters(engine={"answers": "vllm", "arguments": arguments})
    server = VllmServer(PairSource(target, draft), params)
    return Pair(TARGET, DRAFT, TOKENIZER, "tiny", server=server)


def test_answers_end_as_the_librarys_do_and_settings_change_between_them(pair: Pair) -> None:
    plain = Decoder(TARGET, None, Exact(), tokenizer=TOKENIZER).generate(
        PROMPTS, max_new_tokens=40, eos_ids=()
    )
    request = {
        "max_new_tokens": 40,
        "eos_ids": [258],
        "stops": [TOKENIZER.decode(plain[1].ids[9:12])],
    }
    own = Decoder(TARGET, None, Exact(), tokenizer=TOKENIZER).generate(PROMPTS, **request)
    done = list[int]()
    for choice in (STRICT, OPEN, OPEN):
        answers = answering_decoder(pair, choice, None).answers(PROMPTS, done.append, **request)
        assert [answer.ids for answer in answers] == [answer.ids for answer in own]
        assert [answer.finish for answer in answers] == [answer.finish for answer in own]
        assert all(answer.statistics.tokens == len(answer.ids) for answer in answers)
        assert all(answer.statistics.forwards < len(answer.ids) for answer in answers)
    assert "stop" in {answer.finish for answer in own}
    assert done == [3, 3, 3]
    llm = pair.server.llm
    assert [setting["settings"] for setting in llm.settings] == [{"r": 1.0}, {"r": 0.001}]
    assert pair.server.scope["engine"] == "vllm 0.32.0"
    assert llm.arguments["speculative_config"]["num_speculative_tokens"] == 4
    assert llm.arguments["speculative_config"]["draft_tensor_parallel_size"] == 1


def test_an_answer_that_fills_the_context_is_refused(pair: Pair) -> None:
    decoder = answering_decoder(pair, replace(STRICT, drafter="none"), None)
    request = {"max_new_tokens": 40, "eos_ids": [], "stops": []}
    decoder.answers(PROMPTS, print, **request)
    pair.server.llm.limit = 20
    with pytest.raises(UserError, match=r"after 17 of 40 tokens.*Raise max_model_len"):
        decoder.answers(PROMPTS, print, **request)


def test_what_the_plug_in_cannot_judge_and_what_vllm_is_not_given_is_refused(pair: Pair) -> None:
    window = Choice("fly", {"theta": 0.3, "window": 6}, 4, "model")
    with pytest.raises(UserError, match="a window of 6 does not fit into 4 drafted tokens"):
        answering_decoder(pair, window, None)
    packed = ModelSource("some/model", quantise="int4")
    with pytest.raises(UserError, match="draft some/model is int4, which vLLM is not given"):
        check_source("draft", packed)
    trained = DraftSource(of="target", layers=1, vocabulary=256)
    with pytest.raises(UserError, match="the pair's draft has a vocabulary. Remove it"):
        VllmServer(PairSource(ModelSource("some/model"), trained), parameters())


def test_a_server_that_does_not_start_is_one_sentence(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("Engine core initialization failed. See root cause above.\nmore")

    monkeypatch.setattr(sys.modules["vllm"], "LLM", fail)
    with pytest.raises(UserError, match=r"did not start \(.*root cause above.*engine.arguments"):
        answering_decoder(pair, STRICT, None).answers(
            PROMPTS, print, max_new_tokens=4, eos_ids=[], stops=[]
        )


def test_every_token_of_an_answer_is_counted_once() -> None:
    """Two rounds behind the first token wrote 5 + 3 tokens, of which the end takes 7."""
    counts = {"blocks": 2, "accepted": 6, "drafted": 8, "loose": 2, "carried": 1}
    counted = statistics(8, counts)
    assert (counted.forwards, counted.tokens, counted.loose, counted.carried) == (3, 8, 2, 1)
    assert statistics(5, None).forwards == 5
    # Two tokens of rounds in which nothing was drafted.
    assert statistics(11, counts).forwards == 5
