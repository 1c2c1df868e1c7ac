"""Blocks of a run's YAML file: RL4LMs' keys, plus optional keys of this toolkit."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from rl4dialog.core.arguments import LearningRate, Pattern, matches_all
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.features import all_ids
from rl4dialog.core.registry import import_object
from rl4dialog.core.reward_parts import clip_bounds

Side = Literal["left", "right"]
TEXT_GENERATION = "text_generation"
"""Id of the environment for conversations of a language model, the default."""


class Block(BaseModel):
    """A mapping with a fixed set of keys."""

    model_config = ConfigDict(
        extra="forbid", strict=True, validate_default=False, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _empty_block(cls, value: Any, info: Any) -> Any:
        """Read an ``args:`` key without a value as an empty block, as RL4LMs does."""
        field = cls.model_fields[info.field_name]
        return {} if value is None and field.default_factory is dict else value


class TextTokenizerConfig(Block):
    """The tokenizer of a model that reads whole texts."""

    model_name: str
    """A folder, a ``.gguf`` file, a hub id, or a built-in model (such as ``builtin/tiny-gpt2``). Tokenizers of built-in
    models with random weights are trained on the train split. ``builtin/characters``, for any of these models except a
    reward model, has one token per character of the train split, and one for all others. ``builtin/words`` also has one
    per word, and writes other words in characters.
    """
    truncation_side: Side = "left"
    """Side from which the tokenizer truncates texts. For prompts, see ``env.args.prompt_truncation_side``."""
    max_length: int | None = Field(default=None, ge=1)
    """Maximum length in tokens, overriding the tokenizer's. Without ``env``, it applies to prompts and references."""
    vocab_size: int = Field(default=1000, ge=260, le=1_000_000)
    """Vocabulary size of a built-in tokenizer; for ``builtin/characters`` and ``builtin/words``, the maximum."""


class TokenizerConfig(TextTokenizerConfig):
    padding_side: Side = "left"
    """Padding side of the tokenizer. Prompts are always padded on the left."""
    pad_token_as_eos_token: bool = True
    """Use the end-of-sequence token for padding if the tokenizer has no pad token."""


class ComponentConfig(Block):
    id: str
    """Id from the catalog page, or the id of a custom component."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the component."""


class MetricConfig(ComponentConfig):
    append_to_texts: str = ""
    """Text that the metric reads after each reply and reference, such as ``<EOU>``."""


def inner_component(chosen: Any, what: str) -> ComponentConfig:
    """Parse a component given inside other arguments, either as an id or as ``{id: ..., args: {...}}``."""
    try:
        return ComponentConfig.model_validate({"id": chosen} if isinstance(chosen, str) else chosen)
    except ValidationError as error:
        raise ConfigError(f"{what} must be an id, or {{id: ..., args: {{...}}}}, not {chosen!r}") from error


class AsyncCallsConfig(Block):
    concurrency: int = Field(default=8, ge=1)
    """Maximum number of concurrent coroutines."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Time limit per coroutine, in seconds."""
    retries: int = Field(default=2, ge=0)
    """Retries of a failed coroutine."""
    retry_wait_s: float = Field(default=1.0, ge=0)
    """Seconds before the first retry. The wait doubles with each further retry. If the judge's server asks for a longer
    one (``Retry-After``), that applies, up to 60 seconds.
    """


class RewardConfig(ComponentConfig):
    """Processing of the total reward, in this order: normalize, clip, subtract the KL penalty."""

    on_error: Literal["raise", "mask"] = "raise"
    """If a reward fails or is not finite, stop the run (``raise``) or leave out the conversation (``mask``)."""
    normalize: Literal["none", "running", "batch"] = "none"
    """Subtract the mean and divide by the standard deviation, over all episodes so far (``running``) or over the
    current iteration (``batch``).
    """
    clip: Any = None
    """Clip the normalized reward: a number for a symmetric limit, or ``[lowest, highest]``."""
    timeout_s: float | None = Field(default=600.0, gt=0, le=1e8)
    """Time limit in seconds, applied to the rewards of one reply in the environments and to a batch reward in the main
    process. A reward that takes longer counts as failed. ``null`` disables the limit.
    """
    async_calls: AsyncCallsConfig = Field(default_factory=AsyncCallsConfig)
    """Settings for rewards that are coroutines."""
    pay: Literal["end", "turn"] = "end"
    """In conversations, score only the last reply (``end``) or every one (``turn``). The parts of ``composite`` can
    have their own ``pay``. Rewards of whole conversations always see each turn.
    """

    @field_validator("clip")
    @classmethod
    def _clip_is_a_range(cls, value: Any) -> Any:
        if value is not None:
            clip_bounds(value)
        return value


