"""Logged conversations: their layouts, games of ILQL's tweets, and the datapool."""

import gzip
import itertools
import json
import logging
import pickle
from collections import Counter

import pyarrow
import pyarrow.parquet
import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import Feedback, JudgedReply
from rl4dialog.core.types import AGENT, PARTNER, SYSTEM_KEY
from rl4dialog.data.conversations import pool as module
from rl4dialog.data.conversations.pool import LoggedConversations, dialogues_of, game_rows, guess_layout
from rl4dialog.data.rows import Row

MISS, NEAR, HIT = "<b><b><b><b><b>", "<y><b><b><b><g>", "<g><g><g><g><g>"
TRANSITIONS = {
    "crane": {MISS: ["build", "ghost"], HIT: ["crane"]},
    "slate": {MISS: ["build"], NEAR: ["elude"], HIT: ["slate"]},
}


def games(found, seed=0, transitions=TRANSITIONS, **kwargs):
    rows = [Row({"games": found, "transitions": transitions}, "t.json")]
    return [dict(row.values) for row in game_rows(lambda: rows, seed, **kwargs)]


def test_words_of_tweets_have_their_colours_and_are_drawn_by_seed():
    (game,) = games([["panic", [MISS, NEAR, HIT]]])
    assert game["meta_data"] == {"word": "slate"}, "no other hidden word allows these colours"
    texts = [message["content"] for message in game["messages"]]
    assert texts == ["new word", "build", "bbbbb", "elude", "ybbbg", "slate", "ggggg"]
    assert [message["role"] for message in game["messages"]] == ["user", *["assistant", "user"] * 3]
    assert game["rewards"] == [-1.0, -1.0, 0.0]
    many = [["panic", [MISS, HIT]]] * 400
    found = games(many)
    assert found == games(many) != games(many, seed=1)
    words = Counter(game["meta_data"]["word"] for game in found)
    assert 160 < words["crane"] < 240
    firsts = Counter(game["messages"][1]["content"] for game in found if game["meta_data"]["word"] == "crane")
    assert set(firsts) == {"build", "ghost"} and abs(firsts["build"] - firsts["ghost"]) < 60
    found = games([["panic", [MISS]], ["panic", ["<g><b><b><b><b>"]], ["panic", [HIT]]])
    assert [game["id"] for game in found] == [0, 2]
    days = [["slate", [MISS, HIT]], ["crane", [NEAR, HIT]], ["panic", [MISS, HIT]], ["crane", [MISS, HIT]]] * 9
    found = games(days, true_words=True)
    assert [(game["id"] % 4, game["meta_data"]["word"]) for game in found] == [(0, "slate"), (3, "crane")] * 9


def test_games_that_no_word_allows_are_counted_once_for_a_file(tmp_path, caplog):
    found = [["panic", [MISS]], ["panic", ["<g><b><b><b><b>"]], ["panic", [HIT]], ["panic", [MISS, HIT]]] * 2
    path = tmp_path / "games.json"
    path.write_text(json.dumps({"games": found, "transitions": TRANSITIONS}), encoding="utf-8")
    pools = [LoggedConversations.prepare(split, str(path), held_out_share=0.2) for split in ("train", "val", "test")]
    assert sum(len([*pool.conversations()]) for pool in pools) == 6
    told = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert told == [f"{path}, train: left out games whose colours no hidden word allows: 2"]


@pytest.mark.parametrize(
    ("found", "transitions", "message"),
    [
        ({}, TRANSITIONS, "games: input should be a valid list, got {}"),
        ([["panic"]], TRANSITIONS, "games[0]: the key 1 is missing, got ['panic']"),
        ([["panic", ["bbbbb"]]], TRANSITIONS, "games[0][1][0]: string should match pattern"),
        ([["panic", []]], TRANSITIONS, "games[0][1]: list should have at least 1 item"),
        ([], {"crane": ["a"]}, "transitions.crane: input should be a valid dictionary"),
        ([], {"crane": {HIT: "crane"}}, "transitions.crane.<g><g><g><g><g>: input should be a valid list"),
    ],
)
def test_wrong_file_of_tweets_is_named(found, transitions, message):
    with pytest.raises(DataError, match=r"t\.json: ") as error:
        games(found, transitions=transitions)
    assert message in str(error.value)


