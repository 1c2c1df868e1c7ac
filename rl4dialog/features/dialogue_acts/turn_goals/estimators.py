"""Estimates of the partner's state from what it said, as vectors for a policy."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from rl4dialog.core.arguments import Count, LearningRate, NonNegative
from rl4dialog.core.errors import ConfigError
from rl4dialog.features.personas.embedders import HiddenMeanEmbedder, TextEmbedder, TfidfEmbedder
from rl4dialog.scores.language_models import FrozenLanguageModel

Persona = tuple[str, ...]


class StateEstimator(ABC):
    """Estimates the state of a partner."""

    size: int  # length of an estimate
    fingerprint: str  # hash of what its numbers mean

    @abstractmethod
    def __call__(self, said: Sequence[Sequence[str]]) -> np.ndarray:
        """Estimate states.

        Args:
            said: What the partner said in each conversation, at least one utterance.

        Returns:
            Shape (conversations, size), float32.
        """


class MeanOfTexts(StateEstimator):
    """The mean of the vectors of the different things that the partner said."""

    def __init__(self, embed: TextEmbedder, size: int, about: Sequence[object]) -> None:
        self._embed, self.size, self.fingerprint = embed, size, _hash(about)

    def __call__(self, said: Sequence[Sequence[str]]) -> np.ndarray:
        return np.stack([self._embed(list(dict.fromkeys(texts))).mean(0) for texts in said]).astype(np.float32)


class BagOfWords(MeanOfTexts):
    """Words weighted by tf-idf, without a model; only words of the train split's personas count.

    Args:
        personas: The partner's personas in the run's train split; passed by the toolkit.
    """

    def __init__(self, personas: Sequence[Persona]) -> None:
        facts = list(dict.fromkeys(fact for persona in personas for fact in persona))
        embed = TfidfEmbedder(facts)
        super().__init__(embed, embed(facts[:1]).shape[1], ["bag_of_words", *facts])


class HiddenMean(MeanOfTexts):
    """Mean hidden state of a language model.

    Texts are read one by one, so that a resumed run has the same numbers, whatever it read before.

    Args:
        model_name: Folder or hub id of a decoder-only language model.
        layer: Index among the hidden states: 0 for the embeddings, -1 for the last layer.
    """

    def __init__(self, model_name: str, layer: int = -1) -> None:
        who = "estimator 'hidden_mean'"
        model = FrozenLanguageModel(model_name, who, batch_size=1)
        super().__init__(HiddenMeanEmbedder(model, layer, who), model.config.hidden_size, ["hidden_mean", layer])


class RankingEstimator(StateEstimator):
    """A linear map of another estimate, trained so that what a partner says is near to its own facts.

    The training draws two sides of a persona's facts at random: what was said, and the others, from the same persona.
    The loss is the mean of [|s - p| - |s - q| + margin]+ over the facts p that were not said and facts q of other
    personas, with the same map for all of them (convogym's ``RankingLoss``, whose map is for what was said only). It is
    trained on the train split when the environment is built, which takes seconds and depends only on the arguments.

    Args:
        personas: The partner's personas in the run's train split; passed by the toolkit.
        base: What is mapped: ``bag_of_words``, or ``hidden_mean`` of a model.
        model_name: For ``hidden_mean``: folder or hub id of a language model.
        layer: For ``hidden_mean``: index among the hidden states.
        size: Length of an estimate.
        margin: Difference of the distances from which on a false fact is far enough.
        n_steps: Optimizer steps.
        batch_size: Personas per step.
        learning_rate: Learning rate of Adam.
        seed: Random seed.
    """

    def __init__(
        self,
        personas: Sequence[Persona],
        base: Literal["bag_of_words", "hidden_mean"] = "bag_of_words",
        model_name: str | None = None,
        layer: int = -1,
        size: Count = 32,
        margin: NonNegative = 1.0,
        n_steps: Count = 300,
        batch_size: Count = 64,
        learning_rate: LearningRate = 0.003,
        seed: int = 0,
    ) -> None:
        if (model_name is not None) != (base == "hidden_mean"):
            needs = "needs a" if base == "hidden_mean" else "has no use for a"
            raise ConfigError(f"estimator 'ranking_loss': base: {base} {needs} model_name")
        usable = [persona for persona in personas if len(persona) > 1]
        if len(usable) < 2:
            needs = "two personas of at least two facts"
            raise ConfigError(f"estimator 'ranking_loss' needs {needs}; the train split has {len(usable)}")
        self._base = BagOfWords(personas) if model_name is None else HiddenMean(model_name, layer)
        generator = torch.Generator().manual_seed(seed)
        self.size, self._map = size, nn.Linear(self._base.size, size, bias=False)
        with torch.no_grad():
            self._map.weight.normal_(0, self._base.size**-0.5, generator=generator)
        self.fingerprint = _hash([self._base.fingerprint, size, margin, n_steps, batch_size, learning_rate, seed])
        self.losses: list[float] = []  # of each optimizer step
        vectors = [torch.from_numpy(self._base([[fact] for fact in persona])) for persona in usable]
        optimizer, batch_size = torch.optim.Adam(self._map.parameters(), learning_rate), min(batch_size, len(usable))
        for _ in range(n_steps):
            said, unsaid = [], []
            for i in torch.randint(len(usable), (batch_size,), generator=generator).tolist():
                order = torch.randperm(len(vectors[i]), generator=generator)
                n_said = int(torch.randint(1, len(order), (1,), generator=generator))
                said.append(vectors[i][order[:n_said]].mean(0))
                unsaid.append(vectors[i][order[n_said]])
            states, facts = self._map(torch.stack(said)), self._map(torch.stack(unsaid))
            distances = torch.cdist(states, facts)
            others = ~torch.eye(batch_size, dtype=torch.bool)
            loss = F.relu(distances.diagonal()[:, None] - distances + margin)[others].mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            self.losses.append(float(loss.detach()))

    @torch.no_grad()
    def __call__(self, said: Sequence[Sequence[str]]) -> np.ndarray:
        return np.asarray(self._map(torch.from_numpy(self._base(said))).numpy())


def _hash(about: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(list(about)).encode()).hexdigest()[:16]
