"""Mining and labelling against brute force: every prefix read again from scratch, one rollout at a
time.
"""

from math import inf
from types import SimpleNamespace

import pytest
import torch

from gistgate.core.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from pipeline.labels.labelling import Labeller, Meaning, Tools, is_intact
from pipeline.labels.mining import MismatchRecorder, collect_strict, stamped
from pipeline.labels.rollouts import Cost
from pipeline.labels.schema import (
    LABELS,
    MISMATCHES,
    TRIAL,
    AnswerText,
    Policy,
    checked,
    concatenated,
    num_rows,
    pack,
    picked,
    unpack,
)
from pipeline.stages.label import paired_labels
from tests.pipeline.parameters import block, parameters
from tests.tiny import tiny_pair

REQUEST = {"max_new_tokens": 24, "eos_ids": [2]}
PROMPTS = [[5, 9, 30, 44], [7, 7, 120], [11, 200, 3, 90, 17, 18]]


@pytest.fixture(scope="module")
def pair():
    return tiny_pair(noise=0.15)


def greedy(target, ids, room):
    """The target's own continuation, by transformers."""
    text = torch.tensor([ids])
    settings = {"do_sample": False, "max_new_tokens": room, "eos_token_id": 2, "pad_token_id": 0}
    return target.generate(text, attention_mask=torch.ones_like(text), **settings)[
        0, len(ids) :
    ].tolist()


def meaning(answer):
    """A stand-in for a task: what remains of an answer is its number of ids above 128, in
    threes.
    """
    return sum(token > 128 for token in answer) // 3


def same(answer, reference):
    return meaning(answer) == meaning(reference)


def forced(target, problem, prefix, token):
    """The whole answer after forcing one token."""
    head = [*prefix, token]
    return (
        head if token == 2 else [*head, *greedy(target, [*PROMPTS[problem], *head], 24 - len(head))]
    )


SUMS = SimpleNamespace(  # the stand-in: an answer is its own text, and none is given before its end
    text=lambda _tokenizer, ids: ids,
    same_meaning=lambda _doc, answer, reference: same(answer, reference),
    answer=lambda _doc, _text: "",
)


def tools_for(pair, references=None, **settings):
    target, draft = pair
    references = references or {
        problem: greedy(target, ids, 24) for problem, ids in enumerate(PROMPTS)
    }
    meaning = Meaning(SUMS, None, [{}] * len(PROMPTS), references)
    decoder = Decoder(target, ModelDrafter(draft), make_rule("exact"), 4)
    return Tools(decoder, meaning, parameters(label=settings), Cost(), **REQUEST)


def collected(tools, **settings):
    """What `collect` finds on all problems: the records, and the texts that they lie on."""
    params = parameters(collect={"strict_share": 1.0, **settings})
    prompts = [{"ids": ids} for ids in PROMPTS]
    records, texts = unpack(pack(*collect_strict(params, tools, prompts, range(len(PROMPTS)))))
    return checked(records, MISMATCHES, "what was mined"), texts


def listed(table):
    return {name: column.tolist() for name, column in table.items()}


@pytest.fixture(scope="module")
def mined(pair):
    return collected(tools_for(pair, batch_size=3, audit=0))


def rows(table, policy):
    """The records on texts of one policy, as plain numbers."""
    chosen = picked(table, table["policy"] == policy)
    return [
        SimpleNamespace(**dict(zip(chosen, row, strict=True)))
        for row in zip(*listed(chosen).values(), strict=True)
    ]


def test_every_greedy_label_is_what_brute_force_finds(pair, mined):
    """The walk keeps harmless tokens and leaves harmful ones."""
    table, texts = mined
    walked = rows(table, Policy.SEQUENTIAL)
    assert len(walked) >= 10
    for one in walked:
        text = texts[one.problem, Policy.SEQUENTIAL].ids
        answer = forced(pair[0], one.problem, text[: one.position], one.draft_id)
        assert one.greedy_kept == same(answer, texts[one.problem, Policy.STRICT].ids), one
        assert text[one.position] == (one.draft_id if one.greedy_kept else one.target_id)
    assert {one.greedy_kept for one in walked} == {0, 1}, (
        "the example should have harmless and harmful tokens"
    )


@pytest.mark.parametrize("batch_size", [8, 64])
@pytest.mark.parametrize("runner", ["plain", "speculative"])
def test_speculating_on_the_walk_changes_no_record(pair, mined, batch_size, runner):
    """Three rows let each of three walks take one mismatch after the other; 64 have room for more
    of each.
    """
    tools = tools_for(pair, batch_size=batch_size)
    tools.runner = tools.runner if runner == "plain" else tools.sampler
    table, texts = collected(tools)
    assert listed(table) == listed(mined[0]) and texts == mined[1]


def test_a_record_lies_on_the_text_that_it_was_met_in_though_the_reference_reads_otherwise(pair):
    """In bfloat16 a strict text that is decoded in another batch may part from its reference at a
    near tie.
    """
    references = {problem: greedy(pair[0], ids, 24)[::-1] for problem, ids in enumerate(PROMPTS)}
    table, texts = collected(tools_for(pair, references), recipe="text")
    found = rows(table, Policy.STRICT)
    assert all(
        texts[one.problem, Policy.STRICT].ids[one.position] == one.target_id for one in found
    )
    assert len(found) == num_rows(table) >= 10


def test_the_recipe_without_a_walk_takes_the_targets_own_texts_alone(pair, mined):
    """Three texts in 64 slots leave at least 61 of them empty."""
    tools = tools_for(pair, batch_size=64)
    table, texts = collected(tools, recipe="text")
    assert listed(table) == listed(picked(mined[0], mined[0]["policy"] == Policy.STRICT))
    assert {policy for _, policy in texts} == {Policy.STRICT}
    assert 0 < tools.cost.slots_used <= tools.cost.slots * 3 / 64


