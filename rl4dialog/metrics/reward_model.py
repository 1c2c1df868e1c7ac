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
from typing import Literal

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.data.dialogue_text import FORMAT
from rl4dialog.metrics.sequence_classifier import SequenceClassifier

CARD_FILE = "reward_model.json"
_MODEL_FOLDER = "model"  # in a run folder
_REWARD_IDS = {"reply": "learned_reward", "dialogue": "conversation_reward_model"}


@dataclass(frozen=True)
class RewardModelCard:
    """What a reward model was trained on.

    Attributes:
        format: Format of its texts (`rl4dialog.data.dialogue_text.FORMAT`).
        unit: Whether it scores replies or whole dialogues.
        context_size: Number of utterances before a reply; ``None`` for all.
        truncation_side: Side from which texts that are too long are truncated.
        ratings: Names of the ratings whose mean it predicts.
        scale: The ratings that are 0 and 1 on its scale.
        mean: Mean of its scores on the val split.
        std: Their standard deviation.
    """

    format: str
    unit: Literal["reply", "dialogue"]
    context_size: int | None
    truncation_side: str
    ratings: Sequence[str]
    scale: Sequence[float]
    mean: float
    std: float

    def write(self, folder: Path) -> None:
        """Write the card into the folder of its model."""
        text = json.dumps(dataclasses.asdict(self), indent=2)
        (folder / CARD_FILE).write_text(text + "\n", encoding="utf-8")


def reward_model_folder(name: str) -> Path | None:
    """Folder of a reward model, given this folder or that of its run; ``None`` if it is neither."""
    folder = Path(name).expanduser()
    return next((each for each in (folder, folder / _MODEL_FOLDER) if (each / CARD_FILE).is_file()), None)


def load_reward_model(
    name: str, unit: Literal["reply", "dialogue"], batch_size: int, who: str
) -> tuple[RewardModelCard, SequenceClassifier]:
    """Load a reward model.

    Args:
        name: Folder of the model, or of its run.
        unit: What is to be scored.
        batch_size: Texts per forward pass.
        who: Name of the caller, for error messages.

    Raises:
        ConfigError: If the model scores the other unit, or reads texts of another format.
        ModelError: If it is not a reward model, or cannot be loaded.
    """
    folder = reward_model_folder(name)
    hint = "Use the folder of a run with alg.id: reward_model."
    if folder is None:
        raise ModelError(f"{who}: {name!r} is not the folder of a reward model (it has no {CARD_FILE}). {hint}")
    card = _read_card(folder / CARD_FILE)
    if card.unit != unit:
        scored = "whole dialogues" if card.unit == "dialogue" else "replies"
        raise ConfigError(f"{who}: the reward model {name!r} scores {scored}; use it with {_REWARD_IDS[card.unit]}")
    if card.format != FORMAT:
        raise ConfigError(
            f"{who}: the reward model {name!r} was trained on texts in format {card.format!r}, but this version writes "
            f"{FORMAT!r}; train it again"
        )
    classifier = SequenceClassifier.from_pretrained(
        str(folder), batch_size, what=f"{who}: model", hint=hint, truncation_side=card.truncation_side
    )
    return card, classifier


def _read_card(path: Path) -> RewardModelCard:
    try:
        return RewardModelCard(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{path} is damaged ({error}); train the reward model again") from error