class EndWhenConfig(Block):
    agent: list[Pattern] = Field(default_factory=list)
    """Patterns in the agent's utterance."""
    partner: list[Pattern] = Field(default_factory=list)
    """Patterns in the partner's utterance; the match is removed from it."""

    @field_validator("agent", "partner")
    @classmethod
    def _conversations_go_on(cls, patterns: list[str]) -> list[str]:
        if useless := [pattern for pattern in patterns if matches_all(pattern)]:
            raise ValueError(f"{useless[0]!r} matches every text, so conversations end after their first turn")
        return patterns


class EnvArgs(Block):
    max_prompt_length: int = Field(ge=1, le=1_000_000)
    """Maximum prompt length in tokens. Longer prompts are truncated."""
    max_episode_length: int = Field(ge=1, le=1_000_000)
    """Maximum reply length in tokens."""
    terminate_on_eos: bool = True
    """Whether an end-of-sequence token or turn marker ends a reply."""
    prompt_truncation_side: Side = "left"
    """Side from which long prompts are truncated."""
    context_start_token: int | None = None
    """No effect. Accepted for compatibility with RL4LMs configs."""
    max_turns: int = Field(default=1, ge=1, le=1_000_000)
    """Agent utterances per conversation. More than one needs a partner."""
    partner: ComponentConfig | None = None
    """Conversation partner, which answers each agent utterance."""
    partner_replies: list[str] | None = Field(default=None, min_length=1)
    """Short form of the partner ``scripted``: its utterances in order."""
    toolbox: ComponentConfig | None = None
    """What answers calls among the agent's utterances in place of the partner."""
    partner_on_error: Literal["raise", "mask"] = "raise"
    """If the partner fails, stop the run (``raise``) or leave out the conversation (``mask``)."""
    first_speaker: Literal["sample", "agent", "partner"] = "sample"
    """Start of a conversation: the agent answers the sample's last utterance (``sample``), or the sample's utterances
    are left out and the ``agent`` or its ``partner`` speaks first.
    """
    max_partner_length: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum length of a partner's utterance in tokens; the rest is cut. ``null`` means no limit."""
    max_secret_length: int = Field(default=256, ge=1, le=1_000_000)
    """Maximum length of a secret in tokens, with ``alg.policy.args.critic_reads: secret``. A longer one is an error."""
    context_turns: int | None = Field(default=None, ge=1)
    """Maximum number of utterances in a prompt. ``null`` means all that fit into ``max_prompt_length``."""
    end_when: EndWhenConfig = Field(default_factory=lambda: EndWhenConfig())
    """Regular expressions that end a conversation, after the partner's answer."""
    priority_scale: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Samples are drawn with probability proportional to ``weight ** priority_scale``. 0 means uniform sampling."""
    once: bool = False
    """Whether each sample is talked about at most once in the whole run, like people whom one meets only once. Each
    environment has its own part of the samples; the run stops with an error when one has used up its part.
    """
    bootstrap_truncated: bool = False
    """Whether the critic's value of the last state is added to the return of a conversation whose last reply was cut at
    ``max_episode_length``. Nothing is added after ``max_turns``, which is a rule of the task: rewards of whole
    conversations are paid there, and the value would count them again.
    """

    @model_validator(mode="after")
    def _partner_fits(self) -> EnvArgs:
        if self.partner is not None and self.partner_replies is not None:
            raise ValueError("partner_replies is the short form of partner: {id: scripted}; remove one of them")
        needs_partner = {
            "max_turns": self.max_turns > 1,
            f"first_speaker: {self.first_speaker}": self.first_speaker != "sample",
            "max_partner_length": self.max_partner_length is not None,
            "context_turns": self.context_turns is not None,
            "end_when.agent": bool(self.end_when.agent),
            "end_when.partner": bool(self.end_when.partner),
            "partner_on_error": self.partner_on_error != "raise",
            "toolbox": self.toolbox is not None,
        }
        if self.conversation_partner is None:
            if keys := [key for key, is_set in needs_partner.items() if is_set]:
                partners = "partner: {id: rules, args: {...}}, or {id: replay} for the utterances of the data"
                raise ValueError(f"{keys[0]} needs a partner, such as {partners}")
        elif self.prompt_truncation_side == "right":
            cure = "conversations lose their oldest utterances, so remove it"
            raise ValueError(f"prompt_truncation_side: right would cut what the partner said last; {cure}")
        n_replies = self.max_turns if self.partner_replies is None else len(self.partner_replies)
        if n_replies < self.max_turns - 1:
            needed = f"max_turns: {self.max_turns} needs {self.max_turns - 1}, one between two turns of the agent"
            raise ValueError(f"partner_replies has {n_replies} replies, and {needed}")
        return self

    @property
    def conversation_partner(self) -> ComponentConfig | None:
        """The partner, from either key."""
        if self.partner_replies is not None:
            return ComponentConfig(id="scripted", args={"replies": self.partner_replies})
        return self.partner


class EnvironmentsConfig(Block):
    """Keys of every kind of environment."""

    id: str
    """Environment."""
    n_envs: int = Field(default=1, ge=1, le=65_536)
    """Number of environments. Each holds one conversation, or one episode, at a time."""
    vec_env: Literal["blocks", "subproc", "dummy"] | None
    """Placement of the environments."""
    n_workers: int | None = Field(default=None, ge=1, le=4096)
    """``blocks`` only: number of worker processes. Default: one per core."""


class EnvConfig(EnvironmentsConfig):
    id: str = TEXT_GENERATION
    """Environment: ``text_generation`` for language models, an id from the catalog, or any id registered with
    gymnasium, such as ``CartPole-v1`` or ``my_module:MyEnv-v0``.
    """
    vec_env: Literal["blocks", "subproc", "dummy"] | None = None
    """Placement of the environments: groups of them in worker processes (``blocks``), one process per environment
    (``subproc``), or all in the main process (``dummy``). The rollouts are identical. Default: ``blocks`` if rewards or
    the partner run in the environments, otherwise ``dummy``.
    """
    args: EnvArgs
    """Arguments of each environment."""


class KLConfig(Block):
    coeff: float = Field(ge=0)
    """Initial penalty per nat of KL divergence from the reference."""
    target_kl: float | None = Field(default=None, gt=0)
    """Target KL per token, in nats, to which the coefficient is adapted."""
    type: Literal["fixed", "adaptive", "ziegler"] | None = None
    """Schedule of the coefficient. Default: ``adaptive`` if ``target_kl`` is set, otherwise ``fixed``."""
    horizon: int = Field(default=10_000, ge=1)
    """``ziegler`` only: number of agent tokens over which the coefficient may change by up to 20 %. This is also the
    maximum change per iteration.
    """
    norm_reward: bool = False
    """Whiten the rewards of each iteration, including the KL penalty."""

    @model_validator(mode="after")
    def _type_fits_target(self) -> KLConfig:
        if self.type == "fixed" and self.target_kl is not None:
            raise ValueError("target_kl has no meaning with type: fixed; leave one of them out")
        if self.type in ("adaptive", "ziegler") and self.target_kl is None:
            raise ValueError(f"type: {self.type} needs a target_kl")
        return self


class PolicyArgs(BaseModel):
    """Arguments of a policy. Arguments without a field here are checked against the policy's constructor."""

    model_config = ConfigDict(extra="allow", strict=True, use_attribute_docstrings=True)
    model_name: str
    """A built-in model (such as ``builtin/tiny-gpt2``), a folder, or a hub id."""
    apply_model_parallel: bool | None = None
    """No effect. Accepted for compatibility with RL4LMs configs."""
    prompt_truncation_side: Side | None = None
    """No effect. Accepted for compatibility with RL4LMs configs."""
    generation_kwargs: dict[str, Any] | None = None
    """Generation settings for rollouts, with transformers' names."""
    critic_from: str | None = Field(default=None, min_length=1)
    """Folder of another run. Its latest checkpoint provides the initial critic."""


