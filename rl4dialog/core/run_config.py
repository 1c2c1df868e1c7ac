"""What every kind of run has in its config. The kinds themselves are in `config` and `turn_level_config`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr, model_validator

from rl4dialog.core.config_blocks import (
    Block,
    ComponentConfig,
    EnvironmentsConfig,
    LoggingConfig,
    TrainEvaluationConfig,
)


class OfAKind(Block):
    """A block whose keys depend on the kind of run. A ``null`` value for one of its own keys counts as missing.

    Attributes:
        of_other_kinds: Keys of other kinds that may be given with these values, as in resolved configs.
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


class AlgConfig(OfAKind):
    id: str
    """Algorithm id, ``supervised`` or ``reward_model``."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the algorithm. On text, ``n_steps`` and ``batch_size`` are counted in agent tokens."""


class RunConfig(OfAKind):
    """Config of a complete run.

    Attributes:
        has_rollouts: Whether the policy is trained on experience that it collects.
    """

    has_rollouts: ClassVar[bool]
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

    @property
    def warnings(self) -> list[str]:
        """One line for each key that is ignored, set to a default or interpreted differently than in RL4LMs."""
        return self._warnings

    @classmethod
    def selected_by(cls, given: Mapping[str, Any]) -> str | None:
        """The key that selects this kind in a config as written, with its value; ``None`` if it is not a string."""
        id = id_of(given, "alg")
        return None if id is None else f"alg.id: {id}"

    @property
    def saves_memory(self) -> bool:
        """Whether activations are recomputed (gradient checkpointing), so that freed memory should be released."""
        return False

    @property
    def n_iters(self) -> int:
        """Number of iterations."""
        return self.train_evaluation.n_iters or 0


def n_epochs(training_args: Mapping[str, Any]) -> int:
    """Number of epochs of transformers' `Trainer`; with ``max_steps`` an upper bound."""
    n_steps: int = training_args.get("max_steps", -1)
    return n_steps if n_steps > 0 else math.ceil(training_args.get("num_train_epochs", 3.0))


def id_of(given: Mapping[str, Any], name: str) -> str | None:
    """The ``id`` of a block in a config as written; ``None`` if there is none."""
    block = given.get(name)
    id = block.get("id") if isinstance(block, Mapping) else None
    return id if isinstance(id, str) else None
