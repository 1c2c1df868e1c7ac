"""Notes about config keys that are ignored, or differ from RL4LMs: one line each, printed when a config is loaded.

All of them are listed on the page docs/coming_from/rl4lms.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl4dialog.core.config import GenerationBlock, TextConfig

Kwargs = Mapping[str, Any]

# Accepted for compatibility with RL4LMs' configs.
_WITHOUT_EFFECT = {
    "alg.policy.args.apply_model_parallel": "models are placed on the run's device",
    "alg.policy.args.prompt_truncation_side": "env.args.prompt_truncation_side is used instead",
}
_WITHOUT_BLOCKS = {
    "dummy": "there are no workers with env.vec_env: dummy",
    "subproc": "with env.vec_env: subproc each environment has its own worker",
}
# Differences by the keys that would set the value explicitly.
_RL4LMS_DEFAULTS = {
    ("alg.policy.args.optimizer_class", "alg.policy.args.weight_decay", "alg.policy.args.optimizer_kwargs"): (
        "the optimizer is AdamW with weight_decay 1e-6 (here Adam)"
    ),
    ("env.args.priority_scale",): "priority_scale is 0, which samples uniformly (here 1, by sample weight)",
    ("env.args.terminate_on_eos",): "terminate_on_eos is false (here true)",
}
_SAMPLER_KEYS_WITHOUT_EFFECT = ("use_cache", "pad_token_id")
_OF_BEAMS = ("length_penalty", "early_stopping")


def config_notes(config: TextConfig, given: Kwargs) -> list[str]:
    """One line for each key as written that is ignored, left to its default, or interpreted differently from RL4LMs."""
    named = [block for block in config.generation_blocks if block.kwargs]
    own = [*_keys_without_effect(config, given), *_defaults(given), *_of_both(named)]
    return [*own, *_of_evaluations(config), *_of_rollouts(config), *_of_supervised(config)]


def _keys_without_effect(config: TextConfig, given: Kwargs) -> Iterator[str]:
    without_effect = dict(_WITHOUT_EFFECT)
    starts = "an encoder-decoder's replies start with the decoder_start_token_id of the model's config"
    continues = "a decoder-only model continues its prompt"
    without_effect["env.args.context_start_token"] = starts if config.is_encoder_decoder else continues
    if config.env is not None:
        if config.env.n_workers is not None and config.env.vec_env in _WITHOUT_BLOCKS:
            without_effect["env.n_workers"] = _WITHOUT_BLOCKS[config.env.vec_env]
        without_effect["tokenizer.max_length"] = "env.args.max_prompt_length and max_episode_length are used instead"
        # Compares values, not given keys, so that a resolved config, which contains all keys, has the same notes.
        tokenizer_side, side = config.tokenizer.truncation_side, config.env.args.prompt_truncation_side
        if tokenizer_side != side:
            instead = f"env.args.prompt_truncation_side ({side}) is used instead"
            yield f"tokenizer.truncation_side: {tokenizer_side} has no effect: {instead}"
    if config.tokenizer.padding_side != "left":
        without_effect["tokenizer.padding_side"] = "prompts are padded on the left and replies on the right"
    if config.reward_fn is not None and config.reward_fn.id == "nlp_reward":
        ours = "NLPReward's KL penalty corresponds to alg.kl_div: {coeff: 0.2, target_kl: 0.05}"
        without_effect["reward_fn.args.ref_model"] = f"the reference is the initial policy; {ours}"
    for path, reason in without_effect.items():
        if _at(given, path) is not None:
            yield f"{path} has no effect: {reason}"


def _defaults(given: Kwargs) -> Iterator[str]:
    """Differing defaults of RL4LMs, reported for configs written for it."""
    if _at(given, "alg.policy.args.apply_model_parallel") is None:
        return
    left_open = [text for paths, text in _RL4LMS_DEFAULTS.items() if all(_at(given, path) is None for path in paths)]
    if left_open:
        yield f"RL4LMs has other defaults for keys that this config does not set: {'; '.join(left_open)}"


def _of_both(named: list[GenerationBlock]) -> Iterator[str]:
    for block in named:
        if block.kwargs.get("do_sample") and block.kwargs.get("top_k") is None:
            there = "RL4LMs then uses transformers' default of 50 (set top_k: 50 to match it, or top_k: 0 to keep all)"
            yield f"{block.where} samples without top_k, from the whole vocabulary; {there}"
            break
    for block in named:
        where, kwargs = block.where, block.kwargs
        for key in _SAMPLER_KEYS_WITHOUT_EFFECT:
            if kwargs.get(key) is not None:
                yield f"{where}.{key} has no effect on the generated text"
        for key in _OF_BEAMS:
            if kwargs.get(key) is not None and kwargs.get("num_beams", 1) == 1:
                yield f"{where}.{key} has no effect unless num_beams is above 1"


def _of_evaluations(config: TextConfig) -> Iterator[str]:
    where, kwargs = config.evaluation_block.where, config.evaluation_block.kwargs
    has_beams = (kwargs.get("num_beams") or 1) != 1
    if has_beams and config.policy_id.startswith("maskable_"):
        how_else = "" if kwargs.get("do_sample") else ", greedily"
        why = "because NLPO's mask is computed token by token: evaluations decode without beam search"
        yield f"{where}.num_beams is ignored, {why}{how_else}"
    if not has_beams and kwargs.get("do_sample") is None:
        yield f"{where} has no do_sample: evaluations decode greedily, as transformers and RL4LMs do"
    if (kwargs.get("num_return_sequences") or 1) != 1:
        evaluated = "only the best reply is" if has_beams else "only one sampled reply is"
        yield f"{where}.num_return_sequences: {evaluated} evaluated"


def _of_rollouts(config: TextConfig) -> Iterator[str]:
    of_evaluations, rollouts = config.generation_blocks
    if config.has_rollouts and config.env is not None:
        where, longest, limit = rollouts.where, config.env.args.max_episode_length, config.reply_limit
        wanted, least = rollouts.count("max_new_tokens"), rollouts.kwargs.get("min_new_tokens") or 0
        wanted_of_evaluations = of_evaluations.count("max_new_tokens") or 0
        if rollouts.kwargs.get("do_sample") is None:
            yield f"{where} has no do_sample: rollouts sample; RL4LMs then decodes greedily, without exploration"
        if wanted is None:
            end = f"replies end after env.args.max_episode_length = {longest} tokens"
            yield f"{where} has no max_new_tokens: {end}; RL4LMs then uses transformers' default max_length of 20"
        elif wanted > longest:
            end = f"env.args.max_episode_length ends replies after {longest} tokens"
            yield f"{where}.max_new_tokens is {wanted}, but {end}"
        if least > limit:
            yield f"{where}.min_new_tokens is {least}, but replies end after {limit} tokens, so none ends by itself"
        if wanted_of_evaluations > limit:
            end = f"{limit} tokens, as in rollouts (env.args.max_episode_length, {where}.max_new_tokens)"
            key = f"{config.evaluation_block.where}.max_new_tokens"
            yield f"{key} is {wanted_of_evaluations}, but replies end after {end}"
    if config.is_encoder_decoder and any(block.kwargs.get("min_length") for block in (of_evaluations, rollouts)):
        there = "transformers, and therefore RL4LMs, also counts the start token of an encoder-decoder"
        yield f"generation_kwargs.min_length counts tokens of the reply; {there}, so replies can be one shorter"


def _of_supervised(config: TextConfig) -> Iterator[str]:
    # Not at the top, because it imports this module.
    from rl4dialog.core.config import DEFAULT_REPLY_LENGTH, SupervisedConfig

    if not isinstance(config, SupervisedConfig):
        return
    args = config.alg.training_args
    if config.env is None and config.evaluation_reply_limit is None:
        yield f"generation_kwargs has no max_new_tokens: evaluations end replies after {DEFAULT_REPLY_LENGTH} tokens"
    if not config.is_encoder_decoder and config.alg.loss_on == "reply":
        yield "alg.loss_on is reply: only replies are trained on; RL4LMs also trains on prompts (loss_on: all)"
    of_saving = ", ".join(key for key in ("save_total_limit", "save_steps") if args.get(key) is not None)
    if args.get("save_strategy") not in (None, "no"):
        ours = "those of train_evaluation.save_every, which --resume uses"
        yield f"alg.training_args.save_strategy writes transformers' own checkpoints, besides {ours}"
    elif of_saving:
        ours = "checkpoints are saved by train_evaluation.save_every, in epochs, and the model at the end"
        yield f"alg.training_args.{of_saving}: no effect without save_strategy (default: no); {ours}"
    if config.train_evaluation.n_iters is not None:
        ours = "alg.training_args.num_train_epochs or max_steps does"
        yield f"train_evaluation.n_iters does not set the length of supervised training; {ours}"
    if args.get("logging_steps") is not None:
        both = "RL4LMs also evaluates the val split then, and rl4dialog every train_evaluation.eval_every epochs"
        yield f"alg.training_args.logging_steps sets how often the loss is logged; {both}"


def _at(config: Any, path: str) -> Any:
    """Value at a dotted path of a config as written, or ``None``."""
    for key in path.split("."):
        config = config.get(key) if isinstance(config, Mapping) else None
    return config
