"""The datapool guess_what: games as samples."""

from __future__ import annotations

import functools
import pickle
import random
import time
from typing import Any

import pytest
from other_processes import assert_other_processes_make_the_same

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.types import Frame, Sample
from rl4dialog.data.pool import TextGenPool
from rl4dialog.tasks.guess_what.datapool import GuessWhat
from rl4dialog.tasks.guess_what.partner import GuessWhatPartner
from rl4dialog.tasks.guess_what.questions import OPENING, parse
from rl4dialog.tasks.guess_what.things import THINGS
from rl4dialog.tasks.playing import play

N = 300


def samples(split: str = "train", **args: Any) -> list[Sample]:
    return [sample for sample, _ in GuessWhat.prepare(split, **{"n_train": N, "n_val": N, "n_test": N, **args})]


def meta(sample: Sample) -> dict[str, Any]:
    assert sample.meta_data is not None
    return sample.meta_data


def success_of(games: list[Sample]) -> float:
    return sum(meta(sample)["continuation"][-1].startswith("yes ,") for sample in games) / len(games)


def test_sizes_are_those_promised() -> None:
    assert [len(GuessWhat.prepare(split)) for split in ("train", "val", "test")] == [5000, 500, 500]


def test_samples_ask_for_the_first_question() -> None:
    games = samples()
    assert len({sample.id for sample in games}) == N
    for sample in games:
        assert sample.prompt_or_input_text == f"{OPENING} <EOU>"
        assert meta(sample)["history"] == [OPENING]
        assert len(sample.references) == 1 and parse(sample.references[0]) is not None
    assert {meta(sample)["thing"] for sample in games} == set(THINGS)


def test_continuation_alternates_and_agrees_with_the_partner() -> None:
    partner = GuessWhatPartner()
    for sample in samples():
        partner.reset(meta(sample), seed=0)
        texts = [OPENING, *sample.references, *meta(sample)["continuation"]]
        assert len(texts) % 2 == 1 and 3 <= len(texts) <= 17
        for index in range(1, len(texts), 2):
            assert parse(texts[index]) is not None
            answer = partner.reply(texts[: index + 1])
            assert texts[index + 1] == (answer if isinstance(answer, str) else answer.text)
        assert partner.outcome()["success"] == texts[-1].startswith("yes ,")
        assert len(texts) == 17 or partner.outcome()["success"], "only lost games have all turns without a win"


def test_lost_games_keep_their_continuation() -> None:
    lost = [sample for sample in samples() if not meta(sample)["continuation"][-1].startswith("yes ,")]
    assert len(lost) > N / 3 and all(len(meta(sample)["continuation"]) == 15 for sample in lost)


def test_share_of_consistent_players_changes_the_games() -> None:
    careless, consistent = (samples(n_train=2000, consistent_share=share) for share in (0, 1.0))
    assert success_of(careless) < success_of(samples(n_train=2000)) < success_of(consistent)
    assert all(len(set(asked)) == len(asked) for asked in map(questions, consistent))
    assert not all(len(set(asked)) == len(asked) for asked in map(questions, careless))


def questions(sample: Sample) -> list[str]:
    return [*sample.references, *meta(sample)["continuation"][1::2]]


@pytest.mark.parametrize("max_turns", [1, 4, 12])
def test_games_have_at_most_max_turns(max_turns: int) -> None:
    lengths = {len(questions(sample)) for sample in samples(max_turns=max_turns)}
    assert max(lengths) == max_turns


def test_same_seed_same_pool_and_other_seeds_and_splits_differ() -> None:
    assert samples() == samples()
    texts = {
        (split, seed): [(*sample.references, *meta(sample)["continuation"]) for sample in samples(split, seed=seed)]
        for split in ("train", "val", "test")
        for seed in (0, 1)
    }
    assert len({tuple(games) for games in texts.values()}) == 6
    full = [{game for game in games if len(game) == 16} for games in texts.values()]
    assert all(len(one & other) < 5 for one in full for other in full if one is not other)


def test_more_games_leave_the_first_ones_alone() -> None:
    assert samples(n_train=40)[:10] == samples(n_train=10)


