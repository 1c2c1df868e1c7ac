from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.features.offline.conversation_log import ConversationLog, OfflineSampler, _token_rewards
from tests.offline import MARKER, dialogues, make_encoder, make_log, marked_tokenizer
from tests.tiny import make_gpt2


@pytest.fixture
def model():
    return make_gpt2(marked_tokenizer())


def test_rewards_stand_on_the_last_token_of_a_reply(model, tmp_path):
    log = make_log(tmp_path, model)
    batch = log.replies(np.array([0, 2]))
    assert [list(row) for row in batch.per_reply("rewards")] == [[0, 0, 1.0], [0, 0, 0, -2.0], [0, 2.0]]
    assert batch.flat("turn").tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0]
    assert log.returns.tolist() == [-1.0, 3.5, 2.0, -1.0, -3.0]


def test_row_is_the_text_of_the_conversation(model, tmp_path):
    batch = make_log(tmp_path, model).replies(np.array([0]))
    tokenizer = marked_tokenizer()
    ids = [*batch.prompt_ids[0].tolist(), *batch.response_ids[0][batch.token_mask[0]].tolist()]
    text = f"w1 w2 {MARKER} w3 w4 {MARKER} w5 {MARKER} w6 w7 w8 {MARKER}"
    assert ids == tokenizer(text)["input_ids"]


def test_logged_ids_are_used_as_they_stand(model, tmp_path):
    marker = marked_tokenizer().convert_tokens_to_ids(MARKER)
    turn = Turn("w1", AGENT, ids=(9, 9, marker), token_rewards=(0.5, 0.0, 1.0), reward=2.0)
    said = Dialogue("x", (Turn("w2", PARTNER), turn), n_given=1, prompt=f"w2 {MARKER}")
    encoder = make_encoder(model)
    known, unknown = (replace(said, tokenizer=name) for name in (encoder.tokenizer_hash, "another"))
    batch = make_log(tmp_path / "a", model, [known]).replies(np.array([0]))
    assert batch.flat("response_ids").tolist() == [9, 9, marker]
    assert batch.flat("rewards").tolist() == [0.5, 0.0, 3.0]
    other = make_log(tmp_path / "b", model, [unknown])
    assert other.replies(np.array([0])).flat("response_ids").tolist() == [4, marker]
    assert other.returns.tolist() == [3.5] and "replies with logged token ids" not in other.counts


def test_what_is_cut_is_counted(model, tmp_path):
    long = Dialogue(0, (Turn("w1", PARTNER), Turn("w2 " * 20, AGENT, reward=1.0)), n_given=1, prompt=f"w1 {MARKER}")
    log = make_log(tmp_path / "reply", model, [long])
    assert log.counts["replies without their end, which was cut"] == 1
    assert log.n_tokens.tolist() == [8] and log.returns.tolist() == [1.0]
    assert log.counts["conversations"] == 1
    log = make_log(tmp_path / "window", model, prompt=8)
    assert log.counts["conversations whose first utterances were dropped from prompts"] >= 1


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([Turn("w1", PARTNER)], "conversation 7 has no utterance of the agent"),
        ([Turn("w1", PARTNER), Turn("w2", AGENT), Turn("w3", AGENT)], "utterance 2 should be the partner's"),
    ],
)
def test_conversations_without_turns_are_errors(turns, message, model, tmp_path):
    with pytest.raises(DataError, match=message):
        make_log(tmp_path, model, [Dialogue(7, tuple(turns), n_given=1, prompt="w1")])


def test_ids_beyond_the_vocabulary_are_an_error(model, tmp_path):
    turns = (Turn("w1", PARTNER), Turn("w2", AGENT, ids=(4, 400)))
    said = Dialogue(7, turns, n_given=1, prompt="w1", tokenizer=make_encoder(model).tokenizer_hash)
    with pytest.raises(DataError, match="conversation 7 has token ids beyond the vocabulary of 26 tokens"):
        make_log(tmp_path, model, [said])


def test_empty_log_is_an_error(model, tmp_path):
    with pytest.raises(DataError, match="no conversations in split 'train'"):
        make_log(tmp_path, model, [])


