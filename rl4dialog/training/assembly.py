"""The parts of a run that trains a language model, each built when it is first read.

Training, the plan and the doctor assemble them from the config. `LoadedPolicy`, for the use of trained models, takes
tokenizer, lengths and model from a run folder instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl4dialog.core.config import TextConfig
from rl4dialog.core.protocols import BaseMetric, DialogueMetric
from rl4dialog.core.registry import import_object
from rl4dialog.data.pool import Data
from rl4dialog.rollouts.conversing import Conversing
from rl4dialog.runs.tracking import Tracker
from rl4dialog.scores.scoring import Scorer
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.building.conversations import build_conversing
from rl4dialog.training.building.language_model import build_language_model
from rl4dialog.training.building.policy import build_end_of_turn
from rl4dialog.training.building.rewards import build_metrics, build_reward_columns, build_scorer, build_toolkit
from rl4dialog.training.building.texts import Lengths, Texts, build_run_tokenizer, run_lengths
from rl4dialog.training.evaluation import Evaluator

T = TypeVar("T")


class part(Generic[T]):
    """An attribute that is built once. An error is stored too, and raised again when it is read again."""

    def __init__(self, build: Callable[[Any], T]) -> None:
        self._build, self.__doc__ = build, build.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, assembly: Any, owner: type | None = None) -> T:
        errors: dict[str, Exception] = assembly.__dict__.setdefault("_errors", {})
        if self._name in errors:
            raise errors[self._name]
        try:
            # This is a non-data descriptor, so the instance attribute takes precedence from now on.
            value = assembly.__dict__[self._name] = self._build(assembly)
        except Exception as error:
            errors[self._name] = error
            raise
        return value


class Assembly:
    """The parts of a run."""

    def __init__(self, config: TextConfig, trains_classifier: bool = True) -> None:
        self._config, self._trains_classifier = config, trains_classifier

    @property
    def config(self) -> TextConfig:
        return self._config

    # -- what is read ---------------------------------------------------------------------------------------------

    @part
    def _tokenizer_and_data(self) -> tuple[PreTrainedTokenizerBase, Data]:
        return build_run_tokenizer(self.config)  # built-in tokenizers are trained on the data, chat templates write it

    @part
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._tokenizer_and_data[0]

    @part
    def data(self) -> Data:
        return self._tokenizer_and_data[1]

    @property
    def turn_marker(self) -> str | None:
        """Text that ends a reply in the dataset."""
        return self.data.turn_marker

    @part
    def lengths(self) -> Lengths:
        return run_lengths(self.config, self.tokenizer, self.data)

    @part
    def texts(self) -> Texts:
        return Texts(self.tokenizer, self.data, self.lengths)

    # -- what scores ----------------------------------------------------------------------------------------------

    @part
    def toolkit(self) -> dict[str, Any]:
        """What metrics and rewards can request by parameter name."""
        return build_toolkit(self.config, self.tokenizer, self.data, self._trains_classifier)

    @part
    def metrics(self) -> list[BaseMetric | DialogueMetric]:
        return build_metrics(self.config, self.toolkit)

    @part
    def scorer(self) -> Scorer | None:
        """The reward, if the run uses one."""
        return build_scorer(self.config, self.toolkit)

    @part
    def conversing(self) -> Conversing | None:
        return build_conversing(self.config, self.texts, self.scorer)

    def evaluator(self, tracker: Tracker | None = None, has_metrics: bool = True) -> Evaluator:
        """What evaluates splits; without metrics in processes that only hold conversations."""
        metrics, rewards = self.metrics if has_metrics else [], build_reward_columns(self.config, self.scorer)
        return Evaluator(self.config, self.texts, metrics, tracker, rewards, self.conversing)

    # -- what is trained ------------------------------------------------------------------------------------------

    @part
    def initial_model(self) -> PreTrainedModel:
        """The language model with which training begins, after its warm start."""
        return build_language_model(self.config, self.texts)

    @property
    def model_state(self) -> str:
        """Description of this model, if the run has a warm start."""
        return "after its warm start"

    @part
    def end_of_turn(self) -> EndOfTurn:
        return build_end_of_turn(self, self.initial_model)

    @part
    def log(self) -> Any:
        """The logged conversations from which the policy learns, if it learns from some."""
        return import_object(self.config.log)(self)

    @part
    def algorithm(self) -> Any:
        """The algorithm with its policy, and its environments or its log."""
        config: Any = self.config
        return import_object(config.build)(self, config)


def fill_cache(config: TextConfig) -> None:
    """Build and cache the intent classifier, the warm start, and the encoded log of a run."""
    parts = Assembly(config)
    for name in ("toolkit", "initial_model", *(["log"] if config.log else [])):
        getattr(parts, name)
