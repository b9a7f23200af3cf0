"""lm-eval drives our decoder: the same answers as ever when strict, and honest counters beside
them.
"""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from safetensors.torch import save_file

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.files import load_tensors
from gistgate.core.identity import identify_tokenizer
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.lm_eval.model import GatedLM, sampling
from gistgate.retrieval.corpus import CorpusDrafter
from gistgate.rules import make_rule
from tests.certificates.proofs import certificate, point
from tests.tiny import byte_tokenizer, save_pair, tiny_pair, write_task


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def pair():
    return tiny_pair()


def evaluate(model: Any, tasks: Path, **arguments: Any) -> Any:
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    return simple_evaluate(
        model=model,
        tasks=["sums"],
        task_manager=manager,
        log_samples=True,
        bootstrap_iters=0,
        **arguments,
    )


def answers(results: Any) -> list[str]:
    return [
        sample["resps"][0][0]
        for sample in results["samples"]["sums"]
        if sample["filter"] == "answer"
    ]


def gated(
    pair: Any,
    tokenizer: Any,
    rule: str = "exact",
    block: int = 4,
    batch_size: Any = 4,
    **settings: Any,
) -> GatedLM:
    target, draft = pair
    decoder = Decoder(
        target, ModelDrafter(draft), make_rule(rule, **settings), 4, tokenizer=tokenizer
    )
    return GatedLM(target, decoder=decoder, tokenizer=tokenizer, batch_size=batch_size)


@pytest.mark.parametrize("batch_size", [1, 4, "auto"])
def test_strict_answers_are_those_of_transformers(tmp_path, pair, tokenizer, batch_size):
    tasks = write_task(
        tmp_path, num_test=9, **{'"\\n", "Q:"': '"\\n", "e"'}
    )  # a stop that random text meets
    strict = gated(pair, tokenizer, batch_size=batch_size)

    theirs = HFLM(pair[0], tokenizer=tokenizer, batch_size=1)
    assert answers(evaluate(strict, tasks)) == answers(evaluate(theirs, tasks))
    assert strict.statistics.forwards < strict.statistics.tokens


def test_a_loose_rule_changes_answers_and_is_counted(tmp_path, pair, tokenizer):
    tasks = write_task(tmp_path, limit=40)
    strict, loose = gated(pair, tokenizer), gated(pair, tokenizer, "random", rate=1.0)
    results = evaluate(loose, tasks)
    assert answers(results) != answers(evaluate(strict, tasks))
    info = results["config"]["gistgate"]
    assert (info["rule"], info["settings"]["rate"]) == ("random", 1.0) and info["statistics"][
        "loose"
    ] > 0
    assert strict.statistics.loose == 0
    assert info["mean_accepted_length"] > strict.statistics.mean_accepted_length


def test_every_prompt_keeps_its_own_counters(tmp_path, pair, tokenizer):
    tasks, lm = write_task(tmp_path, num_test=5), gated(pair, tokenizer)
    for repeats in (1, 2):
        evaluate(lm, tasks, limit=3)
        assert len(lm.served) == 3
        found = lm.served[tuple(tokenizer.encode("Q: 1000 + 1?\nA:"))]
        assert len(found) == repeats and all(
            one.statistics.tokens == len(one.ids) <= 12 for one in found
        )


def test_another_target_than_the_decoders_is_refused(pair, tokenizer):
    decoder = Decoder(pair[0], None, make_rule("exact"))
    with pytest.raises(UserError, match="another target"):
        GatedLM(pair[1], decoder=decoder, tokenizer=tokenizer)


def test_sampling_wishes_become_ours_and_others_are_refused():
    assert sampling({"do_sample": False, "temperature": 0.0}) == Sampling()
    assert sampling({"do_sample": True, "temperature": 0.7, "top_p": 0.9}) == Sampling(0.7, 0, 0.9)
    assert sampling({"do_sample": True, "temperature": 0.0}) == Sampling()  # not a temperature of 1
    assert sampling({"do_sample": True, "temperature": None}) == Sampling(1.0)
    with pytest.raises(UserError, match="num_beams=4"):
        sampling({"num_beams": 4})


