"""Trained reward models: what they read, their scores, and the metrics and rewards that use them.

A run with ``alg.id: reward_model`` writes `CARD_FILE` into the folder of its model. The card names the texts that the
model was trained on, so that a reward writes the same texts, or refuses a model of other ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.arguments import Count, NonNegative
from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.files import json_object
from rl4dialog.core.protocols import BatchedConversationReward
from rl4dialog.core.types import Dialogue
from rl4dialog.data.dialogue_text import FORMAT, dialogue_text, reply_text
from rl4dialog.scores.adapters import BatchedMetricReward
from rl4dialog.scores.base import Batch, PerDialogueMetric, ReplyMetric
from rl4dialog.scores.classifiers import SequenceClassifier, label_index

CARD_FILE = "reward_model.json"
_MODEL_FOLDER = "model"  # in a run folder
_USES = {
    "reply": "replies; use it as the reward learned_reward, or to select pairs or single replies",
    "dialogue": "whole dialogues; use it as the reward conversation_reward_model, or to select conversations",
}


@dataclass(frozen=True)
class RewardModelCard:
    """What a reward model was trained on."""

    format: str  # of its texts (`rl4dialog.data.dialogue_text.FORMAT`)
    unit: Literal["reply", "dialogue"]  # what it scores
    context_size: int | None  # number of utterances before a reply; ``None`` for all
    truncation_side: str  # side from which texts that are too long are truncated
    ratings: Sequence[str]  # those whose mean it predicts; empty if it learned from comparisons only
    scale: Sequence[float] | None  # the ratings that are 0 and 1 on its scale; ``None`` for none, or several scales
    mean: float  # of its scores on all texts of the val split, preferred or not
    std: float  # their standard deviation
    # ``rating`` for a predicted one; ``log_odds``: its sigmoid is the probability of a good rating, and that of a
    # difference the probability that the first text is preferred
    score: Literal["rating", "log_odds"] = "rating"
    members: int = 1  # number of models whose mean is the score
    # what each model's scores are above the mean of all on the val split, if the loss fixes no level
    offsets: Sequence[float] = (0.0,)

    def write(self, folder: Path) -> None:
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
    """A trained reward model: one model, or an ensemble."""

    def __init__(self, card: RewardModelCard, members: Sequence[SequenceClassifier]) -> None:
        self.card, self._members = card, members

    def scores(self, texts: list[str], std_penalty: float = 0.0) -> list[float]:
        """Mean score of the models for each text in the format of the card.

        ``std_penalty`` is subtracted per standard deviation of the models' scores (Coste et al. 2023, arXiv 2310.02743,
        penalize the variance), so that texts on which the models disagree earn less.
        """
        if not texts:
            return []
        by_member = member_scores(self._members, texts)
        penalties = std_penalty * deviations(by_member, np.asarray(self.card.offsets))
        return [float(score) for score in by_member.mean(-1) - penalties]

    def standard_scores(self, texts: list[str]) -> NDArray[np.float64]:
        """Scores of each model, without its level, in standard deviations of the card's scores. Shape (N, K)."""
        return (member_scores(self._members, texts) - np.asarray(self.card.offsets)) / (self.card.std or 1.0)

    def differences(self, first: list[str], second: list[str]) -> NDArray[np.float64]:
        """How much better each model finds the first one of two texts, in :meth:`standard_scores`. Shape (N, K)."""
        texts = list(dict.fromkeys([*first, *second]))  # of three replies, each is in two pairs
        row = {text: i for i, text in enumerate(texts)}
        scores = self.standard_scores(texts)
        return scores[[row[text] for text in first]] - scores[[row[text] for text in second]]


def member_scores(members: Sequence[SequenceClassifier], texts: list[str]) -> NDArray[np.float64]:
    """Scores of texts by each model. Shape (N, K)."""
    return np.stack([member.logits(texts)[:, 0].double().numpy() for member in members], axis=-1)


