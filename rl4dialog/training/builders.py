"""The only place that turns a config into objects. What is built gets plain arguments, never the config."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import logging
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_deepspeed_available
from pydantic import ValidationError
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from rl4dialog.catalog import (
    AlgorithmRegistry,
    CallbackRegistry,
    DataPoolRegistry,
    MetricRegistry,
    PolicyRegistry,
    PostProcessorRegistry,
    RewardFunctionRegistry,
)
from rl4dialog.core.cache import cached_folder, content_hash
from rl4dialog.core.config import ComponentConfig, EnvConfig, RewardConfig, RunConfig
from rl4dialog.core.errors import ConfigError, DataError, GenerationError
from rl4dialog.core.generation_blocks import GenerationBlock, evaluation_block, generation_blocks, reply_limit
from rl4dialog.core.hub import load_pretrained
from rl4dialog.core.protocols import BaseMetric
from rl4dialog.core.registry import Registry
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import RewardPart, Sample, clip_bounds
from rl4dialog.data.pool import TextGenPool
from rl4dialog.envs.partners import ScriptedPartner
from rl4dialog.envs.sb3_workers import close
from rl4dialog.envs.vectorize import check_workers, make_vec_env
from rl4dialog.functional.distributed import n_processes
from rl4dialog.metrics.intent_classifier import IntentClassifier
from rl4dialog.policies import vllm_engine
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.examination import examine
from rl4dialog.policies.generation import EVALUATION_ONLY, NOT_IN_ROLLOUTS, GenerationBackend, GenerationSettings
from rl4dialog.policies.hashing import weights_hash
from rl4dialog.policies.lora import check_settings
from rl4dialog.policies.models import check_fits, embedding_rows, load_language_model, named_model_positions
from rl4dialog.policies.vllm_backend import VLLMBackend
from rl4dialog.rewards.async_reward import AsyncCalls
from rl4dialog.rewards.parts import as_parts, is_batched
from rl4dialog.rewards.scoring import BatchScorer
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.rollouts.kl_controllers import build_kl_controller
from rl4dialog.rollouts.reward_normalizer import RewardNormalizer
from rl4dialog.runs.progress import say
from rl4dialog.runs.run_folder import write_json
from rl4dialog.runs.run_logger import check_outputs
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids
from rl4dialog.text.tokenizer import build_tokenizer, encode_prompt
from rl4dialog.training.callbacks.base import IterationCallback
from rl4dialog.training.intent_classifier import builtin_intent_classifier, is_builtin_classifier_cached
from rl4dialog.training.processes import sharding
from rl4dialog.training.reward_columns import RewardColumns
from rl4dialog.training.supervised import IGNORED_ARGS, build_training_arguments, warm_start
from rl4dialog.training.supervised_examples import ExampleSets, build_example_sets, encode_reply

_logger = logging.getLogger(__name__)
SPLITS = ("train", "val", "test")
WARM_START = "warm_start"  # its kind in the cache
_NO_LIMIT = 2**20  # tokens
_TRUNCATION_FILE = "truncation.json"  # beside a cached warm start: how many texts did not fit
MISSING_CLASSIFIER = object()


@dataclass
class Data:
    """The samples of a run, and how its dialogue format ends a turn."""

    pools: dict[str, TextGenPool]
    turn_marker: str | None

    def samples(self, split: str, limit: int | None = None) -> list[Sample]:
        """Samples of a split, the first ``limit`` of them."""
        return [sample for sample, _ in self.pools[split]][:limit]


@dataclass
class Lengths:
    """In tokens.

    Attributes:
        prompt: Longest prompt that is answered.
        reply: Longest reply that is generated.
        truncation_side: Which end of a longer prompt is dropped.
        target: Longest reference that supervised training learns; a longer one loses its end, as a rollout would.
            ``None``: references are never cut.
        total: What supervised training takes of prompt and reference together, or of each in an encoder-decoder.
            ``None``: as much as the model has positions for.
        turn_end: Text behind every turn of a prompt, if prompts lose whole turns.
    """

    prompt: int
    reply: int
    truncation_side: str = "left"
    target: int | None = None
    total: int | None = None
    turn_end: str | None = None

    @property
    def room(self) -> int:
        """What a model needs positions for behind the longest prompt."""
        return max(self.reply, (self.total or 0) - self.prompt)


def check_components(config: RunConfig) -> None:
    """Check every id and argument before anything loads.

    Raises:
        ConfigError: If an id or an argument is unknown, or a required argument is missing.
    """
    if "split" in config.datapool.args:
        raise ConfigError("datapool.args.split: every run reads all three splits; remove it")
    DataPoolRegistry.check(config.datapool.id, config.datapool.args, "datapool.args")
    for registry, id, args, where in _metrics_and_rewards(config):
        registry.check(id, args, where)
        config.warnings.extend(note for note in registry.without_effect(id, args) if note not in config.warnings)
    for block in generation_blocks(config):
        in_rollouts = block.where.startswith("alg.policy")
        settings = GenerationSettings.from_kwargs(block.kwargs, block.where, NOT_IN_ROLLOUTS if in_rollouts else None)
        build_post_processor(block)
        if settings.num_beams > 1:
            _check_beams(config, f"{block.where}.num_beams is {settings.num_beams}")
    if config.generation.backend == "vllm":
        _check_vllm(config)
    check_outputs(config.logging.outputs)
    for i, component in enumerate(config.callbacks):
        check_callback(component.id, component.args, f"callbacks[{i}].args")
    if config.alg.id == "supervised":
        if n_processes() > 1:
            raise ConfigError(f"alg.id: supervised trains in one process, not in {n_processes()}")
        if config.lora is not None:
            check_settings(config.lora)
        training_args = config.alg.training_args or {}
        with tempfile.TemporaryDirectory() as folder:
            build_training_arguments(training_args, folder, config.seed, with_val=True)
        ignored = [name for name in IGNORED_ARGS if name in training_args]
        config.warnings.extend(f"alg.training_args.{name} has no meaning here and is ignored" for name in ignored)
        return
    assert config.alg.policy is not None
    chosen = [
        ("alg.args", AlgorithmRegistry, config.alg.id, config.alg.args),
        ("alg.policy.args", PolicyRegistry, config.alg.policy.id, _policy_args(config)),
    ]
    for where, registry, id, args in chosen:
        for name in args:
            if name in registry.provided:
                raise ConfigError(f"{where}.{name} is decided by the rest of the config; remove it")
        registry.check(id, args, where)
    assert config.env is not None
    algorithm, policy = AlgorithmRegistry.resolve(config.alg.id), policy_class(config)
    if sharding() is not None:
        _check_sharding(config)
    if n_processes() > 1 and not algorithm.data_parallel:
        raise ConfigError(f"alg.id: {config.alg.id} trains in one process, not in {n_processes()}")
    if config.env.n_envs % n_processes():
        raise ConfigError(f"env.n_envs is {config.env.n_envs}, which {n_processes()} processes cannot share evenly")
    algorithm.check_arguments(config.alg.args, config.env.n_envs // n_processes())
    policy.check_arguments({**_policy_args(config), "lora": config.lora})
    if algorithm.maskable != policy.maskable:
        plain, masked = config.alg.policy.id.removeprefix("maskable_"), "maskable_" + config.alg.policy.id
        fitting = masked if algorithm.maskable else plain
        raise ConfigError(f"alg.id: {config.alg.id} does not go with policy {config.alg.policy.id!r}; use {fitting!r}")
    if algorithm.needs_critic and _policy_args(config).get("critic") == "none":
        raise ConfigError(f"alg.policy.args.critic is none, but alg.id: {config.alg.id} needs a critic")
    assert config.alg.kl_div is not None
    if _policy_args(config).get("reference") == "none" and config.alg.kl_div.coeff:
        raise ConfigError(
            f"alg.kl_div.coeff is {config.alg.kl_div.coeff:g}, but alg.policy.args.reference is none, so there is no "
            f"KL to charge for; set the coefficient to 0, or reference to copy"
        )


def build_data(config: RunConfig, tokenizer: PreTrainedTokenizerBase | None = None) -> Data:
    """Build all three splits of the datapool.

    Raises:
        DataError: If a file is missing or malformed, or a split is empty.
    """
    render_chat = ChatTemplate(tokenizer) if tokenizer is not None else None
    pools = {}
    for split in SPLITS:
        pool = DataPoolRegistry.get(
            config.datapool.id, {**config.datapool.args, "split": split}, render_chat=render_chat
        )
        if len(pool) == 0:
            raise DataError(f"datapool {config.datapool.id!r} has no samples in split {split!r}")
        pools[split] = pool
    return Data(pools, getattr(pools["train"], "end_of_turn", None))


def build_run_tokenizer(config: RunConfig) -> tuple[PreTrainedTokenizerBase, Data]:
    """The tokenizer and the data; which of them comes first depends on who needs whom."""
    settings = config.tokenizer.model_dump()
    if config.tokenizer.model_name.startswith("builtin/"):
        data = build_data(config)
        train = data.samples("train")
        corpus = [text for sample in train for text in (sample.prompt_or_input_text, *sample.references)]
        return build_tokenizer(**settings, corpus=corpus, turn_marker=data.turn_marker), data
    tokenizer = build_tokenizer(**settings)
    return tokenizer, build_data(config, tokenizer)


def run_lengths(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, data: Data | None = None, model_name: str | None = None
) -> Lengths:
    """Longest prompt and reply of a run.

    Without an ``env`` block they are the tokenizer's limit, at most the model's positions; where neither has one, what
    the data need.

    Args:
        config: Of the run.
        tokenizer: Of the run.
        data: Of the run, for models that are made to fit it.
        model_name: The language model where it is not the config's.

    Raises:
        ConfigError: If replies leave no room for a prompt.
    """
    if config.env is None:
        return _tokenizer_lengths(config, tokenizer, data, model_name or str(config.alg.model_name))
    args = config.env.args
    return Lengths(
        args.max_prompt_length, reply_limit(config), args.prompt_truncation_side, target=args.max_episode_length
    )


def _tokenizer_lengths(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, data: Data | None, model_name: str
) -> Lengths:
    positions = named_model_positions(model_name)
    # A tokenizer without a limit says 1e30.
    known = [n for n in (int(tokenizer.model_max_length), positions) if n is not None and n < _NO_LIMIT]
    total = min(known, default=None)
    together, reply = config.alg.model_type == "causal", reply_limit(config)
    side = tokenizer.truncation_side
    turn_end = (data.turn_marker if data is not None else None) or tokenizer.eos_token
    if total is None and data is not None and data.pools:
        prompt, target = _longest_texts(tokenizer, data)
        return Lengths(prompt, reply, side, total=prompt + target if together else max(prompt, target))
    if total is None:
        return Lengths(_NO_LIMIT, reply, side)
    prompt = min(total, positions - reply) if together and positions is not None else total
    if prompt < 1:
        raise ConfigError(
            f"generation_kwargs.max_new_tokens is {reply}, which leaves no room for a prompt in the {positions} "
            f"positions of {model_name!r}; lower it"
        )
    return Lengths(prompt, reply, side, total=total, turn_end=turn_end)


def _longest_texts(tokenizer: PreTrainedTokenizerBase, data: Data) -> tuple[int, int]:
    """Tokens of the longest prompt, and of the longest reference with its end, of all splits."""
    samples = [sample for split in data.pools for sample in data.samples(split)]
    prompt = max(len(encode_prompt(tokenizer, sample.prompt_or_input_text, None)) for sample in samples)
    targets = (encode_reply(tokenizer, text, data.turn_marker) for sample in samples for text in sample.references)
    return prompt, max(map(len, targets), default=1)


def all_arguments(config: RunConfig) -> dict[str, Any]:
    """Arguments of an RL run's policy and algorithm, with the defaults of those that the config leaves out."""
    assert config.alg.policy is not None
    policy, algorithm = PolicyRegistry.defaults(config.alg.policy.id), AlgorithmRegistry.defaults(config.alg.id)
    return {**policy, **(config.alg.policy.args.model_extra or {}), **algorithm, **config.alg.args}


