"""Two servers, one claim: what is certified, what is refused, and what survives a broken run."""

import asyncio
import json
import re
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from gistgate.certificates.bounds import BETTING, exact_bound
from gistgate.certificates.ledger import Ledger, Look, read_looks
from gistgate.certify.comparison import Comparison
from gistgate.cli.certify import Options
from gistgate.cli.main import app
from gistgate.cli.servers import compare, documents
from gistgate.cli.watch import watch
from gistgate.core.files import write_json_lines
from gistgate.core.utils import UserError
from gistgate.gate import Gate
from gistgate.lm_eval.task import load_task
from gistgate.tasks.prompt_file import PromptFile
from gistgate.tasks.prompts import hashes_of
from gistgate.tasks.task import TASKS, Prompting, TaskSpec
from tests.certify.scripted import Script, serving
from tests.cli.certifying import certifying, row


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Certify one script against another, with 80 documents."""
    return certifying(tmp_path, monkeypatch)


def test_the_bound_is_that_of_the_losses_and_gains(run):
    loose = Script(wrong=frozenset({3, 4}), rambling=frozenset({5}))
    made = run(Script(wrong=frozenset({4, 9})), loose)
    certificate, path = made
    found = row(made)
    assert (found.n, found.losses, found.gains, found.differing) == (80, 1, 1, 2)
    assert certificate.bound == found.bound == pytest.approx(exact_bound(1, 1, 80, 0.05))
    assert certificate.verdict == "PASS" and found.tested_at == found.confidence == 0.95
    assert (
        certificate.baseline["answers"]["capped"] == 0
        and certificate.candidate["answers"]["capped"] == 1 / 80
    )
    assert certificate.candidate["answers"]["tokens"] == 9 and certificate.candidate["answers"][
        "score"
    ] == pytest.approx(78 / 80)
    written = json.loads(path.read_text())
    asked = {"temperature": 0, "max_tokens": 12, "stop": ["\n", "Q:"], "samples": 1, "seed": 0}
    asked["concurrent"] = 8
    assert written["tasks"][0]["losses"] == 1 and written["scope"]["sampling"] == asked
    assert written["candidate"]["model"] == "adder" and written["candidate"]["reported"] == [
        "list adder",
        "model adder",
    ]
    page = path.with_suffix(".md").read_text()
    assert certificate.sentence.startswith("PASS budget 10.0 points: loss 0.0, at most")
    assert certificate.sentence in page and written["baseline"]["url"] in page


def test_a_loss_is_refused_and_the_file_says_so(run):
    certificate, path = run(Script(), Script(wrong=frozenset(range(40))))
    assert certificate.verdict == json.loads(path.read_text())["verdict"] == "FAIL"
    assert certificate.sentence.startswith("FAIL budget 10.0 points: loss ")


def test_dropped_connections_are_repeated_and_after_a_dead_server_nothing_is_asked_twice(
    run, capsys
):
    """Only with --resume, because a server may be another one when it is back."""
    run(Script(), Script(drops={7: 1}), concurrent=4)
    strict, dying = Script(), Script(drops={7: 99})
    with ExitStack() as servers:
        first, second = (servers.enter_context(serving(script)) for script in (strict, dying))
        options = Options(
            task="sums",
            strict=first,
            loose=second,
            budget=0.1,
            concurrent=1,
            stop="planned",
            prompts=80,
        )
        for tried in range(2):
            with pytest.raises(UserError, match="cannot be reached"):
                compare(options)
            done = len(dying.asked) // (tried + 1)
        assert (
            f"The answers to {done} prompts are kept" in capsys.readouterr().err
            and len(dying.asked) == 2 * done
        )
        dying.drops.clear()
        dying.asked.clear()
        proof, _ = compare(replace(options, resume=True))
    assert proof.verdict == "PASS" and proof.tasks[0]["n"] == 80 and len(dying.asked) == 80 - done
    assert len(list(Path(".gistgate").glob("answers*"))) == 3  # nothing was thrown away


@pytest.mark.parametrize(
    "loose, message",
    [
        (Script(statuses={7: 400}), "refused a request with status 400: .*no 7 today"),
        (Script(statuses={7: 407}), "status 407: .*A proxy of the environment wants a password"),
        (Script(reasons={7: "abort"}), "ended an answer with 'abort', so it is not whole"),
        (Script(says="other"), "asked for the model 'adder' and answered with 'other'"),
        (Script(says="/models/a.gguf"), "add --same-model /models/a.gguf"),
        (
            Script(model="other"),
            "serves: other. It does not serve 'adder'; if it does, add --same-model adder.",
        ),
    ],
)
def test_no_half_or_foreign_answer_is_scored(run, tmp_path, loose, message):
    with pytest.raises(UserError, match=message):
        run(Script(), loose, loose_model="adder")
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(
    "odd, names",
    [
        (
            Script(reasons={3: "eos_token", 4: "eos"}, says="/models/a.gguf", lists=False),
            ["/models/a.gguf"],
        ),
        (Script(model="a cache", says="adder@main"), ["adder"]),
        (Script(texts={n: f" It is so. #### {n + 1}\nQ: {n}" for n in range(80)}), []),
    ],
)
def test_servers_have_words_and_names_of_their_own(run, odd, names):
    """Other words for a stop, another name for the model or none, a list without it, and the stop
    left in the text.
    """
    certificate, _ = run(Script(says=""), odd, loose_model="adder", same_model=names)
    assert certificate.verdict == "PASS" and certificate.tasks[0]["differing"] == 0


def test_a_change_within_the_run_and_a_limit_of_the_server_are_said(run, capsys):
    certificate, _ = run(Script(renamed="multiplier"), Script(rambling=frozenset({3})))
    assert "reports list multiplier after list adder" in capsys.readouterr().err
    assert certificate.baseline["reported"] == ["list adder", "model adder", "list multiplier"]
    assert (
        certificate.baseline["answers"]["limited"] is None
        and certificate.candidate["answers"]["limited"] == 1 / 80
    )
    assert "capped 0.0125, limited 0.0125" in certificate.text


def test_samples_have_seeds_and_the_claim_is_about_their_mean(run):
    strict, loose = Script(), Script(wrong_seeds=True)
    certificate, path = run(strict, loose, temperature=0.5, samples=4, budget=0.7, stop="planned")
    asked = [
        sorted((body["prompt"], body["seed"]) for body in script.asked)
        for script in (strict, loose)
    ]
    assert asked[0] == asked[1] and len(set(asked[0])) == len({seed for _, seed in asked[0]}) == 320
    wrong = sum(seed % 2 for _, seed in asked[0])
    assert (
        certificate.loss == pytest.approx(wrong / 320)
        and 0.4 < certificate.loss < certificate.bound <= 0.7
    )
    assert [certificate.tasks[0][key] for key in ("n", "bound_kind")] == [80, BETTING]
    assert "over samples of their answers" in path.with_suffix(".md").read_text()


def test_a_chat_is_asked_with_messages_and_further_entries(run):
    strict, loose = Script(), Script()
    run(strict, loose, chat=True, system="Add.", num_fewshot=1, loose_body='{"top_k": 1}')
    roles = [message["role"] for message in loose.asked[0]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert loose.asked[0]["top_k"] == 1 and "top_k" not in strict.asked[0]
    assert {body["temperature"] for body in loose.asked} == {0.0}


NOTHING: dict[int, str | None] = dict.fromkeys(range(200), "We think about it step by step and")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (NOTHING, "has nothing to lose: its answers score 0.0%.*0 of 80 are empty"),
        (dict.fromkeys(NOTHING, ""), "has nothing to lose.*80 of 80 are empty"),
    ],
)
def test_a_server_whose_answers_hold_nothing_is_certified_against_nothing(run, texts, message):
    first, second = Script(texts=dict(texts)), Script(texts=dict(texts))
    with pytest.raises(UserError, match=message):
        run(first, second, chat=True, loose_body='{"top_k": 1}')


def test_a_password_reaches_its_server_and_no_file(run, tmp_path):
    strict, loose = Script(), Script()
    with serving(strict) as first, serving(loose) as second:
        addresses = [one.replace("http://", "http://me:s%65cret@") for one in (first, second)]
        both = {
            "strict": addresses[0],
            "loose": addresses[1] + "?key=secret",
            "strict_body": '{"api_key": "secret"}',
        }
        certificate, path = run(Script(), Script(), **both)
    assert certificate.verdict == "PASS" and strict.logins == {"Basic bWU6c2VjcmV0"}
    files = [one.read_text() for one in [*Path().rglob("*.json"), *path.parent.iterdir()]]
    assert files and not any("cret" in text for text in files)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"loose_body": "[1]"}, "is no JSON object"),
        ({"budget": 0.001}, "cannot certify a budget"),
        ({"confidence": 1.0}, "cannot be certified"),
        ({"loose": "http://HOST:PORT/v1"}, "address of a server is none"),
        ({"loose": "http://127.0.0.1:9/v1"}, "cannot be reached"),
        ({"loose": "ftp://127.0.0.1/v1"}, r"cannot be reached \(.*Begin the address with http"),
        ({"claim": "scores"}, "Did you mean 'score'"),
        ({"samples": 2}, "All greedy answers to a prompt are one"),
        ({"claim": "agreement", "temperature": 1.0}, "differ by chance"),
        ({"file": "prompts.jsonl"}, "a task .--task., or a file of your own prompts"),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence(run, changes, message):
    with pytest.raises(UserError, match=message):
        run(Script(), Script(), **changes)
    with (
        serving(Script()) as url,
        pytest.raises(UserError, match="the same server, model and request"),
    ):
        run(Script(), Script(), strict=url, loose=url.replace("127.0.0.1", "localhost"))


def test_prompts_are_judged_once_for_a_claim(run):
    with serving(Script()) as strict, serving(Script()) as loose:
        both = {"strict": strict, "loose": loose, "prompts": 40}
        run(Script(), Script(), **both)
        for changes in (
            {},
            {"stop": "planned"},
            {"chat": True},
        ):  # without a change the servers may be others
            with pytest.raises(UserError, match="already been judged.*--draw 2"):
                run(Script(), Script(), **both, **changes)
        certificate, _ = run(Script(), Script(), **both, stop="planned", draw=2)
        assert certificate.tasks[0]["n"] == 40
        with pytest.raises(UserError, match="too few for draw 3"):
            run(Script(), Script(), **both, draw=3)


def numbers(script: Script) -> list[int]:
    """The n of every n + 1 that a server was asked, in order."""
    return sorted(int(re.findall(r"(\d+) \+ 1", body["prompt"])[-1]) for body in script.asked)


def test_problems_of_a_pipeline_and_of_a_gate_are_not_asked(run, monkeypatch):
    """Of 80 documents a ledger knows 40, and a gate learned from 15 others."""
    task = load_task(TaskSpec("sums"), TASKS)
    marks = [hashes_of([task.problem(doc)]) for doc in task.documents("train")]
    ledger = Ledger()
    ledger.record(Look("claim", marks[:40], 0.05, 0.05, choice="of a pipeline"))
    asked = {"prompting": {"num_fewshot": 0}, "labels": {}}
    gate = SimpleNamespace(config=SimpleNamespace(problems=" ".join(marks[40:55]), **asked))
    monkeypatch.setattr(Gate, "load", lambda folder: gate)
    strict, loose = Script(), Script()
    assert row(run(strict, loose, gate="folder", budget=0.3)).n == 25
    assert numbers(strict) == numbers(loose) == [*range(55, 80)]
    options = Options(task="sums", strict="strict", loose="loose", prompts=80)
    assert len(documents(options, task, ledger.taken_marks(None), None).docs) == 40
    gate.config.problems = ""
    with pytest.warns(UserWarning, match="does not say which problems it was trained on"):
        assert len(documents(options, task, ledger.taken_marks(gate), None).docs) == 40


def test_servers_are_asked_as_the_gate_was_trained(run, monkeypatch):
    prompting = {"num_fewshot": 1, "chat_template": True, "system": "Add."}
    gate = SimpleNamespace(config=SimpleNamespace(problems="00", prompting=prompting, labels={}))
    monkeypatch.setattr(Gate, "load", lambda folder: gate)
    strict = Script()
    run(strict, Script(), gate="folder", budget=0.3)
    messages = strict.asked[0]["messages"]
    assert messages[0] == {"role": "system", "content": "Add."} and len(messages) == 4
    with pytest.raises(UserError, match="A system text and a template need a chat"):
        run(Script(), Script(), gate="folder", chat=False, system="Add.")


def test_prompts_of_a_finished_run_in_this_folder_are_not_asked(run, tmp_path):
    """Those of every split of the run; what lies there of another task does not matter."""
    for place, split in enumerate(("train", "development", "calibration", "guard", "test")):
        used = [
            {"doc": {"question": f"{number} + 1?"}} for number in range(11 * place, 11 * place + 11)
        ]
        write_json_lines(
            tmp_path / f"data/prompts/{split}.jsonl", [*used, {"doc": {"prompt": "Write f."}}]
        )
    strict, loose = Script(), Script()
    assert row(run(strict, loose, budget=0.3)).n == 25
    assert numbers(strict) == numbers(loose) == [*range(55, 80)]


def test_the_command_line_compares_servers(run, tmp_path, capsys):
    with serving(Script()) as strict, serving(Script(wrong=frozenset({3}))) as loose:
        given = [
            "--task",
            "sums",
            "--budget",
            "0.1",
            "--strict",
            strict,
            "--prompts",
            "80",
            "--loose",
            loose,
        ]
        answer = CliRunner().invoke(app, ["certify", *given, "--stop", "lost", "--json"])
        assert answer.exit_code == 0, answer.output
        shown = json.loads(answer.stdout)
        assert shown["certificate"]["tasks"][0]["losses"] == 1 and Path(shown["path"]).is_file()
    with serving(Script()) as strict, serving(Script(wrong=frozenset(range(80)))) as loose:
        refused = CliRunner().invoke(
            app, ["certify", *given[:4], "--strict", strict, "--loose", loose]
        )
        assert refused.exit_code == 1 and "FAIL budget 10.0 points" in refused.output


def test_ctrl_c_waits_for_nobody_and_counts_no_look(run, monkeypatch, capsys):
    """Behind the last step of a wait, too, where the loop of Python's own runner could not be
    closed any more.
    """
    wait, strict = Comparison.wait, Script(delays=dict.fromkeys(range(80), 1.0))
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # shells start background jobs without it

    async def interrupted(self, request):
        await wait(self, request)
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)

    monkeypatch.setattr(Comparison, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(strict, Script(), concurrent=2)
    assert len(strict.asked) < 10 and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert (
        read_looks(Ledger().local)[1] == []
        and "prompts answered by both in" in capsys.readouterr().err
    )


def test_a_pause_that_a_server_asks_for_is_made(run):
    assert row(run(Script(), Script(busy={7: 1}))).n == 80
    with pytest.raises(UserError, match="status 429.*--concurrent"):
        run(Script(), Script(statuses={7: 429}), draw=1, resume=True)


def test_it_ends_when_the_budget_is_proven_or_lost(run, capsys):
    assert row(run(Script(), Script(), stop="clear")).n == 54
    assert row(run(Script(), Script(wrong=frozenset(range(80))), stop="clear")).n == 10
    wrong = Script(wrong=frozenset(range(0, 80, 6)))
    lost = row(run(Script(), wrong, stop="clear", claim="agreement"))
    assert lost.verdict == "UNDECIDED" and lost.n < 80 and lost.losses < 9
    assert exact_bound(lost.losses, 0, 80, 0.025) > 0.1
    capsys.readouterr()
    run(
        Script(delays=dict.fromkeys(range(0, 80, 4), 1.0)), Script(), concurrent=40
    )  # more than ten, in any order
    assert re.search(
        r"(1[1-9]|[2-8]\d) of at most 80 prompts answered by both, \d+ a minute",
        capsys.readouterr().err,
    )


def own(path: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    write_json_lines(path, rows)
    return {"task": None, "file": str(path), "budget": 0.2}


def test_own_prompts_are_scored_by_their_answers_or_by_agreement(run, tmp_path):
    asked = own(
        tmp_path / "own.jsonl", [{"prompt": f"{n} + 1?", "answer": n + 1} for n in range(60)]
    )
    wrong = Script(wrong=frozenset({3}))
    assert row(run(Script(), wrong, **asked)).losses == 1 and len(wrong.asked) == 60
    chat = [{"messages": [{"role": "user", "content": f"{n} + 1?"}]} for n in range(60)]
    other = Script(wrong=frozenset({3}), says="")
    made = run(strict := Script(), other, **own(tmp_path / "chat.jsonl", chat))
    assert (row(made).claim, row(made).losses) == ("agreement", 1)
    assert made[0].baseline["answers"]["score"] is None
    assert strict.asked[0]["messages"] in [row["messages"] for row in chat]
    with pytest.raises(UserError, match="Take --claim agreement"):
        run(Script(), Script(), **own(tmp_path / "chat.jsonl", chat), claim="score")
    with pytest.raises(UserError, match="belong to a task"):
        run(Script(), Script(), **asked, num_fewshot=1)
    for rows, words in (
        ([{"query": "1 + 1?"}], "entry 1, cannot be used: it holds .'query'. and no prompt"),
        ([{"prompt": ""}], "its prompt is empty"),
        ([3], "its prompt is empty or no text"),
        ([{"messages": [{"role": "user"}]}], "its message is empty or no text"),
        ([], "There is no prompt"),
        ([{"prompt": "1?", "answer": 2}, {"prompt": "2?"}], "line 2, .* it has no answer"),
        ([{"prompt": "1?", "answer": ""}], "its answer is empty"),
        ([{"prompt": "1?", "answer": None}], "its answer is empty"),
        ([{"prompt": "1?", "answers": "Oslo"}], "its answers are no list"),
        ([{"prompt": "1?", "answers": {"text": ["2"]}}], "its answers are no list"),
        ([{"prompt": "1?", "answers": []}], "its answer is empty"),
        ([{"prompt": "1?", "answer": True}], "True is no text, .* take --scorer json"),
        ([{"prompt": "1?", "answer": [{"a": 1}, "a"]}], "'a': 1} is no text"),
        ([{"question": "Is it?", "context": "It is."}], "as context is not in the prompt"),
        ([{"question": "1?", "choices": {"text": ["one", "two"]}}], "as choices is not in"),
        ([{"prompt": "1?", "system": "Add."}], "a system text needs a chat"),
    ):
        with pytest.raises(UserError, match=words):
            run(Script(), Script(), **own(tmp_path / "bad.jsonl", rows))


def test_entries_bring_their_own_system_text_scorer_and_last_answer():
    """A file for fine-tuning ends with the assistant's answer, which is the reference."""
    turns = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "In Oslo."}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "Where?"}]}, turns[1]]
    rows = [
        {"prompt": "2?", "answer": ["2", "two"], "scorer": "exact", "system": "Add."},
        {"messages": parts},
    ]
    spec = TaskSpec("own", prompting=Prompting(chat_template=True))
    task = PromptFile([(f"line {at}", row) for at, row in enumerate(rows)], spec)
    first, second = task.docs
    assert task.metric == "scorer exact and f1" and task.judges
    assert task.messages(first)[0] == {"role": "system", "content": "Add."}
    assert [task.score(first, text) for text in ("Two", "it is 2")] == [1.0, 0.0]
    assert task.messages(second) == turns[:1] and task.score(second, "in Oslo") == 1.0
    with pytest.raises(UserError, match="half of a character"):
        PromptFile([("line 1", {"prompt": "\ud83d?"})], spec)