def test_log_is_built_once_and_again_if_damaged(model, tmp_path, monkeypatch):
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path))
    n_read = 0

    def conversations():
        nonlocal n_read
        n_read += 1
        return dialogues()

    def build():
        return ConversationLog.build(conversations, make_encoder(model), {"key": 1})

    first, second = build(), build()
    assert n_read == 1 and first.hash == second.hash
    (file,) = tmp_path.glob("conversations-*/conversations.arrow")
    with file.open("r+b") as opened:
        opened.truncate(100)
    assert build().returns.tolist() == first.returns.tolist() and n_read == 2


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux")
def test_pages_that_were_read_are_not_memory_of_the_process(model, tmp_path):
    log = make_log(tmp_path / "log", model)
    assert log.replies(np.arange(len(log))).n_tokens and len(log.n_replies) == len(log)
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    assert any(str(tmp_path) in line for line in lines), "the file is mapped"
    assert next(line.split()[1] for line in lines if line.startswith("Rss:")) == "0"


def test_opening_a_log_copies_nothing(model, tmp_path, monkeypatch):
    make_log(tmp_path / "log", model)

    def refuse(dataset):
        raise AssertionError("the whole table is pickled and hashed")

    monkeypatch.setattr("datasets.arrow_dataset.generate_fingerprint", refuse)
    assert len(ConversationLog(tmp_path / "log")) == 5


def test_rewards_of_tokens_that_were_cut_are_paid_on_the_last_one_with_that_of_the_turn():
    turn = Turn("w1 w2 w3 w4", AGENT, reward=5.0, token_rewards=[1.0, 2.0, 3.0, 4.0])
    assert _token_rewards(turn, [7, 8]) == [1.0, 2.0 + 3.0 + 4.0 + 5.0]
    assert _token_rewards(turn, [7, 8, 9, 5, 0]) == [1.0, 2.0, 3.0, 4.0, 5.0]


N_TOKENS = np.random.default_rng(0).integers(1, 30, size=200)


def epoch_of(sampler):
    batches = []
    while sum(map(len, batches)) < len(N_TOKENS):
        batches.append(sampler.next())
    return batches


def test_epoch_has_every_conversation_once_and_batches_of_about_the_size():
    sampler = OfflineSampler(N_TOKENS, 100, seed=0)
    for _ in range(3):
        batches = epoch_of(sampler)
        assert sorted(np.concatenate(batches)) == list(range(200))
        sizes = [int(N_TOKENS[batch].sum()) for batch in batches]
        assert len(sizes) == round(int(N_TOKENS.sum()) / 100) and all(70 <= size <= 130 for size in sizes)
    assert sampler.epoch == 3 - 1 + 1


def test_orders_differ_between_epochs_and_seeds_and_are_repeatable():
    first, again, other = (OfflineSampler(N_TOKENS, 100, seed=seed) for seed in (0, 0, 1))
    orders = [np.concatenate(epoch_of(sampler)) for sampler in (first, first, again, other)]
    assert (orders[0] == orders[2]).all()
    assert (orders[0] != orders[1]).any() and (orders[0] != orders[3]).any()


def test_state_continues_in_the_middle_of_an_epoch():
    sampler = OfflineSampler(N_TOKENS, 100, seed=0)
    for _ in range(40):
        sampler.next()
    other = OfflineSampler(N_TOKENS, 100, seed=0)
    other.load_state_dict(sampler.state_dict())
    for _ in range(60):
        assert (sampler.next() == other.next()).all()


def test_batch_size_above_the_log_is_one_batch():
    assert len(OfflineSampler(np.array([3, 4]), 1000, seed=0).next()) == 2


def test_first_minibatches_are_those_of_the_first_epoch_whenever_they_are_asked_for():
    sampler = OfflineSampler(np.random.default_rng(0).integers(1, 30, 50), 100, 3)
    expected, number = np.full(50, -1), 0
    while sampler.epoch < 1:
        expected[sampler.next()] = number
        number += 1
    sampler.next()
    assert number > 3 and sampler.first_minibatches().tolist() == expected.tolist()