def build_language_model(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, data: Data, lengths: Lengths
) -> PreTrainedModel:
    """Load or make the language model, and warm-start it if the config says so (cached by content)."""
    model_name = config.alg.policy.args.model_name if config.alg.policy else config.alg.model_name
    assert model_name is not None
    auto_class = policy_class(config).auto_class
    fit = (tokenizer, lengths.prompt, lengths.room)
    model = load_language_model(model_name, *fit, auto_class, derive_seed(config.seed, "model"))
    examine(model, model_name)
    if config.warm_start is None:
        return model
    key = warm_start_key(config, model, tokenizer, data, lengths)
    settings = config.warm_start.model_dump(exclude={"loss_on", "max_samples"})  # which decide the examples

    @functools.cache  # if the cache cannot be written, the trained model is written elsewhere
    def train() -> dict[str, float]:
        examples = build_warm_start_examples(config, tokenizer, data, lengths, model.config)
        return warm_start(model, tokenizer, examples, **settings, seed=derive_seed(config.seed, "warm_start"))

    def build(folder: Path) -> None:
        info = train()
        model.save_pretrained(folder)
        counts = {name: int(info[name]) for name in ("n_prompts_cut", "n_references_cut", "n_left_out")}
        write_json(folder / _TRUNCATION_FILE, counts)

    cached = cached_folder(WARM_START, key, build)
    counts = json.loads((cached / _TRUNCATION_FILE).read_text(encoding="utf-8"))
    if not train.cache_info().currsize and any(counts.values()):
        say(
            f"Warm start, from the cache: {counts['n_prompts_cut']} references with a cut prompt, "
            f"{counts['n_references_cut']} without their end, {counts['n_left_out']} left out",
            on_terminals=True,
        )
    warmed = load_pretrained(auto_class, str(cached), "warm-started model", "Remove it.", dtype=torch.float32)
    check_fits(warmed, *fit, model_name)
    return warmed  # type: ignore[no-any-return]


