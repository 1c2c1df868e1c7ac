"""A language model as the judge of replies: behind an OpenAI-compatible endpoint, or in this process.

An endpoint writes its verdict; all questions of a batch are asked concurrently. From a local model, the verdict is read
from the probabilities of the possible answers, in batches. Answers are cached on disk, so an interrupted or failed
batch loses none of them.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

from pydantic import Field

from rl4dialog.core.arguments import Count, SecretName
from rl4dialog.core.async_calls import Call, FinalFailure
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import BatchedRewardFunction
from rl4dialog.core.reward_parts import FinishedReplies
from rl4dialog.rewards.answer_probabilities import AnswerProbabilities
from rl4dialog.rewards.async_reward import AsyncReward
from rl4dialog.rewards.judge_endpoint import JudgeEndpoint
from rl4dialog.rewards.judge_rubric import Compare, Question, Rubric, mean_verdict
from rl4dialog.rewards.parts import DelegatedReward

_TIE = 0.5


class JudgeReward(DelegatedReward):
    """A judge's opinion of the reply, from 0 to 1.

    The judge is either behind an endpoint (``base_url`` and ``model``) or a local model (``model_name``). For an
    endpoint, concurrency, time limit and retries are those of ``reward_fn.async_calls``. Failures that a retry would
    not change are not retried: an answer that is not a verdict, or a refused request. A local model is loaded when the
    first reply is judged, on a GPU if there is one. Its verdict is the mean of all possible answers, weighted by their
    probabilities.

    Args:
        rubric: What makes a reply good, in words.
        base_url: Address of an OpenAI-compatible API, such as ``http://localhost:8000/v1``.
        model: Name of the judge behind the endpoint.
        model_name: Local judge: a folder, a ``.gguf`` file, a hub id or a pretrained ``builtin/...`` model. It must be
            decoder-only. Without a chat template, it reads plain text.
        compare: ``scale`` asks for a whole number from 1 to ``n_levels``, which is mapped linearly to 0 to 1. ``group``
            compares the reply with each other reply to the same prompt in the batch, in both orders, because judges
            prefer a position; the reward is the share of comparisons that it wins, or with a local model the mean
            probability of winning. It takes n * (n - 1) questions for n replies, and needs an algorithm with several
            replies to a prompt, such as RLOO or GRPO.
        n_levels: Highest number of the scale; by default 10, and 5 for a local model, of which each number must be a
            single token.
        api_key_env: Name of the environment variable with the endpoint's API key; by default no key is sent. The key is
            never logged or saved.
        max_tokens: Maximum length of an endpoint's answer, in tokens; by default 16.
        batch_size: Questions per forward pass of a local model; by default 16.
        precision: ``fp32`` (the default) or ``bf16`` weights of a local model.
        cache: Whether to keep answers in the cache folder. The same judge would repeat them.

    Raises:
        ConfigError: If there is not exactly one judge, an argument has no effect for it, the address is invalid, the
            environment variable is not set, or a number of the scale is not a single token.
        ModelError: If a local model cannot be loaded, or is an encoder-decoder.
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
            self.delegate = LocalJudge(
                questions,
                AnswerProbabilities(model_name, questions.answers, batch_size or 16, precision or "fp32", cache),
            )
            return
        if base_url is None or model is None:
            raise ConfigError(
                "reward 'judge' needs a judge: either base_url and model of an OpenAI-compatible endpoint, or "
                "model_name of a local model"
            )
        _check_no_effect({"batch_size": batch_size, "precision": precision}, "for a judge behind base_url")
        self.delegate = EndpointJudge(
            Rubric(rubric, compare, n_levels or 10),
            JudgeEndpoint(base_url, model, api_key_env, max_tokens or 16, cache),
            model,
        )


class EndpointJudge(AsyncReward):
    """A judge behind an endpoint.

    Args:
        rubric: The questions.
        endpoint: Asks them.
        name: Name of the judge, for messages.
    """

    def __init__(self, rubric: Rubric, endpoint: JudgeEndpoint, name: str) -> None:
        super().__init__(self._verdict, per_reply=True)
        self._rubric, self._endpoint, self._name = rubric, endpoint, name

    def calls(self, replies: FinishedReplies) -> list[Call]:
        return [functools.partial(self._verdict, asked) for asked in self._rubric.questions(replies).values()]

    async def _verdict(self, questions: list[Question]) -> float:
        answers = [_TIE if each.text is None else await self._endpoint.ask(each.text, self._read) for each in questions]
        return mean_verdict(questions, answers)

    def _read(self, answer: str) -> float:
        value = self._rubric.read(answer)
        if value is None:
            shown = answer if len(answer) <= 80 else f"{answer[:80]} ..."
            raise FinalFailure(f"the judge {self._name!r} answered {shown!r} instead of {self._rubric.expected}")
        return value


class LocalJudge(BatchedRewardFunction):
    """A language model in this process as the judge.

    Args:
        rubric: The questions.
        model: Answers them.
    """

    def __init__(self, rubric: Rubric, model: AnswerProbabilities) -> None:
        self._rubric, self._model = rubric, model

    def __call__(
        self,
        prompt_texts: list[str],
        gen_texts: list[str],
        ref_texts: list[list[str]],
        dones: list[bool],
        meta_infos: list[dict[str, Any]] | None = None,
    ) -> list[float]:
        replies = FinishedReplies(prompt_texts, gen_texts, ref_texts, meta_infos or [], dones=dones)
        asked = self._rubric.questions(replies)
        texts = list(dict.fromkeys(each.text for questions in asked.values() for each in questions if each.text))
        values: dict[str | None, float] = {None: _TIE, **dict(zip(texts, self._model.values(texts), strict=True))}
        rewards = [0.0] * len(gen_texts)
        for row, questions in asked.items():
            rewards[row] = mean_verdict(questions, [values[each.text] for each in questions])
        return rewards


def _check_no_effect(args: dict[str, Any], when: str) -> None:
    names = [name for name, value in args.items() if value is not None]
    if names:
        raise ConfigError(f"reward 'judge': {', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect {when}")
