"""The log of an offline run: found without reading conversations, and relabelled one conversation at a time."""

import json

import pytest
from guided_runs import walks_config
from tiny import make_tokenizer

from rl4dialog import cli
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT
from rl4dialog.data.conversations.pool import LoggedConversations
from rl4dialog.data.pool import Data
from rl4dialog.features.offline.building import build_log, check_rewards, log_notes, reply_scores, with_scores
from rl4dialog.features.offline.config import OfflineConfig
from rl4dialog.features.offline.tasks.random_walks import RandomWalks
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.scoring import Scorer
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.texts import run_lengths
from tests.runs import write_config

CONFIG = {
    "tokenizer": {"model_name": "builtin/characters"},
    "datapool": {"id": "random_walks", "args": {"n_train": 300, "n_val": 2, "n_test": 2}},
    "env": {"args": {"max_prompt_length": 80, "max_episode_length": 6}},
    "alg": {"id": "bc", "policy": {"id": "causal_lm_actor_critic_policy", "args": {"model_name": "builtin/tiny-gpt2"}}},
    "train_evaluation": {"n_iters": 1},
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))


def log_of(config=None):
    parts = Assembly(config or parse_config(CONFIG, "the test's config"))
    vars(parts)["end_of_turn"] = EndOfTurn(parts.tokenizer, [0], parts.turn_marker)
    return parts.log


def test_second_start_reads_no_conversation(tmp_path, monkeypatch):
    config = _log_config(tmp_path, 1.0, 0.5, 0.0)
    first = log_of(config)

    def refuse(pool):
        raise AssertionError("conversations are read")

    monkeypatch.setattr(LoggedConversations, "conversations", refuse)
    second = log_of(config)
    assert len(first) == len(second) == 3 and first.hash == second.hash


def test_log_is_encoded_by_prepare(tmp_path):
    assert cli.main_of("prepare", ["--config_path", str(write_config(tmp_path, CONFIG))]) == 0
    assert len(list((tmp_path / "cache").glob("conversations-*"))) == 1
    log_of()
    assert len(list((tmp_path / "cache").glob("conversations-*"))) == 1


def test_scores_take_the_place_of_the_logged_rewards():
    pool = RandomWalks.prepare("train", n_train=300)
    (part,) = as_parts(lambda prompt, text, references, info: float(len(text) + len(info["history"])))
    scores = list(reply_scores(pool, Scorer([part])))
    found = list(with_scores(pool, scores))
    rewards = [turn.reward for each in found for turn in each.said if turn.speaker == AGENT]
    assert rewards == scores and any(rewards)
    assert [each.id for each in found] == [each.id for each in pool.conversations()]


def _log_config(tmp_path, *rewards, **alg):
    lines = [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello", "reward": reward}]}
        for reward in rewards
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    datapool = {"id": "conversations", "args": {"path": dict.fromkeys(("train", "val", "test"), str(path))}}
    config = parse_config({**CONFIG, "datapool": datapool, "alg": {**CONFIG["alg"], **alg}}, "the test's config")
    assert isinstance(config, OfflineConfig)
    return config


def test_conversations_without_a_reward_are_counted(tmp_path, capfd):
    log = log_of(_log_config(tmp_path, 1.0, None, 0.0))
    assert log.n_without_reward == 1
    said = capfd.readouterr().err
    assert "1 conversations without a reward, which counts as 0" in said and "rewards: from the log" in said


def test_log_without_any_reward_has_none(tmp_path, capfd):
    config = _log_config(tmp_path, None, None)
    log = log_of(config)
    assert "rewards: none" in capfd.readouterr().err
    with pytest.raises(DataError, match="none of the 2 conversations of datapool 'conversations' has a reward"):
        check_rewards(config, log)


def test_log_that_teaches_nothing_is_told(tmp_path):
    def notes_of(replies, id):
        path = tmp_path / "log.jsonl"
        messages = ([{"role": "user", "content": "hi"}, {"role": "assistant", "content": reply}] for reply in replies)
        lines = [json.dumps({"id": id or number, "messages": said}) for number, said in enumerate(messages)]
        path.write_text("\n".join(lines))
        talk = {"partner": {"id": "replay"}, "max_turns": 2, "context_turns": 2}
        config = parse_config({**CONFIG, "env": {"args": {**CONFIG["env"]["args"], **talk}}}, "the test")
        assert isinstance(config, OfflineConfig)
        return log_notes(config, LoggedConversations.prepare("train", {"train": str(path)}))

    assert len(notes_of(["a", "b"], None)) == 1  # context_turns
    _, same_ids, *_ = sorted(notes_of(["a", "b"], "x"))[::-1]
    assert "all conversations have the id 'x'" in same_ids
    assert any("all conversations are the same" in note for note in notes_of(["a", "a"], None))
    with pytest.raises(DataError, match="all replies of the log are empty"):
        notes_of(["", " "], None)


def test_log_is_encoded_anew_if_another_token_ends_replies():
    parts, found = Assembly(parse_config(CONFIG, "the test's config")), []
    tokenizer = parts.tokenizer
    ends = [tokenizer.eos_token_id, tokenizer.pad_token_id]  # those of the model: the same for both
    for token in (tokenizer.eos_token, tokenizer.pad_token):
        tokenizer.eos_token = token
        vars(parts)["end_of_turn"] = EndOfTurn(tokenizer, ends, parts.turn_marker)
        found.append(build_log(parts))
    assert found[0].hash != found[1].hash


def test_offline_models_have_room_for_logged_replies_longer_than_generated_ones():
    config = parse_config(walks_config(alg__policy__args__generation_kwargs={"max_new_tokens": 3}), "the test's config")
    assert isinstance(config, OfflineConfig)
    lengths = run_lengths(config, make_tokenizer(), Data({}, None))
    assert (lengths.reply, lengths.target, lengths.room) == (3, 8, 8)