def test_sampled_answers_follow_the_prompt_not_the_batch(tmp_path, pair, tokenizer):
    tasks = write_task(
        tmp_path, num_test=4, **{"do_sample: false": "do_sample: true, temperature: 1.0"}
    )
    one, two = (
        answers(evaluate(gated(pair, tokenizer, batch_size=size), tasks)) for size in (1, 4)
    )
    assert one == two
    assert one != answers(evaluate(gated(pair, tokenizer), write_task(tmp_path, num_test=4)))


def saved(folder: Path, pair: Any, tokenizer: Any) -> dict[str, str]:
    save_pair(folder, *pair, tokenizer)
    return {
        "pretrained": str(folder / "target"),
        "draft": str(folder / "draft"),
        "device": "cpu",
        "dtype": "float32",
    }


@pytest.fixture(scope="module")
def names(tmp_path_factory, pair, tokenizer):
    """Arguments that load the pair from folders."""
    return saved(tmp_path_factory.mktemp("pair"), pair, tokenizer)


def test_names_are_enough_and_arguments_of_a_decoder_are_arguments_of_the_model(
    names, tmp_path, monkeypatch
):
    kept: list[torch.device] = []
    monkeypatch.setattr("gistgate.lm_eval.model.keep_freed_memory", kept.append)
    lm = GatedLM(**names, rule="fly", theta=0.5, window=2, block=5)
    assert (lm.decoder.block, lm.decoder.rule) == (5, make_rule("fly", theta=0.5, window=2))
    assert kept == [torch.device("cpu")]
    assert isinstance(lm.decoder.drafter, ModelDrafter)
    (tmp_path / "texts.txt").write_text("Q: 1000 + 1?\n")
    lm = GatedLM(**{**names, "draft": None}, drafter="corpus", corpus=str(tmp_path / "texts.txt"))
    assert isinstance(lm.decoder.drafter, CorpusDrafter)
    lm = GatedLM(**names, engine="compiled", guards="loop", speculate_up_to=2)
    assert (lm.decoder.engine.name, lm.decoder.speculate_up_to) == ("compiled", 2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rule": "fly", "thet": 0.5}, "could not be loaded .*unexpected.* 'thet'"),
        ({"pretrained": "", "pretraned": "x"}, "names no model .*pretraned"),
        ({"pretrained": "/no/where"}, "'/no/where' does not exist"),
    ],
)
def test_a_mistyped_argument_is_named(names, wrong, said):
    with pytest.raises(UserError, match=said):
        GatedLM(**{**names, **wrong})


