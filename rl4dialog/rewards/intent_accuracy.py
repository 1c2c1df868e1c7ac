"""Reward for replies with the dialogue act of the reference reply, combined with METEOR."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.protocols import BatchedRewardFunction
from rl4dialog.metrics.intent_accuracy import BUILTIN_CLASSIFIER, gold_intents, load_classifier
from rl4dialog.metrics.meteor import MeteorMetric


class IntentAccuracyReward(BatchedRewardFunction):
    """``intent_coeff`` for the right dialogue act, plus ``auto_coeff`` times METEOR of the reply.

    Replies before the end of an episode earn 0. After a call, ``last_parts`` contains both terms, unweighted.

    Args:
        shape: Whether to include METEOR.
        intent_coeff: Weight of the dialogue act, which scores 1 if it is right and otherwise 0.
        auto_coeff: Weight of METEOR.
        classifier: Predicts dialogue acts; passed by the toolkit for the built-in classifier.
        model_name: Folder or hub id of another classifier.
        synonyms: Whether METEOR uses WordNet.
        expected_by: Folder of a classifier trained with ``rl4dialog classifier --without_reply``. A reply then scores
            the probability that its act is the act to expect, under both classifiers, instead of 1 if it is that of
            the reference. People could reply with several acts, so this is less noisy than comparing with one reply.
            The classifier reads as many utterances before the reply as the datapool's ``context_size`` in its training,
            or fewer if the run's datapool has a smaller one.

    Raises:
        ConfigError: If one of the classifiers is of the wrong kind.
    """

    needs_references = True

    def __init__(
        self,
        shape: bool = True,
        intent_coeff: float = 1.0,
        auto_coeff: float = 1.0,
        classifier: Any = None,
        model_name: str = BUILTIN_CLASSIFIER,
        synonyms: bool = True,
        expected_by: str | None = None,
    ) -> None:
        self._intent_coeff, self._auto_coeff = intent_coeff, auto_coeff
        self._classifier = classifier if classifier is not None else load_classifier(model_name)
        self._expected = load_classifier(expected_by, reads_reply=False) if expected_by is not None else None
        self._meteor = MeteorMetric(synonyms) if shape and auto_coeff else None
        self.last_parts: dict[str, list[float]] = {}

    def __call__(
        self,
        prompt_texts: list[str],
        gen_texts: list[str],
        ref_texts: list[list[str]],
        dones: list[bool],
        meta_infos: list[dict[str, Any]] | None = None,
    ) -> list[float]:
        intents = self._intent_scores(prompt_texts, gen_texts, meta_infos)
        self.last_parts = {"intent": intents}
        scores = [self._intent_coeff * intent for intent in intents]
        if self._meteor is not None:
            meteors = [self._meteor.sentence_score(t, r) for t, r in zip(gen_texts, ref_texts, strict=True)]
            self.last_parts["meteor"] = meteors
            scores = [score + self._auto_coeff * meteor for score, meteor in zip(scores, meteors, strict=True)]
        return [score if done else 0.0 for score, done in zip(scores, dones, strict=True)]

    def _intent_scores(
        self, prompt_texts: list[str], gen_texts: list[str], meta_infos: list[dict[str, Any]] | None
    ) -> list[float]:
        if self._expected is None:
            acts = self._classifier.predict(prompt_texts, gen_texts, meta_infos)
            return [float(act == gold) for act, gold in zip(acts, gold_intents(meta_infos), strict=True)]
        classifiers = (self._classifier, self._expected)
        said, expected = (each.probabilities(prompt_texts, gen_texts, meta_infos) for each in classifiers)
        return [float(score) for score in (said * expected).sum(dim=-1)]