class PolicyConfig(Block):
    id: str
    """Policy id."""
    args: PolicyArgs
    """Arguments of the policy: the keys below, and those listed for its id in the catalog."""


class KeepBestConfig(Block):
    metric: str
    """Metric on the val split, such as ``lexical/meteor``. A metric name may be given instead of this block."""
    mode: Literal["max", "min"] = "max"
    """Whether higher (``max``) or lower (``min``) values are better."""
    restore: bool = False
    """Whether training ends with the model of that checkpoint, which ``model/`` and the last evaluations are of. The
    model before training is kept, too, and returned to if no evaluation was better.
    """


class TrainEvaluationConfig(Block):
    """Training length and checkpoints, of every kind of run."""

    n_iters: int | None = Field(default=None, ge=0)
    """Iterations. Needed by all but ``supervised`` and ``reward_model``, which take ``alg.training_args``."""
    eval_every: int = Field(default=10, ge=1)
    """Iterations between evaluations on the val split."""
    save_every: int | None = Field(default=10, ge=1)
    """Iterations between checkpoints. ``null`` saves only at the end of the run or when a signal stops it."""
    keep_last: int = Field(default=2, ge=1)
    """Number of most recent checkpoints to keep, in addition to the best one."""
    keep_best: KeepBestConfig | None = None
    """Keep the checkpoint with the best value of a metric."""

    @field_validator("keep_best", mode="before")
    @classmethod
    def _best_is_highest(cls, value: Any) -> Any:
        return {"metric": value} if isinstance(value, str) else value