def build_supervised_examples(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    lengths: Lengths,
    model_config: PretrainedConfig,
) -> ExampleSets:
    """What a supervised run learns and measures its perplexity on.

    Raises:
        RL4DialogError: If there is nothing to learn, or it cannot be learned so; see
            :func:`~rl4dialog.training.supervised_examples.build_example_sets`.
    """
    return build_example_sets(
        model_config,
        tokenizer,
        data.samples("train"),
        val_samples=data.samples("val", config.train_evaluation.max_eval_samples),
        loss_on=config.alg.loss_on,
        **_learned_lengths(data, lengths),
    )


def build_warm_start_examples(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    lengths: Lengths,
    model_config: PretrainedConfig,
) -> ExampleSets:
    """What a warm start learns; as :func:`build_supervised_examples`."""
    assert config.warm_start is not None
    samples, n_samples = data.samples("train"), config.warm_start.max_samples
    if n_samples is not None and n_samples < len(samples):
        samples = random.Random(derive_seed(config.seed, "warm_start")).sample(samples, n_samples)
    return build_example_sets(
        model_config,
        tokenizer,
        samples,
        loss_on=config.warm_start.loss_on,
        description="Warm start",
        **_learned_lengths(data, lengths),
    )


def _learned_lengths(data: Data, lengths: Lengths) -> dict[str, Any]:
    """The arguments of `build_example_sets` that say what of a sample is learned."""
    with_env = lengths.target is not None
    return {
        "end_of_turn": data.turn_marker,
        "max_prompt_length": lengths.prompt if with_env else None,
        "max_reply_length": lengths.target,
        "max_length": lengths.total,
        "prompt_truncation_side": lengths.truncation_side,
        "whole_turns": not with_env,
    }


