"""Rewards of every kind become parts; coroutines are awaited together, and their failures told."""

import asyncio
import functools
import threading

import numpy as np
import pytest

from rl4dialog.core import async_calls
from rl4dialog.core.async_calls import AsyncCalls
from rl4dialog.core.errors import ConfigError, RewardError
from rl4dialog.core.protocols import BatchedRewardFunction, RewardFunction, SentenceRewardFunction
from rl4dialog.core.reward_parts import FinishedReplies, RewardPart
from rl4dialog.scores.parts import AsyncReward, as_parts
from rl4dialog.scores.scoring import Scorer


def test_classes_written_for_rl4lms_are_told_by_their_parameters():
    class PerToken:
        def __call__(self, prev_observation, action, current_observation, done, meta_info=None):
            return 1.0

    class Batched:
        def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
            return [1.0] * len(gen_texts)

    assert not as_parts(PerToken())[0].in_main_process
    assert as_parts(Batched())[0].in_main_process
    assert as_parts(lambda prompt_texts, *others: [1.0])[0].in_main_process, "by the first name"
    assert as_parts(lambda prompts, texts, references, dones, infos: [1.0])[0].in_main_process, "or that of the ends"


@pytest.mark.parametrize("reward", [3, lambda text: 1.0, "rouge"])
def test_what_is_no_reward_is_refused_with_the_right_form(reward):
    with pytest.raises(ConfigError, match="prompt_text, gen_text, ref_texts, meta_info"):
        as_parts(reward, "mine")


AT_ONCE = AsyncCalls(concurrency=4, timeout_s=30.0, retries=0, retry_wait_s=0.0)


def score(parts, n=3, calls=AT_ONCE, dones=None, **arguments):
    texts, ids = [str(i) for i in range(n)], [chr(ord("a") + i) for i in range(n)]
    replies = FinishedReplies(["p"] * n, texts, [["r"]] * n, sample_ids=ids, dones=dones or [])
    return Scorer(parts, async_calls=calls, **arguments).score(replies)


async def value(prompt_text, gen_text, ref_texts, meta_info):
    await asyncio.sleep(0)
    return float(gen_text)


class PerReplyObject:
    async def __call__(self, prompt_text, gen_text, ref_texts, meta_info):
        return float(gen_text)


class AsyncSentence(SentenceRewardFunction):
    async def score(self, prompt_text, gen_text, ref_texts, meta_info):
        return float(gen_text)


class AsyncBatch(BatchedRewardFunction):
    async def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
        return [float(text) for text in gen_texts]


