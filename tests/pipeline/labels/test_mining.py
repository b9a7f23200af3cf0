"""Mining and labelling against brute force: every prefix read again from scratch, one rollout at a
time.
"""

from dataclasses import replace
from math import inf
from types import SimpleNamespace

import pytest
import torch

from gistgate.core.decoder import Decoder
from gistgate.core.request import Slots
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from pipeline.labels.labelling import Labeller, Tools, is_intact
from pipeline.labels.mining import collect_strict, written
from pipeline.labels.rollouts import Cost
from pipeline.labels.schema import (
    LABELS,
    MISMATCHES,
    TRIAL,
    Policy,
    checked,
    concatenated,
    num_rows,
    pack,
    picked,
    plain_rows,
    unpack,
)
from pipeline.labels.verdicts import Meaning
from tests.pipeline.parameters import block, parameters
from tests.tiny import tiny_pair

ROOM = 24
REQUEST = {"max_new_tokens": ROOM, "eos_ids": [2]}
PROMPTS = [[5, 9, 30, 44], [7, 7, 120], [11, 200, 3, 90, 17, 18]]
PROBLEMS = range(len(PROMPTS))
ROWS = [{"ids": ids} for ids in PROMPTS]  # as the stage `prompts` writes them


@pytest.fixture(scope="module")
def pair():
    return tiny_pair(noise=0.15)