def read(values, layout=None):
    row = Row(json.loads(json.dumps(values)), "log.jsonl:3")
    return list(dialogues_of(row, 2, layout or guess_layout(row), "assistant"))


def said(dialogue):
    return [(turn.speaker, turn.text, turn.reward) for turn in dialogue.turns]


def messages(*texts):
    """Messages of which the last one is the assistant's."""
    roles = ["user", "assistant"]
    return [{"role": roles[(i + len(texts)) % 2], "content": text} for i, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("label", "reward"), [({}, 0.0), ({"label": True}, 1.0), ({"label": False}, 0.0), ({"label": -2.5}, -2.5)]
)
def test_completions_have_their_label_as_reward(label, reward):
    (plain,) = read({"prompt": "hello", "completion": "hi", "id": "x", "meta_data": {"a": 1}, **label})
    assert said(plain) == [(PARTNER, "hello", 0.0), (AGENT, "hi", reward)]
    assert plain.n_given == 1 and plain.id == "x" and plain.meta_data == {"a": 1}
    prompt = [{"role": "system", "content": "s"}, *messages("a", "b", "c", "")[:-1]]
    (chat,) = read({"prompt": prompt, "completion": [{"role": "assistant", "content": "d"}], **label})
    assert said(chat) == [(PARTNER, "a", 0.0), (AGENT, "b", 0.0), (PARTNER, "c", 0.0), (AGENT, "d", reward)]
    assert chat.n_given == 3 and chat.meta_data == {SYSTEM_KEY: "s"} and chat.id == 2


def test_preferences_are_two_conversations():
    whole = {"chosen": messages("a", "b", "c", "good"), "rejected": messages("a", "b", "c", "bad")}
    for row in (whole, {"prompt": messages("a", "b", "c", "")[:-1], "chosen": "good", "rejected": "bad"}):
        if isinstance(row["chosen"], str):
            row = {**row, **{key: [{"role": "assistant", "content": row[key]}] for key in ("chosen", "rejected")}}
        good, bad = read(row)
        assert said(good)[-1] == (AGENT, "good", 1.0) and said(bad)[-1] == (AGENT, "bad", 0.0)
        assert said(good)[:-1] == said(bad)[:-1] == [(PARTNER, "a", 0.0), (AGENT, "b", 0.0), (PARTNER, "c", 0.0)]
        assert (good.id, bad.id) == ("2_chosen", "2_rejected") and good.n_given == bad.n_given == 3


SEQUENCE = [["Wordle:\n", 0], ["s l a t e\n", 1], ["b b g b g\n", 0.0], ["c r a n e\n", True]]


@pytest.mark.parametrize("rewards", [[-1.0, 0.0, -2], [0.0, -1.0, 0.0, -2]])
def test_lmrl_gyms_rewards_are_those_of_all_texts_or_of_all_but_the_first(rewards):
    (found,) = read({"sequence": SEQUENCE, "reward": rewards, "done": False})
    texts = ["Wordle:", "s l a t e", "b b g b g", "c r a n e"]
    assert [turn.text for turn in found.turns] == texts, "without surrounding whitespace"
    assert said(found)[1] == (AGENT, texts[1], -1.0) and said(found)[3] == (AGENT, texts[3], -2.0)
    assert not found.terminated and found.n_given == 0
    assert read({"sequence": SEQUENCE, "reward": rewards, "done": True})[0].terminated


def feedback(kind, *replies, **verdict):
    judged = [JudgedReply("p/run", text) for text in replies]
    return Feedback(kind, ["a", "b", "c"], judged, persona="I like tea.", id="f", **verdict).record()


