"""The guesser's ranks, against a computation from the whole history that is as simple as possible."""

from __future__ import annotations

import random

import pytest

from rl4dialog.tasks.guess_the_picture.guesser import Guesser, all_values, values_left_by
from rl4dialog.tasks.guess_the_picture.questions import NOT_SEEN, QUESTIONS, YES, answer
from rl4dialog.tasks.guess_the_picture.scenes import ATTRIBUTES, Scene, scene_table


def naive_ranks(scenes: tuple[Scene, ...], view: str, statements: list[tuple[str, set[str]]]) -> list[float]:
    """Rank of every scene: sorts all of them, and gives tied ones their mean position."""
    points = []
    for scene in scenes:
        score = scene.impression + int(scene.view == view)
        for name in ATTRIBUTES:
            about = [values for attribute, values in statements if attribute == name]
            score += int(all(scene.values[name] in values for values in about))
        points.append(score)
    best_first = sorted(range(len(scenes)), key=lambda i: -points[i])
    ranks = []
    for i in range(len(scenes)):
        positions = [position for position, j in enumerate(best_first, 1) if points[j] == points[i]]
        ranks.append(sum(positions) / len(positions))
    return ranks


@pytest.mark.parametrize("seed", range(12))
def test_rank_and_halving_are_those_of_a_naive_computation(seed: int) -> None:
    rng = random.Random(seed)
    scenes = scene_table(rng.choice([1, 2, 17, 200]), seed)
    hidden = rng.randrange(len(scenes))
    guesser = Guesser(scenes, hidden)
    statements: list[tuple[str, set[str]]] = []
    start = naive_ranks(scenes, scenes[hidden].view, [])[hidden]
    assert guesser.rank == guesser.start_rank == start
    for _ in range(15):
        question, about = rng.choice(QUESTIONS), scenes[rng.choice([hidden, hidden, rng.randrange(len(scenes))])]
        said = answer(question, about, rng.random() < 0.5)  # at times about another scene, so that answers contradict
        guesser.hear(question.text, said)
        if question.values is None and not said.startswith("i "):
            statements.append((question.attribute, {about.values[question.attribute]}))
        elif question.values is not None and said.startswith(("yes", "i think so")):
            statements.append((question.attribute, set(question.values)))
        elif question.values is not None and said.startswith(("no", "i do not think so")):
            statements.append((question.attribute, set(ATTRIBUTES[question.attribute].values) - question.values))
        rank = naive_ranks(scenes, scenes[hidden].view, statements)[hidden]
        assert guesser.rank == rank
        assert guesser.is_halved == (2 * (rank - 1) <= start - 1)


def scene(color: str, impression: int) -> Scene:
    values = {name: attribute.values[0] for name, attribute in ATTRIBUTES.items()} | {"color": color}
    return Scene("a close picture", values, impression)


def test_ties_share_their_rank_and_half_the_distance_is_enough() -> None:
    scenes = [scene("red", 0), scene("red", 1), *[scene("blue", 1)] * 3, scene("blue", 0)]
    guesser = Guesser(scenes, hidden=0)
    assert guesser.start_rank == 5.5  # four are better, and one is as good
    assert not guesser.is_halved
    guesser.hear("what color is it ?", "red")
    assert guesser.rank == 1 + 1 + 3 / 2  # the red one is better, and three have as many points
    assert not guesser.is_halved  # 2.5 > 4.5 / 2
    three_blue = Guesser([scene("red", 0), scene("red", 1), scene("blue", 2), scene("blue", 0)], hidden=0)
    assert three_blue.start_rank == 1 + 2 + 1 / 2
    three_blue.hear("what color is it ?", "red")
    assert three_blue.rank == 3.0 and not three_blue.is_halved
    exactly = Guesser([scene("red", 0), scene("red", 1), scene("blue", 0), scene("blue", 0)], hidden=0)
    assert exactly.start_rank == 3.0
    exactly.hear("is it red ?", YES)
    assert exactly.rank == 2.0 and exactly.is_halved  # exactly half of the distance


def test_scene_in_the_first_place_has_no_distance_to_halve() -> None:
    assert Guesser([scene("red", 3), scene("red", 0)], hidden=0).is_halved
    assert Guesser([scene("red", 0)], hidden=0).is_halved


def test_caption_counts_as_said() -> None:
    far = Scene("a picture from far away", scene("red", 0).values, 0)
    assert Guesser([far, scene("red", 0), scene("red", 0)], hidden=0).start_rank == 1.0
    assert Guesser([scene("red", 0), far, scene("red", 0)], hidden=0).start_rank == 1.5


def test_same_thing_in_other_words_counts_once() -> None:
    guesser = Guesser(scene_table(200, 0), hidden=0)
    value = scene_table(200, 0)[0].values["thing"]
    guesser.hear("what is it ?", value)
    rank = guesser.rank
    assert rank < guesser.start_rank
    for question, said in [("what is it ?", f"it is {value}"), (f"is it {value} ?", "yes"), ("what is it ?", value)]:
        guesser.hear(question, said)
        assert guesser.rank == rank


@pytest.mark.parametrize("said", [("what is it", NOT_SEEN), ("who are you ?", YES), ("is it red ?", "red"), ("", "")])
def test_what_says_nothing_changes_nothing(said: tuple[str, str]) -> None:
    guesser = Guesser(scene_table(50, 0), hidden=0)
    guesser.hear(*said)
    assert guesser.rank == guesser.start_rank and guesser.left == all_values()


def test_values_left_by_a_history_follow_from_its_answers() -> None:
    history = [
        "a close picture",
        "is it a dark color ?",
        "no",
        "is it red ?",
        "no , it is not",
        "who is there ?",
        "a boy",
    ]
    left = values_left_by(history)
    assert left == all_values() | {"color": {"yellow", "white"}, "person": {"a boy"}}
    assert values_left_by(history[:1]) == all_values()