def greedy(pair, problem, answer):
    """The whole answer that the target gives behind a beginning, by transformers."""
    room = ROOM - len(answer)
    if room <= 0 or answer[-1:] == [2]:
        return answer
    prompt = PROMPTS[problem]
    text = torch.tensor([prompt + answer])
    settings = {"do_sample": False, "max_new_tokens": room, "eos_token_id": 2, "pad_token_id": 0}
    whole = pair[0].generate(text, attention_mask=torch.ones_like(text), **settings)
    return whole[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def references(pair):
    return {problem: greedy(pair, problem, []) for problem in PROBLEMS}


def same(answer, reference):
    """A stand-in for a task: what remains of an answer is its number of ids above 128, in
    threes.
    """

    def meaning(ids):
        return sum(token > 128 for token in ids) // 3

    return meaning(answer) == meaning(reference)


SUMS = SimpleNamespace(  # the stand-in: an answer is its own text
    text=lambda _tokenizer, ids: ids,
    same_meaning=lambda _doc, answer, reference: same(answer, reference),
    score=lambda _doc, ids: sum(ids) / 1000,
)


def decoder_of(pair, rule):
    return Decoder(pair[0], ModelDrafter(pair[1]), rule, 4)


def tools_for(pair, references=None, **settings):
    if references is None:
        references = {problem: greedy(pair, problem, []) for problem in PROBLEMS}
    meaning = Meaning(SUMS, None, [{}] * len(PROMPTS), references)
    params = parameters(label=settings)
    decoder = decoder_of(pair, make_rule("exact"))
    return Tools(decoder, meaning, params, Cost(), ROWS, REQUEST)


def collected(tools, **settings):
    """What `collect` finds on all problems: the records, and the texts that they lie on."""
    collect = block("collect", strict_share=1.0, **settings)
    tools.params = replace(tools.params, collect=collect)
    records, texts = unpack(pack(*collect_strict(tools, PROBLEMS)))
    return checked(records, MISMATCHES, "what was mined"), texts


def loose_texts(pair):
    """The same of texts in which mismatches stay at random."""
    decoder = decoder_of(pair, make_rule("random", rate=0.7))
    seeds = [3, 4, 5]
    tables, texts = written(decoder, ROWS, PROBLEMS, Policy.GATED, Slots(), seeds=seeds, **REQUEST)
    return unpack(pack(concatenated(tables), texts))


def listed(table):
    return {name: column.tolist() for name, column in table.items()}


@pytest.fixture(scope="module")
def mined(pair):
    return collected(tools_for(pair, batch_size=3, audit=0))


def rows(table, policy=None):
    """The records on texts of one policy, or all, as plain numbers."""
    if policy is not None:
        table = picked(table, table["policy"] == policy)
    return [SimpleNamespace(**dict(zip(table, row))) for row in plain_rows(table, *table)]


def text_of(texts, row):
    """The text in front of a record."""
    return texts[row.problem, row.policy][: row.position]


def test_every_greedy_label_is_what_brute_force_finds(pair, mined):
    """The walk keeps harmless tokens and leaves harmful ones."""
    table, texts = mined
    walked = rows(table, Policy.SEQUENTIAL)
    assert len(walked) >= 10
    for row in walked:
        answer = greedy(pair, row.problem, [*text_of(texts, row), row.draft_id])
        assert row.greedy_kept == same(answer, texts[row.problem, Policy.STRICT]), row
        next_token = row.draft_id if row.greedy_kept else row.target_id
        assert texts[row.problem, row.policy][row.position] == next_token
    assert {row.greedy_kept for row in walked} == {0, 1}


@pytest.mark.parametrize("batch_size", [8, 64])
@pytest.mark.parametrize("runner", ["plain", "speculative"])
def test_speculating_on_the_walk_changes_no_record(pair, mined, batch_size, runner):
    """Three rows let each of three walks take one mismatch after the other; 64 have room for more
    of each.
    """
    tools = tools_for(pair, batch_size=batch_size)
    tools.runner = tools.runner if runner == "plain" else tools.sampler
    table, texts = collected(tools)
    assert listed(table) == listed(mined[0])
    assert texts == mined[1]


def test_a_record_lies_on_the_text_that_it_was_met_in_though_the_reference_reads_otherwise(
    pair, references
):
    """In bfloat16 a strict text that is decoded in another batch may part from its reference at a
    near tie.
    """
    backwards = {problem: ids[::-1] for problem, ids in references.items()}
    table, texts = collected(tools_for(pair, backwards), recipe="text")
    for row in rows(table):
        assert texts[row.problem, Policy.STRICT][row.position] == row.target_id
    assert num_rows(table) >= 10


def test_the_recipe_without_a_walk_takes_the_targets_own_texts_alone(pair, mined):
    """Three texts in 64 slots leave at least 61 of them empty."""
    tools = tools_for(pair, batch_size=64)
    table, texts = collected(tools, recipe="text")
    assert listed(table) == listed(picked(mined[0], mined[0]["policy"] == Policy.STRICT))
    assert {policy for _, policy in texts} == {Policy.STRICT}
    assert 0 < tools.cost.slots_used <= tools.cost.slots * 3 / 64


def labels_of(tools, table, texts):
    labeller = Labeller(tools)
    labels = labeller.label(table, texts, torch.ones(num_rows(table), dtype=torch.bool))
    return checked(labels, LABELS, "the labels")


def test_labels_of_strict_texts_are_what_brute_force_finds(pair, mined):
    table, texts = mined
    references = {problem: texts[problem, Policy.STRICT] for problem in PROBLEMS}
    labels = labels_of(
        tools_for(pair, references, rejoin=None, rollouts=2, batch_size=7), table, texts
    )
    for row in rows(labels, Policy.STRICT):
        answer = greedy(pair, row.problem, [*text_of(texts, row), row.draft_id])
        assert row.greedy_kept == same(answer, references[row.problem])
    for row in rows(labels):
        assert row.rollouts == (1 if row.greedy_kept else 2)
        assert row.kept == 1 if row.greedy_kept else row.kept <= 0.5


def test_a_gated_text_that_has_lost_its_meaning_gives_no_more_labels(pair, references):
    """Brute force: the target goes on from the prefix itself; where that no longer keeps the
    meaning, drop.
    """
    table, texts = loose_texts(pair)
    tools = tools_for(pair, references, rejoin=None, rollouts=1)
    expected = []
    for row in rows(table):
        answer = greedy(pair, row.problem, text_of(texts, row))
        expected.append(same(answer, references[row.problem]))
    assert 0 < sum(expected) < len(expected), "some texts should lose their meaning"
    greedy_kept = Labeller(tools).greedy_kept(table, texts)
    assert is_intact({**table, "greedy_kept": greedy_kept}).tolist() == expected
    # Other records cost rollouts, and are no labels.
    assert num_rows(labels_of(tools, table, texts)) == tools.cost.labels == sum(expected)


def rejoined(answer, position, reference):
    """The answer, going on as the reference does where three tokens in a row come back to it."""
    grams = [tuple(reference[at : at + 3]) for at in range(len(reference) - 2)]
    for at in range(position + 1, len(answer) - 2):
        if tuple(answer[at : at + 3]) in grams:
            return answer[:at] + reference[grams.index(tuple(answer[at : at + 3])) :]
    return answer


def common_length(first, second):
    """Tokens that two texts begin with alike."""
    pairs = list(zip(first, second))
    return next((n for n, (x, y) in enumerate(pairs) if x != y), len(pairs))


@pytest.mark.parametrize("rejoin", [None, 3])
def test_pairs_compare_the_answers_behind_both_tokens(pair, rejoin):
    """On the target's own texts and on loose ones; a rollout that comes back to the other's words
    ends as that does.
    """
    longest = 0.9 if rejoin else inf
    tools = tools_for(pair, rejoin=rejoin)
    strict, texts = collected(tools, recipe="text")
    loose, loosely_written = loose_texts(pair)
    texts |= loosely_written
    records = concatenated([strict, loose])
    tools.meaning.longest = longest
    labeller = Labeller(tools)
    labels = checked(labeller.pairs(records, texts), LABELS, "the labels")
    trial = labels.pop("trial").T
    labels |= dict(zip(TRIAL, trial))
    outcomes = set()
    changed = 0
    for row in rows(labels):
        front = text_of(texts, row)
        against = greedy(pair, row.problem, [*front, row.target_id])
        alone = greedy(pair, row.problem, [*front, row.draft_id])
        answer = rejoined(alone, row.position, against) if rejoin else alone
        changed += answer != alone
        growth = len(answer) - len(against)
        is_longer = len(answer) > longest * len(against)
        carried = common_length(row.behind, answer[row.position + 1 :])
        assert row.loss == pytest.approx((sum(against) - sum(answer)) / 1000, abs=1e-5)
        assert row.saved == 1 + carried - growth
        assert row.kept == float(sum(answer) >= sum(against) and not is_longer)
        outcomes |= {("longer", is_longer), ("lost", row.loss > 0), ("carried", carried > 0)}
    assert len(outcomes) == (6 if rejoin else 5)
    assert bool(changed) == bool(rejoin)
