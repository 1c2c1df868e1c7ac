"""Conversations that runs log: what is read back is what the buffer held."""

import itertools
import json

import numpy as np
import pytest
from runs import complete_run, keep_registries, lines, make_config, run_folder
from transformers import AutoTokenizer

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.protocols import RewardFunction
from rl4dialog.core.types import AGENT
from rl4dialog.data.conversations.pool import LoggedConversations
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer
from rl4dialog.text.tokenizer import tokenizer_hash

GAME = {
    "tokenizer__vocab_size": 400,
    "datapool": {"id": "guess_what", "args": {"path": "", "n_train": 16, "n_val": 2, "n_test": 2}},
    "reward_fn": {"id": "outcome", "args": {"weights": {"success": 1.0}, "per_turn": -0.05}},
    "env__args": {"max_prompt_length": 160, "max_episode_length": 16, "max_turns": 3, "partner": {"id": "guess_what"}},
}
# Single replies, of which some are cut, with rewards on all tokens.
REPLIES = {
    "reward_fn": {"id": "even_ids"},
    "env__args": {"max_prompt_length": 24, "max_episode_length": 10, "bootstrap_truncated": True},
}


class EvenIds(RewardFunction):
    """Pays for even token ids."""

    def __call__(self, previous, action, current, done, meta_info=None):
        return 0.1 * (action % 2 == 0)


class Logged:
    """A run, its log, and the episodes of its buffers: token ids, log-probabilities and rewards."""

    def __init__(self, run, buffers):
        self.run, self.buffers = run, buffers
        pool = LoggedConversations.prepare("train", run / "conversations.jsonl.gz")
        self.conversations = list(pool.conversations())
        self.tokenizer = AutoTokenizer.from_pretrained(run / "model")

    def of_iteration(self, iteration):
        return [each for each in self.conversations if str(each.id).startswith(f"{iteration}_")]


def episodes_of(buffer):
    """The agent's tokens of each episode, in order."""
    replies, found = buffer.replies, []
    episodes = replies.token_episodes()
    for episode in range(episodes.max() + 1):
        names = {"ids": "response_ids", "log_probs": "log_probs", "rewards": "task_rewards"}
        found.append({key: replies.flat(name).numpy()[episodes == episode] for key, name in names.items()})
    return found


@pytest.fixture(scope="module", params=[GAME, REPLIES], ids=["game", "replies"])
def logged(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("logged")
    common = {"logging__conversations": True, "train_evaluation__metrics": [], "train_evaluation__eval_every": 2}
    config = make_config(folder, **request.param, **common)
    if not config["datapool"]["args"]["path"]:
        del config["datapool"]["args"]["path"]
    buffers = []
    original = SequenceRolloutBuffer.compute_rewards

    def spied(buffer, *args):
        buffers.append(episodes_of(buffer))
        original(buffer, *args)

    with pytest.MonkeyPatch.context() as patch:
        keep_registries(patch)
        RewardFunctionRegistry.register("even_ids")(EvenIds)
        patch.setattr(SequenceRolloutBuffer, "compute_rewards", spied)
        with complete_run(folder, config):
            yield Logged(run_folder(folder), buffers)


def test_log_has_the_tokens_and_rewards_of_the_buffer(logged):
    assert len(logged.buffers) == 2
    is_bootstrapped = json.loads((logged.run / "config.json").read_text())["env"]["args"]["bootstrap_truncated"]
    for iteration, episodes in enumerate(logged.buffers, start=1):
        conversations = logged.of_iteration(iteration)
        assert len(conversations) == len(episodes) > 1
        for conversation, episode in zip(conversations, episodes, strict=True):
            said = [turn for turn in conversation.said if turn.speaker == AGENT]
            rewards = []
            for turn in said:
                of_tokens = np.array(turn.token_rewards or [0.0] * len(turn.ids or ()), dtype=np.float32)
                of_tokens[-1] += np.float32(turn.reward)
                rewards.append(of_tokens)
            np.testing.assert_array_equal(np.concatenate([turn.ids for turn in said]), episode["ids"])
            np.testing.assert_array_equal(np.concatenate(rewards), episode["rewards"])
            log_probs = np.concatenate([np.array(turn.log_probs, dtype=np.float32) for turn in said])
            np.testing.assert_array_equal(log_probs, episode["log_probs"])
            assert conversation.terminated == (not is_bootstrapped or conversation.ended_by != "length")


def test_logged_returns_are_those_of_the_run(logged):
    for iteration, record in enumerate(lines(logged.run / "rollout_info.jsonl"), start=1):
        returns = [
            sum(turn.reward + sum(turn.token_rewards or ()) for turn in each.said)
            for each in logged.of_iteration(iteration)
        ]
        assert np.mean(returns) == pytest.approx(record["rollout/task_reward"], abs=1e-6)


def test_texts_are_those_of_the_tokens(logged):
    assert {each.tokenizer for each in logged.conversations} == {tokenizer_hash(logged.tokenizer)}
    for conversation in logged.conversations:
        for turn in conversation.said:
            if turn.speaker == AGENT:
                text = logged.tokenizer.decode(turn.ids).split("<EOU>")[0].removesuffix("<|endoftext|>")
                assert text.strip().startswith(turn.text), "a cut marker is no part of the text"
    cut = [turn.truncated for each in logged.conversations for turn in each.said if turn.speaker == AGENT]
    assert True in cut


def test_conversations_are_complete(logged):
    if "guess_what" not in json.loads((logged.run / "config.json").read_text())["datapool"]["id"]:
        assert {len(each.said) for each in logged.conversations} == {1}
        assert {each.n_given for each in logged.conversations} == {2}, "context_size"
        assert any(turn.token_rewards for each in logged.conversations for turn in each.said)
        assert False in {each.terminated for each in logged.conversations}, "some are cut at the length limit"
        return
    assert {each.terminated for each in logged.conversations} == {True}, "nothing is bootstrapped"
    for conversation in logged.conversations:
        assert conversation.n_given == 1 and conversation.turns[0].text and "thing" in conversation.meta_data
        assert conversation.outcome.keys() == {"success"} and conversation.ended_by is not None
        speakers = [turn.speaker for turn in conversation.turns]
        assert all(one != other for one, other in itertools.pairwise(speakers))