def labeller(pair, references, **settings):
    prompts = [{"ids": ids} for ids in PROMPTS]
    return Labeller(tools_for(pair, references, **settings), prompts, block("label", **settings), 1)


def test_labels_of_strict_texts_are_what_brute_force_finds(pair, mined):
    table, texts = mined
    references = {problem: texts[problem, Policy.STRICT].ids for problem in range(len(PROMPTS))}
    labelled = labeller(pair, references, rejoin=None, rollouts=2, batch_size=7).label(table, texts)
    checked(labelled, LABELS, "the labels")
    for one in rows(labelled, Policy.STRICT):
        reference = references[one.problem]
        answer = forced(pair[0], one.problem, reference[: one.position], one.draft_id)
        assert one.greedy_kept == same(answer, reference)
    kept, first = labelled["kept"], labelled["greedy_kept"].bool()
    assert bool((kept[first] == 1).all()) and bool((kept[~first] <= 0.5).all())
    assert labelled["rollouts"].tolist() == [1 if fine else 2 for fine in first.tolist()]


def test_a_gated_text_that_has_lost_its_meaning_gives_no_more_labels(pair):
    """Brute force: the target goes on from the prefix itself; where that no longer keeps the
    meaning, drop.
    """
    target, draft = pair
    recorder = MismatchRecorder(4)
    decoder = Decoder(
        target, ModelDrafter(draft), make_rule("random", rate=0.7), 4, observer=recorder
    )
    answers = decoder.generate(PROMPTS, seeds=[3, 4, 5], **REQUEST)
    tables = [
        stamped(table, problem, Policy.GATED)
        for problem, table in enumerate(recorder.take(answers))
        if table
    ]
    texts = {
        (n, Policy.GATED): AnswerText(n, Policy.GATED, answer.ids)
        for n, answer in enumerate(answers)
    }
    references = {problem: greedy(target, ids, 24) for problem, ids in enumerate(PROMPTS)}
    maker = labeller(pair, references, rejoin=None, rollouts=1)
    table = concatenated(tables)
    greedy_kept, expected = maker.greedy_kept(table, texts), []
    for one in rows(
        {name: table[name] for name in ("problem", "policy", "position")}, Policy.GATED
    ):
        prefix = texts[one.problem, Policy.GATED].ids[: one.position]
        answer = [*prefix, *greedy(target, [*PROMPTS[one.problem], *prefix], 24 - len(prefix))]
        expected.append(same(answer, references[one.problem]))
    assert is_intact(table, greedy_kept).tolist() == expected
    labels = num_rows(maker.label(table, texts))
    assert (
        maker.tools.cost.labels == labels == sum(expected)
    )  # others cost rollouts, and are no labels
    assert 0 < sum(expected) < len(expected), (
        "the example should have texts that lose their meaning"
    )


@pytest.mark.parametrize("rejoin", [None, 3])
def test_pairs_compare_the_answers_behind_both_tokens(pair, rejoin):
    """On the target's own texts and on loose ones; a rollout that comes back to the other's words
    ends as that does.
    """
    tools, few = tools_for(pair), [{"ids": ids} for ids in PROMPTS]
    records, texts = unpack(
        pack(*collect_strict(parameters(collect={"recipe": "text"}), tools, few, range(3)))
    )
    recorder = MismatchRecorder(4)
    decoder = Decoder(
        pair[0], ModelDrafter(pair[1]), make_rule("random", rate=0.7), 4, observer=recorder
    )
    answers = decoder.generate(PROMPTS, seeds=[3, 4, 5], **REQUEST)
    loose = [
        stamped(table, problem, Policy.GATED)
        for problem, table in enumerate(recorder.take(answers))
        if table
    ]
    texts |= {
        (n, Policy.GATED): AnswerText(n, Policy.GATED, answer.ids)
        for n, answer in enumerate(answers)
    }
    labeller, seen, back = Labeller(tools, few, block("label", rejoin=rejoin), 1), set(), 0
    labeller.tools.meaning.longest = longest = 0.9 if rejoin else inf
    records = concatenated([records, *loose])
    labels = checked(
        paired_labels(labeller, lambda _, ids: sum(ids) / 1000, records, texts),
        LABELS,
        "the labels",
    )
    trial = dict(zip(TRIAL, labels["trial"].T.tolist(), strict=True))
    for n, one in enumerate([*rows(records, Policy.STRICT), *rows(records, Policy.GATED)]):
        text = texts[one.problem, records["policy"][n].item()].ids
        other, answer = (
            forced(pair[0], one.problem, text[: one.position], x)
            for x in (one.target_id, one.draft_id)
        )
        grams, known = (
            [tuple(ids[at : at + 3]) for at in range(len(ids) - 2)] for ids in (answer, other)
        )
        place = next((at for at in range(one.position + 1, len(grams)) if grams[at] in known), None)
        if rejoin and place is not None:
            back += 1
            answer = [*answer[:place], *other[known.index(grams[place]) :]]
        loss, longer = (sum(other) - sum(answer)) / 1000, len(answer) > longest * len(other)
        new = answer[one.position + 1 :]
        carried = max(n for n in range(len(new) + 1) if new[:n] == [*one.behind][:n])
        assert trial["loss"][n] == pytest.approx(loss, abs=1e-5)
        assert trial["saved"][n] == 1 + carried - (len(answer) - len(other))
        assert labels["kept"][n] == float(loss <= 0 and not longer)
        seen |= {("longer", longer), ("lost", loss > 0), ("carried", carried > 0)}
    assert len(seen) == (6 if rejoin else 5) and bool(back) == bool(rejoin)