def warm_start_key(
    config: RunConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Data, lengths: Lengths
) -> dict[str, Any]:
    """Everything that decides what a warm start makes of a model, for the cache."""
    assert config.warm_start is not None
    samples = data.samples("train")
    return {
        "weights": weights_hash(model),
        "samples": content_hash(text for s in samples for text in (s.prompt_or_input_text, *s.references)),
        "tokenizer": content_hash([tokenizer.backend_tokenizer.to_str()]),
        "turn_marker": data.turn_marker,
        "lengths": dataclasses.asdict(lengths),
        "settings": config.warm_start.model_dump(),
        "seed": config.seed,
    }


def fill_cache(config: RunConfig) -> None:
    """Do what a run keeps in the cache: the intent classifier, and the warm start."""
    tokenizer, data = build_run_tokenizer(config)
    build_toolkit(config, tokenizer, data)
    build_language_model(config, tokenizer, data, run_lengths(config, tokenizer, data))


def policy_class(config: RunConfig) -> type[LMActorCriticPolicy]:
    """The class of the run's policy; of a supervised run, the one that generates with its model."""
    if config.alg.policy is not None:
        return PolicyRegistry.resolve(config.alg.policy.id)  # type: ignore[no-any-return]
    return PolicyRegistry.resolve(f"{config.alg.model_type}_lm_actor_critic_policy")  # type: ignore[no-any-return]


