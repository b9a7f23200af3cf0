"""The task is the only authority on contexts, stops and meaning; nothing here knows any particular
task.
"""

import os
from pathlib import Path
from typing import Any

import pytest

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from gistgate.core.utils import UserError
from gistgate.lm_eval.files import entry_of
from gistgate.lm_eval.task import HarnessTask, load_task
from gistgate.models.tokenizers import encode
from gistgate.tasks.task import TaskSpec
from pipeline.params import Params
from pipeline.task import task_spec
from tests.pipeline.parameters import parameters
from tests.tiny import byte_tokenizer, tiny_pair, write_rows, write_task

CHAT = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
)


def params(**blocks: Any) -> Params:
    return parameters(task="sums", **blocks)


def load(folder: Path, **blocks: Any) -> HarnessTask:
    return load_task(task_spec(params(**blocks)), folder / "tasks")


@pytest.fixture
def task(tmp_path):
    write_task(tmp_path)
    return load(tmp_path)


def test_documents_stops_and_limits_come_from_the_task_else_from_params(task, tmp_path):
    assert (
        len(task.documents("train")) == 30 and task.documents("test")[0]["question"] == "1000 + 1?"
    )
    assert (task.stops, task.max_new_tokens, task.metric) == (
        ["\n", "Q:"],
        12,
        "exact_match,answer",
    )
    write_task(tmp_path, limit=None)
    assert load(tmp_path, decoding={"max_new_tokens": 33}).max_new_tokens == 33


@pytest.mark.parametrize(
    "text, reference, same",
    [
        ("#### 7", "so #### 7", True),  # the wording does not matter
        ("#### 1,000", "#### 1000", True),  # nor what the metric ignores
        ("#### 8", "#### 9", False),  # two wrong answers are two answers
        ("no answer", "#### 7", False),
        ("#### 7", "no answer", None),  # nothing is known about a reference without an answer
        ("no answer", "none either", None),
        ("same words", "same words", None),
    ],
)
def test_same_meaning(task, text, reference, same):
    assert task.same_meaning(task.documents("train")[0], text, reference) is same


def test_score_is_the_tasks_own(task):
    doc = task.documents("train")[4]  # 4 + 1
    assert [task.score(doc, text) for text in ("#### 5", "5", "#### 6", "")] == [1.0, 0.0, 0.0, 0.0]


def test_params_may_name_another_filter(tmp_path):
    write_task(tmp_path)
    loose = load(tmp_path, task_metric="exact_match,loose")
    assert loose.score(loose.documents("train")[4], "I say 5") == 1.0
    assert loose.same_meaning(loose.documents("train")[4], "5", "first 4, then 5") is True
    with pytest.raises(UserError, match="exact_match,loose"):
        load(tmp_path, task_metric="acc")


def test_a_scoring_function_of_the_task_decides_where_there_is_one(tmp_path):
    folder = write_task(
        tmp_path, **{"metric_list:": "process_results: !function judge.judge\nmetric_list:"}
    )
    (folder / "judge.py").write_text(
        "def judge(doc, results):\n    return {'exact_match': float(doc['answer'][-1] in"
        " results[0])}\n"
    )
    own = load(tmp_path, task_metric="exact_match,loose")
    doc = own.documents("train")[4]
    assert own.score(doc, "15") == 1.0
    assert own.same_meaning(doc, "15", "25") is True
    assert own.same_meaning(doc, "14", "25") is False
    assert own.same_meaning(doc, "14", "24") is None
    assert own.same_meaning(doc, "15", "24") is True  # a better score is no harm


def test_text_is_decoded_and_cut_as_the_harness_does(task):
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(" 12\nQ: more", add_special_tokens=False)
    assert task.text(tokenizer, [*ids, 2, 0]) == " 12"


def test_few_shot_examples_never_show_the_document_itself(tmp_path):
    write_task(tmp_path, num_train=5)
    few = load(tmp_path, prompting={"num_fewshot": 4})
    for doc in few.documents("train"):
        context = few.context(doc, byte_tokenizer())
        assert context.count("Q: ") == 5
        assert context.count(f"Q: {doc['question']}") == 1
        assert context.endswith(f"Q: {doc['question']}\nA:")
    few = load(tmp_path, prompting={"num_fewshot": 5})  # of another split all may be examples
    assert few.context(few.documents("test")[0], byte_tokenizer()).count("Q: ") == 6
    with pytest.raises(UserError, match="too few documents to show 5 others"):
        few.context(few.documents("train")[0], byte_tokenizer())


def test_a_context_depends_on_its_document_alone(tmp_path):
    write_task(tmp_path)
    few = load(tmp_path, prompting={"num_fewshot": 2})
    docs = few.documents("train")[:5]
    forth = [few.context(doc, byte_tokenizer()) for doc in docs]
    back = [few.context(doc, byte_tokenizer()) for doc in reversed(docs)]
    assert forth == back[::-1]
    assert len({context.split("Q: ")[1] for context in forth}) > 1