def test_lengths_may_grow_by_a_share_on_average(run):
    made = run(Script(tokens=6), Script(tokens=8), claim="length", budget=0.8, stop="clear")
    longer = row(made)
    assert longer.verdict == "PASS" and longer.loss == pytest.approx(1 / 3)
    assert 1 / 3 < longer.bound <= 0.8 and (longer.losses, longer.gains) == (longer.n, 0)
    assert made[0].sentence.startswith("PASS budget 80.0 %: growth 33.33, at most ")
    made = run(Script(tokens=6), Script(tokens=8), claim="length", budget=0.3)
    assert made[0].verdict != "PASS"
    with pytest.raises(UserError, match="has nothing to lose"):
        run(Script(), Script(), claim="length", budget=0.5)
    for tokens in (0, 13):  # unknown, or more than was asked for
        with pytest.raises(UserError, match="The servers say 9 and"):
            run(Script(), Script(tokens=tokens), claim="length")


LATE = frozenset(range(40, 80))
LONGER = {"claim": "length", "max_new_tokens": 12}


@pytest.mark.parametrize(
    ("loose", "changes", "line", "verdict"),
    [
        (
            Script(),
            {},
            r"test 1, 54 prompts, .*line 55: changed 0.00%, at most 9.86%; kept",
            "PASS",
        ),
        (Script(wrong=LATE), {"claim": "score"}, "test 1, 50 .*line 51: loss 20.00%, at", "FAIL"),
        (Script(tokens=12), LONGER, r"test 1, \d+ prompts, .*growth 33.33%", "FAIL"),
        (Script(), {"share": 0.5, "budget": 0.3}, "test 1, 16 prompts, .*line 28", "PASS"),
        (Script(), {"budget": 0.02}, "test 1, 80 prompts, .*line 81: .*; open", "UNDECIDED"),
    ],
)
def test_a_watch_tests_what_comes_until_the_budget_is_lost(
    run, tmp_path, capsys, loose, changes, line, verdict
):
    """The first line holds no prompt, which is said."""
    rows = [{"question": 1}, *({"prompt": f"{n} + 1?", "answer": n + 1} for n in range(80))]
    asked = own(tmp_path / "traffic.jsonl", rows)
    with serving(Script()) as first, serving(loose) as second:
        options = Options(strict=first, loose=second, **{**asked, "budget": 0.1, **changes})
        assert watch(options) == verdict
    said = capsys.readouterr()
    assert "It is left out." in said.err and re.search(line, said.out)
    with pytest.raises(UserError, match="--file FILE.jsonl or --file -"):
        watch(Options(strict="", loose=""))
