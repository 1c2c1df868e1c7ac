"""The schema of a run's YAML file.

``env.id`` and ``alg.id`` select the kind of run. Each kind requires and rejects keys of its own. Code that depends on
the kind reads attributes of the config instead of comparing ids.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from rl4dialog.core.config_blocks import (
    TEXT_GENERATION,
    AlgConfig,
    ComponentConfig,
    EnvConfig,
    KLConfig,
    OfAKind,
    PolicyConfig,
    RewardConfig,
    RunConfig,
    TextEvaluationConfig,
    TokenizerConfig,
    WarmStartConfig,
    block_of,
    generation_backends,
    id_of,
)
from rl4dialog.core.config_notes import config_notes
from rl4dialog.core.errors import ConfigError, nearest_hint, shown
from rl4dialog.core.features import all_ids
from rl4dialog.core.files import CONFIG_FILE
from rl4dialog.core.protocols import PromptPrefix
from rl4dialog.core.registry import import_object
from rl4dialog.core.run_format import config_of, naming_writer
from rl4dialog.core.types import is_whole_number
from rl4dialog.core.yaml_loader import apply_overrides, expand_variants, load_yaml, shipped_path

DEFAULT_REPLY_LENGTH = 32
"""Maximum number of tokens per evaluation reply for a run without ``env``, if the config sets none."""


class OnPolicyAlgConfig(AlgConfig):
    kl_div: KLConfig
    """KL penalty. Required for algorithms with rollouts."""
    policy: PolicyConfig
    """Policy. Required unless ``alg.id`` is ``supervised`` or ``reward_model``."""


class SupervisedAlgConfig(AlgConfig):
    training_args: dict[str, Any]
    """``supervised`` and ``reward_model`` only: arguments of transformers' ``TrainingArguments``."""
    model_type: Literal["causal", "seq2seq"]
    """``supervised`` only: decoder-only (``causal``) or encoder-decoder (``seq2seq``) model."""
    model_name: str
    """``supervised`` and ``reward_model`` only: the model, as in ``alg.policy.args``; for a reward model also
    ``builtin/tiny-bert`` and ``builtin/tiny-bert-cls``.
    """
    generation_kwargs: dict[str, Any] | None = None
    """``supervised`` only: generation settings for evaluation."""
    loss_on: Literal["reply", "all"] = "reply"
    """``supervised`` only: compute the loss on the reply only, or on the prompt and the reply."""


class IterationsEvaluationConfig(TextEvaluationConfig):
    n_iters: int = Field(ge=0)
    """Number of iterations. Required unless ``alg.id`` is ``supervised`` or ``reward_model``, which count epochs."""
    value_rank_states: int | None = Field(default=None, ge=10)
    """Algorithms with a critic only: number of states, such as 32, on which each evaluation measures the critic, as the
    metric ``value_rank``. Default: none.
    """


class GenerationConfig(*reversed(dict.fromkeys(generation_backends().values()))):  # type: ignore[misc]
    """Keys of all backends."""


@dataclass(frozen=True)
class GenerationBlock:
    """A ``generation_kwargs`` block at a path of the config; empty if it is missing."""

    where: str
    kwargs: Mapping[str, Any]

    def count(self, name: str) -> int | None:
        """A number of tokens, or ``None``; the check of the whole block reports invalid values."""
        value = self.kwargs.get(name)
        return value if is_whole_number(value, at_least=1) else None


