"""Trained reward models: what they read, and their scores.

A run with ``alg.id: reward_model`` writes `CARD_FILE` into the folder of its model. The card names the texts that the
model was trained on, so that a reward writes the same texts, or refuses a model of other ones.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.core.files import json_object
from rl4dialog.data.dialogue_text import FORMAT
from rl4dialog.metrics.sequence_classifier import SequenceClassifier

CARD_FILE = "reward_model.json"
_MODEL_FOLDER = "model"  # in a run folder
_USES = {
    "reply": "replies; use it as the reward learned_reward, or to select pairs or single replies",
    "dialogue": "whole dialogues; use it as the reward conversation_reward_model, or to select conversations",
}


@dataclass(frozen=True)
class RewardModelCard:
    """What a reward model was trained on.

    Attributes:
        format: Format of its texts (`rl4dialog.data.dialogue_text.FORMAT`).
        unit: Whether it scores replies or whole dialogues.
        context_size: Number of utterances before a reply; ``None`` for all.
        truncation_side: Side from which texts that are too long are truncated.
        ratings: Names of the ratings whose mean it predicts; empty if it learned from comparisons only.
        scale: The ratings that are 0 and 1 on its scale; ``None`` if there are none, or several scales.
        mean: Mean of its scores on all texts of the val split, preferred or not.
        std: Their standard deviation.
        score: What a score is: a predicted ``rating``, or ``log_odds``: its sigmoid is the probability of a good
            rating, and that of a difference the probability that the first text is preferred.
        members: Number of models whose mean is the score.
        offsets: What each model's scores are above the mean of all on the val split, if the loss fixes no level.
    """

    format: str
    unit: Literal["reply", "dialogue"]
    context_size: int | None
    truncation_side: str
    ratings: Sequence[str]
    scale: Sequence[float] | None
    mean: float
    std: float
    score: Literal["rating", "log_odds"] = "rating"
    members: int = 1
    offsets: Sequence[float] = (0.0,)

    def write(self, folder: Path) -> None:
        """Write the card into the folder of its model."""
        text = json.dumps(dataclasses.asdict(self), indent=2)
        (folder / CARD_FILE).write_text(text + "\n", encoding="utf-8")


def reward_model_folder(name: str) -> Path | None:
    """Folder of a reward model, given this folder or that of its run; ``None`` if it is neither."""
    folder = Path(name).expanduser()
    return next((each for each in (folder, folder / _MODEL_FOLDER) if (each / CARD_FILE).is_file()), None)


def member_folder(folder: Path, number: int, n_members: int) -> Path:
    """Folder of one model of a reward model: the folder itself, if there is only one."""
    return folder if n_members == 1 else folder / f"member_{number}"


class RewardModel:
    """A trained reward model: one model, or an ensemble.

    Args:
        card: What it was trained on.
        members: Its models.
    """

    def __init__(self, card: RewardModelCard, members: Sequence[SequenceClassifier]) -> None:
        self.card, self._members = card, members

    def scores(self, texts: list[str], std_penalty: float = 0.0) -> list[float]:
        """Score texts.

        Args:
            texts: Texts in the format of the card.
            std_penalty: What is subtracted per standard deviation of the models' scores (Coste et al. 2023, arXiv
                2310.02743, penalize the variance), so that texts on which the models disagree earn less.

        Returns:
            The mean score of the models for each text, minus the penalty.
        """
        if not texts:
            return []
        by_member = member_scores(self._members, texts)
        penalties = std_penalty * deviations(by_member, np.asarray(self.card.offsets))
        return [float(score) for score in by_member.mean(-1) - penalties]

    def standard_scores(self, texts: list[str]) -> NDArray[np.float64]:
        """Scores of each model, without its general level, in standard deviations of the card's scores.

        Args:
            texts: Texts in the format of the card; at least one.

        Returns:
            Shape (N, K) for N texts and K models.
        """
        return (member_scores(self._members, texts) - np.asarray(self.card.offsets)) / (self.card.std or 1.0)

    def differences(self, first: list[str], second: list[str]) -> NDArray[np.float64]:
        """How much better each model finds the first one of two texts, in standard deviations of the card's scores.

        Args:
            first: Texts; at least one.
            second: As many others.

        Returns:
            Shape (N, K) for N pairs and K models.
        """
        texts = list(dict.fromkeys([*first, *second]))  # of three replies, each is in two pairs
        row = {text: i for i, text in enumerate(texts)}
        scores = self.standard_scores(texts)
        return scores[[row[text] for text in first]] - scores[[row[text] for text in second]]


def member_scores(members: Sequence[SequenceClassifier], texts: list[str]) -> NDArray[np.float64]:
    """Scores of texts by each model. Shape (N, K)."""
    return np.stack([member.logits(texts)[:, 0].double().numpy() for member in members], axis=-1)


def deviations(by_member: NDArray[np.float64], offsets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviations of scores over models, without what one model's scores are above another's in general.

    Args:
        by_member: Scores. Shape (N, K).
        offsets: What each model's scores are above the mean of all. Shape (K,).

    Returns:
        Shape (N,).
    """
    found: NDArray[np.float64] = (by_member - offsets).std(-1)
    return found


def load_reward_model(
    name: str, unit: Literal["reply", "dialogue"], batch_size: int, who: str, std_penalty: float = 0.0
) -> RewardModel:
    """Load a reward model.

    Args:
        name: Folder of the model, or of its run.
        unit: What is to be scored.
        batch_size: Texts per forward pass.
        who: Name of the caller, for error messages.
        std_penalty: Penalty with which it will be used, which needs several models.
    """
    folder = reward_model_folder(name)
    hint = "Use the folder of a run with alg.id: reward_model."
    if folder is None:
        raise ModelError(f"{who}: {name!r} is not the folder of a reward model (it has no {CARD_FILE}). {hint}")
    card = _read_card(folder / CARD_FILE)
    if card.unit != unit:
        raise ConfigError(f"{who}: the reward model {name!r} scores {_USES[card.unit]}")
    if card.format != FORMAT:
        raise ConfigError(
            f"{who}: the reward model {name!r} was trained on texts in format {card.format!r}, but this version writes "
            f"{FORMAT!r}; train it again"
        )
    if std_penalty and card.members == 1:
        raise ConfigError(
            f"{who}: std_penalty is {std_penalty:g}, but the reward model {name!r} is a single model, so nothing can "
            f"disagree; train one with alg.ensemble: 3"
        )
    members = []
    for number in range(card.members):
        place = member_folder(folder, number, card.members)
        options: dict[str, Any] = {"what": f"{who}: model", "hint": hint, "truncation_side": card.truncation_side}
        members.append(SequenceClassifier.from_pretrained(str(place), batch_size, **options))
        if (n_outputs := members[-1].model.config.num_labels) != 1:
            raise ModelError(f"{who}: the model in {place} has {n_outputs} outputs, but a reward model has one. {hint}")
    return RewardModel(card, members)


def _read_card(path: Path) -> RewardModelCard:
    try:
        return RewardModelCard(**json_object(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{path} is damaged ({error}); train the reward model again") from error
