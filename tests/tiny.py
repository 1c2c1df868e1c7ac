"""Tiny tokenizers, models, environments and policies, made here: no test downloads anything."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rl4dialog.core.types import RewardPart, Sample
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.text.end_of_turn import EndOfTurn

WORDS = [f"w{i}" for i in range(12)] + [str(i) for i in range(10)]


def make_tokenizer(pad_is_eos: bool = False, marker: str | None = None) -> PreTrainedTokenizerFast:
    """One token per word, with end, padding and perhaps a turn marker."""
    vocab = ["<eos>", "<pad>", "<unk>", *WORDS, *([marker] if marker else [])]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocab)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<eos>",
        pad_token="<eos>" if pad_is_eos else "<pad>",
        unk_token="<unk>",
        padding_side="left",
    )


def make_gpt2(tokenizer: Any, seed: int = 0, **overrides: Any) -> GPT2LMHeadModel:
    """A GPT-2 small enough for exact comparisons in milliseconds; peaked enough not to be uniform."""
    torch.manual_seed(seed)
    size = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64, "initializer_range": 0.2, **overrides}
    config = GPT2Config(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, pad_token_id=1, **size)
    return GPT2LMHeadModel(config).eval()


def make_llama(tokenizer: Any, seed: int = 0) -> LlamaForCausalLM:
    """The same in Llama's architecture (rotary positions, grouped keys)."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


MODELS = {"gpt2": make_gpt2, "llama": make_llama}


def n_words_reward(prev_observation: Any, action: int, current_observation: Any, done: bool, meta_info: Any) -> float:
    """A token-level reward that depends on the token, the step and the end."""
    return 0.1 * (action % 5) + (len(current_observation.context_ids) if done else 0.0)


def make_samples(n: int = 6) -> list[Sample]:
    """Prompts of different lengths."""
    return [Sample(i, " ".join(WORDS[: 1 + i % 5]), [WORDS[i % 5]], {"n": i}) for i in range(n)]


def make_env(tokenizer: Any, n_samples: int = 6, **overrides: Any) -> TextGenEnv:
    arguments: dict[str, Any] = {
        "end_of_turn": EndOfTurn(tokenizer, [0]),
        "samples": make_samples(n_samples),
        "reward_parts": [RewardPart("words", 1.0, n_words_reward)],
        "max_prompt_length": 6,
        "max_episode_length": 5,
        "vocab_size": len(tokenizer),
        **overrides,
    }
    return TextGenEnv(**arguments)


def make_policy(env: Any, model: Any, end_of_turn: EndOfTurn | None = None, **kwargs: Any) -> CausalLMActorCriticPolicy:
    """A policy whose value head is not zero, so that values differ from state to state."""
    learning_rate = kwargs.pop("learning_rate", 1e-3)
    policy = CausalLMActorCriticPolicy(
        env.observation_space,
        env.action_space,
        lambda _: learning_rate,
        model=model,
        end_of_turn=end_of_turn or env.end_of_turn,
        **kwargs,
    )
    torch.nn.init.normal_(policy._value_head.weight, std=0.2)
    return policy
