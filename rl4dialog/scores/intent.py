"""The dialogue act of replies: its classifier, accuracy, and rewards for the act of the reference reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError
from rl4dialog.scores.base import Batch, BatchReward, SentenceMetric, meta_values
from rl4dialog.scores.classifiers import SequenceClassifier
from rl4dialog.scores.meteor import MeteorMetric

if TYPE_CHECKING:
    from torch import Tensor

BUILTIN_CLASSIFIER = "builtin/intent-classifier"
_MARKER = "<EOU>"


def intent_input(context: str, reply: str) -> str:
    """Format the classifier's input as for RL4LMs' published classifier, including separators."""
    return f"{context.strip()} {_MARKER}{reply.strip()}{_MARKER}"


def last_utterances(prompt_text: str, meta_info: dict[str, Any] | None, n: int = 1) -> str:
    """The last ``n`` utterances before the reply: of ``meta_info["history"]``, or else of the prompt."""
    history = (meta_info or {}).get("history") or prompt_text.split(_MARKER)
    said = [str(utterance).strip() for utterance in history if str(utterance).strip()]
    return f" {_MARKER}".join(said[-n:])


class IntentClassifier(SequenceClassifier):
    """A classifier of dialogue acts: class ``i`` is act ``i + 1``, unless its labels are the numbers of the acts.

    If the model's config has ``reads_reply: false``, it predicts the act of a reply by ``n_utterances`` before it.
    """

    @property
    def reads_reply(self) -> bool:
        return bool(getattr(self.model.config, "reads_reply", True))

    @property
    def n_utterances(self) -> int:
        """Number of utterances before the reply that it reads."""
        return int(getattr(self.model.config, "n_utterances", 1))

    @classmethod
    def from_pretrained(cls, path_or_id: str, batch_size: int = 64, *args: Any, **kwargs: Any) -> Self:
        hint = "Pass a folder written by scripts/train_intent_classifier.py, or builtin/intent-classifier."
        # Long texts are truncated at the start, because the reply to classify is at the end.
        options = {"what": "intent classifier", "hint": hint, "truncation_side": "left", **kwargs}
        return super().from_pretrained(path_or_id, batch_size, *args, **options)

    def predict(
        self, prompt_texts: list[str], reply_texts: list[str], meta_infos: list[dict[str, Any]] | None
    ) -> list[int]:
        """Predict the dialogue act of each reply, 1 to 4."""
        return [act + 1 for act in self.probabilities(prompt_texts, reply_texts, meta_infos).argmax(dim=-1).tolist()]

    def probabilities(
        self, prompt_texts: list[str], reply_texts: list[str], meta_infos: list[dict[str, Any]] | None
    ) -> Tensor:
        """Probability of each dialogue act. Shape (number of replies, 4), in the order of the acts."""
        infos = meta_infos if meta_infos is not None else [{}] * len(reply_texts)
        texts = [
            intent_input(last_utterances(prompt, info, self.n_utterances), reply if self.reads_reply else "")
            for prompt, reply, info in zip(prompt_texts, reply_texts, infos, strict=True)
        ]
        return self.logits(texts).softmax(dim=-1)[:, _classes_of_acts(self.model.config)]


def _classes_of_acts(config: Any) -> list[int]:
    """The class of each act: from the config's labels if these are the numbers 1 to 4, else by position."""
    by_position = list(range(config.num_labels))
    labels = [str(config.id2label.get(i, "")) for i in by_position]
    acts = [str(i + 1) for i in by_position]
    # Labels that start at 0 are positions, not acts.
    return [labels.index(act) for act in acts] if sorted(labels) == acts else by_position


class IntentAccuracyMetric(SentenceMetric):
    """Share of replies whose predicted dialogue act is that of the reference reply (RL4LMs' ``intent/accuracy``).

    Args:
        classifier: Predicts dialogue acts; passed by the toolkit for the built-in one, trained on the run's datapool.
        model_name: Folder or hub id of another classifier.
        batch_size: Texts per forward pass of another classifier.
    """

    def __init__(self, classifier: Any = None, model_name: str = BUILTIN_CLASSIFIER, batch_size: Count = 64) -> None:
        self._classifier = classifier if classifier is not None else load_classifier(model_name, batch_size)

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        predicted = self._classifier.predict(batch.prompt_texts, batch.gen_texts, batch.meta_infos)
        return {"intent/accuracy": _are_gold(predicted, batch.meta_infos)}