def test_feedback_has_the_verdicts_of_people_as_rewards():
    (down,) = read(feedback("rating", "meh", rating=-1))
    assert said(down) == [(PARTNER, "a", 0.0), (AGENT, "b", 0.0), (PARTNER, "c", 0.0), (AGENT, "meh", -1.0)]
    assert down.n_given == 3 and down.meta_data == {SYSTEM_KEY: "I like tea.", "model": "p/run"} and down.id == "f"
    worse, better = read(feedback("preference", "no", "yes", chosen=1))
    assert said(worse)[-1] == (AGENT, "no", 0.0) and said(better)[-1] == (AGENT, "yes", 1.0)
    assert (worse.id, better.id) == ("f_0", "f_1")
    (whole,) = read({**feedback("conversation_rating", "meh", rating=-1), "answer": "bye"})
    assert [turn.text for turn in whole.said][-2:] == ["meh", "bye"] and whole.n_given == 0
    assert [turn.reward for turn in whole.turns][-2:] == [-1.0, 0.0]
    (corrected,) = read(feedback("correction", "bad", correction="good"))
    assert said(corrected)[-1] == (AGENT, "good", 1.0)


def test_layout_is_guessed_from_the_columns():
    rows = {
        "messages": {"messages": messages("a", "b"), "rewards": None, "score": 3},
        "completion": {"prompt": "a", "completion": "b", "score": 3},
        "preference": {"prompt": "a", "chosen": "b", "rejected": "c", "score": 3},
        "lmrl": {"sequence": SEQUENCE, "reward": [0] * 4, "done": True, "score": 3},
        "feedback": feedback("rating", "meh", rating=1),
        "tweets": {"games": [], "transitions": {}},
    }
    for layout, values in rows.items():
        row = Row(values, "x:1")
        assert guess_layout(row) == layout
        if layout != "tweets":
            assert [*dialogues_of(row, 0, layout, "assistant")] and [*row.unread] == ["score"] * ("score" in values)
    both = {**rows["messages"], **rows["completion"]}
    assert said(read(both, "completion")[0])[-1] == (AGENT, "b", 0.0)


@pytest.mark.parametrize(
    ("values", "layout", "message"),
    [
        ({"a": 1}, None, "has the columns of no layout: a; set layout to one of: messages: messages; completion:"),
        ({"messages": [], "prompt": "", "completion": ""}, None, "has columns of several layouts (messages,"),
        ({"prompt": "a", "completion": "b"}, "messages", "no column 'messages', but all rows of a log must have the"),
        ({"prompt": "a", "completion": "b", "label": "good"}, None, "label: input should be a valid boolean or a"),
        ({"chosen": "a b", "rejected": "a c"}, None, "plain chosen and rejected have neither a column prompt nor tags"),
        ({"sequence": [["a"]], "reward": [], "done": True}, None, "sequence[0]: the key 1 is missing"),
        ({"sequence": [["a", 2]], "reward": [0], "done": True}, None, "sequence[0][1]: input should be a valid bool"),
        ({"sequence": SEQUENCE, "reward": [0, 0], "done": True}, None, "each of the 4 texts of sequence, or for each"),
        ({"sequence": SEQUENCE, "reward": [1, 0, 0, 0], "done": True}, None, "reward of text 0 of sequence must be 0"),
        ({"sequence": SEQUENCE, "reward": [0, None, 0, 0], "done": True}, None, "reward[1]: input should be a valid"),
        ({"sequence": SEQUENCE, "reward": [0, 0, 0], "done": 1}, None, "done: input should be a valid boolean, got 1"),
        ({"kind": "rating", "turns": [], "replies": []}, None, "not a line that rl4dialog chat, teach, ui or select"),
    ],
)
def test_wrong_rows_are_named(values, layout, message):
    with pytest.raises(DataError) as error:
        read(values, layout)
    assert str(error.value).startswith("log.jsonl:3: ") and message in str(error.value)


def record(number, n_turns=1):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": f"u{number}"}]
    for turn in range(n_turns):
        messages += [{"role": "assistant", "content": f"a{turn}"}, {"role": "user", "content": f"u{turn}"}]
    return {"id": number, "messages": messages, "rewards": [float(number)] * n_turns, "meta_data": {"n": number}}


def jsonl(*records):
    return "".join(json.dumps(each) + "\n" for each in records)


def prepared(write, *rows, **args):
    return LoggedConversations.prepare("train", write({"x.jsonl": jsonl(*rows)}) / "x.jsonl", **args)


