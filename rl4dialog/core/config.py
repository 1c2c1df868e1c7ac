"""The schema of a run's YAML file: RL4LMs' keys, and ours as optional additions. Checked before anything loads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from rl4dialog.core.config_notes import config_notes
from rl4dialog.core.errors import ConfigError, nearest_hint, shown
from rl4dialog.core.types import clip_bounds, is_whole_number
from rl4dialog.core.yaml_loader import apply_overrides, expand_variants, load_yaml

Side = Literal["left", "right"]


class _Block(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, validate_default=False, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _empty_block(cls, value: Any, info: Any) -> Any:
        """``args:`` with nothing behind it is an empty block, as in RL4LMs."""
        field = cls.model_fields[info.field_name]
        return {} if value is None and field.default_factory is dict else value


class TokenizerConfig(_Block):
    model_name: str
    """``builtin/tiny-gpt2`` and other built-in models, a folder, or a hub id. Built-in tokenizers are made from the
    train split.
    """
    padding_side: Side = "left"
    """Where the tokenizer pads; prompts are padded on the left in any case."""
    truncation_side: Side = "left"
    """Which end of a text the tokenizer cuts off; of prompts, ``env.args.prompt_truncation_side`` decides."""
    pad_token_as_eos_token: bool = True
    """Pad with the end-of-sequence token where the tokenizer has no pad token."""
    max_length: int | None = Field(default=None, ge=1)
    """The tokenizer's limit in tokens, in place of its own. Without ``env``, it holds for prompts and references."""
    vocab_size: int = Field(default=1000, ge=260, le=1_000_000)
    """Tokens of a built-in tokenizer."""


class ComponentConfig(_Block):
    id: str
    """One of the ids on the page of the catalog, or your own."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of that id."""


def inner_component(chosen: Any, what: str) -> ComponentConfig:
    """A component that is named somewhere within arguments: by its id, or as ``{id: ..., args: {...}}``.

    Raises:
        ConfigError: If it is neither, with ``what`` as its path.
    """
    try:
        return ComponentConfig.model_validate({"id": chosen} if isinstance(chosen, str) else chosen)
    except ValidationError as error:
        raise ConfigError(f"{what} must be an id, or {{id: ..., args: {{...}}}}, not {chosen!r}") from error


class AsyncCallsConfig(_Block):
    concurrency: int = Field(default=8, ge=1)
    """Coroutines that are under way at the same time."""
    timeout_s: float = Field(default=60.0, gt=0)
    """How long each of them may take, in seconds."""
    retries: int = Field(default=2, ge=0)
    """How often one that fails is started again."""
    retry_wait_s: float = Field(default=1.0, ge=0)
    """Seconds before the first retry; twice as many before each further one."""


class RewardConfig(ComponentConfig):
    """What the whole reward goes through, in this order: normalize, clip; then comes the KL penalty."""

    on_error: Literal["raise", "mask"] = "raise"
    """What a reward that fails or is not finite does: end the run, or leave out that conversation and count it."""
    normalize: Literal["none", "running", "batch"] = "none"
    """Subtract the mean and divide by the deviation: of all episodes so far, or of each iteration."""
    clip: Any = None
    """Limit what is left of the reward: a number for both signs, or ``[lowest, highest]``."""
    timeout_s: float | None = Field(default=600.0, gt=0, le=1e8)
    """How long, in seconds, the rewards of a reply may take in the environments, and a reward of a batch of replies in
    the main process; one that takes longer has failed. null is no limit.
    """
    async_calls: AsyncCallsConfig = Field(default_factory=AsyncCallsConfig)
    """How rewards that are coroutines are awaited."""

    @field_validator("clip")
    @classmethod
    def _clip_is_a_range(cls, value: Any) -> Any:
        if value is not None:
            clip_bounds(value)
        return value


class EnvArgs(_Block):
    max_prompt_length: int = Field(ge=1, le=1_000_000)
    """Tokens of a prompt; longer ones are cut."""
    max_episode_length: int = Field(ge=1, le=1_000_000)
    """Tokens of a reply; longer ones are truncated."""
    terminate_on_eos: bool = True
    """Whether an end-of-sequence token or turn marker ends a reply."""
    prompt_truncation_side: Side = "left"
    """Which end of a long prompt is cut off."""
    context_start_token: int | None = None
    """Accepted for RL4LMs' configs, without effect."""
    max_turns: int = Field(default=1, ge=1)
    """Utterances of the agent per conversation."""
    priority_scale: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Samples are drawn by their weight to this power; 0 draws all equally often."""
    bootstrap_truncated: bool = False
    """Whether a truncated reply is worth what the critic expects behind it."""
    partner_replies: list[str] | None = Field(default=None, min_length=1)
    """What a scripted partner says between the agent's utterances."""


