"""Tiny tokenizers, models, environments and policies, made here: no test downloads anything."""

from functools import partial

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import Sample
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.decoding import CausalDecoder
from rl4dialog.policies.heads import head_is_plain, lm_logits
from rl4dialog.policies.maskable import MaskableCausalLMActorCriticPolicy, MaskableSeq2SeqLMActorCriticPolicy
from rl4dialog.policies.models import BUILTIN_MODELS
from rl4dialog.policies.seq2seq import Seq2SeqLMActorCriticPolicy
from rl4dialog.text.end_of_turn import EndOfTurn

WORDS = [f"w{i}" for i in range(12)] + [str(i) for i in range(10)]


def make_tokenizer(pad_is_eos=False, marker=None, words=WORDS):
    """One token per word, with end, padding and perhaps a turn marker."""
    vocab = ["<eos>", "<pad>", "<unk>", *words, *([marker] if marker else [])]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocab)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<eos>",
        pad_token="<eos>" if pad_is_eos else "<pad>",
        unk_token="<unk>",
        padding_side="left",
    )


def make_gpt2(tokenizer, seed=0, **overrides):
    """A GPT-2 small enough for exact comparisons in milliseconds; peaked enough not to be uniform."""
    torch.manual_seed(seed)
    size = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64, "initializer_range": 0.2, **overrides}
    config = GPT2Config(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, pad_token_id=1, **size)
    return GPT2LMHeadModel(config).eval()


def make_llama(tokenizer, seed=0, **overrides):
    """The same in Llama's architecture (rotary positions, grouped keys)."""
    torch.manual_seed(seed)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "initializer_range": 0.2}
    size |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, **overrides}
    config = LlamaConfig(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, pad_token_id=1, **size)
    return LlamaForCausalLM(config).eval()


def make_t5(tokenizer, seed=0, n_spare=3, **overrides):
    """An encoder-decoder with relative positions; its embedding has more rows than the tokenizer has tokens."""
    torch.manual_seed(seed)
    size = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2, **overrides}
    config = T5Config(
        vocab_size=len(tokenizer) + n_spare, eos_token_id=0, pad_token_id=1, initializer_factor=1.0, **size
    )
    config.decoder_start_token_id = 1
    return T5ForConditionalGeneration(config).eval()


def make_bart(tokenizer, seed=0):
    """An encoder-decoder with absolute positions, which start from the first column."""
    torch.manual_seed(seed)
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
        init_std=0.2,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
        decoder_start_token_id=0,
    )
    return BartForConditionalGeneration(config).eval()


MODELS = {"gpt2": make_gpt2, "llama": make_llama, "t5": make_t5, "bart": make_bart}


def shrink_built_in_models():
    """Make `builtin/tiny-…` as small as tests need: half as deep and wide, in half the time."""
    for name, sizes in {
        "gpt2": {"n_layer": 2, "n_embd": 64, "n_head": 4},
        "t5": {"num_layers": 2, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4},
    }.items():
        BUILTIN_MODELS[f"builtin/tiny-{name}"].update(sizes)


def policy_class_of(model):
    """The policy for a model's architecture."""
    return Seq2SeqLMActorCriticPolicy if model.config.is_encoder_decoder else CausalLMActorCriticPolicy


def maskable_class_of(model):
    """The maskable policy for a model's architecture."""
    if model.config.is_encoder_decoder:
        return MaskableSeq2SeqLMActorCriticPolicy
    return MaskableCausalLMActorCriticPolicy


def all_tokens(model, prompt, reply):
    """Logits before each token of a reply and after the last, and their hidden states: one row, no padding.

    Shapes (len(reply) + 1, V) and (len(reply) + 1, H).
    """
    if model.config.is_encoder_decoder:
        start = model.config.decoder_start_token_id
        inputs = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": torch.tensor([[start, *reply]])}
        output = model(**inputs, output_hidden_states=True)
        return output.logits[0], output.decoder_hidden_states[-1][0]
    output = model(input_ids=torch.tensor([[*prompt, *reply]]), output_hidden_states=True)
    return output.logits[0, len(prompt) - 1 :], output.hidden_states[-1][0, len(prompt) - 1 :]


def next_token(model, prompt, reply):
    """Logits of the token after a reply's beginning, and the hidden state they come from."""
    logits, hidden = all_tokens(model, prompt, reply)
    return logits[-1], hidden[-1]


def reply_log_probs(model, prompt, reply):
    """Log-probabilities of a reply's tokens."""
    return all_tokens(model, prompt, reply)[0].log_softmax(-1)[range(len(reply)), reply]


def n_words_reward(prev_observation, action, current_observation, done, meta_info):
    """A token-level reward that depends on the token, the step and the end."""
    return 0.1 * (action % 5) + (len(current_observation.context_ids) if done else 0.0)


def make_samples(n=6):
    """Prompts of different lengths."""
    return [Sample(i, " ".join(WORDS[: 1 + i % 5]), [WORDS[i % 5]], {"n": i}) for i in range(n)]


def make_env_kwargs(**overrides):
    """Arguments of the environments of ``make_vec_env``."""
    tokenizer = make_tokenizer()
    return {
        "end_of_turn": EndOfTurn(tokenizer, [0]),
        "samples": make_samples(),
        "reward_parts": [],
        "max_prompt_length": 6,
        "max_episode_length": 5,
        "vocab_size": len(tokenizer),
        **overrides,
    }


def make_env(tokenizer, n_samples=6, **overrides):
    arguments = {
        "end_of_turn": EndOfTurn(tokenizer, [0]),
        "samples": make_samples(n_samples),
        "reward_parts": [RewardPart("words", 1.0, n_words_reward)],
        "max_prompt_length": 6,
        "max_episode_length": 5,
        "vocab_size": len(tokenizer) + 3,
        **overrides,
    }
    return TextGenEnv(**arguments)


def make_policy(env, model, end_of_turn=None, **kwargs):
    """A policy whose value head is not zero, so that values differ from state to state."""
    learning_rate = kwargs.pop("learning_rate", 1e-3)
    policy_class = kwargs.pop("policy_class", policy_class_of(model))
    policy = policy_class(
        env.observation_space,
        env.action_space,
        lambda _: learning_rate,
        model=model,
        end_of_turn=end_of_turn or env.end_of_turn,
        **kwargs,
    )
    if policy._value_head is not None:
        torch.nn.init.normal_(policy._value_head.output.weight, std=0.2)
    return policy


def policy_of(architecture, **kwargs):
    """A policy of one of ``MODELS``, by name."""
    tokenizer = make_tokenizer()
    model = MODELS[architecture](tokenizer)
    env = make_env(tokenizer, vocab_size=model.get_input_embeddings().weight.shape[0])
    return make_policy(env, model, **kwargs)


def causal_decoder(model, ids, mask, prompt_cache=None):
    """Decoder of a whole decoder-only model."""
    head = partial(lm_logits, model, is_plain=head_is_plain(model))
    return CausalDecoder(model.base_model, ids, mask, head, prompt_cache)