def ids(pool):
    return [dialogue.id for dialogue in pool.conversations()]


def test_sample_is_the_first_reply_and_the_rest_its_continuation(write):
    pool = prepared(write, record(3, n_turns=2))
    ((sample, _),) = pool
    assert sample.prompt_or_input_text == "s<EOU>u3 <EOU>" and sample.references == ["a0"] and sample.id == 3
    continuation = {"history": ["u3"], "continuation": ["u0", "a1", "u1"]}
    assert sample.meta_data == {"n": 3, SYSTEM_KEY: "s", **continuation}
    assert pool.has_rewards and pool.end_of_turn == "<EOU>"
    (dialogue,) = pool.conversations()
    assert [turn.text for turn in dialogue.turns] == ["u3", "a0", "u0", "a1", "u1"]
    assert dialogue.meta_data == {"n": 3, SYSTEM_KEY: "s"}


def test_agent_can_speak_first(write):
    ((sample, _),) = prepared(write, {"messages": messages("a", "u", "")[:-1]})
    assert sample.prompt_or_input_text == " <EOU>" and sample.references == ["a"]
    assert sample.meta_data == {"history": [], "continuation": ["u"]}


def test_markup_is_that_of_the_format_unless_tokens_are_known(write):
    def render(messages):
        return "".join(f"[{m['role'][0]}]{m['content']}" for m in messages) + "[a]"

    ((sample, _),) = prepared(write, record(3), format="chat_template", render_chat=render)
    assert sample.prompt_or_input_text == "[s]s[u]u3[a]"
    said = {"role": "assistant", "content": "a <EOU>", "token_ids": [1, 2]}
    log = {"tokenizer": "9f", "messages": [{"role": "user", "content": "u"}, said]}
    (dialogue,) = prepared(write, log).conversations()
    assert dialogue.turns[1].text == "a <EOU>" and dialogue.turns[1].ids == (1, 2)


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.parquet", "shards"])
def test_every_kind_of_file_has_the_same_conversations(write, tmp_path, name):
    records = [record(n, n_turns=1 + n % 2) for n in range(7)]
    parts = jsonl(*records[:3]), jsonl(*records[3:])
    # Of several members, as runs write them.
    packed = b"".join(gzip.compress(part.encode()) for part in parts)
    files = {"log.jsonl": "".join(parts), "log.jsonl.gz": packed}
    write({**files, **{f"shards/part-000{i}.jsonl": part for i, part in enumerate(parts)}})
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "log.parquet")
    whole, found = (LoggedConversations.prepare("train", tmp_path / each) for each in ("log.jsonl", name))
    assert list(found.conversations()) == list(whole.conversations()) and list(found) == list(whole)
    assert ids(LoggedConversations.prepare("val", {"train": tmp_path / name, "val": tmp_path / name})) == list(range(7))


def test_splits_are_files_or_sampled(write):
    folder = write({f"{split}.jsonl": jsonl(record(n)) for n, split in enumerate(("train", "val", "test"))})
    assert [ids(LoggedConversations.prepare(split, folder)) for split in ("train", "val", "test")] == [[0], [1], [2]]
    path = write({"one.jsonl": jsonl(*map(record, range(40)))}) / "one.jsonl"
    parts = [ids(LoggedConversations.prepare(split, path, held_out_share=0.1)) for split in ("train", "val", "test")]
    assert [len(part) for part in parts] == [32, 4, 4] and sorted(itertools.chain(*parts)) == list(range(40))
    with pytest.raises(DataError, match="has no split 'val'"):
        LoggedConversations.prepare("val", path)


def test_conversations_are_read_one_by_one_and_again(write, monkeypatch):
    path = write({"log.jsonl": jsonl(*map(record, range(100)))}) / "log.jsonl"
    n_read = 0
    original = module.dialogues_of

    def counted(row, *args):
        nonlocal n_read
        n_read += 1
        return original(row, *args)

    monkeypatch.setattr(module, "dialogues_of", counted)
    pool = LoggedConversations.prepare("train", path, max_samples=5)
    assert n_read == 5 and len(pool) == 5
    reading = pool.conversations()
    assert [next(reading).id for _ in range(3)] == [0, 1, 2] and n_read == 8
    assert len(ids(pool)) == len(ids(pool)) == 100


