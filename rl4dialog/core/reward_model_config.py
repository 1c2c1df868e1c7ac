"""The config of runs that train a reward model on ratings and preferences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from rl4dialog.core.config_blocks import BatchedEvaluationConfig, ComponentConfig, TextTokenizerConfig
from rl4dialog.core.run_config import AlgConfig, RunConfig, n_epochs


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

    has_rollouts = False
    alg: RewardModelAlgConfig
    """Model and training settings."""
    tokenizer: TextTokenizerConfig
    """Tokenizer."""
    datapool: ComponentConfig
    """Judged replies or dialogues."""
    train_evaluation: BatchedEvaluationConfig
    """Evaluations and checkpoints."""

    @property
    def n_iters(self) -> int:
        """Number of epochs; with ``max_steps`` at most that many, as it depends on the number of samples."""
        return n_epochs(self.alg.training_args)

    @model_validator(mode="before")
    @classmethod
    def _no_environments(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("env") is not None:
            raise ValueError("the key 'env' has no meaning with alg.id: reward_model, which has no environments")
        return given

    @model_validator(mode="after")
    def _only_a_model(self) -> RewardModelConfig:
        if self.alg.args:
            raise ValueError("alg.args has no meaning with alg.id: reward_model; use alg.training_args")
        if self.train_evaluation.n_iters is not None:
            raise ValueError(
                "train_evaluation.n_iters has no meaning with alg.id: reward_model; set "
                "alg.training_args.num_train_epochs"
            )
        for key in ("log_infos", "conversations"):
            if getattr(self.logging, key):
                raise ValueError(f"logging.{key} has no meaning with alg.id: reward_model, which makes no rollouts")
        return self
