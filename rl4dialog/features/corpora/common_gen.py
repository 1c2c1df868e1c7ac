"""RL4LMs' rewards for CommonGen: a penalty for repeating the prompt, and a preference model."""

from __future__ import annotations

from typing import Any, ClassVar

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.pretrained import load_model, load_pretrained
from rl4dialog.core.protocols import SentenceRewardFunction
from rl4dialog.scores.base import Batch, BatchReward, meta_values
from rl4dialog.scores.classifiers import max_tokens
from rl4dialog.scores.meteor import MeteorMetric

_WHO = "reward 'common_gen_preference_model'"
_WEIGHTS = "https://storage.googleapis.com/ai2-jack-public/rl4lms_preference_models/t5-11b~commongen_prefs.pt"
_PREFIX = "generate a sentence with: "
_INSTRUCTION_WORDS = ("generate", "sentence")


def repeat_penalty(prompt_text: str, gen_text: str, prefix: str = _PREFIX) -> float:
    """-1 for a reply with the prompt's words in sequence, its prefix, "generate" or "sentence"; otherwise 0.

    As in RL4LMs' configs, a prompt consists of the prefix, the words, and one final character.
    """
    _, has_prefix, rest = prompt_text.partition(prefix)
    if not has_prefix:
        there = f"{prefix!r}, not {prompt_text[:60]!r}; set datapool.args.prefix to this prefix"
        raise DataError(f"common_gen_repeat_penalty needs prompts that start with {there}")
    text = gen_text.lower()
    repeated = (rest[:-1].lower(), prefix, *_INSTRUCTION_WORDS)
    return -1.0 if any(part and part in text for part in repeated) else 0.0


class CommonGenRepeatPenalty(SentenceRewardFunction):
    """-1 for a reply that repeats CommonGen's prompt, otherwise 0 (RL4LMs)."""

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        return repeat_penalty(prompt_text, gen_text)


class BatchedCommonGenRepeatPenalty(BatchReward):
    """-1 for a reply that repeats CommonGen's prompt, otherwise 0; scored in the main process (RL4LMs)."""

    def rewards(self, batch: Batch) -> list[float]:
        return batch.of_last(lambda last: list(map(repeat_penalty, last.prompt_texts, last.gen_texts)))


class CommonGenPreferenceModel(BatchReward):
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

    def rewards(self, batch: Batch) -> list[float]:
        return batch.of_last(self._scores)

    def _scores(self, batch: Batch) -> list[float]:
        scores = self.preferences(batch.gen_texts)
        if self._concept_penalty_coeff:
            needs = f"{_WHO}: concept_penalty_coeff needs samples with meta_data['concepts']"
            concepts = meta_values(batch.meta_infos, "concepts", lambda each: isinstance(each, list | tuple), needs)
            for row, (text, words) in enumerate(zip(batch.gen_texts, concepts, strict=True)):
                scores[row] /= 1 + self._concept_penalty_coeff * sum(word not in text.lower() for word in words)
        if self._meteor is not None:
            for row, text in enumerate(batch.gen_texts):
                scores[row] += self._meteor_coeff * self._meteor.sentence_score(text, batch.ref_texts[row])
        return scores

    def preferences(self, texts: list[str]) -> list[float]:
        """Probability of "good" rather than "bad" for each text."""
        import torch

        found: list[float] = []
        settings = {"return_tensors": "pt", "padding": True, "truncation": True, "max_length": self._max_length}
        for at in range(0, len(texts), self._batch_size):
            batch = self._tokenizer(texts[at : at + self._batch_size], **settings).to(self._device)
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            start = torch.full((len(batch["input_ids"]), 1), self._start, device=self._device)
            with torch.inference_mode():
                logits = self._model(**inputs, decoder_input_ids=start).logits[:, 0, [self._good, self._bad]]
            found += logits.float().softmax(-1)[:, 0].tolist()
        return found

    def _first_id(self, word: str) -> int:
        ids = self._tokenizer(word, add_special_tokens=False)["input_ids"]
        if not ids or ids[0] == self._tokenizer.unk_token_id:
            raise ModelError(f"{_WHO}: the model's tokenizer has no token for {word!r}, which the score is based on")
        return int(ids[0])
