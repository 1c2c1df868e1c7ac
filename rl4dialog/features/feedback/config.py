"""Config of runs that train a reward model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from rl4dialog.core.config import is_text
from rl4dialog.core.config_blocks import (
    AlgConfig,
    BatchedEvaluationConfig,
    ComponentConfig,
    RunConfig,
    TextTokenizerConfig,
    id_of,
)


class RewardModelAlgConfig(AlgConfig):
    training_args: dict[str, Any]
    """``supervised`` and ``reward_model`` only: arguments of transformers' ``TrainingArguments``."""
    model_name: str
    """``supervised`` and ``reward_model`` only: the model, as in ``alg.policy.args``; for a reward model also
    ``builtin/tiny-bert`` and ``builtin/tiny-bert-cls``.
    """
    rating_loss: Literal["squared_error", "cross_entropy"] | None = None
    """``reward_model`` only: loss of a rating from 0 to 1. With ``squared_error``, the score predicts the rating; with
    ``cross_entropy``, its sigmoid does. Default: ``cross_entropy`` if there are preferences or corrections, else
    ``squared_error``.
    """
    rating_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """``reward_model`` only: weight of the loss of a rating; that of a comparison has the weight 1."""
    center_coef: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """``reward_model`` only: coefficient of the squared sum of the scores of a comparison; keeps scores near 0."""
    ensemble: int = Field(default=1, ge=1)
    """``reward_model`` only: number of models that are trained together. The score is their mean."""
    bootstrap: bool = True
    """``reward_model`` only: each model of an ensemble learns from its own sample of the conversations, drawn with
    replacement. Otherwise, the models differ only in the random seed of their new weights.
    """


class RewardModelConfig(RunConfig):
    """Config of a run that trains a reward model on judgements of replies or dialogues."""

    trainee = "rl4dialog.features.feedback.trainee:RewardModelTrainee"
    check = "rl4dialog.features.feedback.models:check_reward_model"
    plan = "rl4dialog.features.feedback.models:reward_model_rows"
    shipped = "ratings/small_talk"
    has_rollouts = False
    not_logged = ("log_infos", "info_fns", "conversations")
    alg: RewardModelAlgConfig
    """Model and training settings."""
    tokenizer: TextTokenizerConfig
    """Tokenizer."""
    datapool: ComponentConfig
    """Judged replies or dialogues."""
    train_evaluation: BatchedEvaluationConfig
    """Evaluations and checkpoints."""

    @classmethod
    def claims(cls, given: Mapping[str, Any]) -> bool:
        return is_text(given) and id_of(given, "alg") == "reward_model"

    @property
    def can_talk(self) -> bool:
        return False

    @property
    def instead(self) -> str:
        return "use its folder as model_name of a reward"

    @model_validator(mode="before")
    @classmethod
    def _no_environments(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("env") is not None:
            raise ValueError("the key 'env' has no meaning with alg.id: reward_model, which has no environments")
        return given

    @model_validator(mode="after")
    def _only_a_model(self) -> RewardModelConfig:
        wrong, right = "has no meaning with alg.id: reward_model", "alg.training_args"
        if self.alg.args:
            raise ValueError(f"alg.args {wrong}; use {right}")
        if self.train_evaluation.n_iters is not None:
            raise ValueError(f"train_evaluation.n_iters {wrong}; set {right}.num_train_epochs")
        return self