def build_end_of_turn(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, data: Data, model: PreTrainedModel
) -> EndOfTurn:
    """Where replies end: all end-of-sequence ids, and the dialogue format's marker."""
    if config.env is not None and not config.env.args.terminate_on_eos:
        return EndOfTurn(tokenizer, ())
    ids = end_of_sequence_ids(tokenizer, model.config, model.generation_config)
    return EndOfTurn(tokenizer, ids, data.turn_marker)


def build_toolkit(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, data: Data, trains_classifier: bool = True
) -> dict[str, Any]:
    """What components may ask for by parameter name: ``tokenizer``, ``classifier``, ``async_calls``.

    Args:
        config: Checked.
        tokenizer: Of the run.
        data: Its samples.
        trains_classifier: Whether the built-in classifier is trained where it is not cached; else it is missing then,
            and components can be built with the toolkit but not used.
    """
    toolkit: dict[str, Any] = {"tokenizer": tokenizer, "accelerator": None}
    if config.reward_fn is not None:
        toolkit["async_calls"] = _async_calls(config.reward_fn)
    if _needs_builtin_classifier(config):
        samples, seed = data.samples("train"), derive_seed(config.seed, "classifier")
        if not trains_classifier and not is_builtin_classifier_cached(samples, seed):
            return {**toolkit, "classifier": MISSING_CLASSIFIER}
        folder = builtin_intent_classifier(samples, data.samples("val"), seed)
        toolkit["classifier"] = IntentClassifier.from_pretrained(str(folder))
    return toolkit


def build_metrics(config: RunConfig, toolkit: Mapping[str, Any]) -> list[BaseMetric]:
    """The metrics of ``train_evaluation``."""
    build_part = _reward_builder(toolkit)
    return [
        MetricRegistry.get(metric.id, metric.args, **_injected(metric, toolkit), build_part=build_part)
        for metric in config.train_evaluation.metrics
    ]


def evaluation_kwargs(config: RunConfig) -> dict[str, Any]:
    """How a run's evaluations decode: greedily where nothing says that they sample.

    NLPO's mask and conversations refuse beams; for NLPO the config's notes say so.
    """
    given = evaluation_block(config).kwargs
    kwargs = {"do_sample": False} | {key: value for key, value in given.items() if value is not None}
    return without_beams(kwargs) if policy_class(config).maskable else kwargs