class EnvConfig(_Block):
    n_envs: int = Field(default=1, ge=1, le=65_536)
    """Environments, each with one conversation at a time."""
    vec_env: Literal["blocks", "subproc", "dummy"] = "blocks"
    """Where they live: blocks of them in worker processes; each in a process with its own copy of the samples
    (stable-baselines3's ``SubprocVecEnv``); or all in the run's own process. The rollouts are the same.
    """
    n_workers: int | None = Field(default=None, ge=1, le=4096)
    """Of ``blocks``: worker processes; by default one per core."""
    on_worker_death: Literal["raise", "restart"] = "raise"
    """Of ``blocks``: whether a worker that dies ends the run, or is replaced."""
    max_restarts: int = Field(default=10, ge=1)
    """Replacements until the run ends after all."""
    args: EnvArgs
    """Of each environment."""

    @model_validator(mode="after")
    def _restarts_are_wanted(self) -> EnvConfig:
        if self.on_worker_death == "raise" and self.max_restarts != type(self).model_fields["max_restarts"].default:
            raise ValueError("max_restarts has a meaning only with on_worker_death: restart")
        return self


class KLConfig(_Block):
    coeff: float = Field(ge=0)
    """Penalty per nat of KL to the reference, at the start."""
    target_kl: float | None = Field(default=None, gt=0)
    """KL per token, in nats, that the coefficient is steered to."""
    type: Literal["fixed", "adaptive", "ziegler"] | None = None
    """How the coefficient changes; by default ``adaptive`` with a target and ``fixed`` without."""
    horizon: int = Field(default=10_000, ge=1)
    """Of ``ziegler``: agent tokens over which the coefficient may change by up to 20 %; one iteration changes it by no
    more than that, however many tokens it has."""
    norm_reward: bool = False
    """Whiten the rewards of an iteration, the KL penalty included."""

    @model_validator(mode="after")
    def _type_fits_target(self) -> KLConfig:
        if self.type == "fixed" and self.target_kl is not None:
            raise ValueError("target_kl has no meaning with type: fixed; leave one of them out")
        if self.type in ("adaptive", "ziegler") and self.target_kl is None:
            raise ValueError(f"type: {self.type} needs a target_kl")
        return self


class PolicyArgs(BaseModel):
    """Arguments of a policy; those that are not named here are checked against its constructor."""

    model_config = ConfigDict(extra="allow", strict=True, use_attribute_docstrings=True)
    model_name: str
    """``builtin/tiny-gpt2`` and other built-in models, a folder, or a hub id."""
    apply_model_parallel: bool | None = None
    """Accepted for RL4LMs' configs, without effect."""
    prompt_truncation_side: Side | None = None
    """Accepted for RL4LMs' configs, without effect."""
    generation_kwargs: dict[str, Any] | None = None
    """How replies are sampled in rollouts, in transformers' names."""


class PolicyConfig(_Block):
    id: str
    """A policy's id."""
    args: PolicyArgs
    """Those below, and those that the catalog lists for the id."""


class AlgConfig(_Block):
    id: str
    """An algorithm's id, or ``supervised``."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the algorithm. ``n_steps`` and ``batch_size`` count agent tokens."""
    kl_div: KLConfig | None = None
    """The KL penalty. Needed by all but ``supervised``."""
    policy: PolicyConfig | None = None
    """The policy. Needed by all but ``supervised``."""
    training_args: dict[str, Any] | None = None
    """Of ``supervised``: arguments of transformers' ``TrainingArguments``."""
    model_type: Literal["causal", "seq2seq"] | None = None
    """Of ``supervised``: decoder-only, or encoder-decoder."""
    model_name: str | None = None
    """Of ``supervised``: as in ``alg.policy.args``."""
    generation_kwargs: dict[str, Any] | None = None
    """Of ``supervised``: how replies are generated in evaluations."""
    loss_on: Literal["reply", "all"] = "reply"
    """Of ``supervised``: what is learned, the reply or the prompt too."""

    @model_validator(mode="after")
    def _complete(self) -> AlgConfig:
        supervised = self.id == "supervised"
        needed = ("model_type", "model_name", "training_args") if supervised else ("kl_div", "policy")
        foreign = ("kl_div", "policy") if supervised else ("training_args", "model_type", "model_name")
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(f"the key {name!r} is missing, which alg.id: {self.id} needs")
        for name in foreign:
            if getattr(self, name) is not None:
                raise ValueError(f"the key {name!r} has no meaning with alg.id: {self.id}")
        return self


