"""The schema of a run's YAML file.

``alg.id`` selects the kind of run. Each kind requires and rejects keys of its own. Code that depends on the kind reads
attributes of the config instead of comparing ``alg.id``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, model_validator

from rl4dialog.core.config_blocks import (
    Block,
    ComponentConfig,
    EnvConfig,
    GenerationConfig,
    KLConfig,
    LoggingConfig,
    PolicyConfig,
    RewardConfig,
    TokenizerConfig,
    TrainEvaluationConfig,
    WarmStartConfig,
)
from rl4dialog.core.config_notes import config_notes
from rl4dialog.core.errors import ConfigError, nearest_hint, shown
from rl4dialog.core.generation_blocks import GenerationBlock
from rl4dialog.core.types import is_whole_number
from rl4dialog.core.yaml_loader import apply_overrides, expand_variants, load_yaml


class _OfAKind(Block):
    """A block whose keys depend on the kind of run. A ``null`` value for one of its own keys counts as missing.

    Attributes:
        of_other_kinds: Keys that only apply to other kinds, with the values they have in resolved configs.
    """

    of_other_kinds: ClassVar[Mapping[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        nothing = {**dict.fromkeys(cls.own_keys()), **cls.of_other_kinds}
        return {key: value for key, value in given.items() if key not in nothing or value != nothing[key]}

    @classmethod
    def own_keys(cls) -> list[str]:
        """Keys that are required for this kind only."""
        in_general = [base.model_fields for base in cls.__mro__[1:] if issubclass(base, Block)]
        return [
            name
            for name, field in cls.model_fields.items()
            if field.is_required() and not any(name in base and base[name].is_required() for base in in_general)
        ]


class AlgConfig(_OfAKind):
    id: str
    """Algorithm id, or ``supervised``."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the algorithm. ``n_steps`` and ``batch_size`` are counted in agent tokens."""


class OnPolicyAlgConfig(AlgConfig):
    of_other_kinds = dict.fromkeys(("training_args", "model_type", "model_name", "generation_kwargs")) | {
        "loss_on": "reply"
    }
    kl_div: KLConfig
    """KL penalty. Required unless ``alg.id`` is ``supervised``."""
    policy: PolicyConfig
    """Policy. Required unless ``alg.id`` is ``supervised``."""


class SupervisedAlgConfig(AlgConfig):
    of_other_kinds = dict.fromkeys(("kl_div", "policy"))
    training_args: dict[str, Any]
    """``supervised`` only: arguments of transformers' ``TrainingArguments``."""
    model_type: Literal["causal", "seq2seq"]
    """``supervised`` only: decoder-only (``causal``) or encoder-decoder (``seq2seq``) model."""
    model_name: str
    """``supervised`` only: the model, as in ``alg.policy.args``."""
    generation_kwargs: dict[str, Any] | None = None
    """``supervised`` only: generation settings for evaluation."""
    loss_on: Literal["reply", "all"] = "reply"
    """``supervised`` only: compute the loss on the reply only, or on the prompt and the reply."""


class OnPolicyEvaluationConfig(TrainEvaluationConfig):
    n_iters: int = Field(ge=0)
    """Number of iterations. Required unless ``alg.id`` is ``supervised``, where an iteration is an epoch."""


