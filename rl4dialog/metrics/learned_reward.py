"""The score of a sequence classifier or reward model."""

from __future__ import annotations

from typing import Any, Literal

from rl4dialog.core.arguments import Count, NonNegative
from rl4dialog.core.errors import ConfigError
from rl4dialog.data.dialogue_text import reply_text
from rl4dialog.metrics.reward_model import RewardModel, load_reward_model, reward_model_folder
from rl4dialog.metrics.sentence_metric import SentenceMetric
from rl4dialog.metrics.sequence_classifier import SequenceClassifier, label_index

KEY = "semantic/learned_automodel_metric"
Output = Literal["probability", "log_probability", "logit"]


class LearnedRewardMetric(SentenceMetric):
    """Probability of one class of a sequence classifier, or the single output of a reward model.

    RL4LMs applies the softmax to a single output too, which always gives 1. The model of a run with ``alg.id:
    reward_model`` reads the history and the reply as it did in training, and needs only ``model_name``.

    Args:
        model_name: Folder or hub id of the model, or the folder of a run with ``alg.id: reward_model``.
        label_ix: The class, as a number or as a name in the model's ``id2label``; not needed for a single output.
        batch_size: Texts per forward pass.
        include_prompt_for_eval: Whether to classify prompt and reply, concatenated without a separator, or only the
            reply.
        std_penalty: For a reward model with several models (``alg.ensemble``): what is subtracted from their mean score
            per standard deviation of their scores.
        output: ``probability`` (the default for classes), ``log_probability`` (in nats) or ``logit`` (the default and
            only choice for a single output).

    Raises:
        ConfigError: If the class is unknown, or missing for a model with several; if a probability is requested
            for a single output; or if a reward model scores whole dialogues, or is given other arguments.
        ModelError: If the model cannot be loaded.
    """

    needs_references = False

    def __init__(
        self,
        model_name: str,
        label_ix: int | str | None = None,
        batch_size: Count = 64,
        include_prompt_for_eval: bool = True,
        output: Output | None = None,
        std_penalty: NonNegative = 0.0,
    ) -> None:
        who = "metric 'learned_reward'"
        self._reward_model: RewardModel | None = None
        self._std_penalty = std_penalty
        if reward_model_folder(model_name) is not None:
            self._reward_model = load_reward_model(model_name, "reply", batch_size, who, std_penalty)
            if label_ix is not None or output is not None or not include_prompt_for_eval:
                raise ConfigError(
                    f"{who}: label_ix, output and include_prompt_for_eval have no meaning with the reward model "
                    f"{model_name!r}, which has one score and reads what it was trained on; remove them"
                )
            return
        if std_penalty:
            raise ConfigError(f"{who}: std_penalty needs the folder of a reward model with several models")
        # Long texts are truncated at the start, because the reply is at the end.
        self._classifier = SequenceClassifier.from_pretrained(
            model_name,
            batch_size,
            what=f"{who}: model",
            hint="Set model_name: <folder of a sequence classifier>, or a hub id if there is a network.",
            truncation_side="left",
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

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        if self._reward_model is not None:
            rows = zip(prompt_texts, generated_texts, meta_infos or [{}] * len(prompt_texts), strict=True)
            texts = [reply_text(*row, self._reward_model.card.context_size) for row in rows]
            return {KEY: self._reward_model.scores(texts, self._std_penalty)}
        logits = self._classifier.logits(self._texts(prompt_texts, generated_texts))
        if self._output != "logit":
            logits = logits.log_softmax(-1) if self._output == "log_probability" else logits.softmax(-1)
        return {KEY: logits[:, self._class].tolist()}

    def _texts(self, prompt_texts: list[str], generated_texts: list[str]) -> list[str]:
        """The texts that a classifier reads."""
        if self._include_prompt:
            return [prompt + text for prompt, text in zip(prompt_texts, generated_texts, strict=True)]
        return generated_texts
