import random
import sys

import pytest
from pages import yaml_of
from runs import make_config

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, DataError, PartnerError
from rl4dialog.core.types import Sample
from rl4dialog.data.pool import SPLITS
from rl4dialog.features.games.text_arena import TextArenaGames, TextArenaPartner, TextArenaPlayer, random_move
from rl4dialog.tasks.playing import play
from rl4dialog.training.building.components import check_components

TIC_TAC_TOE = {"game": "TicTacToe-v0", "n_players": 2, "opponent": "random"}
GUESSING = {"game": "GuessTheNumber-v0"}


def test_the_package_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena.envs.registration", None)
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(ConfigError, match=r"pip install 'rl4dialog\[textarena\]'"):
        TextArenaPartner(**GUESSING)


@pytest.fixture(autouse=True)
def _needs_the_package(request):
    if "missing" not in request.node.name:
        pytest.importorskip("textarena")


def bisect(text):
    low, high = 1, 20
    guesses = [int(word[1:-1]) for word in text.split() if word[:1] == "[" and word[1:-1].isdigit()]
    for number, hint in zip(
        guesses, [line for line in text.lower().splitlines() if "target number" in line], strict=False
    ):
        low, high = (number + 1, high) if "higher" in hint else (low, number - 1)
    return f"[{(low + high) // 2}]"


def test_invalid_moves_lose_and_are_counted():
    partner = TextArenaPartner(**TIC_TAC_TOE)
    partner.reset({}, seed=0)
    warned = partner.reply([partner.open(), "hello"])
    assert not warned.leaves and warned.text is not None and "invalid move" in warned.text
    lost = partner.reply([partner.open(), "hello", warned.text, "hello"])
    assert lost.leaves and lost.reward == -1.0
    assert partner.outcome() == {"success": 0.0, "invalid_move": 1.0}


def moves_of(seed, n_other_draws=0):
    partner, other = (TextArenaPartner(**TIC_TAC_TOE, position=position) for position in (0, 1))
    partner.reset({}, seed)
    seen, is_over = [partner.open()], False
    random.seed(n_other_draws)
    while not is_over:
        for _ in range(n_other_draws):
            random.random()
            other.reset({}, random.randrange(100))
        free = [str(i) for i in range(9) if f"[{i}]" in seen[-1].rsplit("Moves", 1)[-1]]
        reply = partner.reply([f"[{free[0]}]"])
        seen.append(reply.text)
        is_over = reply.leaves
    return seen


def test_games_of_one_process_do_not_disturb_each_other():
    assert moves_of(5) == moves_of(5, n_other_draws=2) != moves_of(6)
    before = random.getstate()
    TextArenaPartner(**TIC_TAC_TOE, position=1).reset({}, 7)
    assert random.getstate() == before


def test_the_agent_sees_others_moves_and_only_the_last_board():
    partner = TextArenaPartner(**TIC_TAC_TOE, position=1)
    partner.reset({}, 1)
    opening = partner.open()
    assert "You are Player 1" in opening and "Player 0: [" in opening
    assert opening.count("Current Board") == 1
    free = random_move(opening)
    shown = partner.reply([opening, free]).text
    assert shown.count("Current Board") == 1 and f"Player 1: {free}" not in shown


def test_random_moves_are_the_last_listed_ones():
    text = "For example [9]. Available Moves: '[0]', '[1]'\nPlayer 1: [0]\nAvailable Moves: '[1]', '[a b]'"
    assert {random_move(text) for _ in range(50)} == {"[1]", "[a b]"}
    with pytest.raises(DataError, match="does not list the possible moves"):
        random_move("Guess [a number]")


def test_samples_begin_as_the_partners_games():
    pools = {
        split: TextArenaGames.prepare(split, **TIC_TAC_TOE, player="random", n_train=4, n_val=4, n_test=4)
        for split in SPLITS
    }
    seeds = {pool[i][0].meta_data["game_seed"] for pool in pools.values() for i in range(4)}
    assert len(seeds) == 12
    partner = TextArenaPartner(**TIC_TAC_TOE)
    for i in range(4):
        sample = pools["test"][i][0]
        said = [*sample.references, *sample.meta_data["continuation"]]
        partner.reset(sample.meta_data, seed=99)
        history = list(sample.meta_data["history"])
        for move, answer in zip(said[::2], said[1::2], strict=True):
            reply = partner.reply([*history, move])
            assert reply.text == answer
            history += [move, answer]
        assert reply.leaves
    other = pools["val"][0][0]
    changed = {**other.meta_data, "history": ["something else"]}
    with pytest.raises(DataError, match="begins differently"):
        partner.reset(changed, seed=0)


def test_players_are_functions_too():
    pool = TextArenaGames.prepare("test", **GUESSING, player=f"{__name__}:bisect", n_test=3)
    assert set(pool.players) == {"random", f"{__name__}:bisect"}
    for i in range(3):
        dialogue = play(TextArenaPlayer(f"{__name__}:bisect"), TextArenaPartner(**GUESSING), pool[i][0], 10, seed=i)
        assert dialogue.outcome == {"success": 1.0, "invalid_move": 0.0}


def test_a_fault_of_a_game_loses_one_conversation(monkeypatch):
    partner = TextArenaPartner(**GUESSING)
    partner.reset({}, seed=0)
    monkeypatch.setattr(partner, "_step", lambda text: 1 / 0)
    reply = partner.reply([partner.open(), "[3]"])
    assert reply.failed == "ZeroDivisionError: division by zero"
    with pytest.raises(PartnerError, match="division by zero"):
        play(TextArenaPlayer(f"{__name__}:bisect"), partner, Sample("0", "", [], {}), 3, seed=0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"game": "TicTacToe"}, "did you mean 'TicTacToe-v0'"),
        ({"game": "TicTacToe-v0-train", "n_players": 2, "opponent": "random"}, "unknown game"),
        ({"game": "TicTacToe-v0", "n_players": 2}, "with several players, set opponent"),
        ({**GUESSING, "opponent": "random"}, "with one player, leave it out"),
        ({**TIC_TAC_TOE, "position": 2}, "position must be from 0 to 1"),
        ({**TIC_TAC_TOE, "opponent": "no_such_module:move"}, "must be random or a function as module:function"),
        ({**TIC_TAC_TOE, "opponent": "random.choice"}, "must be random or a function as module:function"),
        ({**TIC_TAC_TOE, "opponent": "sys:path"}, "is no function"),
    ],
)
def test_bad_arguments_are_refused(args, message):
    with pytest.raises(ConfigError, match=message):
        TextArenaPartner(**args)


def test_a_game_that_cannot_begin_says_why():
    with pytest.raises(DataError, match=r"TicTacToe-v0 cannot begin with 3 player\(s\)"):
        TextArenaGames.prepare("test", game="TicTacToe-v0", n_players=3, opponent="random", n_test=1)
    with pytest.raises(DataError, match=r"settings .*sides"):
        TextArenaGames.prepare("test", **GUESSING, settings={"sides": 3}, n_test=1)


def test_config_by_example_is_valid(tmp_path):
    arena, config = yaml_of("docs/games.md"), make_config(tmp_path)
    config |= {"datapool": arena["datapool"], "reward_fn": arena["reward_fn"]}
    config["env"]["args"] |= arena["env"]["args"]
    check_components(parse_config(config, "docs/games.md"))
