"""Answers of a judge: a cache on disk, and a local language model whose answers are read from its probabilities.

The value of an answer is its mean over the probabilities of
all possible answers at the answer's position, as G-Eval weights its scores (Liu et al. 2023, "G-Eval: NLG Evaluation
using GPT-4 with Better Human Alignment", arXiv 2303.16634). Nothing is sampled, so close questions get different
values, and equal questions the same.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rl4dialog.core.cache import cache_root
from rl4dialog.core.errors import ConfigError, RewardError
from rl4dialog.core.files import json_value
from rl4dialog.data.dialogue_format import ChatMarkup
from rl4dialog.scores.classifiers import batches, max_tokens
from rl4dialog.scores.language_models import load_decoder, read_decoder
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.text.prompts import encode_prompt, encoder_of

if TYPE_CHECKING:
    from torch import Tensor


Answer = TypeVar("Answer")
_logger = logging.getLogger(__name__)
_WHO = "reward 'judge'"
_HINT = "Set model_name: <folder of a chat model>, a .gguf file, a hub id, or builtin/smollm2-135m-instruct."
_CUE = "\n\nAnswer:"
# Below this share, most of what the model wants to say is not an answer.
_MIN_SHARE = 0.5


def question_key(question: Any) -> str:
    """Key of everything that determines an answer; must be JSON-serializable."""
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()


def kept_answer(key: str, kind: type[Answer]) -> Answer | None:
    """The answer to a question, if it was kept and is of this type. A damaged file counts as none."""
    try:
        answer = json_value(_file(key).read_text(encoding="utf-8"))["answer"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return answer if isinstance(answer, kind) else None


def keep_answer(key: str, answer: Any) -> None:
    """Write an answer to the cache, atomically. Without a writable cache, the run continues."""
    file = _file(key)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as temporary:
                json.dump({"answer": answer}, temporary)
            os.replace(name, file)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        _warn_once(str(file.parent.parent), error.strerror or str(error))


def _file(key: str) -> Path:
    return cache_root() / "judge" / key[:2] / f"{key}.json"


@functools.cache
def _warn_once(folder: str, error: str) -> None:
    _logger.warning("answers of the judge cannot be kept in %s (%s), so they are asked for again", folder, error)


class AnswerProbabilities:
    """Asks a decoder-only language model questions that have one of a few answers, each a single token.

    The weights are loaded when the first question is asked. Logits are always float32.
    """

    def __init__(
        self,
        model_name: str,
        answers: Mapping[str, float],
        batch_size: int = 16,
        precision: Literal["fp32", "bf16"] = "fp32",
        cache: bool = True,
    ) -> None:
        config, self._tokenizer = read_decoder(model_name, _WHO, _HINT, role="judge")
        self._template = ChatMarkup(ChatTemplate(self._tokenizer)) if self._tokenizer.chat_template else None
        if self._template is None:
            _logger.warning(
                "%s: %r has no chat template, so it reads questions as plain text that ends with 'Answer:'. Models "
                "that were not trained to follow instructions are poor judges",
                *(_WHO, model_name),
            )
        self._name, self._batch_size, self._precision, self._cache = model_name, batch_size, precision, cache
        self._n_positions = max_tokens(self._tokenizer, config)
        self._values = list(answers.values())
        self._lead, self._answer_ids = self._tokens(list(answers))
        self._was_share_checked = False

    def values(self, questions: Sequence[str]) -> list[float]:
        rows = [self._encoded(question) for question in questions]
        about = [self._model_key, self._precision, self._answer_ids, self._values]
        keys = [question_key([*about, row]) for row in rows]
        found = [kept_answer(key, float) if self._cache else None for key in keys]
        missing = [i for i, value in enumerate(found) if value is None]
        for batch in batches([len(rows[i]) for i in missing], self._batch_size):
            batch = [missing[i] for i in batch]
            for i, value in zip(batch, self._answered([rows[i] for i in batch]), strict=True):
                found[i] = value
                if self._cache:
                    keep_answer(keys[i], value)
        return [value for value in found if value is not None]

    def _answered(self, rows: list[list[int]]) -> list[float]:
        import torch

        from rl4dialog.functional.log_probs import expected_value
        from rl4dialog.functional.masks import padded, position_ids_from_mask

        ids, mask = (each.to(self._model.device) for each in padded(rows, left=True))
        offered: dict[str, Any] = {"input_ids": ids, "attention_mask": mask.long(), "logits_to_keep": 1}
        offered |= {"position_ids": position_ids_from_mask(mask), "use_cache": False}
        inputs = {name: value for name, value in offered.items() if name in self._inputs}
        with torch.inference_mode():
            logits = self._model(**inputs).logits[:, -1].float()
            self._check_share(logits)
            return expected_value(logits[:, self._answer_ids], logits.new_tensor(self._values)).tolist()

    def _check_share(self, logits: Tensor) -> None:
        """Warn once if the model would rather say something else. Shape of the logits: (B, V)."""
        if self._was_share_checked:
            return
        self._was_share_checked = True
        share = float(logits.softmax(-1)[:, self._answer_ids].sum(-1).mean())
        if share < _MIN_SHARE:
            _logger.warning(
                "%s: %r gives the possible answers only %.1f %% of its probability, so its verdicts mean little; "
                "choose a model that answers at once, without an introduction or thoughts",
                *(_WHO, self._name, 100 * share),
            )

    def _encoded(self, question: str) -> list[int]:
        """Tokens of a question up to the answer."""
        ids = [*encode_prompt(self._tokenizer, self._written(question), None), *self._lead]
        if len(ids) > self._n_positions:
            problem = f"a question to the judge has {len(ids)} tokens, but {self._name!r} {self._n_positions} positions"
            cure = "lower datapool.args.context_size or env.args.max_turns, or choose another model_name"
            raise RewardError(f"{problem}; {cure}")
        return ids

    def _written(self, question: str) -> str:
        return question + _CUE if self._template is None else self._template.prompt([_message(question)])

    def _tokens(self, answers: Sequence[str]) -> tuple[list[int], list[int]]:
        """Tokens before every answer, such as a space, and the token of each answer."""
        encode = encoder_of(self._tokenizer).continued
        if self._template is None:
            written = [encode(f" {answer}", _CUE) for answer in answers]
        else:
            prompt = self._template.prompt([_message("Hello")])
            written = [encode(prompt.reply_opening + answer, prompt.last_markup) for answer in answers]
        lead, ids = written[0][:-1], [each[-1] for each in written]
        split = next((answer for answer, each in zip(answers, written, strict=True) if each[:-1] != lead), None)
        if split is not None:
            n_single = int(split) - 1 if split.isdigit() else 0
            cure = f"set n_levels to at most {n_single}" if n_single > 1 else "choose another model_name"
            raise ConfigError(f"{_WHO}: the answer {split!r} is not a single token of {self._name!r}; {cure}")
        if len(set(ids)) < len(ids) or self._tokenizer.unk_token_id in ids:
            raise ConfigError(f"{_WHO}: {self._name!r} lacks tokens for some of the answers {list(answers)}. {_HINT}")
        return lead, ids

    @cached_property
    def _model(self) -> Any:
        model = load_decoder(self._name, _WHO, _HINT, self._precision)
        if self._precision == "bf16":
            # bf16 would round logits to multiples of 1/8, and make ties of close verdicts.
            head = copy.deepcopy(model.get_output_embeddings()).float()
            head.register_forward_pre_hook(lambda module, args: (args[0].float(),))
            model.set_output_embeddings(head)
        return model

    @cached_property
    def _inputs(self) -> set[str]:
        return set(inspect.signature(self._model.forward).parameters)

    @cached_property
    def _model_key(self) -> list[Any] | None:
        """Weights and settings, as a folder can get others; ``None`` without a cache."""
        from rl4dialog.policies.saving import model_key

        return model_key(self._model) if self._cache else None


def _message(question: str) -> dict[str, str]:
    return {"role": "user", "content": question}