class KeepBestConfig(_Block):
    metric: str
    """A metric of the val split, such as ``lexical/meteor``. Its name in place of the block is enough."""
    mode: Literal["max", "min"] = "max"
    """Whether more or less of it is better."""


class TrainEvaluationConfig(_Block):
    eval_batch_size: int = Field(default=32, ge=1)
    """Prompts that are answered at the same time."""
    n_iters: int | None = Field(default=None, ge=0)
    """Iterations. Needed by all but ``supervised``."""
    eval_every: int = Field(default=10, ge=1)
    """Iterations between two evaluations of the val split."""
    save_every: int | None = Field(default=10, ge=1)
    """Iterations between two checkpoints; null saves only the last one, and when a signal stops the run."""
    keep_last: int = Field(default=2, ge=1)
    """Checkpoints that are kept, beside the best."""
    keep_best: KeepBestConfig | None = None
    """Keep the checkpoint that is best by a metric."""
    metrics: list[ComponentConfig] = Field(default_factory=list)
    """What is measured."""
    generation_kwargs: dict[str, Any] | None = None
    """How replies are generated in evaluations; by default as in rollouts. Greedily without ``do_sample``; with
    ``num_beams`` by beam search.
    """
    max_eval_samples: int | None = Field(default=None, ge=1)
    """Prompts of a split that are answered; by default all."""
    score_predictions: bool = True
    """Whether the run's reward of the evaluated replies is computed too."""

    @field_validator("keep_best", mode="before")
    @classmethod
    def _best_is_highest(cls, value: Any) -> Any:
        """A metric's name alone is enough."""
        return {"metric": value} if isinstance(value, str) else value


class WarmStartConfig(_Block):
    n_epochs: float = Field(default=1.0, gt=0)
    """Passes over the train split, or a part of one."""
    batch_size: int = Field(default=32, ge=1)
    """Samples per step."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """At its highest."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of AdamW."""
    warmup_ratio: float = Field(default=0.05, ge=0, lt=1)
    """Share of the steps in which the learning rate rises."""
    lr_scheduler_type: str = "cosine"
    """One of transformers' schedules."""
    loss_on: Literal["reply", "all"] = "reply"
    """What is learned: the reply, or the prompt too."""
    max_samples: int | None = Field(default=None, ge=1)
    """Samples that are learned; by default all."""


class GenerationConfig(_Block):
    backend: Literal["transformers", "vllm"] = "transformers"
    """Who writes the replies."""
    gpu_memory_utilization: float = Field(default=0.3, gt=0, le=1)
    """Of ``vllm``: its share of a GPU's memory, for weights and cache."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Of ``vllm``: GPUs that share the model."""
    sleep: bool = False
    """Of ``vllm``: give that memory back while the policy is trained."""

    @model_validator(mode="after")
    def _options_fit_backend(self) -> GenerationConfig:
        given = [name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default]
        if self.backend == "transformers" and given:
            raise ValueError(f"{', '.join(given)} has a meaning only with backend: vllm")
        return self


class LoggingConfig(_Block):
    outputs: list[Literal["csv", "json", "tensorboard", "stdout", "wandb"]] = Field(default_factory=list)
    """Further outputs beside the ``.jsonl`` files."""
    log_infos: list[str] = Field(default_factory=list)
    """Numbers of the environments' infos whose means are logged."""