def without_beams(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A ``generation_kwargs`` block without what is for the evaluation of single replies."""
    return {key: value for key, value in kwargs.items() if key not in EVALUATION_ONLY}


def build_evaluation_post_processor(config: RunConfig) -> Callable[[str], str] | None:
    """What replies go through before they are measured: that of the ``generation_kwargs`` they are generated with."""
    return build_post_processor(evaluation_block(config))


def build_post_processor(block: GenerationBlock) -> Callable[[str], str] | None:
    """The ``post_processing_fn`` of a ``generation_kwargs`` block.

    Raises:
        ConfigError: If it is neither an id nor ``{id: ..., args: ...}``, or no such post-processor or argument exists.
    """
    chosen, where = block.kwargs.get("post_processing_fn"), f"{block.where}.post_processing_fn"
    if chosen is None:
        return None
    component = _component(chosen, where)
    PostProcessorRegistry.check(component.id, component.args, f"{where}.args")
    return PostProcessorRegistry.get(component.id, component.args)  # type: ignore[no-any-return]


def build_reward_parts(config: RunConfig, toolkit: Mapping[str, Any]) -> list[RewardPart]:
    """The reward as a weighted sum of parts."""
    assert config.reward_fn is not None
    reward = _reward_builder(toolkit)(config.reward_fn.id, config.reward_fn.args)
    return as_parts(reward, config.reward_fn.id)


def check_callback(id: str, args: Mapping[str, Any], where: str, is_inner: bool = False) -> None:
    """Check a callback of the config, without building it.

    Args:
        id: The callback.
        args: Its arguments.
        where: Path of ``args`` in the config.
        is_inner: Whether another callback calls it.

    Raises:
        ConfigError: If an id, an argument or a value is wrong, or it is no callback of stable-baselines3.
    """
    CallbackRegistry.check(id, args, where)
    component = CallbackRegistry.resolve(id)
    if inspect.isclass(component) and not issubclass(component, BaseCallback):
        raise ConfigError(f"callback {id!r} must derive from stable_baselines3.common.callbacks.BaseCallback")
    if not (inspect.isclass(component) and issubclass(component, IterationCallback)):
        return
    if is_inner:
        raise ConfigError(f"callback {id!r} acts by itself and not in _on_step, so another one cannot call it")
    for inner in getattr(component, "inner_callbacks", lambda _: ())(args):
        chosen = _component(inner, f"{where}.callback")
        check_callback(chosen.id, chosen.args, f"{where}.callback.args", is_inner=True)


def build_callbacks(config: RunConfig, toolkit: Mapping[str, Any]) -> list[tuple[str, BaseCallback]]:
    """Id and object of each of the config's callbacks.

    Args:
        config: Checked.
        toolkit: What they may ask for by parameter name: ``evaluations``, ``save_model``, ``run_folder``.
    """

    def build(id: str, args: dict[str, Any] | None = None) -> BaseCallback:
        built = CallbackRegistry.get(id, args, **toolkit, build_callback=build)
        return built if isinstance(built, BaseCallback) else ConvertCallback(built)

    return [(callback.id, build(callback.id, callback.args)) for callback in config.callbacks]


def build_reward_columns(
    config: RunConfig, toolkit: Mapping[str, Any], parts: list[RewardPart] | None = None
) -> RewardColumns | None:
    """What scores the replies of evaluations by the run's reward, if that is wanted.

    Args:
        config: Of the run.
        toolkit: Of :func:`build_toolkit`.
        parts: The reward, where it is built already.
    """
    if config.reward_fn is None or not config.train_evaluation.score_predictions:
        return None
    parts = parts if parts is not None else build_reward_parts(config, toolkit)
    if of_tokens := [repr(part.name) for part in parts if getattr(part.function, "needs_tokens", False)]:
        _logger.warning(
            "evaluations have no metric 'reward': they score texts, and %s needs a reply's tokens", ", ".join(of_tokens)
        )
        return None
    last = max(config.train_evaluation.n_iters or 1, 1)
    reward = config.reward_fn
    return RewardColumns(parts, reward.on_error, _async_calls(reward), last, reward.timeout_s, toolkit["tokenizer"])


def _reward_builder(toolkit: Mapping[str, Any]) -> Callable[[str, dict[str, Any]], Any]:
    """Builds rewards from id and arguments, and gives itself to those that consist of others."""

    def build(id: str, args: dict[str, Any]) -> Any:
        injected = _injected(ComponentConfig(id=id, args=args), toolkit)
        return RewardFunctionRegistry.get(id, args, **injected, build_part=build)

    return build


def build_algorithm(
    config: RunConfig,
    data: Data,
    model: PreTrainedModel,
    end_of_turn: EndOfTurn,
    lengths: Lengths,
    reward_parts: list[RewardPart],
) -> Any:
    """The environments, the policy and the algorithm."""
    env_config = config.env
    assert env_config is not None and config.alg.kl_div is not None and config.alg.policy is not None
    reward_config = config.reward_fn
    assert reward_config is not None
    vec_env = make_vec_env(
        _env_kwargs(env_config, data, model, end_of_turn, lengths, reward_parts),
        env_config.n_envs // n_processes(),
        env_config.vec_env,
        env_config.n_workers,
        env_config.max_restarts if env_config.on_worker_death == "restart" else 0,
        reward_config.timeout_s,
    )
    kl = config.alg.kl_div
    algorithm, policy_args = AlgorithmRegistry.resolve(config.alg.id), _policy_args(config)
    if not algorithm.needs_critic:
        policy_args["critic"] = "none"
    try:
        built = algorithm(
            policy_class(config),
            vec_env,
            policy_kwargs={
                **policy_args,
                "model": model,
                "end_of_turn": end_of_turn,
                "precision": config.precision,
                "lora": config.lora,
            },
            seed=config.seed,
            kl_controller=build_kl_controller(kl.coeff, kl.target_kl, kl.type, kl.horizon),
            collector=RolloutCollector(
                BatchScorer(reward_parts, reward_config.on_error, _async_calls(reward_config), reward_config.timeout_s),
                mask_failed_rewards=reward_config.on_error == "mask",
                bootstrap_truncated=env_config.args.bootstrap_truncated,
                normalizer=build_reward_normalizer(reward_config),
                log_infos=config.logging.log_infos,
            ),
            normalize_rewards=kl.norm_reward,
            sharding=sharding(),
            **config.alg.args,
        )
        built.policy.backend = _build_backend(config, built.policy, lengths)
    except (AssertionError, TypeError, ValueError) as error:
        close(vec_env)
        raise ConfigError(f"alg.args do not fit {config.alg.id!r}: {error}") from error
    except GenerationError:
        close(vec_env)
        raise
    return built


def check_env_workers(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    model: PreTrainedModel,
    lengths: Lengths,
    reward_parts: list[RewardPart],
) -> None:
    """Check that the environments can be given to worker processes, where a run has any, without starting one.

    Args:
        config: Of an RL run.
        tokenizer: Of the run.
        data: Of the run.
        model: Of the run; it need not have weights.
        lengths: Of the run.
        reward_parts: Of :func:`build_reward_parts`.

    Raises:
        EnvWorkerError: If they cannot; see :func:`~rl4dialog.envs.vectorize.check_workers`.
    """
    assert config.env is not None
    end_of_turn = build_end_of_turn(config, tokenizer, data, model)
    check_workers(_env_kwargs(config.env, data, model, end_of_turn, lengths, reward_parts), config.env.vec_env)


def _check_beams(config: RunConfig, what: str) -> None:
    """Check that evaluations can search with beams."""
    if config.env is not None and config.env.args.max_turns > 1:
        raise ConfigError(
            f"{what}, which does not go with env.args.max_turns: {config.env.args.max_turns}: beams are for the "
            f"evaluation of single replies; remove num_beams"
        )
    if sharding() is not None:
        raise ConfigError(f"{what}, which does not go with weights that are spread over processes; remove num_beams")


def _check_sharding(config: RunConfig) -> None:
    """Check that a run can be spread over its processes as the launcher's config says."""
    if sharding() == "deepspeed":
        if not is_deepspeed_available():
            raise ConfigError("the launcher's config asks for DeepSpeed, which is not installed: pip install deepspeed")
        if config.alg.args.get("target_kl") is not None:
            raise ConfigError("alg.args.target_kl does not go with DeepSpeed: a minibatch cannot be left half way")
        return
    assert config.env is not None
    for key, is_used in (
        ("lora", config.lora is not None),
        ("generation.backend: vllm", config.generation.backend == "vllm"),
        ("env.args.bootstrap_truncated", config.env.args.bootstrap_truncated),
        ("metric causal_perplexity", any(m.id == "causal_perplexity" for m in config.train_evaluation.metrics)),
        ("alg.policy.args.offload_reference", _policy_args(config).get("offload_reference", False)),
    ):
        if is_used:
            raise ConfigError(f"{key} does not go with FSDP; choose a launcher's config without it")


def _check_vllm(config: RunConfig) -> None:
    """Check that vLLM can write this run's replies, and is there."""
    if config.alg.policy is None:
        raise ConfigError(f"generation.backend: vllm does not go with alg.id: {config.alg.id}; use transformers")
    policy = policy_class(config)
    if not issubclass(policy, CausalLMActorCriticPolicy) or policy.maskable:
        raise ConfigError(
            f"generation.backend: vllm does not go with policy {config.alg.policy.id!r}; it writes for decoder-only "
            f"models without a mask (causal_lm_actor_critic_policy)"
        )
    for block in generation_blocks(config):
        vllm_engine.check_settings(GenerationSettings.from_kwargs(block.kwargs, block.where), block.where)
    vllm_engine.import_vllm(config.generation.tensor_parallel_size)


def _build_backend(config: RunConfig, policy: LMActorCriticPolicy, lengths: Lengths) -> GenerationBackend | None:
    """What generates in the policy's place, if anything does."""
    settings = config.generation.model_dump()
    if settings.pop("backend") == "transformers":
        return None
    engine = vllm_engine.VLLMEngine(
        policy.language_model,
        policy.end_of_turn,
        lengths.prompt + lengths.reply,
        {"fp32": "float32", "bf16": "bfloat16"}[config.precision],
        config.seed,
        **settings,
    )
    return VLLMBackend(engine)


def build_reward_normalizer(config: RewardConfig) -> RewardNormalizer | None:
    """What rewards go through before the KL penalty, if anything."""
    if config.normalize == "none" and config.clip is None:
        return None
    return RewardNormalizer(config.normalize, None if config.clip is None else clip_bounds(config.clip))


def _async_calls(config: RewardConfig) -> AsyncCalls:
    return AsyncCalls(**config.async_calls.model_dump())


def _component(chosen: Any, what: str) -> ComponentConfig:
    """A component that stands somewhere inside of arguments."""
    try:
        return ComponentConfig.model_validate({"id": chosen} if isinstance(chosen, str) else chosen)
    except ValidationError as error:
        raise ConfigError(f"{what} must be an id, or {{id: ..., args: {{...}}}}, not {chosen!r}") from error


def _env_kwargs(
    env: EnvConfig,
    data: Data,
    model: PreTrainedModel,
    end_of_turn: EndOfTurn,
    lengths: Lengths,
    reward_parts: list[RewardPart],
) -> dict[str, Any]:
    return {
        "end_of_turn": end_of_turn,
        "samples": list(data.pools["train"]),
        "reward_parts": [part for part in reward_parts if not is_batched(part.function)],
        "max_prompt_length": lengths.prompt,
        "max_episode_length": lengths.reply,
        "vocab_size": embedding_rows(model),
        "prompt_truncation_side": lengths.truncation_side,
        "max_turns": env.args.max_turns,
        "priority_scale": env.args.priority_scale,
        "between_turns": getattr(data.pools["train"], "between_turns", None),
        "partner": ScriptedPartner(env.args.partner_replies) if env.args.partner_replies is not None else None,
    }


def _policy_args(config: RunConfig) -> dict[str, Any]:
    """The policy's own arguments, without those that the builders or nobody needs."""
    assert config.alg.policy is not None
    args = config.alg.policy.args.model_dump()
    for name in ("model_name", "apply_model_parallel", "prompt_truncation_side"):
        args.pop(name, None)
    return args


def inference_arguments(config: RunConfig) -> dict[str, Any]:
    """Arguments of the policy that still mean something where nothing is trained."""
    if config.alg.policy is None:
        return {"generation_kwargs": without_beams(config.alg.generation_kwargs or {})}
    for_training = (
        *("critic", "optimizer_class", "optimizer_kwargs", "weight_decay"),
        *("gradient_checkpointing", "reference", "offload_reference"),
    )
    return {name: value for name, value in _policy_args(config).items() if name not in for_training}


def _injected(component: ComponentConfig, toolkit: Mapping[str, Any]) -> dict[str, Any]:
    """The toolkit, without the built-in classifier where the component names a classifier of its own."""
    own_classifier = not _names_builtin_classifier(component.args)
    return {name: value for name, value in toolkit.items() if not (name == "classifier" and own_classifier)}


def _names_builtin_classifier(args: Mapping[str, Any]) -> bool:
    return str(args.get("model_name", args.get("intent_model", "builtin/"))).startswith("builtin/")


def _needs_builtin_classifier(config: RunConfig) -> bool:
    return any(
        "classifier" in inspect.signature(registry.resolve(id)).parameters and _names_builtin_classifier(args)
        for registry, id, args, _ in _metrics_and_rewards(config)
    )


def _metrics_and_rewards(config: RunConfig) -> Iterator[tuple[Registry, str, dict[str, Any], str]]:
    """Every metric and reward of a run, and those inside them: registry, id, arguments, and the path of these."""

    def with_inner(
        registry: Registry, id: str, args: dict[str, Any], where: str
    ) -> Iterator[tuple[Registry, str, dict[str, Any], str]]:
        yield registry, id, args, where
        inner_rewards = getattr(registry.resolve(id), "inner_rewards", None)
        for inner in inner_rewards(args, where) if inner_rewards is not None else ():
            yield from with_inner(RewardFunctionRegistry, *inner)

    for i, metric in enumerate(config.train_evaluation.metrics):
        yield from with_inner(MetricRegistry, metric.id, metric.args, f"train_evaluation.metrics[{i}].args")
    if config.reward_fn is not None and (config.alg.id != "supervised" or config.train_evaluation.score_predictions):
        yield from with_inner(RewardFunctionRegistry, config.reward_fn.id, config.reward_fn.args, "reward_fn.args")