@pytest.mark.parametrize("damage", ["lm_head.weight", None])
def test_weights_that_are_not_whole_are_refused(tmp_path, pair, tokenizer, damage):
    names = saved(tmp_path, pair, tokenizer)
    file = tmp_path / "target/model.safetensors"
    weights = load_tensors(file)
    if damage is None:
        weights["model.norm.weight"][0] = float("nan")
    else:
        del weights[damage]
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(
        UserError, match="is not finite" if damage is None else f"lack 1 weights, such as {damage}"
    ):
        GatedLM(**names)


ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_command_line_runs_and_fails_with_a_sentence(tmp_path, names):
    tasks, output = write_task(tmp_path, num_test=2), ("--output_path", str(tmp_path / "out"))

    def run_cli(more: str) -> Any:
        model = f"pretrained={names['pretrained']},draft={names['draft']},dtype=float32,{more}"
        command = [
            sys.executable,
            "-m",
            "gistgate.lm_eval",
            "run",
            "--model",
            "gistgate",
            "--model_args",
            model,
        ]
        command += [
            "--tasks",
            str(tasks / "sums.yaml"),
            "--batch_size",
            "2",
            "--device",
            "cpu",
            *output,
        ]
        env = {**os.environ, "TQDM_DISABLE": "1"}
        return subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )

    done = run_cli("rule=prob,r=0.05,block=3")
    assert done.returncode == 0, done.stderr
    (written,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(written.read_text())["config"]["gistgate"]["settings"] == {"r": 0.05}
    failed = run_cli("rule=probb")
    assert failed.returncode == 1
    assert (
        failed.stderr.strip()
        .splitlines()[-1]
        .startswith("There is no rule 'probb'. Did you mean 'prob'")
    )


@pytest.mark.parametrize(
    "arguments, heavy", [([], {"lm_eval", "numpy"}), (["eval", "run", "-h"], {"transformers"})]
)
def test_the_command_line_imports_no_heavy_library(arguments, heavy):
    code = (
        "import atexit, sys; from gistgate.cli.main import main; atexit.register(lambda:"
        " print(*sys.modules)); "
    )
    command = [sys.executable, "-c", code + "sys.argv[1:] and main()", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"datasets", "torch", *heavy} & {*done.stdout.splitlines()[-1].split()}


CHAT = {"chat_template": True, "system": None}


@pytest.fixture
def certified(tmp_path, names, tokenizer):
    """Makes a model that is bound to a certificate of plain prompts, but for what is changed."""

    def make(**changed):
        scope = {
            "prompting": {"chat_template": False, "system": None},
            "temperature": 0.0,
            "guards": [],
            **changed,
        }
        scope["tokenizer"] = identify_tokenizer(tokenizer).vocabulary
        certificate(point(settings={"r": 0.4}), rule="prob", knob="r", block=5, scope=scope).save(
            tmp_path
        )
        lm = GatedLM(**names, certificate=str(tmp_path), batch_size=4)
        lm.tokenizer.chat_template = (
            "{% for turn in messages %}chat: {{ turn['content'] }}{% endfor %}"
        )
        return lm

    return make


@pytest.mark.parametrize(
    "changed, chat, sentence",
    [
        ({}, False, None),
        ({"prompting": CHAT}, False, "the use of the chat template is"),
        ({"prompting": CHAT}, True, None),
        ({}, True, "the use of the chat template is"),
        ({"temperature": 1.0}, False, "the temperature is"),
        ({"stops": ["\n", "Q:"]}, False, None),
        ({"stops": ["Q:"]}, False, "answers end at the texts"),
    ],
)
def test_a_certificate_refuses_requests_that_it_does_not_cover(
    tmp_path, certified, changed, chat, sentence
):
    lm = certified(**changed)
    assert (lm.decoder.rule, lm.decoder.block) == (make_rule("prob", r=0.4), 5)
    with nullcontext() if sentence is None else pytest.raises(UserError, match=sentence):
        evaluate(lm, write_task(tmp_path), limit=2, apply_chat_template=chat)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(
    "asked, sentence",
    [
        ({}, None),
        ({"num_fewshot": 2}, "the solved examples are 2, but 0"),
        (
            {"num_fewshot": 2, "fewshot_as_multiturn": False},
            "the solved examples are 2",
        ),
        ({"system_instruction": "Be brief."}, "the system text is Be brief., but none"),
    ],
)
def test_solved_examples_and_a_system_text_are_part_of_what_is_certified(
    tmp_path, certified, chat, asked, sentence
):
    lm = certified(prompting={"num_fewshot": 0, "chat_template": chat, "system": None})
    with nullcontext() if sentence is None else pytest.raises(UserError, match=sentence):
        evaluate(lm, write_task(tmp_path), limit=2, apply_chat_template=chat, **asked)


def test_arguments_of_the_template_are_part_of_what_is_certified(tmp_path, certified):
    lm, tasks = (
        certified(prompting={**CHAT, "arguments": {"chat_template": "rag"}}),
        write_task(tmp_path),
    )
    lm.tokenizer.chat_template = {"rag": "{{ messages[0].content }}"}
    assert (
        lm.chat_template("rag") == "{{ messages[0].content }}"
    )  # as --apply_chat_template names it
    evaluate(lm, tasks, limit=2, apply_chat_template=True)
    lm.chat_template_args["enable_thinking"] = False
    with pytest.raises(UserError, match="enable_thinking"):
        evaluate(lm, tasks, limit=2, apply_chat_template=True)


def test_a_system_text_that_the_template_refuses_is_not_left_away(tmp_path, certified):
    lm = certified(prompting={"chat_template": True, "system": "Be brief."})
    lm.tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}a"
    )
    with pytest.raises(UserError, match="no system.*Leave --system away"):
        evaluate(
            lm,
            write_task(tmp_path),
            limit=2,
            apply_chat_template=True,
            system_instruction="Be brief.",
        )


def test_an_earlier_run_with_a_chat_template_covers_no_later_one_without(tmp_path, certified):
    lm, tasks = certified(prompting=CHAT), write_task(tmp_path)
    evaluate(lm, tasks, limit=2, apply_chat_template=True)
    with pytest.raises(UserError, match="the use of the chat template is"):
        evaluate(lm, tasks, limit=2, apply_chat_template=False)