class TextConfig(RunConfig):
    """Config of a run that trains a language model."""

    log: ClassVar[str] = ""
    """Function that builds the logged conversations from which the policy learns, from an
    :class:`~rl4dialog.training.assembly.Assembly`, as ``"module:name"``; empty if it learns from none.
    """
    measure: ClassVar[str] = ""
    """Function that returns what evaluations measure besides metrics, or ``None``, as ``"module:name"``, see
    :class:`~rl4dialog.training.evaluation.Measure`.
    """
    tokenizer: TokenizerConfig
    """Tokenizer."""
    datapool: ComponentConfig
    """Source of prompts and references."""
    train_evaluation: TextEvaluationConfig
    """Training length, metrics and checkpoints."""
    reward_fn: RewardConfig | None = None
    """Reward to increase in training. Required for algorithms with rollouts."""
    task: ComponentConfig | None = None
    """World of task-oriented dialogues. Required for ``env.id: dialogue_acts``, ``datapool.id: task_dialogues`` and the
    partner ``agenda_user``.
    """
    env: EnvConfig | None = None
    """Environments. Required unless ``alg.id`` is ``supervised`` or ``reward_model``."""
    warm_start: WarmStartConfig | None = None
    """Supervised fine-tuning before the first iteration. The result is cached."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of forward passes. Weights and optimizer state are always fp32."""

    @field_validator("precision", mode="before")
    @classmethod
    def _explain_fp16(cls, value: Any) -> Any:
        if value == "fp16":
            why = "overflows above 65,504, so it needs a loss scale that skips optimizer steps, which there is not"
            raise ValueError(f"fp16 {why}; use bf16, which has the range of fp32, or fp32")
        return value

    lora: dict[str, Any] | None = None
    """Train LoRA adapters instead of the full model: arguments of ``peft.LoraConfig``."""
    generation: GenerationConfig = Field(default_factory=GenerationConfig)
    """Backend that generates replies."""

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
    def generation_blocks(self) -> list[GenerationBlock]:
        """The evaluations' block and the algorithm's."""
        evaluation = self.train_evaluation.generation_kwargs
        return [GenerationBlock("train_evaluation.generation_kwargs", evaluation or {}), self.own_generation_block]

    @property
    def evaluation_block(self) -> GenerationBlock:
        """The block that evaluations use: the first non-empty one."""
        of_evaluation, of_algorithm = self.generation_blocks
        return of_evaluation if of_evaluation.kwargs else of_algorithm

    @property
    def prompt_prefix(self) -> PromptPrefix | None:
        """What all prompts begin with."""
        return None

    @property
    def reply_limit(self) -> int:
        """Maximum reply length in tokens, in evaluations and rollouts."""
        if self.env is None:
            return self.evaluation_reply_limit or DEFAULT_REPLY_LENGTH
        longest = self.env.args.max_episode_length
        return min(self.own_generation_block.count("max_new_tokens") or longest, longest)

    @property
    def evaluation_reply_limit(self) -> int | None:
        """Maximum reply length in tokens set for evaluations; ``None`` if there is none."""
        block = self.evaluation_block
        if limit := block.count("max_new_tokens"):
            return limit
        total = block.count("max_length") if self.is_encoder_decoder else None
        return None if total is None else max(1, total - 1)  # max_length includes an encoder-decoder's start token

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the config selects an encoder-decoder model."""
        return "seq2seq" in self.policy_id

    @property
    def uses_reward(self) -> bool:
        """Whether ``reward_fn`` scores any replies."""
        return self.reward_fn is not None and (self.has_rollouts or self.train_evaluation.score_predictions)


class PolicyRunConfig(TextConfig):
    """Config of a run that trains a policy, on its own replies or on others."""

    algorithms: ClassVar[str]
    """Registry of the algorithms, as ``"module:Name"``."""
    build: ClassVar[str]
    """Function that builds the algorithm from an :class:`~rl4dialog.training.assembly.Assembly` and the config, as
    ``"module:name"``.
    """
    alg: Any
    """Algorithm with a ``policy``."""
    train_evaluation: IterationsEvaluationConfig
    """Training length, metrics and checkpoints."""

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
    def critic_reads(self) -> str:
        return str((self.alg.policy.args.model_extra or {}).get("critic_reads", "history"))

    @property
    def saves_memory(self) -> bool:
        return bool((self.alg.policy.args.model_extra or {}).get("gradient_checkpointing"))


class OnPolicyConfig(PolicyRunConfig):
    """Config of a reinforcement learning run, in which the policy is trained on its own replies."""

    trainee = "rl4dialog.training.policy_trainee:OnPolicyTrainee"
    check = "rl4dialog.training.building.components:check_on_policy"
    plan = "rl4dialog.training.plan:on_policy_rows"
    shipped = "small_talk/gpt2_{id}"
    similar = "small_talk/gpt2_ppo"
    algorithms = "rl4dialog.catalog:AlgorithmRegistry"
    build = "rl4dialog.training.building.algorithm:build_algorithm"
    has_rollouts = True
    alg: OnPolicyAlgConfig
    """Algorithm, KL penalty and policy."""
    reward_fn: RewardConfig
    """Reward to increase in training. Required for algorithms with rollouts."""
    env: EnvConfig
    """Environments. Required for algorithms with rollouts."""

    @classmethod
    def claims(cls, given: Mapping[str, Any]) -> bool:
        return is_text(given)

    @model_validator(mode="after")
    def _minibatch_fits_iteration(self) -> OnPolicyConfig:
        """Check that a minibatch is no larger than an iteration; both are counted in agent tokens."""
        n_steps, batch_size, n_envs = self.alg.args.get("n_steps"), self.alg.args.get("batch_size"), self.env.n_envs
        # Values of the wrong type are reported by the check of the algorithm's arguments.
        if is_whole_number(n_steps, 1) and is_whole_number(batch_size, 1) and batch_size > n_steps * n_envs:
            collected = f"n_steps * n_envs = {n_steps} * {n_envs} = {n_steps * n_envs}"
            raise ValueError(f"alg.args.batch_size is {batch_size} agent tokens, but an iteration has only {collected}")
        return self


class SupervisedConfig(TextConfig):
    """Config of a supervised fine-tuning run on the references."""

    trainee = "rl4dialog.training.epoch_trainee:SupervisedTrainee"
    check = "rl4dialog.training.building.components:check_supervised"
    plan = "rl4dialog.training.plan:supervised_rows"
    shipped = "small_talk/gpt2_supervised"
    has_rollouts = False
    not_logged = ("log_infos", "info_fns", "conversations")
    alg: SupervisedAlgConfig
    """Model and fine-tuning settings."""

    @classmethod
    def claims(cls, given: Mapping[str, Any]) -> bool:
        return is_text(given) and id_of(given, "alg") == "supervised"

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
    def own_generation_block(self) -> GenerationBlock:
        return GenerationBlock("alg.generation_kwargs", self.alg.generation_kwargs or {})


_OF_OTHERS = {
    "OpenRL": (
        *("critic_lr", "episode_length", "num_mini_batch", "ppo_epoch", "reward_class", "use_adv_normalize"),
        *("use_share_model", "use_valuenorm", "vec_info_class", "wandb_entity"),
    ),
    "ILQL": ("defaults", "eval_dataset", "evaluator", "train_dataset"),
}
"""Keys of the configs of other libraries, which have a page in docs/coming_from/."""


def is_text(given: Mapping[str, Any]) -> bool:
    """Whether a config as written is of a run on text."""
    return id_of(given, "env") in (None, TEXT_GENERATION)


@functools.cache
def kinds() -> tuple[type[RunConfig], ...]:
    """All kinds of runs, first that of reinforcement learning on text."""
    return tuple(import_object(entry) for entry in all_ids()["kind of run"].values())


def kind_of(config: Mapping[str, Any]) -> type[RunConfig]:
    """Return the kind of a config that has not been validated yet."""
    for kind in reversed(kinds()):
        if kind.claims(config):
            return kind
    raise ConfigError(f"no feature of this installation has runs with env.id: {id_of(config, 'env')}")


def is_of_text(id: str) -> bool:
    """Whether an id of the toolkit is that of an algorithm for language models."""
    return id in all_ids()["algorithm"] or kind_of({"alg": {"id": id}}) is not kinds()[0]


def start_from(id: str) -> str:
    """Advice to begin with a shipped config of an algorithm."""
    own = next((kind for kind in kinds()[1:] if kind.claims({"alg": {"id": id}})), None)
    candidates = [
        kind.shipped.format(id=id) for kind in kinds() if own in (None, kind) and (own or "{" in kind.shipped)
    ]
    candidates += [kind.similar for kind in reversed(kinds()) if kind.similar]
    paths = (Path(f"task_configs/{each}.yml") for each in candidates)
    return f"start from {next(path for path in paths if shipped_path(path).exists())}"


def text_config(config: RunConfig) -> TextConfig:
    """The config, if the run trains a language model; otherwise an error."""
    if isinstance(config, TextConfig):
        return config
    what = f"a run with {config.selection} trains no language model, which is needed here"
    raise ConfigError("; ".join(filter(None, (what, config.instead))))


def load_config(path: str | Path, overrides: Iterable[str] = (), variant: int = 0) -> RunConfig:
    """Read a config file, apply overrides and validate the result; an error lists all problems."""
    is_of_run = Path(path).name == CONFIG_FILE
    given = config_of(Path(path)) if is_of_run else load_yaml(path)
    config, n_variants = expand_variants(given, variant)
    before, kind, overrides = id_of(config, "alg"), kind_of(config), list(overrides)
    apply_overrides(config, overrides)
    id = id_of(config, "alg")
    try:
        with naming_writer(Path(path).parent) if is_of_run else nullcontext():
            checked = parse_config(config, str(path))
    except ConfigError as error:
        if before is None or id is None or kind_of(config) is kind:
            raise
        problem = str(error).removeprefix(f"{path}: ")
        other = f"alg.id: {id} needs other keys, so {start_from(id)} ({problem})"
        raise ConfigError(f"{path} is for {before}; {other}") from error
    if before != id:
        checked.switch.before, checked.switch.chosen = before, [text.partition("=")[0] for text in overrides]
    if n_variants > 1:
        checked.warnings.append(f"the config has {n_variants} variants; this is number {variant} (see --variant)")
    return checked


def parse_config(config: Mapping[str, Any], source: str) -> RunConfig:
    """Validate a config that is already a mapping; an error lists all problems."""
    try:
        checked = kind_of(config).model_validate(dict(config))
    except ValidationError as error:
        for library, keys in _OF_OTHERS.items() if "alg" not in config else ():
            if found := sorted(config.keys() & set(keys)):
                problem = f"{source} is a config of {library}, which has keys such as {' and '.join(found[:2])}"
                page = f"docs/coming_from/{library.lower()}.md"
                raise ConfigError(f"{problem}; {page} has one that corresponds to it, and its names here") from error
        problems = [_describe(problem, config) for problem in error.errors()]
        if hint := kind_of(config).hint(config):
            problems.append(hint)
        if id_of(config, "env") is None and not {"tokenizer", "datapool"} & config.keys():
            problems.append(f"env.id is missing too, which means {TEXT_GENERATION}")
        raise ConfigError(f"{source}: " + "; ".join(dict.fromkeys(problems))) from error
    if isinstance(checked, TextConfig):
        checked.warnings.extend(config_notes(checked, config))
    return checked


def _describe(problem: Any, config: Mapping[str, Any]) -> str:
    location = [part for part in problem["loc"] if isinstance(part, (str, int))]
    path, kind = _dotted(location), problem["type"]
    if kind in ("extra_forbidden", "missing"):
        *parents, key = location
        run = kind_of(config)
        block, of_kind = _block_at(run, parents), run.selected_by(config)
        prefix = f"{_dotted(parents)}: " if parents else ""
        if block is not None and of_kind is not None:
            of_others = (getattr(_block_at(other, parents), "model_fields", ()) for other in kinds())
            if kind == "extra_forbidden" and any(key in names for names in of_others):
                return f"{prefix}the key {key!r} has no meaning with {of_kind}"
            if issubclass(block, OfAKind) and key in block.own_keys():
                return f"{prefix}the key {key!r} is missing, which {of_kind} needs"
        if kind == "missing":
            return f"the key {path!r} is missing"
        names = list(getattr(block, "model_fields", ()))
        return f"unknown key {path!r}{nearest_hint(str(key), names)} (known here: {', '.join(names)})"
    message = problem["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return f"{path}: {message}" if path else message
    return f"{path}: {message[0].lower()}{message[1:]}, got {shown(problem['input'])}"


def _dotted(location: list[Any]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def _block_at(model: Any, location: list[Any]) -> Any:
    for part in location:
        if not isinstance(part, int):
            field = None if model is None else model.model_fields.get(part)
            model = None if field is None else block_of(field.annotation)
    return model
