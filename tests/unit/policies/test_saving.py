"""Saved models compute the log-probabilities of the policies that were trained, in every form that is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tiny import MODELS, make_env, make_policy, make_tokenizer

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.pretrained import load_model
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.lora import ADAPTER_FOLDER, check_restores
from rl4dialog.policies.saving import MODEL_FOLDER, load_policy_weights, save_policy
from rl4dialog.policies.vllm_backend import _weights

ATTENTION = {"gpt2": "c_attn", "llama": "q_proj", "t5": "q", "bart": "q_proj"}
EMBEDDING = {"gpt2": "wte", "llama": "embed_tokens", "t5": "embed_tokens", "bart": "embed_tokens"}
TARGETS: dict[str, dict[str, Any]] = {
    "attention": {"target_modules": ["attention"]},
    "all linear layers": {"target_modules": "all-linear"},
    "head": {"target_modules": ["attention", "lm_head"]},
    "embedding": {"target_modules": ["attention", "embedding"]},
    "head and embedding": {"target_modules": ["embedding", "lm_head"]},
    "head with DoRA": {"target_modules": ["lm_head"], "use_dora": True},
    "whole head": {"target_modules": ["attention"], "modules_to_save": ["lm_head"]},
    "whole embedding": {"target_modules": ["attention"], "modules_to_save": ["embedding"]},
    "some tokens": {"target_modules": ["attention"], "trainable_token_indices": [3, 5]},
}
TOKENIZER = make_tokenizer()


def make_model(name: str, tied: bool) -> Any:
    model = MODELS[name](TOKENIZER)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    if not tied:
        torch.manual_seed(1)
        model.config.tie_word_embeddings = model.config.is_encoder_decoder  # which tie embeddings of both sides
        head = model.get_output_embeddings()
        head.weight = torch.nn.Parameter(0.3 * torch.randn_like(head.weight))
    return model


def policy_around(model: Any, **kwargs: Any) -> LMActorCriticPolicy:
    env = make_env(TOKENIZER, vocab_size=model.get_input_embeddings().weight.shape[0])
    return make_policy(env, model, **kwargs)


def settings_for(name: str, target: str) -> dict[str, Any]:
    names = {"attention": ATTENTION[name], "embedding": EMBEDDING[name]}
    return {
        key: [names.get(each, each) for each in value]
        if isinstance(value, list) and key != "trainable_token_indices"
        else value
        for key, value in {"r": 4, "lora_alpha": 8, **TARGETS[target]}.items()
    }


def trained(policy: LMActorCriticPolicy) -> LMActorCriticPolicy:
    """The policy with other trained weights, as after some updates."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in policy.actor_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return policy


def replies() -> Replies:
    prompts = [[3, 4, 5], [6, 7], [8]]
    return Replies.from_ids(prompts, [[9, 10, 11, 0], [12, 3, 0], [4, 5, 6, 7, 8]], torch.device("cpu"))


def log_probs(policy: LMActorCriticPolicy) -> torch.Tensor:
    return policy.sequence_log_probs(replies())


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found, expected, atol=5e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", MODELS)
def test_every_saved_form_is_the_trained_policy(name: str, tied: bool, target: str, tmp_path: Path) -> None:
    settings = settings_for(name, target)
    initial = log_probs(policy_around(make_model(name, tied)))
    policy = trained(policy_around(make_model(name, tied), lora=settings))
    expected = log_probs(policy)
    assert not same(expected, initial)
    assert same(policy.reference_log_probs(replies()), initial)
    save_policy(policy, tmp_path)

    published = load_model(policy.auto_class, str(tmp_path / MODEL_FOLDER), "model", "")
    assert same(log_probs(policy_around(published)), expected)
    adapted = make_model(name, tied)
    peft.PeftModel.from_pretrained(adapted, str(tmp_path / MODEL_FOLDER / ADAPTER_FOLDER), is_trainable=True).eval()
    assert same(log_probs(policy_around(adapted, reference="none", critic="none")), expected)
    resumed = policy_around(make_model(name, tied), lora=settings)
    load_policy_weights(resumed, tmp_path)
    assert torch.equal(log_probs(resumed), expected)
    assert torch.equal(resumed.predict_sequence_values(replies()), policy.predict_sequence_values(replies()))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", MODELS)
def test_saved_model_without_adapters_is_the_trained_policy(name: str, tied: bool, tmp_path: Path) -> None:
    policy = trained(policy_around(make_model(name, tied)))
    save_policy(policy, tmp_path)
    published = load_model(policy.auto_class, str(tmp_path / MODEL_FOLDER), "model", "")
    assert same(log_probs(policy_around(published)), log_probs(policy))
    resumed = policy_around(make_model(name, tied))
    load_policy_weights(resumed, tmp_path)
    assert torch.equal(log_probs(resumed), log_probs(policy))


@pytest.mark.parametrize("target", ["attention", "head", "whole head", "embedding"])
def test_config_says_whether_the_published_head_is_the_embedding(target: str, tmp_path: Path) -> None:
    """Programs such as vLLM and llama.cpp's converter go by the config, which vLLM gets before the training."""
    policy = policy_around(make_model("llama", tied=True), lora=settings_for("llama", target))
    is_tied = target == "attention"
    assert policy.language_model.config.tie_word_embeddings == is_tied
    trained(policy)
    assert ("lm_head.weight" in dict(_weights(policy))) != is_tied
    save_policy(policy, tmp_path)
    published = load_model(policy.auto_class, str(tmp_path / MODEL_FOLDER), "model", "")
    assert published.config.tie_word_embeddings == is_tied


@pytest.mark.parametrize("key", ["target_modules", "modules_to_save"])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_embeddings_that_no_side_reads_are_refused(name: str, key: str) -> None:
    with pytest.raises(ConfigError, match="read embeddings of their own, which are named 'embed_tokens'"):
        policy_around(make_model(name, tied=True), lora={"target_modules": ["lm_head"], key: ["shared"]})


def test_shared_adapters_are_refused() -> None:
    lora = {"target_modules": ["embed_tokens", "lm_head"], "ensure_weight_tying": True}
    with pytest.raises(ConfigError, match="ensure_weight_tying: such adapters cannot be merged"):
        policy_around(make_model("llama", tied=True), lora=lora)


@pytest.mark.parametrize(
    "settings",
    [{"bias": "all"}, {"bias": "lora_only"}, {"init_lora_weights": "pissa_niter_4"}, {"init_lora_weights": "olora"}],
)
def test_settings_that_would_move_the_reference_are_refused(settings: dict[str, Any]) -> None:
    check_restores({"init_lora_weights": "gaussian", "bias": "none"})
    check_restores({"init_lora_weights": False})
    with pytest.raises(ConfigError, match=f"lora.{next(iter(settings))}: .* reference"):
        check_restores(settings)


@pytest.mark.parametrize("key", ["target_modules", "modules_to_save", "exclude_modules"])
def test_modules_that_the_model_does_not_have_are_named(key: str) -> None:
    def build(*names: str) -> None:
        targets = ["c_attn", *(names if key == "target_modules" else ())]
        policy_around(make_model("gpt2", tied=True), lora={key: [*names], "target_modules": targets})

    build("h.1.mlp.c_proj")
    with pytest.raises(ConfigError, match=f"lora.{key}: the model has no module 'c_prjo'; did you mean 'c_proj'"):
        build("h.1.mlp.c_proj", "c_prjo")
