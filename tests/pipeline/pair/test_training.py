"""The training of the embedded pair (Muon, batches, the world's tokenizer), and drafts of some
layers of a model.
"""

import random
from types import SimpleNamespace

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from gistgate.core.utils import UserError
from pipeline.pair import training
from pipeline.pair.training import IGNORED, Muon, collate, encode, orthogonalise, plan
from pipeline.pair.world import documents, padded_size, prompt_text, train_tokenizer, words
from tests.pipeline.parameters import block
from tests.tiny import byte_tokenizer, save_pair, tiny_pair, write_rows

TOKENIZER = train_tokenizer()


def test_singular_values_are_driven_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(3, 16, 40)))
    assert values.min() > 0.5 and values.max() < 1.3


def test_equal_shapes_and_transposed_ones_are_updated_as_if_alone():
    torch.manual_seed(0)
    first = [torch.randn(8, 4), torch.randn(4, 8), torch.randn(8, 4)]
    grads = [torch.randn_like(matrix) for matrix in first]

    def step(indices: list[int]) -> list[torch.Tensor]:
        params = [torch.nn.Parameter(first[i].clone()) for i in indices]
        for param, i in zip(params, indices, strict=True):
            param.grad = grads[i].clone()
        Muon(params, lr=0.1).step()
        return [param.detach() for param in params]

    together = step([0, 1, 2])
    for i in range(3):
        assert torch.allclose(together[i], step([i])[0], atol=1e-6) and not torch.allclose(
            together[i], first[i]
        )


def test_training_gives_the_same_tokenizer_again_in_which_every_word_is_one_token():
    assert train_tokenizer().backend_tokenizer.to_str() == TOKENIZER.backend_tokenizer.to_str()
    assert TOKENIZER.convert_ids_to_tokens(TOKENIZER(" 475")["input_ids"]) == ["Ġ4", "7", "5"], (
        "digits stand apart"
    )
    answers = [
        one["answer"].replace("\n", " ").split(" ")[1:]
        for one in documents(block("world"), 1, "train", 200)
    ]
    for word in {*words(), *(word for answer in answers for word in answer if word.isalpha())}:
        assert len(TOKENIZER(f" {word}")["input_ids"]) == 1, word


def test_round_trip(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.padding_side, loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id) == (
        "left",
        0,
        1,
        2,
    )
    questions = [one["question"] for one in documents(block("world"), 1, "test", 20)]
    for text in ("Grüße, 12 Äpfel\n\n\t#### -3.5", *questions):
        assert (
            loaded.decode(ids := loaded(text)["input_ids"]) == text
            and ids == TOKENIZER(text)["input_ids"]
        )


def test_a_document_is_its_prompt_and_its_answer():
    document = documents(block("world"), 1, "corpus", 1)[0]
    [(ids, prompt)] = encode(TOKENIZER, [document])
    assert ids[:prompt] == TOKENIZER(prompt_text(document["question"]))["input_ids"]
    assert TOKENIZER.decode(ids[prompt:]) == f" {document['answer']}</s>"
    assert padded_size(TOKENIZER) % 16 == 0 and 0 <= padded_size(TOKENIZER) - len(TOKENIZER) < 16


def test_only_solutions_bear_loss():
    ids, labels = collate([([5, 6, 7, 2], 2), ([5, 2], 1)])
    assert ids.tolist() == [[5, 6, 7, 2], [5, 2, 0, 0]]
    assert labels.tolist() == [[IGNORED, IGNORED, 7, 2], [IGNORED, 2, IGNORED, IGNORED]]


def test_a_pass_deals_each_document_once_in_batches_of_like_lengths():
    lengths = [i % 50 for i in range(320)]
    batches = plan(lengths, batch_size=10, steps=32, seed=1)
    assert sorted(i for batch in batches for i in batch) == list(range(320))
    assert (
        max(max(lengths[i] for i in batch) - min(lengths[i] for i in batch) for batch in batches)
        < 10
    )
    assert plan(lengths, 10, 40, seed=1)[:32] == batches != plan(lengths, 10, 32, seed=2)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a tiny pair of two layers, prompts, and one answer to all of them."""
    save_pair(tmp_path, *tiny_pair(), byte_tokenizer())
    sources = {
        role: {"model": role, "dtype": "float32", "device": "cpu"} for role in ("target", "draft")
    }
    rng = random.Random(0)
    prompts = [[1, *rng.choices(range(3, 259), k=5)] for _ in range(60)]
    for folder in ("models/pairs", "data/prompts", "data/reference"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "models/pairs/mine.yaml").write_text(yaml.safe_dump(sources))
    write_rows(tmp_path / "data/prompts/train.jsonl", [{"ids": ids} for ids in prompts])
    write_rows(
        tmp_path / "data/reference/train.jsonl", [{"ids": [*range(50, 62), 2]} for _ in prompts]
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "read_params", lambda: SimpleNamespace(pair="mine"))
    return tmp_path


def test_the_layers_of_a_model_that_matter_learn_to_write_as_the_target(project, capsys):
    target = AutoModelForCausalLM.from_pretrained(project / "target")
    for product in (target.model.layers[0].self_attn.o_proj, target.model.layers[0].mlp.down_proj):
        torch.nn.init.zeros_(product.weight)  # now the first layer changes nothing
    target.save_pretrained(project / "target")
    training.main(project / "student", layers=1, of="target", epochs=10, lr=0.01)
    said = capsys.readouterr().out
    behind, before = (float(part.rstrip("%.,")) for part in said.split() if "%" in part)
    assert "layers 1, trained" in said and before < 20 and behind > 90
    student = AutoModelForCausalLM.from_pretrained(project / "student")
    assert len(student.model.layers) == student.config.num_hidden_layers == 1
    assert torch.equal(student.lm_head.weight, target.lm_head.weight), "only the layers are trained"
    assert AutoTokenizer.from_pretrained(project / "student").eos_token_id == 2


@pytest.mark.parametrize("options, sentence", [
    ({"layers": 2}, "2 layers, of which 2 cannot"), ({"of": "teacher"}, "no model 'teacher'"),
    ({"folder": "target"}, "exists"),
])  # fmt: skip
def test_what_cannot_be_cut_is_refused(project, options, sentence):
    with pytest.raises(UserError, match=sentence):
        training.main(
            **{"layers": 1, **options, "folder": project / options.get("folder", "student")}
        )
    assert not (project / "student").exists()