def load_classifier(
    model_name: str, batch_size: int = 64, *, reads_reply: bool = True, offload: bool = False
) -> IntentClassifier:
    """Load a classifier other than the built-in one, which only a run can train."""
    if model_name.startswith("builtin/"):
        raise ConfigError(f"{model_name!r} is trained by a run on its datapool; pass a classifier or a model folder")
    classifier = IntentClassifier.from_pretrained(model_name, batch_size, offload=offload)
    if classifier.reads_reply != reads_reply:
        option = "`rl4dialog classifier --without_reply`"
        problem = f"was trained with {option} and cannot tell the act of a reply; train one without this option"
        if not reads_reply:
            problem = f"reads replies, but must predict their act without them; train one with {option}"
        raise ConfigError(f"the classifier {model_name!r} {problem}")
    return classifier


def gold_intents(meta_infos: Sequence[Mapping[str, Any]]) -> list[int]:
    source = "which the datapools small_talk and daily_dialog provide"
    needs = f"intent accuracy needs samples with meta_data['intent'], {source}"
    return [int(labels[0]) for labels in meta_values(meta_infos, "intent", _is_label, needs)]


def _is_label(labels: Any) -> bool:
    return isinstance(labels, list | tuple | str) and str(labels[:1] and labels[0]).isdigit()


def _are_gold(acts: Sequence[int], meta_infos: list[dict[str, Any]]) -> list[float]:
    return [float(act == gold) for act, gold in zip(acts, gold_intents(meta_infos), strict=True)]


class IntentAccuracyReward(BatchReward):
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
        offload: Whether classifiers other than the built-in one are on the GPU, if there is one, only in use.
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
        offload: bool = False,
    ) -> None:
        self._intent_coeff, self._auto_coeff = intent_coeff, auto_coeff
        self._classifier = classifier if classifier is not None else load_classifier(model_name, offload=offload)
        self._expected = None
        if expected_by is not None:
            self._expected = load_classifier(expected_by, reads_reply=False, offload=offload)
        self._meteor = MeteorMetric(synonyms) if shape and auto_coeff else None
        self.last_parts: dict[str, list[float]] = {}

    def rewards(self, batch: Batch) -> list[float]:
        texts = (batch.prompt_texts, batch.gen_texts, batch.meta_infos)
        if self._expected is None:
            intents = _are_gold(self._classifier.predict(*texts), batch.meta_infos)
        else:
            said, expected = (each.probabilities(*texts) for each in (self._classifier, self._expected))
            intents = (said * expected).sum(dim=-1).tolist()
        self.last_parts = {"intent": intents}
        scores = [self._intent_coeff * intent for intent in intents]
        if self._meteor is not None:
            (meteors,) = self._meteor.sentence_scores(batch).values()
            self.last_parts["meteor"] = meteors
            scores = [score + self._auto_coeff * meteor for score, meteor in zip(scores, meteors, strict=True)]
        return [score if done else 0.0 for score, done in zip(scores, batch.dones, strict=True)]


class NlpReward(IntentAccuracyReward):
    """Half for the right dialogue act, plus half of METEOR (OpenRL's NLPReward, without its KL penalty).

    The KL penalty is that of ``alg.kl_div``: OpenRL's is ``{coeff: 0.2, target_kl: 0.05}``, with the same controller.

    Args:
        intent_model: Folder or hub id of a classifier; by default the built-in one.
        ref_model: Accepted for OpenRL's configs, without effect: the reference is the initial policy.
    """

    def __init__(
        self,
        intent_model: str = BUILTIN_CLASSIFIER,
        ref_model: str | None = None,
        classifier: Any = None,
        synonyms: bool = True,
        offload: bool = False,
    ) -> None:
        del ref_model
        settings: dict[str, Any] = {"classifier": classifier, "synonyms": synonyms, "offload": offload}
        super().__init__(intent_coeff=0.5, auto_coeff=0.5, model_name=intent_model, **settings)