class RunConfig(_OfAKind):
    """Config of a complete run.

    Attributes:
        has_rollouts: Whether the model is trained on replies that it generates.
        has_checkpoints: Whether a run can be stopped and resumed.
    """

    has_rollouts: ClassVar[bool]
    has_checkpoints: ClassVar[bool]
    tokenizer: TokenizerConfig
    """Tokenizer."""
    datapool: ComponentConfig
    """Source of prompts and references."""
    alg: AlgConfig
    """Algorithm, KL penalty and policy."""
    train_evaluation: TrainEvaluationConfig
    """Training length, metrics and checkpoints."""
    reward_fn: RewardConfig | None = None
    """Reward that the policy is trained to increase. Required unless ``alg.id`` is ``supervised``."""
    env: EnvConfig | None = None
    """Conversation environments. Required unless ``alg.id`` is ``supervised``."""
    warm_start: WarmStartConfig | None = None
    """Supervised fine-tuning before the first iteration. The result is cached."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of forward passes. Weights and optimizer state are always fp32."""
    lora: dict[str, Any] | None = None
    """Train LoRA adapters instead of the full model: arguments of ``peft.LoraConfig``."""
    generation: GenerationConfig = Field(default_factory=GenerationConfig)
    """Backend that generates replies."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of all random number generators."""
    imports: list[str] = Field(default_factory=list)
    """Modules, or files next to the YAML file, that register custom components. They are executed as Python code."""
    callbacks: list[ComponentConfig] = Field(default_factory=list)
    """Callbacks to run during training."""
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
    """Additional log outputs."""
    _warnings: list[str] = PrivateAttr(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """One line for each key that is ignored, set to a default or interpreted differently than in RL4LMs."""
        return self._warnings

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The initial language model."""

    @property
    @abstractmethod
    def policy_id(self) -> str:
        """Id of the policy that generates replies."""

    @property
    @abstractmethod
    def own_generation_block(self) -> GenerationBlock:
        """The algorithm's ``generation_kwargs``."""

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the config selects an encoder-decoder model."""
        return "seq2seq" in self.policy_id

    @property
    def uses_reward(self) -> bool:
        """Whether ``reward_fn`` scores any replies."""
        return self.reward_fn is not None and (self.has_rollouts or self.train_evaluation.score_predictions)

    @property
    def saves_memory(self) -> bool:
        """Whether activations are recomputed (gradient checkpointing), so that freed memory should be released."""
        return False

    @property
    def n_iters(self) -> int:
        """Number of iterations."""
        return self.train_evaluation.n_iters or 0


class OnPolicyConfig(RunConfig):
    """Config of a reinforcement learning run, in which the policy is trained on its own replies."""

    has_rollouts = True
    has_checkpoints = True
    alg: OnPolicyAlgConfig
    """Algorithm, KL penalty and policy."""
    train_evaluation: OnPolicyEvaluationConfig
    """Training length, metrics and checkpoints."""
    reward_fn: RewardConfig
    """Reward that the policy is trained to increase. Required unless ``alg.id`` is ``supervised``."""
    env: EnvConfig
    """Conversation environments. Required unless ``alg.id`` is ``supervised``."""

    @property
    def model_name(self) -> str:
        return self.alg.policy.args.model_name

    @property
    def policy_id(self) -> str:
        return self.alg.policy.id

    @property
    def own_generation_block(self) -> GenerationBlock:
        return GenerationBlock("alg.policy.args.generation_kwargs", self.alg.policy.args.generation_kwargs or {})

    @property
    def saves_memory(self) -> bool:
        return bool((self.alg.policy.args.model_extra or {}).get("gradient_checkpointing"))

    @model_validator(mode="after")
    def _turns_have_replies(self) -> OnPolicyConfig:
        args = self.env.args
        if args.max_turns > 1 and args.partner_replies is None:
            raise ValueError("env.args.max_turns above 1 needs env.args.partner_replies")
        if args.partner_replies is not None and len(args.partner_replies) < args.max_turns - 1:
            raise ValueError(
                f"env.args.partner_replies has {len(args.partner_replies)} replies, and env.args.max_turns: "
                f"{args.max_turns} needs {args.max_turns - 1}, one between each two of the agent's turns"
            )
        return self

    @model_validator(mode="after")
    def _minibatch_fits_iteration(self) -> OnPolicyConfig:
        """Check that a minibatch is no larger than an iteration; both are counted in agent tokens."""
        args, n_envs = self.alg.args, self.env.n_envs
        # Values of the wrong type are reported by the check of the algorithm's arguments.
        if is_whole_number(args.get("n_steps"), 1) and is_whole_number(args.get("batch_size"), 1):
            n_tokens = args["n_steps"] * n_envs
            if args["batch_size"] > n_tokens:
                raise ValueError(
                    f"alg.args.batch_size is {args['batch_size']} agent tokens, but an iteration collects only "
                    f"n_steps * n_envs = {args['n_steps']} * {n_envs} = {n_tokens}"
                )
        return self


class SupervisedConfig(RunConfig):
    """Config of a supervised fine-tuning run on the references."""

    has_rollouts = False
    has_checkpoints = True
    alg: SupervisedAlgConfig
    """Model and fine-tuning settings."""

    @property
    def model_name(self) -> str:
        return self.alg.model_name

    @property
    def policy_id(self) -> str:
        return f"{self.alg.model_type}_lm_actor_critic_policy"

    @property
    def training_args(self) -> dict[str, Any]:
        """``alg.training_args`` with the run's precision."""
        return {"bf16": self.precision == "bf16", **self.alg.training_args}

    @property
    def n_iters(self) -> int:
        """Number of epochs; with ``max_steps`` at most that many, as it depends on the number of examples."""
        n_steps = self.alg.training_args.get("max_steps", -1)
        return n_steps if n_steps > 0 else math.ceil(self.alg.training_args.get("num_train_epochs", 3.0))

    @property
    def own_generation_block(self) -> GenerationBlock:
        return GenerationBlock("alg.generation_kwargs", self.alg.generation_kwargs or {})

    @model_validator(mode="after")
    def _nothing_acts_on_rollouts(self) -> SupervisedConfig:
        if self.logging.log_infos:
            raise ValueError("logging.log_infos has no meaning with alg.id: supervised, which makes no rollouts")
        return self


KINDS: tuple[type[RunConfig], ...] = (OnPolicyConfig, SupervisedConfig)


def kind_of(config: Mapping[str, Any]) -> type[RunConfig]:
    """Return the kind of a config that has not been validated yet."""
    return SupervisedConfig if _alg_id(config) == "supervised" else OnPolicyConfig


def _alg_id(config: Mapping[str, Any]) -> str | None:
    alg = config.get("alg")
    id = alg.get("id") if isinstance(alg, Mapping) else None
    return id if isinstance(id, str) else None


def load_config(path: str | Path, overrides: Iterable[str] = (), variant: int = 0) -> RunConfig:
    """Read a config file, apply overrides and validate the result.

    Raises:
        ConfigError: If the config is invalid. The message lists all problems.
    """
    config, n_variants = expand_variants(load_yaml(path), variant)
    checked = parse_config(apply_overrides(config, overrides), str(path))
    if n_variants > 1:
        checked.warnings.append(f"the config has {n_variants} variants; this is number {variant} (see --variant)")
    return checked


def parse_config(config: Mapping[str, Any], source: str) -> RunConfig:
    """Validate a config that is already a mapping.

    Raises:
        ConfigError: If the config is invalid. The message lists all problems.
    """
    try:
        checked = kind_of(config).model_validate(dict(config))
    except ValidationError as error:
        problems = [_describe(problem, config) for problem in error.errors()]
        raise ConfigError(f"{source}: " + "; ".join(dict.fromkeys(problems))) from error
    checked.warnings.extend(config_notes(checked, config))
    return checked


def _describe(problem: Any, config: Mapping[str, Any]) -> str:
    location = [part for part in problem["loc"] if isinstance(part, (str, int))]
    path = _dotted(location)
    kind = problem["type"]
    if kind in ("extra_forbidden", "missing"):
        *parents, key = location
        block = _block_at(kind_of(config), parents)
        prefix = f"{_dotted(parents)}: " if parents else ""
        if block is not None and issubclass(block, _OfAKind) and (id := _alg_id(config)) is not None:
            of_kind = f"alg.id: {id}"
            if key in block.of_other_kinds:
                return f"{prefix}the key {key!r} has no meaning with {of_kind}"
            if key in block.own_keys():
                return f"{prefix}the key {key!r} is missing, which {of_kind} needs"
        if kind == "missing":
            return f"the key {path!r} is missing"
        names = list(block.model_fields) if block is not None else []
        return f"unknown key {path!r}{nearest_hint(str(key), names)} (known here: {', '.join(names)})"
    message = problem["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return f"{path}: {message}" if path else message
    return f"{path}: {message[0].lower()}{message[1:]}, got {shown(problem['input'])}"


def _dotted(location: list[Any]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def _block_at(model: Any, location: list[Any]) -> Any:
    """Return the block at a location of the schema."""
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        model = None if field is None else _model_of(field.annotation)
        if model is None:
            return None
    return model


def _model_of(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is not None:
        for argument in get_args(annotation):
            found = _model_of(argument)
            if found is not None:
                return found
    return None
