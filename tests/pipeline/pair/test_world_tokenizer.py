"""The tokenizer: words are whole, digits are apart, texts come back unchanged."""

from __future__ import annotations

from transformers import AutoTokenizer

from pipeline.pair.training import IGNORED, collate, encode, plan
from pipeline.pair.world import documents, padded_size, prompt_text, train_tokenizer, words
from pipeline.params import WorldParams

TOKENIZER = train_tokenizer()


def test_training_gives_the_same_tokenizer_again():
    assert train_tokenizer().backend_tokenizer.to_str() == TOKENIZER.backend_tokenizer.to_str()


def test_every_word_is_one_token():
    assert all(len(TOKENIZER(f" {word}")["input_ids"]) == 1 for word in words())
    for document in documents(WorldParams(), 1, "train", 200):
        for word in document["answer"].replace("\n", " ").split(" ")[1:]:
            if word.isalpha():
                assert len(TOKENIZER(f" {word}")["input_ids"]) == 1, word


def test_digits_stand_apart():
    assert TOKENIZER.convert_ids_to_tokens(TOKENIZER(" 475")["input_ids"]) == ["Ġ4", "7", "5"]


def test_round_trip(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.padding_side == "left"
    assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id) == (0, 1, 2)
    for text in (
        "Grüße, 12 Äpfel\n\n\t#### -3.5",
        *(doc["question"] for doc in documents(WorldParams(), 1, "test", 20)),
    ):
        ids = loaded(text)["input_ids"]
        assert ids == TOKENIZER(text)["input_ids"]
        assert loaded.decode(ids) == text


def test_a_document_is_its_prompt_and_its_answer():
    document = documents(WorldParams(), 1, "corpus", 1)[0]
    [(ids, prompt)] = encode(TOKENIZER, [document])
    assert ids[:prompt] == TOKENIZER(prompt_text(document["question"]))["input_ids"]
    assert TOKENIZER.decode(ids[prompt:]) == f" {document['answer']}</s>"
    assert padded_size(TOKENIZER) % 16 == 0 and 0 <= padded_size(TOKENIZER) - len(TOKENIZER) < 16


def test_only_solutions_bear_loss():
    ids, labels = collate([([5, 6, 7, 2], 2), ([5, 2], 1)], pad=0)
    assert ids.tolist() == [[5, 6, 7, 2], [5, 2, 0, 0]]
    assert labels.tolist() == [[IGNORED, IGNORED, 7, 2], [IGNORED, 2, IGNORED, IGNORED]]


def test_a_pass_deals_each_document_once_in_batches_of_like_lengths():
    lengths = [i % 50 for i in range(320)]
    batches = plan(lengths, batch_size=10, steps=32, seed=1)
    assert sorted(i for batch in batches for i in batch) == list(range(320))
    assert max(max(lengths[i] for i in batch) - min(lengths[i] for i in batch) for batch in batches) < 10
    assert plan(lengths, 10, 40, seed=1)[:32] == batches != plan(lengths, 10, 32, seed=2)