def test_other_processes_make_the_same_games() -> None:
    assert_other_processes_make_the_same(functools.partial(GuessWhat.prepare, "val", n_val=50))


def test_global_random_state_is_untouched() -> None:
    random.seed(3)
    expected = random.random()
    random.seed(3)
    samples(n_train=5)
    assert random.random() == expected


def test_twenty_thousand_games_take_seconds() -> None:
    start = time.process_time()
    assert len(GuessWhat.prepare("train", n_train=20_000)) == 20_000
    assert time.process_time() - start < 20


def test_chat_template_has_one_user_message() -> None:
    def render(messages: list[dict[str, str]]) -> str:
        return "".join(f"[{message['role']}]{message['content']}" for message in messages) + "[assistant]"

    pool = GuessWhat.prepare("val", n_val=3, format="chat_template", render_chat=render)
    assert pool[0][0].prompt_or_input_text == f"[user]{OPENING}[assistant]"
    assert pool.end_of_turn is None
    assert pool.frame().to_partner == "[user]" and pool.frame().to_agent == "[assistant]"
    assert [sample.references for sample, _ in pool] == [sample.references for sample in samples("val", n_val=3)]


def test_eou_format_ends_turns_with_its_marker() -> None:
    pool = GuessWhat.prepare("val", n_val=3)
    assert pool.end_of_turn == "<EOU>"
    assert pool.frame() == Frame(" <EOU>", "<EOU>", ("<EOU>",))


def test_players_of_the_pool_play_its_games() -> None:
    pool = GuessWhat.prepare("test", n_test=150, max_turns=7)
    assert list(pool.players) == ["blind", "careless", "data", "consistent", "information_gain"]
    success, turns = {}, {}
    for name, new_player in pickle.loads(pickle.dumps(pool.players)).items():
        assert new_player() is not new_player()
        games = [play(new_player(), GuessWhatPartner(), sample, 7, seed) for seed, (sample, _) in enumerate(pool)]
        success[name] = sum(game.outcome["success"] for game in games) / len(games)
        turns[name] = max(len(game.said) for game in games) // 2
        assert all(parse(game.said[-2].text).is_guess for game in games)  # type: ignore[union-attr]
    assert min(success, key=lambda name: success[name]) == "blind"
    assert max(success, key=lambda name: success[name]) == "information_gain"
    assert set(turns.values()) == {7}
    assert pool.split([0.5])[0].players == pool.players


def test_other_pools_have_no_players() -> None:
    assert TextGenPool([]).players == {}


@pytest.mark.parametrize(
    "args, message",
    [
        ({"n_train": 0}, "n_train must be a whole number of at least 1, not 0"),
        ({"n_val": -1}, "n_val must be a whole number of at least 1, not -1"),
        ({"n_test": 2.5}, "n_test must be a whole number of at least 1, not 2.5"),
        ({"max_turns": 0}, "max_turns must be a whole number of at least 1, not 0"),
        ({"max_turns": True}, "max_turns must be a whole number of at least 1, not True"),
        ({"consistent_share": 1.5}, "consistent_share must be a number from 0 to 1, not 1.5"),
        ({"consistent_share": float("nan")}, "consistent_share must be a number from 0 to 1, not nan"),
        ({"consistent_share": "half"}, "consistent_share must be a number from 0 to 1, not 'half'"),
        ({"format": "chat_template"}, "format 'chat_template' needs a tokenizer"),
    ],
)
def test_bad_argument_is_an_error_that_names_it(args: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        GuessWhat.prepare("train", **args)


def test_unknown_split_is_an_error() -> None:
    with pytest.raises(DataError, match="unknown split 'dev'"):
        GuessWhat.prepare("dev")


def test_registry_checks_arguments_of_a_config() -> None:
    DataPoolRegistry.check("guess_what", {"n_train": 10, "consistent_share": 0.5, "max_turns": 6})
    with pytest.raises(ConfigError, match="has no argument 'max_turn'; did you mean 'max_turns'"):
        DataPoolRegistry.check("guess_what", {"max_turn": 8})
    with pytest.raises(ConfigError, match="consistent_share"):
        DataPoolRegistry.check("guess_what", {"consistent_share": 2})
