"""Prompts that hold their ids, as those of the pipeline do, are taken as they are: no second
template or <s>.
"""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gistgate.core.utils import UserError
from gistgate.gate import Gate
from gistgate.measure import speed as race
from gistgate.measure import tune as tuning
from gistgate.models.loading import Target, load_target
from gistgate.models.options import EncodedPrompt, PromptFile, is_rendered, read_prompts
from tests.certificates.proofs import point, proof_for

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}[/]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SYSTEM = "Be brief."
pytestmark = pytest.mark.filterwarnings(
    "error:.*chat template"
)  # it is in place, or the user was told of it


@pytest.fixture
def place(pair, tmp_path):
    """The pair with a chat template, and a gate that is certified for chats with a system text."""
    shutil.copytree(pair, tmp_path / "pair")
    tokenizer = load_target(str(pair / "target")).tokenizer
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path / "pair/target")
    gate = Gate.load(tmp_path / "pair/gate")
    prompting = {"num_fewshot": 0, "chat_template": True, "system": SYSTEM}
    made = proof_for(gate, point(0.03, settings={"risk": 1.0}))
    scope = {**made.scope, "guards": [], "temperature": 0.0, "prompting": prompting}
    replace(made, scope=scope).save(tmp_path / "pair/gate")
    return tmp_path / "pair"


@pytest.fixture
def target(place):
    return load_target(str(place / "target"))


def write(place: Path, target: Target, system: str | None = SYSTEM, **changes: Any) -> Path:
    """Four prompts as the stage `prompts` writes them."""
    texts = [target.rendered(text, system) for text in ("Tom has", "Anna gave", "It is", "One and")]
    rows = [{"context": text, "ids": encoded(target, text), **changes} for text in texts]
    (place / "development.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place / "development.jsonl"


def encoded(target: Target, text: str) -> list[int]:
    return list(target.tokenizer(text, add_special_tokens=False).input_ids)


def test_ids_are_taken_as_they_are(place, target):
    prompts = read_prompts(str(write(place, target)))
    wanted = [encoded(target, prompt.text) for prompt in prompts]
    for chat in (False, True):
        assert PromptFile(prompts, chat, SYSTEM).encode(target) == wanted
    assert [one[0] for one in wanted] == [1] * 4 and 1 not in [
        token for one in wanted for token in one[1:]
    ]


def test_what_holds_no_template_can_still_be_wrapped(target):
    plain = EncodedPrompt("Tom has", tuple(target.tokenizer("Tom has").input_ids))
    assert PromptFile([plain]).encode(target) == [list(plain.ids or ())]
    assert PromptFile([plain], True).encode(target) == [target.encode("Tom has", True)]
    assert not is_rendered(target, plain.text) and is_rendered(target, target.rendered("Tom has"))


def test_bench_wraps_prompts_as_the_other_commands_do(run, place, target, monkeypatch):
    timed: list[list[int]] = []
    monkeypatch.setattr(
        race, "side_by_side", lambda decoder, ids, **request: timed.extend(ids) or ({}, 0)
    )
    (place / "prompts.txt").write_text("Tom has\n")
    asked = ("bench", place / "target", place / "prompts.txt", "--draft", place / "draft", "--json")
    with pytest.warns(UserWarning, match="chat template"):
        assert run(*asked)[0] == 0
    assert run(*asked, "--chat", "--system", SYSTEM)[0] == 0
    assert timed == [
        list(target.tokenizer("Tom has").input_ids),
        target.encode("Tom has", True, SYSTEM),
    ]


@pytest.fixture
def tune(run, place, monkeypatch):
    """Call the command with made-up seconds; what is screened, and what was written to standard
    error.
    """

    def times_of(candidates: Any, prompts: Any, request: Any) -> dict[str, Any]:
        return {one.name: [1.0] * len(prompts) for one in candidates}

    def call(file: Path, *options: Any) -> tuple[int, str, str]:
        parts = ("--draft", place / "draft", "--gate", place / "gate", "--json")
        return run("tune", place / "target", file, *parts, *options)

    monkeypatch.setattr(tuning, "times_of", times_of)
    return call


def test_a_certificate_of_chats_takes_part_on_prompts_of_its_own_system_text(tune, place, target):
    status, out, err = tune(write(place, target))
    assert status == 0 and "left out" not in err
    assert any(name.startswith("autojudge") for name in json.loads(out)["screened"])
    for system in (None, "Take your time."):
        status, _, err = tune(write(place, target, system))
        assert status == 0 and "left out" in err and "the use of the chat template is" in err
        # The user's word counts: a template may write more than the texts, such as the date.
        assert "left out" not in tune(write(place, target, system), "--chat", "--system", SYSTEM)[2]


@pytest.mark.parametrize("command", ["doctor", "bench"])
def test_a_named_certificate_of_chats_covers_the_pairs_own_prompts(run, place, target, command):
    asked = (
        "--draft",
        place / "draft",
        "--max-new-tokens",
        24,
        "--gate",
        place / "gate",
        "--certificate",
    )
    status, _, err = run(command, place / "target", write(place, target), *asked, place / "gate")
    assert status == 0, err
    status, _, err = run(
        command, place / "target", write(place, target, None), *asked, place / "gate"
    )
    assert status == 1 and "the use of the chat template is" in err


LINES = '{"context": "Tom has 3"}\n\n  \n{"prompt": "Ann"}\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", '[\n "Tom has 3",\n {"question": "Ann"}\n]'),
        ("a.txt", '["Tom has 3", {"text": "Ann", "ids": []}]'),
        ("A.JSONL", LINES),
        ("a.ndjson", f"\ufeff{LINES}"),
        ("a", LINES.replace("\n", "\r\n")),
        ("a.jsonl", '"Tom has 3"\n{"turns": [{"prompt": "Ann", "answer": "1"}, "Bob"]}'),
        ("a.txt", "\ufeffTom has 3\r\n\r\n \nAnn"),
        ("a.csv", 'prompt,answer\n"Tom has 3",4\nAnn,\n'),
        ("a.tsv", "answer\tquestion\n4\tTom has 3\n\tAnn\n"),
        (
            "a.jsonl",
            '{"prompt": "Tom has 3", "context": "A"}\n{"question": "Ann", "system": "Add."}',
        ),
    ],
)
def test_a_list_of_prompts_is_known_by_what_it_holds(tmp_path, name, content, monkeypatch):
    (tmp_path / name).write_bytes(content.encode())
    assert [one.text for one in read_prompts(str(tmp_path / name))] == ["Tom has 3", "Ann"]
    if Path(name).suffix.lower() not in (".jsonl", ".csv", ".tsv"):
        monkeypatch.setattr("sys.stdin", io.StringIO(content.replace("\r", "")))
        assert [one.text for one in read_prompts("-")] == ["Tom has 3", "Ann"]