class BatchedEvaluationConfig(TrainEvaluationConfig):
    eval_batch_size: int = Field(default=32, ge=1)
    """Number of prompts per generation batch, or of texts per batch of a reward model."""
    max_eval_samples: int | None = Field(default=None, ge=1)
    """Maximum number of prompts to evaluate per split, or of rated texts. Default: all."""


class TextEvaluationConfig(BatchedEvaluationConfig):
    metrics: list[MetricConfig] = Field(default_factory=list)
    """Metrics to compute. One reads ``append_to_texts``, such as ``<EOU>``, after each reply and reference."""
    generation_kwargs: dict[str, Any] | None = None
    """Generation settings for evaluation. Default: the settings for rollouts. Decoding is greedy unless ``do_sample``
    is set, and uses beam search with ``num_beams``.
    """
    partner: ComponentConfig | None = None
    """Conversation partner of evaluations, if it is another one than ``env.args.partner``."""
    score_predictions: bool = True
    """Whether to also score evaluation replies with the training reward."""


class WarmStartConfig(Block):
    n_epochs: float = Field(default=1.0, gt=0, le=10_000)
    """Number of passes over the train split; fractions are allowed."""
    batch_size: int = Field(default=32, ge=1)
    """Samples per optimizer step."""
    learning_rate: LearningRate = 1e-3
    """Peak learning rate."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of AdamW."""
    warmup_ratio: float = Field(default=0.05, ge=0, lt=1)
    """Fraction of steps used for learning rate warmup."""
    lr_scheduler_type: str = "cosine"
    """Name of a learning rate schedule in transformers."""
    loss_on: Literal["reply", "all"] = "reply"
    """Compute the loss on the reply only, or on the prompt and the reply."""
    max_samples: int | None = Field(default=None, ge=1)
    """Maximum number of training samples. Default: all."""
    keep_best: bool = False
    """Keep the weights of the epoch after which the loss of val replies was lowest, instead of the last ones. After
    five epochs without a lower one, or below 0.005 nats per token, the warm start ends.
    """