async def batch_function(prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
    return np.array([float(text) for text in gen_texts])


async def scaled(prompt_text, gen_text, ref_texts, meta_info, scale=2.0):
    return float(gen_text) * scale


@pytest.mark.parametrize(
    "reward",
    [value, PerReplyObject(), AsyncSentence(), AsyncBatch(), batch_function, functools.partial(scaled, scale=1.0)],
    ids=["function", "object", "sentence", "batch", "batch function", "partial"],
)
def test_every_form_of_coroutine_is_detected_and_awaited(reward):
    parts = as_parts(reward, "judge")
    assert isinstance(parts[0].function, AsyncReward) and parts[0].in_main_process
    assert score(parts).total == [0.0, 1.0, 2.0]


def test_reply_before_the_end_of_an_episode_is_not_asked_about():
    asked = []

    async def judge(prompt_text, gen_text, ref_texts, meta_info):
        asked.append(gen_text)
        return 5.0

    assert score(as_parts(judge), dones=[True, False, True]).total == [5.0, 0.0, 5.0]
    assert sorted(asked) == ["0", "2"]
    assert score(as_parts(judge), dones=[False] * 3).total == [0.0] * 3


def test_reward_per_token_cannot_be_a_coroutine():
    class PerToken(RewardFunction):
        async def __call__(self, prev_observation, action, current_observation, done, meta_info=None):
            return 1.0

    with pytest.raises(ConfigError, match="'mine' is called after every token and cannot be async"):
        as_parts(PerToken(), "mine")


def test_coroutines_of_all_parts_are_under_way_together_up_to_the_limit():
    running = peak = n_begun = 0

    async def judge(prompt_text, gen_text, ref_texts, meta_info):
        nonlocal running, peak, n_begun
        running, n_begun = running + 1, n_begun + 1
        peak = max(peak, running)
        # The first four go on only when all of them have begun.
        while n_begun < 4:
            await asyncio.sleep(0)
        running -= 1
        return 1.0

    parts = [*as_parts(judge, "one"), *as_parts(judge, "two")]
    assert score(parts, calls=AT_ONCE).total == [2.0] * 3
    assert peak == 4


def test_other_rewards_are_computed_while_coroutines_wait():
    begun, go_on = threading.Event(), threading.Event()

    async def judge(prompt_text, gen_text, ref_texts, meta_info):
        begun.set()
        while not go_on.is_set():
            await asyncio.sleep(0.001)
        return 1.0

    def sync(prompt_text, gen_text, ref_texts, meta_info):
        assert begun.wait(30)
        go_on.set()
        return 10.0

    assert score([*as_parts(judge, "judge"), *as_parts(sync, "sync")]).total == [11.0] * 3


def test_loop_lives_on_so_that_a_client_can_be_kept():
    loops = []

    async def judge(prompt_text, gen_text, ref_texts, meta_info):
        loops.append(asyncio.get_running_loop())
        return 1.0

    for _ in range(2):
        score(as_parts(judge), n=1)
    assert loops[0] is loops[1] and loops[0].is_running()

    async def notebook():
        return score(as_parts(value)).total

    assert asyncio.run(notebook()) == [0.0, 1.0, 2.0]


class Flaky:
    def __init__(self, n_failures, hangs=False):
        self.n_failures, self.hangs, self.n_asked = n_failures, hangs, dict.fromkeys("0123", 0)

    async def __call__(self, prompt_text, gen_text, ref_texts, meta_info):
        self.n_asked[gen_text] += 1
        if gen_text == "1" and self.n_asked[gen_text] <= self.n_failures:
            if self.hangs:
                await asyncio.sleep(3600)
            raise ConnectionError("refused")
        return float(gen_text)


@pytest.mark.parametrize("hangs", [False, True])
def test_call_that_fails_is_started_anew(hangs):
    judge = Flaky(2, hangs)
    calls = AsyncCalls(timeout_s=0.05, retries=2, retry_wait_s=0.0)
    assert score(as_parts(judge), calls=calls).total == [0.0, 1.0, 2.0]
    assert judge.n_asked == {"0": 1, "1": 3, "2": 1, "3": 0}


@pytest.mark.parametrize(
    ("hangs", "words"), [(False, "ConnectionError: refused"), (True, r"TimeoutError: no answer within 0\.05 s")]
)
def test_call_that_fails_too_often_is_an_error_or_masked(hangs, words):
    calls = AsyncCalls(timeout_s=0.05, retries=1, retry_wait_s=0.0)
    with pytest.raises(RewardError, match=f"reward 'judge' failed on sample 'b': {words}"):
        score(as_parts(Flaky(2, hangs), "judge"), calls=calls)
    scores = score(as_parts(Flaky(2, hangs), "judge"), calls=calls, on_error="mask")
    np.testing.assert_array_equal(scores.total, [0.0, np.nan, 2.0])


def test_failure_ends_the_others_at_once():
    async def judge(prompt_text, gen_text, ref_texts, meta_info):
        if gen_text == "2":
            raise ValueError("no")
        await asyncio.sleep(3600)
        return 1.0

    with pytest.raises(RewardError, match="failed on sample 'c': ValueError: no"):
        score(as_parts(judge))


def test_error_of_another_reward_ends_them_too():
    ended = threading.Event()

    async def judge(prompt_text, gen_text, ref_texts, meta_info):
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        return 1.0

    def bad(prompt_text, gen_text, ref_texts, meta_info):
        return 1 / 0

    with pytest.raises(RewardError, match="'bad' failed on sample 'a'"):
        score([*as_parts(judge, "judge"), *as_parts(bad, "bad")], n=1)
    assert ended.wait(30)


def test_cancellation_from_within_is_no_silent_zero():
    async def judge(prompt_text, gen_text, ref_texts, meta_info):
        raise asyncio.CancelledError

    with pytest.raises(RewardError, match="failed on sample 'a': CancelledError"):
        score(as_parts(judge))


def test_batch_that_fails_is_masked_whole_and_wrong_number_never():
    async def failing(prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
        raise ConnectionError("refused")

    async def short(prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
        return [1.0]

    with pytest.raises(RewardError, match="failed on sample 'a' to 'c': ConnectionError"):
        score(as_parts(failing))
    assert np.isnan(score(as_parts(failing), on_error="mask").total).all()
    for on_error in ("raise", "mask"):
        with pytest.raises(RewardError, match="1 values for 3 replies"):
            score(as_parts(short), on_error=on_error)


def test_coroutine_that_blocks_is_told(monkeypatch):
    released = threading.Event()

    async def blocks(prompt_text, gen_text, ref_texts, meta_info):
        released.wait()
        return 1.0

    monkeypatch.setattr(async_calls, "_GRACE_S", 0.05)
    parts = [RewardPart("judge", 1.0, AsyncReward(blocks, per_reply=True))]
    calls = AsyncCalls(timeout_s=0.05, retries=0)
    try:
        with pytest.raises(RewardError, match=r"coroutines of 'judge' did not end"):
            Scorer(parts, async_calls=calls).score(FinishedReplies([""], ["a"], [["b"]]))
    finally:
        released.set()


def test_time_that_calls_may_take_has_all_rounds_and_retries():
    calls = AsyncCalls(concurrency=2, timeout_s=10.0, retries=2, retry_wait_s=1.0)
    assert calls.longest_s(5) == async_calls._GRACE_S + 3 * (3 * 10 + 60 + 60)