def test_messages_are_wrapped_by_the_template_and_their_last_answer_is_left_out(tmp_path, target):
    turns = [
        {"role": "user", "content": "Tom?"},
        {"role": "assistant", "content": "Has 3."},
        {"role": "user", "content": "Ann?"},
        {"role": "assistant", "content": "Has 4."},
    ]
    (tmp_path / "a.json").write_text(json.dumps([{"messages": turns}]))
    prompts = read_prompts(str(tmp_path / "a.json"))
    [ids] = PromptFile(prompts, system=SYSTEM).encode(target)
    text = f"<s>[system]{SYSTEM}[/][user]Tom?[/][assistant]Has 3.[/][user]Ann?[/][assistant]"
    assert ids == encoded(target, text)
    assert PromptFile(prompts).ask(None, target).chat is True


def test_texts_may_begin_with_brackets(tmp_path):
    lines = ["[INST] Tom [/INST]", "{name} has 3", '"Ann"']
    (tmp_path / "a.txt").write_text("\n".join(lines))
    assert [one.text for one in read_prompts(str(tmp_path / "a.txt"))] == lines


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "id,name\n1,Tom", "a.csv, line 2, holds no prompt"),
        ("a.yaml", "- Tom", "holds no prompt. Write a prompt per line, or as JSON"),
        ("a.jsonl", '{"messages": [{"role": "user"}]}', "messages do not end with a user's text"),
        ("a.jsonl", '{"messages": "Tom"}', "messages do not end with a user's text"),
        ("a.json", '{\n "prompts": ["Tom"]\n}', "entry 1, holds no prompt"),
        ("a.txt", '[\n "Tom",\n]', "is not valid JSON"),
        ("a.jsonl", '{"context": "Tom"}\n{"contxt": "Ann"}', "line 2, holds no prompt"),
        ("a.jsonl", '{"context": "Tom"}\nAnn', "line 2, is not valid JSON"),
        ("a.json", '[{"context": "Tom", "ids": ["3"]}]', "entry 1, holds no prompt"),
        ("a.json", '[["Tom"]]', "entry 1, holds no prompt"),
        ("a.jsonl", "\n \n", "holds no prompt"),
    ],
)
def test_what_is_no_list_of_prompts_is_refused_with_the_form(tmp_path, name, content, sentence):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=sentence):
        read_prompts(str(tmp_path / name))