BRIEF = {"num_fewshot": 2, "system": "Be brief."}


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize(
    "prompting", [{}, {"num_fewshot": 3}, BRIEF, {**BRIEF, "chat_template": True}]
)
def test_our_test_prompts_are_the_ids_that_the_harness_serves(tmp_path, prompting, bos):
    write_task(tmp_path)
    tokenizer = byte_tokenizer(bos)
    tokenizer.chat_template = CHAT
    served: list[list[int]] = []

    class Spy(HFLM):
        def _model_generate(
            self, context: Any, max_length: int, stop: list[str], **kwargs: Any
        ) -> Any:
            mask = kwargs["attention_mask"].bool()
            served.extend(row[keep].tolist() for row, keep in zip(context, mask, strict=True))
            return context

    target, _ = tiny_pair(context=1024)
    task = load(tmp_path, prompting=prompting)
    contexts = task.test_contexts(5, tokenizer)
    ours = [encode(tokenizer, context) for context in contexts]
    simple_evaluate(
        model=Spy(target, tokenizer=tokenizer, batch_size=2, device="cpu"),
        tasks=[load(tmp_path, prompting=prompting).harness],
        task_manager=TaskManager(include_defaults=False),
        limit=5,
        bootstrap_iters=0,
        **task.evaluation_arguments(),
    )
    assert sorted(served) == sorted(ours)
    assert all(
        ids.count(tokenizer.bos_token_id) == (bos or "chat_template" in prompting) for ids in ours
    )


def test_documents_may_come_from_a_folder(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_task(tmp_path)
    write_rows(elsewhere / "train.jsonl", [{"question": "other?", "answer": "#### 1"}])
    with pytest.raises(UserError, match=r"test\.jsonl is missing"):
        load(tmp_path, task_data=str(elsewhere))
    write_rows(elsewhere / "test.jsonl", [{"question": "another?", "answer": "#### 1"}])
    moved = load(tmp_path, task_data=str(elsewhere))
    assert [doc["question"] for doc in moved.documents("train")] == ["other?"]


def test_the_file_of_a_task_is_no_name(tmp_path):
    file = write_task(tmp_path) / "sums.yaml"
    for folder, remedy in (
        (tmp_path / "other", "copy the file to .*other and write"),
        (file.parent, "write"),
    ):
        with pytest.raises(UserError, match=f"without folder and ending: {remedy} 'sums'"):
            entry_of(str(file), folder)


@pytest.mark.parametrize(
    "old, new, sentence",
    [
        ("training_split: train\n", "", "no training split"),
        (
            "output_type: generate_until",
            "output_type: loglikelihood",
            "not an ordinary `generate_until` task",
        ),
        ("higher_is_better: true", "higher_is_better: false", "less is better"),
        ("/test.jsonl", "/none.jsonl", "could not be loaded"),
        ("exact_match, aggregation: mean", "chrf, aggregation: chrf", "not a number from 0 to 1"),
    ],
)
def test_tasks_that_cannot_train_a_gate_are_refused(tmp_path, old, new, sentence):
    write_task(tmp_path, **{old: new})
    with pytest.raises(UserError, match=sentence):
        load(tmp_path).score({"question": "0 + 1?", "answer": "#### 1"}, "#### 1")


@pytest.mark.parametrize(
    ("questions", "problems"),
    [
        (
            [
                "Close the brackets: [ { (",
                "Close the brackets: [ ( {",
                "Close  the brackets: [ { (",
            ],
            2,
        ),
        (["not True and ( False )", "not ( True and False )", "(not True) and False"], 3),
        ([f"{a} {sign} {b} = " for a in range(9) for b in range(12) for sign in "+-"], 216),
        ([f"Count the capitals: {word}" for word in ("aB", "Ab", "ab", "AB")], 4),
        (["Tom has 3 apples.", "TOM has 3 apples!", "Tom has 4 apples."], 2),
    ],
)
def test_problems_differ_in_words_or_in_the_signs_that_tell_a_tasks_documents_apart(
    tmp_path, questions, problems
):
    words = [f"Ann has {number} pears." for number in range(40)] if "Tom" in questions[0] else []
    write_task(tmp_path)
    write_rows(
        tmp_path / "train.jsonl",
        [{"question": one, "answer": "#### 1"} for one in [*questions, *words]],
    )
    task = load(tmp_path)
    assert len({task.problem(doc) for doc in task.documents("train")[: len(questions)]}) == problems


@pytest.mark.parametrize(
    ("split", "field"), [("train", "question"), ("train", "answer"), ("test", "answer")]
)
def test_a_document_that_lacks_what_its_prompt_or_reference_needs_is_named(tmp_path, split, field):
    write_task(tmp_path)
    more = {"note": None} if split == "train" else {}  # which nothing needs
    rows = [{"question": f"{n} + 1?", "answer": f"#### {n + 1}", **more} for n in range(3)]
    write_rows(tmp_path / f"{split}.jsonl", [rows[0], {**rows[1], field: None}, rows[2]])
    with pytest.raises(
        UserError, match=f"Document 1 of the {split} split of 'sums' lacks .*: {field}"
    ):
        load(tmp_path).documents(split)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ('{"question": "1", "answer": ', "train.jsonl, line 2, is not valid JSON"),
        ('"a text"', "train.jsonl, line 2, is no object"),
    ],
)
def test_a_broken_line_of_documents_is_named(tmp_path, line, cause):
    folder = write_task(tmp_path)
    lines = (tmp_path / "train.jsonl").read_text().splitlines()
    (tmp_path / "train.jsonl").write_text("\n".join([lines[0], line, *lines[2:]]))
    with pytest.raises(UserError, match=cause):
        load_task(TaskSpec("sums"), folder)
