"""The schema of a run's YAML file: RL4LMs' keys, and ours as optional additions. Checked before anything loads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.core.types import clip_bounds, is_number
from rl4dialog.core.yaml_loader import apply_overrides, expand_variants, load_yaml

Side = Literal["left", "right"]


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, validate_default=False)

    @field_validator("*", mode="before")
    @classmethod
    def _empty_block(cls, value: Any, info: Any) -> Any:
        """``args:`` with nothing behind it is an empty block, as in RL4LMs."""
        field = cls.model_fields[info.field_name]
        return {} if value is None and field.default_factory is dict else value


class TokenizerConfig(_Block):
    model_name: str
    padding_side: Side = "left"
    truncation_side: Side = "left"
    pad_token_as_eos_token: bool = True
    max_length: int | None = Field(default=None, ge=1)
    vocab_size: int = Field(default=1000, ge=260)


class ComponentConfig(_Block):
    id: str
    args: dict[str, Any] = Field(default_factory=dict)


class AsyncCallsConfig(_Block):
    concurrency: int = Field(default=8, ge=1)
    timeout_s: float = Field(default=60.0, gt=0)
    retries: int = Field(default=2, ge=0)
    retry_wait_s: float = Field(default=1.0, ge=0)


class RewardConfig(ComponentConfig):
    """What the whole reward goes through, in this order: normalize, clip; then comes the KL penalty."""

    on_error: Literal["raise", "mask"] = "raise"
    normalize: Literal["none", "running", "batch"] = "none"
    clip: Any = None
    async_calls: AsyncCallsConfig = Field(default_factory=AsyncCallsConfig)

    @field_validator("clip")
    @classmethod
    def _clip_is_a_range(cls, value: Any) -> Any:
        if value is not None:
            clip_bounds(value)
        return value


class EnvArgs(_Block):
    max_prompt_length: int = Field(ge=1)
    max_episode_length: int = Field(ge=1)
    terminate_on_eos: bool = True
    prompt_truncation_side: Side = "left"
    context_start_token: int | None = None
    max_turns: int = Field(default=1, ge=1)
    priority_scale: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    bootstrap_truncated: bool = False
    partner_replies: list[str] | None = None


class EnvConfig(_Block):
    n_envs: int = Field(default=1, ge=1)
    vec_env: Literal["subproc", "dummy"] = "subproc"
    n_workers: int | None = Field(default=None, ge=1)
    args: EnvArgs


class KLConfig(_Block):
    coeff: float = Field(ge=0)
    target_kl: float | None = Field(default=None, gt=0)
    type: Literal["fixed", "adaptive", "ziegler"] | None = None
    horizon: int = Field(default=10_000, ge=1)
    norm_reward: bool = False

    @model_validator(mode="after")
    def _type_fits_target(self) -> KLConfig:
        if self.type == "fixed" and self.target_kl is not None:
            raise ValueError("target_kl has no meaning with type: fixed; leave one of them out")
        if self.type in ("adaptive", "ziegler") and self.target_kl is None:
            raise ValueError(f"type: {self.type} needs a target_kl")
        return self


class PolicyArgs(BaseModel):
    """Arguments of a policy; those that are not named here are checked against its constructor."""

    model_config = ConfigDict(extra="allow", strict=True)
    model_name: str
    apply_model_parallel: bool | None = None
    prompt_truncation_side: Side | None = None
    generation_kwargs: dict[str, Any] | None = None


class PolicyConfig(_Block):
    id: str
    args: PolicyArgs


class AlgConfig(_Block):
    id: str
    args: dict[str, Any] = Field(default_factory=dict)
    kl_div: KLConfig | None = None
    policy: PolicyConfig | None = None
    # alg.id: supervised
    training_args: dict[str, Any] | None = None
    model_type: Literal["causal", "seq2seq"] | None = None
    model_name: str | None = None
    generation_kwargs: dict[str, Any] | None = None
    loss_on: Literal["reply", "all"] = "reply"

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


class TrainEvaluationConfig(_Block):
    eval_batch_size: int = Field(default=32, ge=1)
    n_iters: int | None = Field(default=None, ge=0)
    eval_every: int = Field(default=10, ge=1)
    save_every: int | None = Field(default=None, ge=1)
    metrics: list[ComponentConfig] = Field(default_factory=list)
    generation_kwargs: dict[str, Any] | None = None
    max_eval_samples: int | None = Field(default=None, ge=1)


class WarmStartConfig(_Block):
    n_epochs: float = Field(default=1.0, gt=0)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    warmup_ratio: float = Field(default=0.05, ge=0, lt=1)
    lr_scheduler_type: str = "cosine"
    loss_on: Literal["reply", "all"] = "reply"
    max_samples: int | None = Field(default=None, ge=1)


class GenerationConfig(_Block):
    backend: Literal["transformers", "vllm"] = "transformers"
    # Of vLLM's engine:
    gpu_memory_utilization: float = Field(default=0.3, gt=0, le=1)
    tensor_parallel_size: int = Field(default=1, ge=1)
    sleep: bool = False

    @model_validator(mode="after")
    def _options_fit_backend(self) -> GenerationConfig:
        given = [name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default]
        if self.backend == "transformers" and given:
            raise ValueError(f"{', '.join(given)} has a meaning only with backend: vllm")
        return self


class RunConfig(_Block):
    """A whole run."""

    tokenizer: TokenizerConfig
    datapool: ComponentConfig
    alg: AlgConfig
    train_evaluation: TrainEvaluationConfig
    reward_fn: RewardConfig | None = None
    env: EnvConfig | None = None
    warm_start: WarmStartConfig | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    lora: dict[str, Any] | None = None
    generation: GenerationConfig = Field(default_factory=GenerationConfig)
    seed: int = Field(default=0, ge=0, lt=2**32)
    imports: list[str] = Field(default_factory=list)
    _warnings: list[str] = PrivateAttr(default_factory=list)

    @model_validator(mode="after")
    def _complete(self) -> RunConfig:
        if self.alg.id == "supervised":
            return self
        for name in ("reward_fn", "env"):
            if getattr(self, name) is None:
                raise ValueError(f"the key {name!r} is missing, which alg.id: {self.alg.id} needs")
        if self.train_evaluation.n_iters is None:
            raise ValueError("the key 'train_evaluation.n_iters' is missing")
        assert self.env is not None
        if self.env.args.max_turns > 1 and self.env.args.partner_replies is None:
            raise ValueError("env.args.max_turns above 1 needs env.args.partner_replies")
        self._check_sizes(self.env)
        return self

    def _check_sizes(self, env: EnvConfig) -> None:
        """``n_steps`` and ``batch_size`` count agent tokens, and a minibatch cannot hold more than an iteration."""
        args = self.alg.args
        for name in ("n_steps", "batch_size", "n_epochs"):
            value = args.get(name, 1)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"alg.args.{name} must be a whole number of at least 1, not {value!r}")
        rate = args.get("learning_rate", 1e-4)
        if not is_number(rate) or rate < 0:
            raise ValueError(f"alg.args.learning_rate must be a number of at least 0, not {rate!r}")
        if "n_steps" in args and "batch_size" in args:
            n_tokens = args["n_steps"] * env.n_envs
            if args["batch_size"] > n_tokens:
                raise ValueError(
                    f"alg.args.batch_size is {args['batch_size']} agent tokens, but an iteration collects only "
                    f"n_steps * n_envs = {args['n_steps']} * {env.n_envs} = {n_tokens}"
                )

    @property
    def warnings(self) -> list[str]:
        """One line for each key that is accepted but has no effect."""
        return self._warnings


# Accepted for the sake of RL4LMs' configs.
_WITHOUT_EFFECT = {
    "alg.policy.args.apply_model_parallel": "models are placed by the device that is used",
    "env.args.context_start_token": "a causal model starts from its prompt",
    "alg.policy.args.prompt_truncation_side": "env.args.prompt_truncation_side decides",
    "train_evaluation.save_every": "the model is saved when the run ends",
}


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
    without_effect = dict(_WITHOUT_EFFECT)
    if checked.env is not None and checked.env.vec_env == "dummy":
        without_effect["env.n_workers"] = "with env.vec_env: dummy there are no workers"
    if checked.reward_fn is not None and checked.reward_fn.id == "nlp_reward":
        without_effect["reward_fn.args.ref_model"] = (
            "the reference is the policy as it was at the start; NLPReward's KL penalty is alg.kl_div: {coeff: 0.2, "
            "target_kl: 0.05}"
        )
    for path, reason in without_effect.items():
        node: Any = config
        for key in path.split("."):
            node = node.get(key) if isinstance(node, Mapping) else None
        if node is not None:
            checked.warnings.append(f"{path} has no effect: {reason}")
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
    return f"{path}: {message[0].lower()}{message[1:]}, got {problem['input']!r}"


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
