"""The generated dialogues and their judge: sizes, labels, predictability, and that they are the same everywhere."""

import functools
import hashlib
import random
import re
from collections import Counter, defaultdict

import pytest
from other_processes import assert_other_processes_make_the_same

from rl4dialog.data.labels import ACTS, COMMISSIVE, DIRECTIVE, EMOTIONS, INFORM, QUESTION
from rl4dialog.data.small_talk.grammar import TOPICS, plural
from rl4dialog.data.small_talk.pool import SmallTalk, generate_dialogues

SIZES = {"train": 2000, "val": 250, "test": 250}


@pytest.fixture(scope="module")
def dialogues():
    return {split: generate_dialogues(split, size) for split, size in SIZES.items()}


def turns_of(dialogues):
    return [turn for dialogue in dialogues for turn in dialogue.turns]


def words_of(text):
    return re.findall(r"[a-z']+", text)


def test_dialogues_have_4_to_12_alternating_turns(dialogues):
    lengths = Counter(len(dialogue.turns) for dialogue in dialogues["train"])
    assert set(lengths) == set(range(4, 13))
    assert all(turn.speaker == i % 2 for d in dialogues["train"] for i, turn in enumerate(d.turns))


def test_dialogues_stay_with_their_thing(dialogues):
    nouns = {topic.name: {form: noun for noun in topic.things for form in (noun, plural(noun))} for topic in TOPICS}
    n_nameless = 0
    for dialogue in dialogues["train"]:
        words = {word for turn in dialogue.turns for word in words_of(turn.text)}
        named = {noun for form, noun in nouns[dialogue.topic or ""].items() if form in words}
        # The thing, another one to compare it with, and "after lunch".
        assert len(named - {"lunch"}) <= 2, dialogue
        n_nameless += not named
    assert n_nameless / len(dialogues["train"]) < 0.01


def test_every_utterance_is_plain_and_labelled(dialogues):
    for turn in turns_of(dialogues["train"]):
        assert re.fullmatch(r"[a-z][a-z', ]*[a-z][.?!]", turn.text), turn.text
        assert 4 <= len(turn.text.split()) <= 14, turn.text
        assert turn.act in ACTS and turn.emotion in EMOTIONS
    for turn in turns_of(dialogues["train"]):
        assert not re.search(r"\ba [aeio]|\ban [^aeiou]", turn.text), turn.text


def test_the_act_can_be_told_from_the_words(dialogues):
    def guess(text):
        if text.endswith("?"):
            return QUESTION
        first = words_of(text)[0]
        return {"ok": COMMISSIVE, "sure": COMMISSIVE, "sorry": COMMISSIVE, "please": DIRECTIVE, "let's": DIRECTIVE}.get(
            first, INFORM
        )

    turns = turns_of(dialogues["test"])
    assert sum(guess(turn.text) == turn.act for turn in turns) / len(turns) > 0.99


def test_most_test_utterances_are_new_but_few_words(dialogues):
    known = {turn.text for turn in turns_of(dialogues["train"])}
    for split in ("val", "test"):
        turns = turns_of(dialogues[split])
        assert sum(turn.text not in known for turn in turns) / len(turns) > 0.6
    known = {word for turn in turns_of(dialogues["train"]) for word in words_of(turn.text)}
    words = [word for turn in turns_of(dialogues["test"]) for word in words_of(turn.text)]
    assert 700 <= len(known) <= 1200
    assert sum(word in known for word in words) / len(words) >= 0.98


def test_next_act_is_likely_but_not_certain(dialogues):
    following = defaultdict(Counter)
    for dialogue in dialogues["train"] + dialogues["test"]:
        for before, turn in zip(dialogue.turns[2:], dialogue.turns[3:], strict=False):
            following[before.act][turn.act] += 1
    total = sum(counts.total() for counts in following.values())
    sampled = sum(n * n / counts.total() for counts in following.values() for n in counts.values()) / total
    likeliest = sum(max(counts.values()) for counts in following.values()) / total
    assert set(following) == set(ACTS)
    for counts in following.values():
        assert 0.6 <= max(counts.values()) / counts.total() <= 0.75
    assert 0.48 <= sampled <= 0.55
    assert 0.64 <= likeliest <= 0.70


def test_prepare_gives_labelled_samples_and_every_argument_counts():
    pool = SmallTalk.prepare("val", n_val=20)
    sample, weight = pool[0]
    assert weight == 1.0 and pool.end_of_turn == "<EOU>"
    assert sample.meta_data is not None
    assert len(sample.meta_data["history"]) == 3
    assert sample.prompt_or_input_text == "<EOU>".join(sample.meta_data["history"]) + " <EOU>"
    assert sample.meta_data["intent"][0] in ACTS and sample.meta_data["emotion"][0] in EMOTIONS
    assert len({sample.id for sample, _ in pool}) == len(pool)
    assert SmallTalk.prepare("train", n_train=30, seed=1)[0] != SmallTalk.prepare("train", n_train=30, seed=2)[0]
    assert len(SmallTalk.prepare("test", n_test=30, max_size=5)) == 5
    chat = SmallTalk.prepare("val", n_val=5, format="chat_template", render_chat=lambda messages: "chat")
    assert chat[0][0].prompt_or_input_text == "chat" and chat.end_of_turn is None


def test_whole_dialogues_are_samples_on_demand():
    dialogues = generate_dialogues("val", 20)
    pool = SmallTalk.prepare("val", n_val=20, samples="dialogues")
    assert len(pool) == 20
    for dialogue, (sample, _) in zip(dialogues, pool, strict=True):
        assert sample.meta_data is not None and sample.meta_data["intent"] == [dialogue.turns[1].act]
        told = [*sample.meta_data["history"], *sample.references, *sample.meta_data["continuation"]]
        assert told == [turn.text for turn in dialogue.turns]


def test_dialogues_are_the_same_everywhere_and_others_for_each_split_and_seed():
    assert_other_processes_make_the_same(functools.partial(generate_dialogues, "val", 50, 7))
    dialogues = generate_dialogues("train", 300)
    said = [[(turn.text, turn.speaker, turn.act, turn.emotion) for turn in each.turns] for each in dialogues]
    found = hashlib.sha256(repr(said).encode()).hexdigest()
    assert found.startswith("5e56c3653635b8c7"), "other dialogues than before: a new version of the data"
    first = {(split, seed): generate_dialogues(split, 1, seed)[0].turns for split in SIZES for seed in (0, 1)}
    assert len(set(first.values())) == 6


def test_dialogues_are_made_without_a_dead_end_or_global_state():
    random.seed(3)
    expected = random.random()
    random.seed(3)
    generate_dialogues("train", 5)
    assert random.random() == expected
    for seed in range(20):
        assert len(generate_dialogues("train", 200, seed)) == 200
