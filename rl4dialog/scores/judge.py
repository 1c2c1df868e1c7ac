"""A language model as the judge of replies: behind an OpenAI-compatible endpoint, or in this process.

The questions contain a rubric, the conversation and one or two replies (Zheng et al. 2023, "Judging LLM-as-a-Judge with
MT-Bench and Chatbot Arena", arXiv 2306.05685). An endpoint writes its verdict; all questions of a batch are asked
concurrently. Of a local model, the verdict is its mean over the probabilities of all possible answers at the answer's
position, as G-Eval weights its scores (Liu et al. 2023, "G-Eval: NLG Evaluation using GPT-4 with Better Human
Alignment", arXiv 2303.16634): nothing is sampled, so close questions get different values, and equal ones the same.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
import inspect
import json
import logging
import os
import re
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field

from rl4dialog.core.arguments import Count, SecretName
from rl4dialog.core.async_calls import Call, FinalFailure
from rl4dialog.core.cache import cache_root
from rl4dialog.core.errors import ConfigError, RewardError, shown
from rl4dialog.core.files import json_value
from rl4dialog.core.http_requests import ChatEndpoint
from rl4dialog.core.reward_parts import FinishedReplies
from rl4dialog.core.types import AGENT, given_turns
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.data.dialogue_format import ChatMarkup
from rl4dialog.scores.base import Batch, BatchReward
from rl4dialog.scores.classifiers import batches
from rl4dialog.scores.language_models import FrozenLanguageModel
from rl4dialog.scores.parts import AsyncReward, DelegatedReward
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.text.prompts import encode_prompt, encoder_of

if TYPE_CHECKING:
    from torch import Tensor


Answer = TypeVar("Answer")
_TEXTS: dict[str, str] = packaged_yaml(Path(__file__).with_suffix(".yaml"))
_logger = logging.getLogger(__name__)
_warn_once = functools.cache(_logger.warning)
_WHO = "reward 'judge'"
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
        again = "answers of the judge cannot be kept in %s (%s), so they are asked for again"
        _warn_once(again, file.parent.parent, error.strerror or str(error))


def _file(key: str) -> Path:
    return cache_root() / "judge" / key[:2] / f"{key}.json"


class AnswerProbabilities(FrozenLanguageModel):
    """Asks a decoder-only language model questions that have one of a few answers, each a single token.

    The weights are loaded when the first question is asked. Logits are always float32.
    """

    role = "judge"
    hint = "Set model_name: <folder of a chat model>, a .gguf file, a hub id, or builtin/smollm2-135m-instruct."

    def __init__(
        self,
        model_name: str,
        answers: Mapping[str, float],
        batch_size: int = 16,
        precision: Literal["fp32", "bf16"] = "fp32",
        cache: bool = True,
    ) -> None:
        super().__init__(model_name, _WHO, batch_size, precision)
        self._template = ChatMarkup(ChatTemplate(self.tokenizer)) if self.tokenizer.chat_template else None
        if self._template is None:
            _logger.warning(
                "%s: %r has no chat template, so it reads questions as plain text that ends with 'Answer:'. Models "
                "that were not trained to follow instructions are poor judges",
                *(_WHO, model_name),
            )
        self._cache, self._values = cache, list(answers.values())
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
        text = question + _CUE if self._template is None else self._template.prompt([_message(question)])
        ids = [*encode_prompt(self.tokenizer, text, None), *self._lead]
        if len(ids) > self.max_length:
            problem = f"a question to the judge has {len(ids)} tokens, but {self._name!r} {self.max_length} positions"
            cure = "lower datapool.args.context_size or env.args.max_turns, or choose another model_name"
            raise RewardError(f"{problem}; {cure}")
        return ids

    def _tokens(self, answers: Sequence[str]) -> tuple[list[int], list[int]]:
        """Tokens before every answer, such as a space, and the token of each answer."""
        encode = encoder_of(self.tokenizer).continued
        if self._template is None:
            written = [encode(f" {answer}", _CUE) for answer in answers]
        else:
            prompt = self._template.prompt([_message("Hello")])
            written = [encode(prompt.reply.opening + answer, prompt.last_markup) for answer in answers]
        lead, ids = written[0][:-1], [each[-1] for each in written]
        split = next((answer for answer, each in zip(answers, written, strict=True) if each[:-1] != lead), None)
        if split is not None:
            n_single = int(split) - 1 if split.isdigit() else 0
            cure = f"set n_levels to at most {n_single}" if n_single > 1 else "choose another model_name"
            raise ConfigError(f"{_WHO}: the answer {split!r} is not a single token of {self._name!r}; {cure}")
        if len(set(ids)) < len(ids) or self.tokenizer.unk_token_id in ids:
            lacking = f"{self._name!r} lacks tokens for some of the answers {list(answers)}"
            raise ConfigError(f"{_WHO}: {lacking}. {self.hint}")
        return lead, ids

    @cached_property
    def _model(self) -> Any:
        model = super()._model
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


Compare = Literal["scale", "group"]
_TIE = 0.5
_NUMBER = re.compile(r"(?:(?:score|rating)\s*[:=]?\s*)?(\d{1,4})(?:\s*/\s*(\d{1,4}))?\.?", re.IGNORECASE)
_LETTER = re.compile(r"(?:reply\s*)?([AB])\.?", re.IGNORECASE)


@dataclass(frozen=True)
class Question:
    """One question about a reply."""

    text: str | None  # ``None`` for two equal replies: a tie, for which no question is asked
    other_is_first: bool = False  # whether the answer says how good the other reply is


class Rubric:
    """What makes a reply good, in words, and the questions about it; for ``compare`` see `JudgeReward`."""

    def __init__(self, text: str, compare: Compare, n_levels: int) -> None:
        self._text, self._compare, self._n_levels = text.strip(), compare, n_levels
        self.answers: dict[str, float] = {"A": 1.0, "B": 0.0}
        """Possible answers, and how good each says that the (first) reply is, from 0 to 1."""
        if compare == "scale":
            self.answers = {str(level): (level - 1) / (n_levels - 1) for level in range(1, n_levels + 1)}

    def questions(self, replies: FinishedReplies) -> dict[int, list[Question]]:
        """Return the questions about each last reply of an episode, by its row."""
        rows = [row for row, done in enumerate(replies.dones) if done]
        if self._compare == "scale":
            return {row: [Question(self._grade(replies, row))] for row in rows}
        groups = defaultdict(list)
        for row in rows:
            groups[replies.prompt_texts[row]].append(row)
        lone = next((prompt for prompt, group in groups.items() if len(group) < 2), None)
        if lone is not None:
            raise RewardError(
                f"reward 'judge' with compare: group needs several replies to each prompt, but {shown(str(lone))} has "
                f"one; use RLOO or GRPO with train_evaluation.score_predictions: false, or compare: scale"
            )
        return {row: list(self._comparisons(replies, row, groups[replies.prompt_texts[row]])) for row in rows}

    def read(self, answer: str) -> float | None:
        """Read a written answer: how good it says that the (first) reply is. ``None`` if it is not a verdict."""
        if self._compare == "group":
            found = _LETTER.fullmatch(answer.strip())
            return self.answers[found[1].upper()] if found is not None else None
        found = _NUMBER.fullmatch(answer.strip())
        if found is None or found[2] not in (None, str(self._n_levels)):
            return None
        return self.answers.get(str(int(found[1])))

    @property
    def expected(self) -> str:
        return "A or B" if self._compare == "group" else f"a whole number from 1 to {self._n_levels}"

    def _grade(self, replies: FinishedReplies, row: int) -> str:
        task, reply = self._task(replies, row), replies.gen_texts[row]
        return _TEXTS["grade"].format(task=task, reply=reply, n_levels=self._n_levels)

    def _comparisons(self, replies: FinishedReplies, row: int, group: list[int]) -> Iterator[Question]:
        """Compare a reply with the others of its group, each in both orders."""
        task, reply = self._task(replies, row), replies.gen_texts[row]
        for other in (replies.gen_texts[each] for each in group if each != row):
            yield Question(_which_is_better(task, reply, other))
            yield Question(_which_is_better(task, other, reply), other_is_first=True)

    def _task(self, replies: FinishedReplies, row: int) -> str:
        """The rubric and the conversation before the reply."""
        conversation = _conversation(replies.prompt_texts[row], replies.meta_infos[row])
        return _TEXTS["task"].format(rubric=self._text, conversation=conversation)


def mean_verdict(questions: Sequence[Question], answers: Sequence[float]) -> float:
    """Mean of what the answers say about a reply: its grade, or the share of comparisons that it wins."""
    numbers = (1 - answer if each.other_is_first else answer for each, answer in zip(questions, answers, strict=True))
    return sum(numbers) / len(questions)


def _conversation(prompt: str, info: dict[str, Any]) -> str:
    history = info.get("history")
    if not history:
        return prompt
    names = ["Assistant" if turn.speaker == AGENT else "User" for turn in given_turns(history)]
    return "\n".join(f"{name}: {text}" for name, text in zip(names, history, strict=True))


def _which_is_better(task: str, first: str, second: str) -> str | None:
    return _TEXTS["comparison"].format(task=task, first=first, second=second) if first != second else None


class JudgeReward(DelegatedReward):
    """A judge's opinion of the reply, from 0 to 1.

    The judge is either behind an endpoint (``base_url`` and ``model``) or a local model (``model_name``). For an
    endpoint, concurrency, time limit and retries are those of ``reward_fn.async_calls``; an answer that is not a
    verdict and a refused request are not retried. A local model is loaded when the first reply is judged, on a GPU if
    there is one. Its verdict is the mean of all possible answers, weighted by their probabilities.

    Args:
        rubric: What makes a reply good, in words.
        base_url: Address of an OpenAI-compatible API, such as ``http://localhost:8000/v1``.
        model: Name of the judge behind the endpoint.
        model_name: Local judge: a folder, a ``.gguf`` file, a hub id or a pretrained ``builtin/...`` model. It must be
            decoder-only. Without a chat template, it reads plain text.
        compare: ``scale`` asks for a whole number from 1 to ``n_levels``, which is mapped linearly to 0 to 1. ``group``
            compares the reply with each other reply to the same prompt in the batch, in both orders; the reward is the
            share of comparisons that it wins, or with a local model the mean probability. It takes n * (n - 1)
            questions for n replies, and needs an algorithm such as RLOO or GRPO.
        n_levels: Highest number of the scale; by default 10, and 5 for a local model (each must be a single token).
        api_key_env: Environment variable with the endpoint's API key, which is never logged or saved; by default none.
        max_tokens: Maximum length of an endpoint's answer, in tokens; by default 16.
        batch_size: Questions per forward pass of a local model; by default 16.
        precision: ``fp32`` (the default) or ``bf16`` weights of a local model.
        cache: Whether to keep answers in the cache folder. The same judge would repeat them.
    """

    def __init__(
        self,
        rubric: str,
        base_url: str | None = None,
        model: str | None = None,
        model_name: str | None = None,
        compare: Compare = "scale",
        n_levels: Annotated[int, Field(ge=2, le=1000)] | None = None,
        api_key_env: SecretName | None = None,
        max_tokens: Count | None = None,
        batch_size: Count | None = None,
        precision: Literal["fp32", "bf16"] | None = None,
        cache: bool = True,
    ) -> None:
        if not rubric.strip():
            raise ConfigError("reward 'judge' needs a rubric: what makes a reply good, in words")
        if compare == "group":
            _check_no_effect({"n_levels": n_levels}, "with compare: group")
        of_endpoint = {"base_url": base_url, "model": model, "api_key_env": api_key_env, "max_tokens": max_tokens}
        if model_name is not None:
            _check_no_effect(of_endpoint, "for the local judge of model_name")
            questions = Rubric(rubric, compare, n_levels or 5)
            answers = AnswerProbabilities(model_name, questions.answers, batch_size or 16, precision or "fp32", cache)
            self.delegate = LocalJudge(questions, answers)
            return
        if base_url is None or model is None:
            choices = "base_url and model of an OpenAI-compatible endpoint, or model_name of a local model"
            raise ConfigError(f"reward 'judge' needs a judge: either {choices}")
        _check_no_effect({"batch_size": batch_size, "precision": precision}, "for a judge behind base_url")
        self.delegate = EndpointJudge(
            Rubric(rubric, compare, n_levels or 10), base_url, model, api_key_env, max_tokens or 16, cache
        )


class EndpointJudge(AsyncReward):
    """A judge behind an endpoint, which answers single questions at temperature 0."""

    def __init__(
        self, rubric: Rubric, base_url: str, model: str, api_key_env: str | None, max_tokens: int, cache: bool
    ) -> None:
        super().__init__(self._verdict, per_reply=True)
        self._rubric, self._model, self._max_tokens, self._cache = rubric, model, max_tokens, cache
        self._endpoint = ChatEndpoint(base_url, model, api_key_env, "{} of the judge", "reward_fn.async_calls")
        self._being_asked: MutableMapping[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def calls(self, replies: FinishedReplies) -> list[Call]:
        return [functools.partial(self._verdict, asked) for asked in self._rubric.questions(replies).values()]

    async def _verdict(self, questions: list[Question]) -> float:
        answers = [_TIE if each.text is None else await self._ask(each.text) for each in questions]
        return mean_verdict(questions, answers)

    async def _ask(self, question: str) -> float:
        """Ask a question, unless its answer is cached. Concurrent equal questions are asked once."""
        messages = [{"role": "user", "content": question}]
        settings = {"temperature": 0, "max_tokens": self._max_tokens}
        if not self._cache:
            return self._read(await self._endpoint.complete(messages, **settings))
        key = question_key([self._endpoint.url, {"model": self._model, "messages": messages, **settings}])
        async with self._being_asked.setdefault(key, asyncio.Lock()):
            if (kept := kept_answer(key, str)) is not None:
                return self._read(kept)
            answer = await self._endpoint.complete(messages, **settings)
            verdict = self._read(answer)  # what cannot be read is not cached
            keep_answer(key, answer)
            return verdict

    def _read(self, answer: str) -> float:
        value = self._rubric.read(answer)
        if value is None:
            shown = answer if len(answer) <= 80 else f"{answer[:80]} ..."
            raise FinalFailure(f"the judge {self._model!r} answered {shown!r} instead of {self._rubric.expected}")
        return value


class LocalJudge(BatchReward):
    """A language model in this process as the judge."""

    def __init__(self, rubric: Rubric, model: AnswerProbabilities) -> None:
        self._rubric, self._model = rubric, model

    def rewards(self, batch: Batch) -> list[float]:
        asked = self._rubric.questions(batch)
        texts = list(dict.fromkeys(each.text for questions in asked.values() for each in questions if each.text))
        values: dict[str | None, float] = {None: _TIE, **dict(zip(texts, self._model.values(texts), strict=True))}
        rewards = [0.0] * len(batch)
        for row, questions in asked.items():
            rewards[row] = mean_verdict(questions, [values[each.text] for each in questions])
        return rewards


def _check_no_effect(args: dict[str, Any], when: str) -> None:
    names = [name for name, value in args.items() if value is not None]
    if names:
        raise ConfigError(f"reward 'judge': {', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect {when}")