class GenerationBackend(Block):
    """A backend that generates replies, listed as ``generation backend`` in a ``catalog.yaml``, and its keys."""

    build: ClassVar[str] = ""
    """Function that returns what generates the replies of a policy instead of it, see
    :class:`~rl4dialog.policies.base.ReplySource`, from policy, config and maximum length of prompt and reply, as
    ``"module:name"``; empty if the policy does.
    """
    check: ClassVar[str] = ""
    """Function that checks a config with this backend before anything is loaded, as ``"module:name"``."""
    conditions: ClassVar[str] = ""
    """Own conditions, as those of a :class:`RunConfig`."""
    free: ClassVar[Sequence[str]] = ()
    """Own keys that may change when a run is resumed."""
    backend: Literal[tuple(all_ids()["generation backend"])] = "auto"  # type: ignore[valid-type]
    """Backend that generates replies: ``transformers`` calls the model, ``graph`` replays one CUDA graph per token.
    ``auto`` is ``graph`` on a CUDA device where it is possible, else ``transformers``.
    """
    gather_weights: bool = True
    """With FSDP: gather the whole model on every GPU while replies are generated. False gathers each layer for every
    token, which needs less memory and is much slower.
    """

    @property
    def chosen(self) -> type[GenerationBackend]:
        return generation_backends()[self.backend]

    @classmethod
    def own_keys(cls) -> list[str]:
        return [name for name in cls.model_fields if name not in GenerationBackend.model_fields]

    def options(self) -> dict[str, Any]:
        """The settings of this backend."""
        return {name: getattr(self, name) for name in self.chosen.own_keys()}

    @model_validator(mode="after")
    def _options_fit_backend(self) -> Self:
        fields = type(self).model_fields
        for id, backend in generation_backends().items():
            given = [name for name in backend.own_keys() if getattr(self, name) != fields[name].default]
            if self.backend != id and given:
                raise ValueError(f"{', '.join(given)} has a meaning only with backend: {id}")
        return self


@functools.cache
def generation_backends() -> dict[str, type[GenerationBackend]]:
    """All backends, by id."""
    return {id: import_object(entry) for id, entry in all_ids()["generation backend"].items()}


class LoggingConfig(Block):
    outputs: list[Literal["csv", "json", "tensorboard", "stdout", "wandb", "mlflow", "trackio"]] = Field(
        default_factory=list
    )
    """Log outputs and experiment trackers, in addition to the ``.jsonl`` files."""
    log_infos: list[str] = Field(default_factory=list)
    """Names of numbers in the environments' infos. Their means are logged."""
    info_fns: list[ComponentConfig] = Field(default_factory=list)
    """Functions of the rollout of an iteration, whose numbers are logged as ``rollout/info/<id>/<name>``."""
    conversations: bool = False
    """Write all conversations of the rollouts to ``conversations.jsonl.gz``, with rewards and token ids."""


class OfAKind(Block):
    """A block whose keys depend on the kind of run. A ``null`` value for one of its own keys counts as missing."""

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        own = cls.own_keys()
        return {key: value for key, value in given.items() if key not in own or value is not None}

    @classmethod
    def own_keys(cls) -> list[str]:
        """Keys that are required for this kind only."""
        bases = [base.model_fields for base in cls.__mro__[1:] if issubclass(base, Block)]
        required = [name for name, field in cls.model_fields.items() if field.is_required()]
        return [name for name in required if not any(name in base and base[name].is_required() for base in bases)]


class AlgConfig(OfAKind):
    id: str
    """Algorithm id, ``supervised`` or ``reward_model``."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the algorithm. On text, ``n_steps`` and ``batch_size`` are counted in agent tokens."""


@dataclass
class Switch:
    """The algorithm that a config was written for, if an override names another one, and all overridden keys."""

    before: str | None = None
    chosen: Sequence[str] = ()