def deviations(by_member: NDArray[np.float64], offsets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviations over models, without what one model's scores are above the mean of all. Shape (N,)."""
    return (by_member - offsets).std(-1)


def load_reward_model(
    name: str,
    unit: Literal["reply", "dialogue"],
    batch_size: int,
    who: str,
    std_penalty: float = 0.0,
    offload: bool = False,
) -> RewardModel:
    """Load a reward model from its folder or that of its run, to score such units; a penalty needs several models."""
    folder = reward_model_folder(name)
    hint = "Use the folder of a run with alg.id: reward_model."
    if folder is None:
        raise ModelError(f"{who}: {name!r} is not the folder of a reward model (it has no {CARD_FILE}). {hint}")
    try:
        card = RewardModelCard(**json_object((folder / CARD_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{folder / CARD_FILE} is damaged ({error}); train the reward model again") from error
    if card.unit != unit:
        raise ConfigError(f"{who}: the reward model {name!r} scores {_USES[card.unit]}")
    if card.format != FORMAT:
        problem = f"was trained on texts in format {card.format!r}, but this version writes {FORMAT!r}"
        raise ConfigError(f"{who}: the reward model {name!r} {problem}; train it again")
    if std_penalty and card.members == 1:
        problem = f"the reward model {name!r} is a single model; train one with alg.ensemble: 3"
        raise ConfigError(f"{who}: std_penalty is {std_penalty:g}, but {problem}")
    members = []
    for number in range(card.members):
        place = member_folder(folder, number, card.members)
        options: dict[str, Any] = {"what": f"{who}: model", "hint": hint, "truncation_side": card.truncation_side}
        members.append(SequenceClassifier.from_pretrained(str(place), batch_size, offload=offload, **options))
        if (n_outputs := members[-1].model.config.num_labels) != 1:
            raise ModelError(f"{who}: the model in {place} has {n_outputs} outputs, but a reward model has one. {hint}")
    return RewardModel(card, members)


KEY = "semantic/learned_automodel_metric"
Output = Literal["probability", "log_probability", "logit"]


class LearnedRewardMetric(ReplyMetric):
    """Probability of one class of a sequence classifier, or the single output of a reward model.

    RL4LMs applies the softmax to a single output too, which always gives 1. The model of a run with ``alg.id:
    reward_model`` reads the history and the reply as it did in training, and needs only ``model_name``.

    Args:
        model_name: Folder or hub id of the model, or the folder of a run with ``alg.id: reward_model``.
        label_ix: The class, as a number or as a name in the model's ``id2label``; not needed for a single output.
        batch_size: Texts per forward pass.
        include_prompt_for_eval: Whether to classify prompt and reply, concatenated, or only the reply.
        std_penalty: With several models (``alg.ensemble``), subtracted from the mean per standard deviation of scores.
        output: ``probability`` (the default for classes), ``log_probability`` (in nats) or ``logit`` (the default and
            only choice for a single output).
        offload: Whether the model is in main memory between uses, and on the GPU, if there is one, while it scores.
    """

    def __init__(
        self,
        model_name: str,
        label_ix: int | str | None = None,
        batch_size: Count = 64,
        include_prompt_for_eval: bool = True,
        output: Output | None = None,
        std_penalty: NonNegative = 0.0,
        offload: bool = False,
    ) -> None:
        who = "metric 'learned_reward'"
        self._reward_model: RewardModel | None = None
        self._std_penalty = std_penalty
        if reward_model_folder(model_name) is not None:
            self._reward_model = load_reward_model(model_name, "reply", batch_size, who, std_penalty, offload)
            if label_ix is not None or output is not None or not include_prompt_for_eval:
                names = "label_ix, output and include_prompt_for_eval"
                problem = f"have no meaning with the reward model {model_name!r}; remove them"
                raise ConfigError(f"{who}: {names} {problem}")
            return
        if std_penalty:
            raise ConfigError(f"{who}: std_penalty needs the folder of a reward model with several models")
        # Long texts are truncated at the start, because the reply is at the end.
        hint = "Set model_name: <folder of a sequence classifier>, or a hub id if there is a network."
        self._classifier = SequenceClassifier.from_pretrained(
            model_name, batch_size, what=f"{who}: model", hint=hint, truncation_side="left", offload=offload
        )
        config = self._classifier.model.config
        if label_ix is None and config.num_labels > 1:
            names = ", ".join(f"{i} {config.id2label.get(i, i)!r}" for i in range(config.num_labels))
            raise ConfigError(f"{who} needs label_ix, the class that determines the score (classes: {names})")
        self._class = label_index(config, label_ix if label_ix is not None else 0, who)
        self._include_prompt = include_prompt_for_eval
        if config.num_labels == 1 and output not in (None, "logit"):
            raise ConfigError(f"{who}: output is {output!r}, but the model's single output is not a probability")
        self._output = output or ("probability" if config.num_labels > 1 else "logit")

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        if self._reward_model is not None:
            rows = zip(batch.prompt_texts, batch.gen_texts, batch.meta_infos, strict=True)
            texts = [reply_text(*row, self._reward_model.card.context_size) for row in rows]
            return {KEY: self._reward_model.scores(texts, self._std_penalty)}
        texts = batch.gen_texts
        if self._include_prompt:
            texts = [prompt + text for prompt, text in zip(batch.prompt_texts, texts, strict=True)]
        logits = self._classifier.logits(texts)
        if self._output != "logit":
            logits = logits.log_softmax(-1) if self._output == "log_probability" else logits.softmax(-1)
        return {KEY: logits[:, self._class].tolist()}


class LearnedReward(BatchedMetricReward, metric=LearnedRewardMetric):
    """A classifier's or reward model's score of the reply, minus a baseline.

    Args:
        baseline: A number, or ``reference`` for the score of the first reference: a reply as good earns 0.
    """

    def __init__(self, baseline: float | Literal["reference"] = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._baseline = baseline

    def scores(self, batch: Batch) -> list[float]:
        scores = super().scores(batch)
        if not isinstance(self._baseline, str):
            return [score - self._baseline for score in scores]
        if not all(batch.ref_texts):
            raise DataError("reward 'learned_reward': baseline 'reference' needs a reference for every sample")
        references = super().scores(replace(batch, gen_texts=[each[0] for each in batch.ref_texts]))
        return [score - reference for score, reference in zip(scores, references, strict=True)]


class ConversationRewardModelMetric(PerDialogueMetric):
    """Score of a conversation by a reward model, such as a held-out one that is not part of the reward.

    Args:
        model_name: Folder of a run with ``alg.id: reward_model`` on ratings of dialogues, or the ``model/`` in it.
        batch_size: Conversations per forward pass.
    """

    def __init__(self, model_name: str, batch_size: Count = 32) -> None:
        self._model = load_reward_model(model_name, "dialogue", batch_size, "metric 'conversation_reward_model'")

    def dialogue_scores(self, dialogues: list[Dialogue]) -> dict[str, list[float]]:
        scores = self._model.scores([dialogue_text(dialogue) for dialogue in dialogues])
        return {"conversation/reward_model": scores}


class ConversationRewardModel(BatchedConversationReward):
    """The score of a conversation by a reward model, paid when the conversation is over.

    Args:
        model_name: Folder of a run with ``alg.id: reward_model`` on ratings of dialogues, or the ``model/`` in it.
        shaping: ``end`` pays the score for the last utterance. ``every_turn`` pays for each utterance the change of the
            score of the conversation so far (a potential, Ng, Harada and Russell 1999), which adds up to the same.
        batch_size: Conversations per forward pass.
        std_penalty: With several models (``alg.ensemble``), subtracted from the mean per standard deviation of scores.
        offload: Whether the model is in main memory between uses, and on the GPU, if there is one, while it scores.
    """

    def __init__(
        self,
        model_name: str,
        shaping: Literal["end", "every_turn"] = "end",
        batch_size: Count = 32,
        std_penalty: NonNegative = 0.0,
        offload: bool = False,
    ) -> None:
        self._each_turn, self._std_penalty = shaping == "every_turn", std_penalty
        who = "reward 'conversation_reward_model'"
        self._model = load_reward_model(model_name, "dialogue", batch_size, who, std_penalty, offload)

    def __call__(self, dialogues: list[Dialogue], overs: list[bool]) -> list[float | list[float]]:
        read = [self._read(dialogue) if over else [] for dialogue, over in zip(dialogues, overs, strict=True)]
        scores = iter(self._model.scores([text for texts in read for text in texts], self._std_penalty))
        found: list[float | list[float]] = []
        for texts in read:
            own = [next(scores) for _ in texts]
            if self._each_turn and own:
                found.append([own[0], *(after - before for before, after in itertools.pairwise(own))])
            else:
                found.append(own[-1] if own else 0.0)
        return found

    def _read(self, dialogue: Dialogue) -> list[str]:
        """The conversation, or with ``every_turn`` the conversation after each turn, up to the partner's answer."""
        if not self._each_turn:
            return [dialogue_text(dialogue)]
        return [dialogue_text(replace(dialogue, turns=dialogue.turns[:end])) for end in dialogue.turn_bounds[1:]]