def test_limits(write, caplog):
    path = write({"log.jsonl": jsonl(*(record(n, n_turns=1 + n % 3) for n in range(9)))}) / "log.jsonl"
    assert ids(LoggedConversations.prepare("train", path, min_turns=2)) == [1, 2, 4, 5, 7, 8]
    assert ids(LoggedConversations.prepare("train", path, min_turns=3, max_size=2)) == [2, 5]
    with caplog.at_level(logging.INFO, "rl4dialog"):
        assert len(LoggedConversations.prepare("train", path, max_samples=4)) == 4
        assert len(LoggedConversations.prepare("train", path, max_size=4, max_samples=4)) == 4
    cut = "samples of split train are those of the first 4 conversations (max_samples)"
    assert sum(cut in message for message in caplog.messages) == 1, "nothing is left out by the second"
    with pytest.raises(DataError, match=r"has no samples in split 'train' \(source: .*log\.jsonl\)"):
        LoggedConversations.prepare("train", path, min_turns=4)
    with pytest.raises(DataError, match="true_words is for layout: tweets, not messages"):
        LoggedConversations.prepare("train", path, true_words=True)


def test_rewards_are_scaled_then_shifted(write):
    said = {"token_ids": [1, 2], "token_rewards": [1.0, 2.0]}
    *before, last = messages("u", "given", "u", "a")
    log = {"messages": [*before, {**last, "reward": 3.0, **said}], "n_given": 3, "tokenizer": "9f"}
    (dialogue,) = prepared(write, log, reward_scale=2, reward_shift=-1).conversations()
    given, said_turn = (turn for turn in dialogue.turns if turn.speaker == AGENT)
    assert (said_turn.reward, said_turn.token_rewards, given.reward) == (5.0, (2.0, 4.0), 0.0)


def test_layout_is_stated_once(write, caplog):
    rows = [{"prompt": "a", "completion": "b", "label": True, "source": "x"}] * 2
    path = write({"x.jsonl": jsonl(*rows)}) / "x.jsonl"
    with caplog.at_level(logging.INFO, "rl4dialog"):
        for split in ("train", "val"):
            LoggedConversations.prepare(split, {"train": path, "val": path})
    assert caplog.messages == [
        f"path: several splits are the same file, so their samples are: {path}, {path}",
        f"{path}:1: layout completion (guessed from the columns)",
        f"{path}:1: these columns are not read: source",
    ]


def test_what_is_not_read_is_warned_of(write, caplog):
    messages = [{"role": "user", "content": "u", "name": "x"}, {"role": "assistant", "content": "a", "rating": 4}]
    log = jsonl({"messages": messages, "ratings": {"overall": 4}})
    folder = write({"train.jsonl": log, "train_2.jsonl": log, "more.jsonl": log})
    for _ in range(2):
        LoggedConversations.prepare("train", folder)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING][:2] == [
        f"{folder}: not read, because other files are named after splits: more.jsonl, train_2.jsonl",
        f"{folder / 'train.jsonl'}:1: these columns are not read: ratings, 'name' of messages, 'rating' of messages",
    ]


def test_tweets_are_games_with_words(write):
    tweets = {"games": [["panic", [HIT]]] * 20, "transitions": {"crane": {HIT: ["crane"]}}}
    path = write({"tweets.json": json.dumps(tweets)}) / "tweets.json"
    parts = [LoggedConversations.prepare(split, path, held_out_share=0.1) for split in ("train", "val", "test")]
    assert [len(ids(part)) for part in parts] == [16, 2, 2]
    assert [turn.text for turn in next(parts[0].conversations()).turns] == ["new word", "crane", "ggggg"]


