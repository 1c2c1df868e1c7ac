"""RL4LMs' preference model for CommonGen: a T5 that rates a sentence as "good" or "bad"."""

from __future__ import annotations

from typing import Any, ClassVar

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.pretrained import load_model, load_pretrained
from rl4dialog.core.protocols import BatchedRewardFunction
from rl4dialog.metrics.meteor import MeteorMetric
from rl4dialog.metrics.sequence_classifier import max_tokens

_WHO = "reward 'common_gen_preference_model'"
_WEIGHTS = "https://storage.googleapis.com/ai2-jack-public/rl4lms_preference_models/t5-11b~commongen_prefs.pt"


class CommonGenPreferenceModel(BatchedRewardFunction):
    """Probability that the reply is good, reduced for missing words, plus METEOR (RL4LMs).

    The score is P(good) / (1 + concept_penalty_coeff * missing words) + meteor_coeff * METEOR, where P compares the
    probabilities of "good" and "bad" as the model's first output word. Replies before the end of an episode earn 0.

    Args:
        model_name: Folder or hub id of an encoder-decoder model. RL4LMs' weights are a pickle of T5-11b; load them into
            ``t5-11b`` once, and save that model with ``save_pretrained``.
        batch_size: Replies per forward pass.
        device: Device of the model; by default a GPU if there is one.
        concept_penalty_coeff: Penalty for each word of ``meta_data["concepts"]`` that is missing from the reply.
        meteor_coeff: Weight of METEOR.
        synonyms: Whether METEOR uses WordNet.
        model_type: No effect; RL4LMs' name of the only model.

    Raises:
        ConfigError: If model_name is missing.
        ModelError: If the model cannot be loaded.
    """

    no_effect: ClassVar[dict[str, str]] = {"model_type": "RL4LMs' name of the only model"}

    def __init__(
        self,
        model_name: str | None = None,
        batch_size: Count = 8,
        device: str | None = None,
        concept_penalty_coeff: float = 0.0,
        meteor_coeff: float = 0.0,
        synonyms: bool = True,
        model_type: str | None = None,
    ) -> None:
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        hint = f"RL4LMs' weights are {_WEIGHTS}; load them into t5-11b, save it, and set model_name: <the folder>."
        if model_name is None:
            raise ConfigError(f"{_WHO} needs model_name. {hint}")
        self._tokenizer = load_pretrained(AutoTokenizer, model_name, f"{_WHO}: tokenizer", hint)
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        model = load_model(AutoModelForSeq2SeqLM, model_name, f"{_WHO}: model", hint)
        self._model, self._batch_size = model.to(self._device).eval(), batch_size
        self._start: int = model.config.decoder_start_token_id
        # T5 has no maximum length.
        self._max_length = min(max_tokens(self._tokenizer, model.config), 1_000_000)
        self._good, self._bad = (self._first_id(word) for word in ("good", "bad"))
        self._concept_penalty_coeff, self._meteor_coeff = concept_penalty_coeff, meteor_coeff
        self._meteor = MeteorMetric(synonyms) if meteor_coeff else None

    def __call__(
        self,
        prompt_texts: list[str],
        gen_texts: list[str],
        ref_texts: list[list[str]],
        dones: list[bool],
        meta_infos: list[dict[str, Any]] | None = None,
    ) -> list[float]:
        rewards = [0.0] * len(gen_texts)
        rows = [row for row, done in enumerate(dones) if done]
        for row, preference in zip(rows, self.preferences([gen_texts[row] for row in rows]), strict=True):
            reward = preference
            if self._concept_penalty_coeff:
                n_missing = _n_missing(gen_texts[row], meta_infos[row] if meta_infos is not None else None)
                reward /= 1 + self._concept_penalty_coeff * n_missing
            if self._meteor is not None:
                reward += self._meteor_coeff * self._meteor.sentence_score(gen_texts[row], ref_texts[row])
            rewards[row] = reward
        return rewards

    def preferences(self, texts: list[str]) -> list[float]:
        """Probability of "good" rather than "bad" for each text."""
        import torch

        found: list[float] = []
        for at in range(0, len(texts), self._batch_size):
            batch = self._tokenizer(
                texts[at : at + self._batch_size],
                return_tensors="pt",
                padding=True,
                truncation=True,
                max_length=self._max_length,
            ).to(self._device)
            start = torch.full((len(batch["input_ids"]), 1), self._start, device=self._device)
            with torch.inference_mode():
                logits = self._model(
                    input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], decoder_input_ids=start
                ).logits[:, 0, [self._good, self._bad]]
            found += logits.float().softmax(-1)[:, 0].tolist()
        return found

    def _first_id(self, word: str) -> int:
        ids = self._tokenizer(word, add_special_tokens=False)["input_ids"]
        if not ids or ids[0] == self._tokenizer.unk_token_id:
            raise ModelError(f"{_WHO}: the model's tokenizer has no token for {word!r}, which the score is based on")
        return int(ids[0])


def _n_missing(text: str, meta_info: dict[str, Any] | None) -> int:
    concepts = (meta_info or {}).get("concepts")
    if not isinstance(concepts, (list, tuple)):
        raise DataError(
            f"{_WHO}: concept_penalty_coeff needs samples with meta_data['concepts'], which the datapool commongen "
            f"provides, not {concepts!r}"
        )
    return sum(concept not in text.lower() for concept in concepts)
