"""The training of the embedded pair: Muon, batches, the world's tokenizer."""

import torch
from transformers import AutoTokenizer

from pipeline.pair.training import IGNORED, Muon, collate, encode, orthogonalise, plan
from pipeline.pair.world import documents, padded_size, prompt_text, train_tokenizer, words
from tests.pipeline.parameters import block

TOKENIZER = train_tokenizer()
WORLD = block("world")


def ids_of(text):
    return TOKENIZER(text)["input_ids"]


def test_singular_values_are_driven_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(3, 16, 40)))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_equal_shapes_and_transposed_ones_are_updated_as_if_alone():
    torch.manual_seed(0)
    matrices = [torch.randn(8, 4), torch.randn(4, 8), torch.randn(8, 4)]
    gradients = [torch.randn_like(matrix) for matrix in matrices]

    def step(*indices: int) -> list[torch.Tensor]:
        params = []
        for i in indices:
            params.append(torch.nn.Parameter(matrices[i].clone()))
            params[-1].grad = gradients[i].clone()
        Muon(params, lr=0.1).step()
        return [param.detach() for param in params]

    for i, together in enumerate(step(0, 1, 2)):
        torch.testing.assert_close(together, step(i)[0])
        assert not torch.allclose(together, matrices[i])


def test_training_gives_the_same_tokenizer_again_in_which_every_word_is_one_token():
    assert train_tokenizer().backend_tokenizer.to_str() == TOKENIZER.backend_tokenizer.to_str()
    assert TOKENIZER.convert_ids_to_tokens(ids_of(" 475")) == ["Ġ4", "7", "5"]
    spoken = set(words())
    for document in documents(WORLD, 1, "train", 200):
        spoken |= set(filter(str.isalpha, document["answer"].split()[1:]))
    assert {word for word in spoken if len(ids_of(f" {word}")) != 1} == set()


def test_round_trip(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.padding_side == "left"
    assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id) == (0, 1, 2)
    questions = [document["question"] for document in documents(WORLD, 1, "test", 20)]
    for text in ("Grüße, 12 Äpfel\n\n\t#### -3.5", *questions):
        ids = loaded(text)["input_ids"]
        assert ids == ids_of(text)
        assert loaded.decode(ids) == text


def test_a_document_is_its_prompt_and_its_answer():
    document = documents(WORLD, 1, "corpus", 1)[0]
    [(ids, prompt)] = encode(TOKENIZER, [document])
    assert ids[:prompt] == ids_of(prompt_text(document["question"]))
    assert TOKENIZER.decode(ids[prompt:]) == f" {document['answer']}</s>"
    assert padded_size(TOKENIZER) % 16 == 0
    assert 0 <= padded_size(TOKENIZER) - len(TOKENIZER) < 16


def test_only_solutions_bear_loss():
    ids, labels = collate([([5, 6, 7, 2], 2), ([5, 2], 1)])
    assert ids.tolist() == [[5, 6, 7, 2], [5, 2, 0, 0]]
    assert labels.tolist() == [[IGNORED, IGNORED, 7, 2], [IGNORED, 2, IGNORED, IGNORED]]


def test_a_pass_deals_each_document_once_in_batches_of_like_lengths():
    lengths = [i % 50 for i in range(320)]
    batches = plan(lengths, batch_size=10, steps=32, seed=1)
    assert sorted(i for batch in batches for i in batch) == list(range(320))
    for batch in batches:
        of_batch = [lengths[i] for i in batch]
        assert max(of_batch) - min(of_batch) < 10
    assert plan(lengths, 10, 40, seed=1)[:32] == batches != plan(lengths, 10, 32, seed=2)