@pytest.mark.parametrize("kind", ["log.jsonl", "pretty.json", "tweets.json"])
def test_index_files_say_which_rows_a_split_has(write, kind):
    rows = [record(n) for n in range(6)]
    days = [["slate", [HIT]], ["crane", [HIT]], ["panic", [HIT]], ["crane", [NEAR]], ["crane", [HIT]], ["slate", [HIT]]]
    text = {
        "log.jsonl": jsonl(*rows),
        "pretty.json": json.dumps(rows, indent=2),
        "tweets.json": json.dumps({"games": days, "transitions": TRANSITIONS}, indent=2),
    }
    folder = write(
        {kind: text[kind], "a.idx": "[5, 0,\n 1]", "b.idx": "[2, 3, 4]", "wrong.idx": "[0, 6]", "c.idx": "[-1]"}
    )
    parts = {"train": str(folder / "a.idx"), "val": str(folder / "b.idx"), "test": str(folder / "b.idx")}
    more = {"true_words": True} if kind == "tweets.json" else {}

    def part(split, **args):
        return LoggedConversations.prepare(split, folder / kind, **{"index_file": parts, **more, **args})

    train, test = part("train"), part("test")
    assert ids(train) == [0, 1, 5] if more else [turn.text for turn in next(train.conversations()).turns]
    assert ids(train) == [0, 1, 5] if more else len(ids(train)) == 3
    assert len(ids(test)) == (1 if more else 3), "games that their words do not allow count in the numbers"
    assert train.source_key != part("train", index_file={**parts, "train": parts["val"]}).source_key
    for args, message in (
        ({"held_out_share": 0.1}, "index_file divides one file"),
        ({"index_file": {"val": parts["val"]}}, "no file for split 'train'; name one for each of train, val, test"),
        ({"index_file": {"train": str(folder / "wrong.idx")}}, "index_file"),
        ({"index_file": {"train": str(folder / "c.idx")}}, r"c\.idx"),
    ):
        with pytest.raises(DataError, match=message):
            ids(part("train", **args))


WRONG = {
    "empty": ("x.jsonl", "\n", {}, "x.jsonl is empty; a log has one conversation per line"),
    "broken": ("x.jsonl", jsonl(record(0)) + '{"messages": [', {}, "x.jsonl:2: not valid JSON"),
    "mixed": ("x.jsonl", jsonl(record(0), {"a": 1}), {}, "x.jsonl:2: no column 'messages', but all rows of a log must"),
    "layout": ("x.jsonl", jsonl(record(0)), {"layout": "lmrl"}, "x.jsonl:1: no column 'sequence'"),
    "agent": ("x.jsonl", jsonl(record(0)), {"agent": "bot"}, "x.jsonl:1: messages has no message of the agent 'bot'"),
    "markup": ("x.jsonl", jsonl({"prompt": "a <EOU>", "completion": "b"}), {}, "a text cannot contain <EOU>"),
    "pickle": ("x.pkl", pickle.dumps([1]), {}, "x.pkl is a pickle, which can run any code when it is loaded"),
    "format": ("x.txt", "hello", {}, "x.txt is not a .jsonl or .json or .parquet file"),
    "gzip": ("x.jsonl.gz", gzip.compress(jsonl(record(0)).encode())[:-6], {}, "cannot be read as a gzip file"),
    "parquet": ("x.parquet", "hello", {}, "x.parquet cannot be read as a Parquet file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_file_is_named(write, name):
    file, content, args, message = WRONG[name]
    with pytest.raises(DataError) as error:
        LoggedConversations.prepare("train", write({file: content}) / file, **args)
    assert message in str(error.value)


def test_wrong_line_after_the_samples_is_named_when_it_is_read(write):
    pool = prepared(write, record(0), record(1), {**record(2), "rewards": []}, max_samples=2)
    with pytest.raises(DataError, match=r"x\.jsonl:3: rewards must have one number per message"):
        ids(pool)


def test_pool_of_logs_cannot_be_split_in_parts_and_folders_without_logs_are_refused(write):
    with pytest.raises(DataError, match="use held_out_share"):
        prepared(write, record(0)).split([0.5, 0.5])
    a, b = (write({"a/x.pkl": b"", "b/x.txt": b""}) / name for name in "ab")
    for path, message in ((a, "is a pickle"), (b, "contains no"), ({"train": b}, "contains no")):
        with pytest.raises(DataError, match=message):
            LoggedConversations.prepare("train", path)
