"""What a config means where RL4LMs, or a reader, may expect something else: one line each, printed when it is loaded.

The page docs/coming_from/rl4lms.md lists them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rl4dialog.core.generation_blocks import (
    DEFAULT_REPLY_LENGTH,
    GenerationBlock,
    evaluation_block,
    evaluation_reply_limit,
    generation_blocks,
    reply_limit,
)

if TYPE_CHECKING:
    from rl4dialog.core.config import RunConfig

Kwargs = Mapping[str, Any]

# Accepted for the sake of RL4LMs' configs.
_WITHOUT_EFFECT = {
    "alg.policy.args.apply_model_parallel": "models are placed by the device that is used",
    "alg.policy.args.prompt_truncation_side": "env.args.prompt_truncation_side decides",
}
_WITHOUT_BLOCKS = {
    "dummy": "with env.vec_env: dummy there are no workers",
    "subproc": "with env.vec_env: subproc each environment has a worker, and one that dies ends the run",
}
SUBPROC = (
    "env.vec_env: subproc is stable-baselines3's SubprocVecEnv: a process with its own copy of the samples for each "
    "environment, and one that dies ends the run. blocks, the default and what subproc was before, needs less time and "
    "memory and gives the same rollouts"
)
# By the keys that would decide it.
_RL4LMS_DEFAULTS = {
    ("alg.policy.args.optimizer_class", "alg.policy.args.weight_decay", "alg.policy.args.optimizer_kwargs"): (
        "its optimizer is AdamW with weight_decay 1e-6, here Adam"
    ),
    ("env.args.priority_scale",): "its priority_scale is 0, which draws all samples alike, here 1, by their weights",
    ("env.args.terminate_on_eos",): "its terminate_on_eos is false, here true",
}
_SAMPLER_KEYS_WITHOUT_EFFECT = ("use_cache", "pad_token_id")
_OF_BEAMS = ("length_penalty", "early_stopping")


def config_notes(config: RunConfig, given: Kwargs) -> list[str]:
    """One line for each key that is ignored, defaulted or read otherwise than in RL4LMs.

    Args:
        config: Checked.
        given: The config as it was written.
    """
    return [*_keys_without_effect(config, given), *_defaults(given), *_decoding(config), *_supervised(config)]


def _keys_without_effect(config: RunConfig, given: Kwargs) -> Iterator[str]:
    without_effect = dict(_WITHOUT_EFFECT)
    without_effect["env.args.context_start_token"] = (
        "an encoder-decoder's replies begin with the decoder_start_token_id of the model's config"
        if config.is_encoder_decoder
        else "a decoder-only model goes on from its prompt"
    )
    if config.env is not None and config.env.vec_env != "blocks":
        for key in ("n_workers", "on_worker_death"):
            if getattr(config.env, key) != type(config.env).model_fields[key].default:  # which a resolved one names too
                without_effect[f"env.{key}"] = _WITHOUT_BLOCKS[config.env.vec_env]
    if config.env is not None:
        without_effect["tokenizer.max_length"] = "env.args.max_prompt_length and max_episode_length decide"
        # By the values, not by what is given: a resolved config, which names every key, has the same notes.
        tokenizer_side, side = config.tokenizer.truncation_side, config.env.args.prompt_truncation_side
        if tokenizer_side != side:
            yield (
                f"tokenizer.truncation_side, {tokenizer_side}, has no effect: env.args.prompt_truncation_side decides, "
                f"which is {side}"
            )
    if config.tokenizer.padding_side != "left":
        without_effect["tokenizer.padding_side"] = "prompts are padded on the left, and replies on the right"
    if config.reward_fn is not None and config.reward_fn.id == "nlp_reward":
        without_effect["reward_fn.args.ref_model"] = (
            "the reference is the policy as it was at the start; NLPReward's KL penalty is alg.kl_div: {coeff: 0.2, "
            "target_kl: 0.05}"
        )
    for path, reason in without_effect.items():
        if _at(given, path) is not None:
            yield f"{path} has no effect: {reason}"
    if config.env is not None and config.env.vec_env == "subproc":
        yield SUBPROC


def _defaults(given: Kwargs) -> Iterator[str]:
    """What RL4LMs has where a config is silent; said to those that were written for it."""
    if _at(given, "alg.policy.args.apply_model_parallel") is None:
        return
    left_open = [
        meaning
        for paths, meaning in _RL4LMS_DEFAULTS.items()
        if not any(_at(given, path) is not None for path in paths)
    ]
    if left_open:
        yield f"where a config is silent, RL4LMs has other defaults: {'; '.join(left_open)}"


def _decoding(config: RunConfig) -> Iterator[str]:
    blocks = generation_blocks(config)
    named = [block for block in blocks if block.kwargs]
    yield from _of_both(named)
    yield from _of_evaluations(config, evaluation_block(config))
    if config.has_rollouts:
        yield from _of_rollouts(config, *blocks)
    if config.is_encoder_decoder and any(block.kwargs.get("min_length") for block in named):
        yield (
            "generation_kwargs.min_length counts tokens of the reply; transformers, and so RL4LMs, also counts the "
            "start token of an encoder-decoder, so that replies there may be a token shorter"
        )


def _of_both(named: list[GenerationBlock]) -> Iterator[str]:
    for block in named:
        if block.kwargs.get("do_sample") and block.kwargs.get("top_k") is None:
            yield (
                f"{block.where} samples without top_k: every token may be drawn; in RL4LMs top_k is then 50, "
                f"transformers' default (give top_k: 50 for that, or top_k: 0 to keep this)"
            )
            break
    for block in named:
        where, kwargs = block.where, block.kwargs
        for key in _SAMPLER_KEYS_WITHOUT_EFFECT:
            if kwargs.get(key) is not None:
                yield f"{where}.{key} has no effect: it changes nothing of what is generated"
        for key in _OF_BEAMS:
            if kwargs.get(key) is not None and kwargs.get("num_beams", 1) == 1:
                yield f"{where}.{key} has no effect without num_beams above 1"


def _of_evaluations(config: RunConfig, block: GenerationBlock) -> Iterator[str]:
    where, kwargs = block.where, block.kwargs
    n_beams = kwargs.get("num_beams") or 1
    if n_beams != 1 and config.policy_id.startswith("maskable_"):
        yield (
            f"{where}.num_beams is refused by NLPO's mask, which is computed token by token: evaluations decode "
            f"without beams{'' if kwargs.get('do_sample') else ', greedily'}"
        )
    elif kwargs.get("do_sample") is None and n_beams == 1:
        yield f"{where} has no do_sample: evaluations decode greedily, as transformers and RL4LMs do"
    if (kwargs.get("num_return_sequences") or 1) != 1:
        which = "the best one of them" if n_beams != 1 else "one reply is sampled, and it"
        yield f"{where}.num_return_sequences: {which} is the reply that is measured"


def _of_rollouts(config: RunConfig, evaluation: GenerationBlock, rollouts: GenerationBlock) -> Iterator[str]:
    assert config.env is not None
    where, longest = rollouts.where, config.env.args.max_episode_length
    wanted, limit = rollouts.count("max_new_tokens"), reply_limit(config)
    if rollouts.kwargs.get("do_sample") is None:
        yield f"{where} has no do_sample: rollouts sample; in RL4LMs they decode greedily then, and explore nothing"
    if wanted is None:
        yield (
            f"{where} has no max_new_tokens: replies end after env.args.max_episode_length = {longest} tokens; in "
            f"RL4LMs after transformers' default max_length of 20"
        )
    elif wanted > longest:
        yield f"{where}.max_new_tokens is {wanted}, but env.args.max_episode_length ends replies after {longest} tokens"
    wanted_of_evaluations = evaluation.count("max_new_tokens") or 0
    if wanted_of_evaluations > limit:
        yield (
            f"{evaluation.where}.max_new_tokens is {wanted_of_evaluations}, but replies end after {limit} tokens, as "
            f"in rollouts (env.args.max_episode_length, {where}.max_new_tokens)"
        )


def _supervised(config: RunConfig) -> Iterator[str]:
    from rl4dialog.core.config import SupervisedConfig  # which is told by these notes what it means

    if not isinstance(config, SupervisedConfig):
        return
    if config.env is None and evaluation_reply_limit(config) is None:
        yield f"generation_kwargs has no max_new_tokens: evaluations end replies after {DEFAULT_REPLY_LENGTH} tokens"
    if not config.is_encoder_decoder and config.alg.loss_on == "reply":
        yield "alg.loss_on is reply: only replies are learned; RL4LMs learns the prompts too (loss_on: all)"
    args = config.alg.training_args
    if args.get("save_strategy") in (None, "no"):
        saved = [key for key in ("save_total_limit", "save_steps") if args.get(key) is not None]
        if saved:
            yield (
                f"alg.training_args.{', '.join(saved)}: no effect without save_strategy, which is no by default: the "
                f"model is saved at the end"
            )
    if args.get("logging_steps") is not None:
        yield (
            "alg.training_args.logging_steps: the loss is logged so often; RL4LMs also evaluates the val split then, "
            "which is done here before and after training"
        )


def _at(config: Any, path: str) -> Any:
    """What stands at a dotted path of a config as it was written, or ``None``."""
    for key in path.split("."):
        config = config.get(key) if isinstance(config, Mapping) else None
    return config
