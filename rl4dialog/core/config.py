"""The schema of a run's YAML file, by kinds of runs: each demands and refuses keys of its own.

``alg.id`` decides the kind. What differs between kinds is asked of the config, and not of its ``alg.id``.
"""

from __future__ import annotations

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
    """A block whose keys depend on the kind of the run. A key that it declares itself and that is null is missing.

    Attributes:
        of_other_kinds: Keys that have no meaning here, with the values that resolved configs have for them.
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
        """Keys that this kind needs and others do not."""
        in_general = [base.model_fields for base in cls.__mro__[1:] if issubclass(base, Block)]
        return [
            name
            for name, field in cls.model_fields.items()
            if field.is_required() and not any(name in base and base[name].is_required() for base in in_general)
        ]


class AlgConfig(_OfAKind):
    id: str
    """An algorithm's id, or ``supervised``."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the algorithm. ``n_steps`` and ``batch_size`` count agent tokens."""


class OnPolicyAlgConfig(AlgConfig):
    of_other_kinds = dict.fromkeys(("training_args", "model_type", "model_name", "generation_kwargs")) | {
        "loss_on": "reply"
    }
    kl_div: KLConfig
    """The KL penalty. Needed by all but ``supervised``."""
    policy: PolicyConfig
    """The policy. Needed by all but ``supervised``."""


class SupervisedAlgConfig(AlgConfig):
    of_other_kinds = dict.fromkeys(("kl_div", "policy"))
    training_args: dict[str, Any]
    """Of ``supervised``: arguments of transformers' ``TrainingArguments``."""
    model_type: Literal["causal", "seq2seq"]
    """Of ``supervised``: decoder-only, or encoder-decoder."""
    model_name: str
    """Of ``supervised``: as in ``alg.policy.args``."""
    generation_kwargs: dict[str, Any] | None = None
    """Of ``supervised``: how replies are generated in evaluations."""
    loss_on: Literal["reply", "all"] = "reply"
    """Of ``supervised``: what is learned, the reply or the prompt too."""


class OnPolicyEvaluationConfig(TrainEvaluationConfig):
    n_iters: int = Field(ge=0)
    """Iterations. Needed by all but ``supervised``."""


class RunConfig(_OfAKind):
    """A whole run.

    Attributes:
        has_rollouts: Whether the model learns from its own replies.
        has_checkpoints: Whether a run can be stopped and resumed.
    """

    has_rollouts: ClassVar[bool]
    has_checkpoints: ClassVar[bool]
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

    @property
    def warnings(self) -> list[str]:
        """One line for each key that is ignored, defaulted or read otherwise than in RL4LMs."""
        return self._warnings

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The language model that the run begins with."""

    @property
    @abstractmethod
    def policy_id(self) -> str:
        """The policy that generates with it."""

    @property
    @abstractmethod
    def own_generation_block(self) -> GenerationBlock:
        """The algorithm's ``generation_kwargs``."""

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model is one, by what the config says of it."""
        return "seq2seq" in self.policy_id

    @property
    def uses_reward(self) -> bool:
        """Whether anything is scored by ``reward_fn``."""
        return self.reward_fn is not None and (self.has_rollouts or self.train_evaluation.score_predictions)

    @property
    def saves_memory(self) -> bool:
        """Whether activations are computed again, so that freed memory is worth giving back."""
        return False

    @property
    def n_iters(self) -> int:
        """Iterations of the run."""
        return self.train_evaluation.n_iters or 0


class OnPolicyConfig(RunConfig):
    """Reinforcement learning on replies of the policy itself."""

    has_rollouts = True
    has_checkpoints = True
    alg: OnPolicyAlgConfig
    """The algorithm, its KL penalty and its policy."""
    train_evaluation: OnPolicyEvaluationConfig
    """How long to train, what to measure and what to keep."""
    reward_fn: RewardConfig
    """What is learned. Needed by all but ``supervised``."""
    env: EnvConfig
    """The conversations. Needed by all but ``supervised``."""

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
        """``n_steps`` and ``batch_size`` count agent tokens, and a minibatch cannot hold more than an iteration."""
        args, n_envs = self.alg.args, self.env.n_envs
        # Whether they are numbers at all, the algorithm's signature says.
        if is_whole_number(args.get("n_steps"), 1) and is_whole_number(args.get("batch_size"), 1):
            n_tokens = args["n_steps"] * n_envs
            if args["batch_size"] > n_tokens:
                raise ValueError(
                    f"alg.args.batch_size is {args['batch_size']} agent tokens, but an iteration collects only "
                    f"n_steps * n_envs = {args['n_steps']} * {n_envs} = {n_tokens}"
                )
        return self


class SupervisedConfig(RunConfig):
    """Fine-tuning on the references."""

    has_rollouts = False
    has_checkpoints = False
    alg: SupervisedAlgConfig
    """What is fine-tuned, and how."""

    @property
    def model_name(self) -> str:
        return self.alg.model_name

    @property
    def policy_id(self) -> str:
        return f"{self.alg.model_type}_lm_actor_critic_policy"

    @property
    def n_iters(self) -> int:
        return 1

    @property
    def own_generation_block(self) -> GenerationBlock:
        return GenerationBlock("alg.generation_kwargs", self.alg.generation_kwargs or {})

    @model_validator(mode="after")
    def _nothing_acts_on_rollouts(self) -> SupervisedConfig:
        for name, given in (("callbacks", self.callbacks), ("logging.log_infos", self.logging.log_infos)):
            if given:
                raise ValueError(f"{name} has no meaning with alg.id: supervised, which makes no rollouts")
        return self


KINDS: tuple[type[RunConfig], ...] = (OnPolicyConfig, SupervisedConfig)


def kind_of(config: Mapping[str, Any]) -> type[RunConfig]:
    """The kind of a config that is not checked yet."""
    return SupervisedConfig if _alg_id(config) == "supervised" else OnPolicyConfig


def _alg_id(config: Mapping[str, Any]) -> str | None:
    alg = config.get("alg")
    id = alg.get("id") if isinstance(alg, Mapping) else None
    return id if isinstance(id, str) else None


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
    """The block at a location of the schema."""
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
