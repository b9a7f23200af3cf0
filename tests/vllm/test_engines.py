"""vLLM's engines with the plug-in: a draft model in both runners, other ways to draft, two
processes of one model.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from gistgate.core.scopes import Scope
from tests.tiny import byte_tokenizer
from tests.vllm.conftest import WIDTH
from tests.vllm.rules import BUDGET, CLOSED, OPEN, RULES, check_rule, configuration

pytestmark = pytest.mark.vllm

NGRAM = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
MIXED: list[dict[str, Any]] = [
    {"extra_args": {"gistgate": {"strict": True}}},
    {},
    {"extra_args": {"gistgate": "strict"}},
    {"temperature": 1.0},
    {"extra_args": {"gistgate": {"r": 1.0}}},
    {"presence_penalty": 0.5},
    {"extra_args": {"gistgate": {"r": "what?"}}},
    {"temperature": 0.7},
]
"""Every other request wants strictness; of the rest, some are sampled and some have penalties."""
SAMPLED: list[dict[str, Any]] = [{"temperature": 1.0, "seed": seed} for seed in range(8)]


def asking(requests: list[dict[str, Any]], params: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**request, "params": own} for request, own in zip(requests, params, strict=True)]


def is_open(found: dict[str, Any]) -> bool:
    """Whether everything that was drafted was accepted."""
    return bool(found["metrics"]["accepted_tokens"] == found["metrics"]["draft_tokens"] > 0)


@pytest.fixture(scope="module", params=["V1", "V2"])
def answers(
    request: Any, ask: Any, requests: list[dict[str, Any]], place: Path
) -> dict[str, dict[str, Any]]:
    """What an engine with one of the runners answers in every phase, by name."""
    phases: dict[str, Any] = {
        "open": (OPEN, requests),
        "plain": (None, requests),
        "closed": (CLOSED, requests),
    }
    phases |= {rule: (configuration(rule, place), requests) for rule in RULES}
    phases |= {
        "budget": ({"gate": str(place / "gate"), "budget": BUDGET, "loop_guard": False}, requests),
        "protected": ({**OPEN, "protected": list(range(259))}, requests),
        "scored": (OPEN, asking(requests, [{"logprobs": 0}] * 8)),
        "mixed": (OPEN, asking(requests, MIXED)),
        "sampled plain": (None, asking(requests, SAMPLED)),
        "sampled closed": (CLOSED, asking(requests, SAMPLED)),
        "sampled open": (OPEN, asking(requests, SAMPLED)),
    }
    return dict(zip(phases, ask(list(phases.values()), runner=request.param), strict=True))


def test_a_closed_gate_changes_no_id_and_an_open_one_accepts_whatever_is_drafted(answers: Any):
    """Sampled arms run with the repaired expansion of parameters on V1."""
    assert answers["closed"]["ids"] == answers["plain"]["ids"]
    assert sum(counts["loose"] for counts in answers["closed"]["counts"]) == 0
    assert (
        answers["sampled closed"]["ids"]
        == answers["sampled plain"]["ids"]
        != answers["plain"]["ids"]
    )
    assert is_open(answers["open"]) and is_open(answers["sampled open"])


@pytest.mark.parametrize("rule", RULES)
def test_ids_and_loose_counts_are_those_of_our_decoder(
    answers: Any, requests: list[dict[str, Any]], place: Path, rule: str
):
    check_rule(rule, answers[rule], place, requests)


def test_a_budget_runs_the_gate_at_the_setting_that_is_certified_for_it(answers: Any):
    assert answers["budget"]["ids"] == answers["autojudge"]["ids"] != answers["plain"]["ids"]


def test_protected_tokens_stay_strict(answers: Any):
    assert answers["protected"]["ids"] == answers["plain"]["ids"] != answers["open"]["ids"]


def test_strict_requests_keep_their_ids_beside_loose_sampled_and_penalised_ones(answers: Any):
    mixed = answers["mixed"]
    for row in (0, 2, 4, 6):
        assert mixed["ids"][row] == answers["plain"]["ids"][row], row
        assert mixed["counts"][row]["loose"] == 0
    assert mixed["ids"][1] == answers["open"]["ids"][1]
    assert mixed["counts"][3]["expected_loose"] > 0


def test_log_probabilities_are_those_of_the_target_without_forcing(
    answers: Any, requests: list[dict[str, Any]], place: Path
):
    found = answers["scored"]
    target = LlamaForCausalLM.from_pretrained(place / "target", dtype=torch.float32)
    for request, ids, scores in zip(requests, found["ids"], found["logprobs"], strict=True):
        logits = target(torch.tensor([[*request["prompt"], *ids]])).logits[
            0, len(request["prompt"]) - 1 : -1
        ]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None]).squeeze(-1)
        torch.testing.assert_close(torch.tensor(scores), expected.detach(), atol=1e-3, rtol=1e-3)


def test_the_ensemble_is_that_of_our_decoder(ask: Any, requests: list[dict[str, Any]], place: Path):
    """Without weight on the target it accepts every sampled draft. Triton's interpreter cannot run
    V2 with draft probabilities, so V1 does it.
    """
    speculation = {
        "method": "draft_model",
        "model": str(place / "draft"),
        "draft_sample_method": "probabilistic",
    }
    values = [{"rule": "ensemble", "settings": {"w": w}, "loop_guard": False} for w in (0.0, 1.0)]
    phases: list[Any] = [(value, asking(requests, SAMPLED)) for value in values]
    opened, closed, greedy = ask(
        [*phases, (configuration("ensemble", place), requests)], speculation=speculation
    )
    assert is_open(opened) and not is_open(closed)
    check_rule("ensemble", greedy, place, requests)


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_a_request_in_prose_is_loose_where_our_decoder_is(
    ask: Any, requests: list[dict[str, Any]], place: Path, runner: str
):
    """The runners know the texts in different ways; V1 has not fetched the newest tokens."""
    asked = asking(requests, [{"extra_args": {"gistgate": {"scope": "prose"}}}] * 8)
    value, tokenizer = configuration("prob", place), byte_tokenizer()
    prose, loose = ask([(value, asked), (value, requests)], runner=runner, reads=True)
    assert prose["ids"] != loose["ids"]
    check_rule(
        "prob", prose, place, requests, tokenizer=tokenizer, guards=[Scope("prose", tokenizer)]
    )


def write_head(place: Path, method: str) -> dict[str, Any]:
    """A head of a target's first layer and random projections, as a job of the engine; for `mtp`
    the target is new.
    """
    torch.manual_seed(1)
    folder, ones, noise = place / method, torch.ones(WIDTH), 0.1 * torch.randn(WIDTH, 2 * WIDTH)
    shutil.copytree(place / "target", folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    if method == "mtp":
        names = (
            "hidden_size",
            "intermediate_size",
            "vocab_size",
            "num_hidden_layers",
            "num_attention_heads",
        )
        own = Qwen2Config(
            **{name: config[name] for name in names}, num_key_value_heads=2, initializer_range=0.15
        )
        Qwen2ForCausalLM(own).save_pretrained(folder)
        changes = own.to_dict() | {
            "architectures": ["MiMoForCausalLM"],
            "num_nextn_predict_layers": 1,
        }
        job: dict[str, Any] = {"target": str(folder), "speculation": {"method": "mtp"}, "block": 1}
    else:
        changes = {
            "num_hidden_layers": 1,
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_aux_hidden_states": 2,
        }
        changes["eagle_aux_hidden_state_layer_ids"] = [0, 1]
        job = {"speculation": {"method": method, "model": str(folder)}}
    weights = load_file(folder / "model.safetensors")
    layer = {
        name.removeprefix("model.layers.0."): value
        for name, value in weights.items()
        if ".layers.0." in name
    }
    if method == "mtp":
        layer |= {
            "input_proj.weight": noise,
            "token_layernorm.weight": ones,
            "hidden_layernorm.weight": ones,
        }
        layer["final_layernorm.weight"] = ones
        kept = weights | {f"model.mtp_layers.0.{name}": value for name, value in layer.items()}
    else:
        for name in [name for name in layer if name[10:16] in ("q_proj", "k_proj", "v_proj")]:
            layer[name] = torch.cat(
                [layer[name], noise[: len(layer[name]), :WIDTH]], dim=1
            )  # reads the embedding, too
        kept = {f"midlayer.{name}": value for name, value in layer.items()} | {
            "midlayer.hidden_norm.weight": ones
        }
        kept |= {
            "fc.weight": noise,
            "norm.weight": ones,
            "lm_head.weight": weights["lm_head.weight"],
        }
    (folder / "config.json").write_text(json.dumps(config | changes))
    save_file(
        {name: value.clone().contiguous() for name, value in kept.items()},
        folder / "model.safetensors",
    )
    return job


def write_packed(place: Path, kind: str) -> str:
    """A target with random weights of 4 bits in groups of 32, packed as `awq` or `gptq` packs
    them.
    """
    folder, kept = place / kind, {}
    shutil.copytree(place / "target", folder, dirs_exist_ok=True)
    for name, value in load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            kept[name] = value.bfloat16()
            continue
        part, (outputs, inputs) = name.removesuffix("weight"), value.shape
        shape = (inputs, outputs // 8) if kind == "awq" else (inputs // 8, outputs)
        kept[f"{part}qweight"] = torch.randint(
            -(2**31), 2**31, shape, generator=torch.Generator().manual_seed(2)
        ).int()
        kept[f"{part}qzeros"] = torch.full((inputs // 32, outputs // 8), 0x77777777).int()
        kept[f"{part}scales"] = torch.full((inputs // 32, outputs), 0.03, dtype=torch.bfloat16)
        kept |= {f"{part}g_idx": (torch.arange(inputs) // 32).int()} if kind == "gptq" else {}
    own = {
        "awq": {"zero_point": True, "version": "gemm"},
        "gptq": {"desc_act": False, "sym": True},
    }[kind]
    config = json.loads((folder / "config.json").read_text()) | {"dtype": "bfloat16"}
    config["quantization_config"] = {"quant_method": kind, "bits": 4, "group_size": 32, **own}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(kept, folder / "model.safetensors")
    return str(folder)


@pytest.mark.parametrize("kind", ["awq", "gptq"])
def test_targets_of_packed_weights(
    ask: Any, requests: list[dict[str, Any]], place: Path, kind: str
):
    phases, engine = [(OPEN, requests), (None, requests), (CLOSED, requests)], {"dtype": "bfloat16"}
    opened, plain, closed = ask(phases, target=write_packed(place, kind), engine=engine)
    assert closed["ids"] == plain["ids"] != opened["ids"] and is_open(opened)


@pytest.mark.parametrize("runner", ["V1", "V2"])
@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_heads(ask: Any, requests: list[dict[str, Any]], place: Path, method: str, runner: str):
    job = write_head(place, method)
    opened, plain, closed = ask(
        [(OPEN, requests), (None, requests), (CLOSED, requests)], runner=runner, **job
    )
    assert closed["ids"] == plain["ids"] != opened["ids"] and is_open(opened)


def test_lookup_in_a_process_of_its_own(ask: Any, requests: list[dict[str, Any]]):
    """The worker loads the plug-in by its entry point. The prompts repeat themselves, so that much
    is drafted.
    """
    repeating = [{"prompt": request["prompt"][:4] * 5} for request in requests]
    plain, closed, opened = (
        ask([(value, repeating)], speculation=NGRAM, alone=False)[0]
        for value in (None, CLOSED, OPEN)
    )
    assert closed["ids"] == plain["ids"] != opened["ids"]
    assert closed["metrics"] == plain["metrics"] and is_open(opened)


def test_suffixes(ask: Any, requests: list[dict[str, Any]]):
    """V1 alone has this method; its cache of answers lets later phases draft more."""
    pytest.importorskip("arctic_inference.suffix_decoding")
    repeating = [{"prompt": request["prompt"][:4] * 5} for request in requests]
    opened, plain, closed = ask(
        [(value, repeating) for value in (OPEN, None, CLOSED)], speculation={"method": "suffix"}
    )
    assert closed["ids"] == plain["ids"] != opened["ids"] and is_open(opened)


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_nothing_is_drafted_while_many_requests_run(
    ask: Any, requests: list[dict[str, Any]], place: Path, runner: str
):
    """vLLM's own schedule. Most requests end soon; the rest are strict until then and judged
    afterwards.
    """
    short, long = 8, 40
    crowd = asking(requests, [{"max_tokens": long}] * 2 + [{"max_tokens": short}] * 6)
    speculation = {
        "method": "draft_model",
        "model": str(place / "draft"),
        "num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 1000, 0]],
    }
    phases = [(OPEN, crowd), (None, crowd), (CLOSED, crowd)]
    opened, plain, closed = ask(phases, speculation=speculation, runner=runner)
    assert closed["ids"] == plain["ids"]
    assert [ids[:short] for ids in opened["ids"]] == [ids[:short] for ids in plain["ids"]]
    assert opened["ids"][:2] != plain["ids"][:2]
    assert is_open(opened) and opened["metrics"]["draft_tokens"] < 2 * long


def test_chunked_prompts_remembered_prefixes_and_grammars(ask: Any, requests: list[dict[str, Any]]):
    """Long prompts with one beginning are read in pieces, and from the second phase on from the
    cache.
    """
    options = {
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": 48,
    }
    asked = [{**request, "prompt": [*range(60, 200), *request["prompt"]]} for request in requests]
    asked[4:] = [
        {**request, "regex": "[a-f]{30}", "params": {"max_tokens": 30}} for request in asked[4:]
    ]
    plain, closed, loose = ask(
        [(None, asked), (CLOSED, asked), (OPEN, asked)], engine=options, reads=True
    )
    assert closed["ids"] == plain["ids"] != loose["ids"]
    assert all(re.fullmatch("[a-f]{30}", byte_tokenizer().decode(ids)) for ids in loose["ids"][4:])
    assert all(counts["loose"] > 0 for counts in loose["counts"][:4])


def test_two_tensor_parallel_processes_write_what_one_writes(
    ask: Any, requests: list[dict[str, Any]], place: Path
):
    """A gate on hidden states; both ranks obey the first one's mask."""
    phases = [(configuration("autojudge", place), requests)]
    (one,), (two,) = ask(phases), ask(phases, tensor_parallel=2, alone=False)
    names = (
        "blocks",
        "drafted",
        "accepted",
        "loose",
        "carried",
        "mismatches",
    )  # sums of P(harm) are rounded otherwise
    counted = [
        [[counts[name] for name in names] for counts in answer["counts"]] for answer in (one, two)
    ]
    assert (
        two["ids"] == one["ids"]
        and counted[0] == counted[1]
        and sum(sum(counts) for counts in counted[0]) > 0
    )