class RunConfig(OfAKind):
    """Config of a complete run; a subclass is a kind of run, listed as ``kind of run`` in a ``catalog.yaml``."""

    trainee: ClassVar[str]
    """The :class:`~rl4dialog.training.trainee.Trainee` of this kind, as ``"module:Name"``."""
    check: ClassVar[str]
    """Function that checks ids and arguments before anything is loaded, as ``"module:name"``."""
    plan: ClassVar[str]
    """Function that yields the rows of the plan, as ``"module:name"``."""
    shipped: ClassVar[str]
    """A shipped config of this kind, in which ``{id}`` is an algorithm."""
    similar: ClassVar[str] = ""
    """The one for algorithms without a config of their own."""
    has_rollouts: ClassVar[bool]
    """Whether the policy is trained on experience that it collects."""
    agent: ClassVar[str] = ""
    """Function that loads what acts in a run without texts, as ``"module:name"``, see
    :class:`~rl4dialog.inference.loading.Agent`.
    """
    conditions: ClassVar[str] = ""
    """Function that returns own rows of ``training.building.conditions`` and what they read, as ``"module:name"``."""
    checks: ClassVar[Sequence[str]] = ()
    """Own checks of a run before its start, as ``"module:name"``: functions of the
    :class:`~rl4dialog.training.assembly.Assembly` that return a :class:`~rl4dialog.training.findings.Finding`.
    """
    not_logged: ClassVar[Sequence[str]] = ()
    """Keys of ``logging`` without a meaning for this kind."""
    alg: AlgConfig
    """Algorithm and policy."""
    train_evaluation: TrainEvaluationConfig
    """Training length, metrics and checkpoints."""
    env: EnvironmentsConfig | None = None
    """Environments. Required unless ``alg.id`` is ``supervised`` or ``reward_model``."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of all random number generators."""
    imports: list[str] = Field(default_factory=list)
    """Modules, or files next to the YAML file, that register custom components. They are executed as Python code."""
    callbacks: list[ComponentConfig] = Field(default_factory=list)
    """Callbacks to run during training."""
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
    """Additional log outputs."""
    _warnings: list[str] = PrivateAttr(default_factory=list)
    _switch: Switch = PrivateAttr(default_factory=Switch)

    @property
    def switch(self) -> Switch:
        """The override of ``alg.id``, until the config is adapted to it."""
        return self._switch

    @property
    def can_talk(self) -> bool:
        """Whether a person can talk to what it trains, if its data are dialogues."""
        return True

    @property
    def warnings(self) -> list[str]:
        """One line for each key that is ignored, set to a default or interpreted differently than in RL4LMs."""
        return self._warnings

    @classmethod
    @abstractmethod
    def claims(cls, given: Mapping[str, Any]) -> bool:
        """Whether a config as written is of this kind. That of reinforcement learning on text takes what is left."""

    @classmethod
    def selected_by(cls, given: Mapping[str, Any]) -> str | None:
        """The key that selects this kind in a config as written, with its value; ``None`` if it is not a string."""
        id = id_of(given, "alg")
        return None if id is None else f"alg.id: {id}"

    @property
    def selection(self) -> str | None:
        """The key that selected this kind, with its value."""
        return self.selected_by({"alg": {"id": self.alg.id}, "env": {"id": getattr(self.env, "id", None)}})

    @classmethod
    def hint(cls, given: Mapping[str, Any]) -> str:
        """What a config as written, which is not valid, may need instead."""
        return ""

    @property
    def instead(self) -> str:
        """What to do with a run without a language model where one is needed."""
        return ""

    @model_validator(mode="after")
    def _logs_what_there_is(self) -> RunConfig:
        for key in self.not_logged:
            if getattr(self.logging, key):
                why = "" if self.has_rollouts else ", which makes no rollouts"
                raise ValueError(f"logging.{key} has no meaning with {self.selection}{why}")
        return self

    @property
    def saves_memory(self) -> bool:
        """Whether activations are recomputed (gradient checkpointing), so that freed memory should be released."""
        return False

    @property
    def n_iters(self) -> int:
        """Number of iterations, which are epochs with transformers' `Trainer`; with ``max_steps`` an upper bound."""
        args: dict[str, Any] | None = getattr(self.alg, "training_args", None)
        if args is None:
            return self.train_evaluation.n_iters or 0
        n_steps: int = args.get("max_steps", -1)
        return n_steps if n_steps > 0 else math.ceil(args.get("num_train_epochs", 3.0))


def id_of(given: Mapping[str, Any], name: str) -> str | None:
    """The ``id`` of a block in a config as written; ``None`` if there is none."""
    block = given.get(name)
    id = block.get("id") if isinstance(block, Mapping) else None
    return id if isinstance(id, str) else None


def block_of(annotation: Any) -> type[BaseModel] | None:
    """The block in the type of a key, which may be optional or a list; the first one, if there are several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(block_of, get_args(annotation))), None)
