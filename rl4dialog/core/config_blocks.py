"""The blocks of a run's YAML file: RL4LMs' keys, and ours as optional additions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.types import clip_bounds

Side = Literal["left", "right"]


class Block(BaseModel):
    """A mapping with known keys."""

    model_config = ConfigDict(
        extra="forbid", strict=True, validate_default=False, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _empty_block(cls, value: Any, info: Any) -> Any:
        """``args:`` with nothing behind it is an empty block, as in RL4LMs."""
        field = cls.model_fields[info.field_name]
        return {} if value is None and field.default_factory is dict else value


class TokenizerConfig(Block):
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


class ComponentConfig(Block):
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


class AsyncCallsConfig(Block):
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


class EnvArgs(Block):
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


class EnvConfig(Block):
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


class KLConfig(Block):
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


class PolicyConfig(Block):
    id: str
    """A policy's id."""
    args: PolicyArgs
    """Those below, and those that the catalog lists for the id."""


class KeepBestConfig(Block):
    metric: str
    """A metric of the val split, such as ``lexical/meteor``. Its name in place of the block is enough."""
    mode: Literal["max", "min"] = "max"
    """Whether more or less of it is better."""


class TrainEvaluationConfig(Block):
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


class WarmStartConfig(Block):
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


class GenerationConfig(Block):
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


class LoggingConfig(Block):
    outputs: list[Literal["csv", "json", "tensorboard", "stdout", "wandb"]] = Field(default_factory=list)
    """Further outputs beside the ``.jsonl`` files."""
    log_infos: list[str] = Field(default_factory=list)
    """Numbers of the environments' infos whose means are logged."""