class RunConfig(_Block):
    """A whole run."""

    tokenizer: TokenizerConfig
    """Between texts and token ids."""
    datapool: ComponentConfig
    """Where prompts and references come from."""
    alg: AlgConfig
    """The algorithm, its KL penalty and its policy."""
    train_evaluation: TrainEvaluationConfig
    """How long to train, what to measure and what to keep."""
    reward_fn: RewardConfig | None = None
    """What is learned. Needed by all but ``supervised``."""
    env: EnvConfig | None = None
    """The conversations. Needed by all but ``supervised``."""
    warm_start: WarmStartConfig | None = None
    """Supervised training before the first iteration, cached."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of forward passes; weights and optimizer stay in fp32."""
    lora: dict[str, Any] | None = None
    """Train adapters: arguments of ``peft.LoraConfig``."""
    generation: GenerationConfig = Field(default_factory=GenerationConfig)
    """Who writes the replies."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Decides everything that is drawn."""
    imports: list[str] = Field(default_factory=list)
    """Modules, or files beside the YAML, that register parts of your own. They are Python code and are executed."""
    callbacks: list[ComponentConfig] = Field(default_factory=list)
    """What is called around the iterations."""
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
    """Further outputs."""
    _warnings: list[str] = PrivateAttr(default_factory=list)

    @model_validator(mode="after")
    def _complete(self) -> RunConfig:
        if self.alg.id == "supervised":
            for name, given in (("callbacks", self.callbacks), ("logging.log_infos", self.logging.log_infos)):
                if given:
                    raise ValueError(f"{name} has no meaning with alg.id: supervised, which makes no rollouts")
            return self
        for name in ("reward_fn", "env"):
            if getattr(self, name) is None:
                raise ValueError(f"the key {name!r} is missing, which alg.id: {self.alg.id} needs")
        if self.train_evaluation.n_iters is None:
            raise ValueError("the key 'train_evaluation.n_iters' is missing")
        assert self.env is not None
        env_args = self.env.args
        if env_args.max_turns > 1 and env_args.partner_replies is None:
            raise ValueError("env.args.max_turns above 1 needs env.args.partner_replies")
        if env_args.partner_replies is not None and len(env_args.partner_replies) < env_args.max_turns - 1:
            raise ValueError(
                f"env.args.partner_replies has {len(env_args.partner_replies)} replies, and env.args.max_turns: "
                f"{env_args.max_turns} needs {env_args.max_turns - 1}, one between each two of the agent's turns"
            )
        self._check_sizes(self.env)
        return self

    def _check_sizes(self, env: EnvConfig) -> None:
        """``n_steps`` and ``batch_size`` count agent tokens, and a minibatch cannot hold more than an iteration."""
        args = self.alg.args
        # Whether they are numbers at all, the algorithm's signature says.
        if is_whole_number(args.get("n_steps"), 1) and is_whole_number(args.get("batch_size"), 1):
            n_tokens = args["n_steps"] * env.n_envs
            if args["batch_size"] > n_tokens:
                raise ValueError(
                    f"alg.args.batch_size is {args['batch_size']} agent tokens, but an iteration collects only "
                    f"n_steps * n_envs = {args['n_steps']} * {env.n_envs} = {n_tokens}"
                )

    @property
    def warnings(self) -> list[str]:
        """One line for each key that is ignored, defaulted or read otherwise than in RL4LMs."""
        return self._warnings


def load_config(path: str | Path, overrides: Iterable[str] = (), variant: int = 0) -> RunConfig:
    """Read, override and check a config file.

    Raises:
        ConfigError: If anything in it is wrong; all problems are told at once.
    """
    config, n_variants = expand_variants(load_yaml(path), variant)
    checked = parse_config(apply_overrides(config, overrides), str(path))
    if n_variants > 1:
        checked.warnings.append(f"the config has {n_variants} variants; this is number {variant} (see --variant)")
    return checked


def parse_config(config: Mapping[str, Any], source: str) -> RunConfig:
    """Check a config that is already a mapping.

    Raises:
        ConfigError: If anything in it is wrong; all problems are told at once.
    """
    try:
        checked = RunConfig.model_validate(dict(config))
    except ValidationError as error:
        problems = [_describe(problem) for problem in error.errors()]
        raise ConfigError(f"{source}: " + "; ".join(dict.fromkeys(problems))) from error
    checked.warnings.extend(config_notes(checked, config))
    return checked


def _describe(problem: Any) -> str:
    location = [part for part in problem["loc"] if isinstance(part, (str, int))]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    kind = problem["type"]
    if kind == "extra_forbidden":
        names = _keys_at(location[:-1])
        return f"unknown key {path!r}{nearest_hint(str(location[-1]), names)} (known here: {', '.join(names)})"
    if kind == "missing":
        return f"the key {path!r} is missing"
    message = problem["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return f"{path}: {message}" if path else message
    return f"{path}: {message[0].lower()}{message[1:]}, got {shown(problem['input'])}"


def _keys_at(location: list[Any]) -> list[str]:
    """Keys of the block at a location of the schema."""
    model: Any = RunConfig
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        if field is None:
            return []
        model = _model_of(field.annotation)
        if model is None:
            return []
    return list(model.model_fields)


def _model_of(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is not None:
        for argument in get_args(annotation):
            found = _model_of(argument)
            if found is not None:
                return found
    return None
