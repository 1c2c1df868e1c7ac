"""Games against their exact law, and what distinguishes partner and players."""

import functools
from functools import partial

import numpy as np
import pytest

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PartnerReply, Sample
from rl4dialog.features.games.wordle import players
from rl4dialog.features.games.wordle.datapool import generate_games, player_games
from rl4dialog.features.games.wordle.rules import NO_WORD, OPENING, PATTERN_TEXTS, Lexicon, load_words
from rl4dialog.tasks.playing import play

WORDS = ("llama", "label", "belle", "allow", "geese", "speed", "erase", "steel")
T = 6
EXPLICIT = ["random", "wrong", "repeat", "mixture", "consistent", "info_gain"]
"""Players whose weights are known; `monte_carlo` samples."""


def new(name, lexicon, letters="plain", max_turns=T, blocks=None, **args):
    return players.Game(lexicon, letters, max_turns, blocks or {}).player(name, **args)


def law(player, lexicon, redraw):
    n = len(lexicon)
    keeps_guesses = type(player) is players.RepeatPlayer

    @functools.cache
    def rest(consistent, guesses, hidden):
        found = np.zeros(T + 1)
        if len(guesses) == T:
            found[0] = 1
            return found
        possible = np.array(consistent)
        weights = player.weights(possible[None], np.array([guesses], dtype=np.int64))[0].astype(float)
        words = np.flatnonzero(possible) if hidden is None else [hidden]
        for guess in np.flatnonzero(weights):
            for word in words:
                p = weights[guess] / weights.sum() / len(words)
                if guess == word:
                    found[0] += p
                    continue
                agrees = possible & (lexicon.patterns[guess] == lexicon.patterns[guess, word])
                later = (*guesses, int(guess)) if keeps_guesses else (*guesses, 0)
                found[1:] += p * rest(tuple(agrees), tuple(sorted(later)), hidden)[:-1]
        return found

    start = (True,) * n
    if redraw:
        return rest(start, (), None)
    return np.mean([rest(start, (), hidden) for hidden in range(n)], axis=0)


@pytest.mark.parametrize("duplicates", ["simple", "official"])
@pytest.mark.parametrize("name", EXPLICIT)
def test_hidden_word_and_redrawn_word_have_one_law(name, duplicates):
    lexicon = Lexicon(WORDS, duplicates)
    player = new(name, lexicon)
    hidden = law(player, lexicon, redraw=False)
    assert hidden.sum() == pytest.approx(1)
    assert hidden == pytest.approx(law(player, lexicon, redraw=True), abs=1e-12)


@pytest.mark.parametrize("name", EXPLICIT)
def test_games_follow_the_law(name):
    lexicon, n = Lexicon(WORDS), 20_000
    player = new(name, lexicon)
    expected = law(player, lexicon, redraw=False)
    games = generate_games(partial(player_games, lexicon, player.choose, T), n, seed=1)
    found = np.bincount(-games.returns, minlength=T + 1) / n
    assert found == pytest.approx(expected, abs=0.02)  # of four standard errors, at most 0.015
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / n) + 1e-12).all()


@pytest.mark.parametrize("name", EXPLICIT)
def test_conversations_follow_the_law(name):
    lexicon, n = Lexicon(WORDS), 400
    returns = []
    for i in range(n):
        sample = Sample(i, OPENING, [], {"history": [OPENING], "word": WORDS[i % len(WORDS)]})
        game = play(new(name, lexicon), players.WordlePartner(), sample, T, seed=i)
        returns.append(sum(turn.reward for turn in game.said))
    expected = law(new(name, lexicon), lexicon, redraw=False)
    mean = -np.arange(T + 1) @ expected
    error = np.sqrt((np.arange(T + 1) + mean) ** 2 @ expected / n)
    assert np.mean(returns) == pytest.approx(mean, abs=4 * error + 1e-9)


def test_information_gain_has_its_exact_return():
    lexicon = Lexicon(load_words(240))

    @functools.cache
    def total(words, turn):
        if turn == T:
            return 0.0
        consistent = np.isin(np.arange(240), words)
        best = lexicon.most_informative(consistent)
        found = 0.0
        for guess in best:
            parts = {}
            for word in words:
                parts.setdefault(int(lexicon.patterns[guess, word]), []).append(word)
            parts.pop(len(PATTERN_TEXTS) - 1)  # the guess itself
            found += sum(total(tuple(part), turn + 1) - len(part) for part in parts.values())
        return found / len(best)

    player, n = new("info_gain", lexicon), 10_000
    returns = generate_games(partial(player_games, lexicon, player.choose, T), n, seed=0).returns
    error = returns.std() / np.sqrt(n)
    assert returns.mean() == pytest.approx(total(tuple(range(240)), 0) / 240, abs=4 * error)


def test_begun_games_keep_their_guesses():
    lexicon = Lexicon(WORDS)
    begun = np.array(
        [
            [1, 2, players.NO_GUESS],
            [3, players.NO_GUESS, players.NO_GUESS],
            [players.NO_GUESS] * 3,
            [4, 0, players.NO_GUESS],
        ]
    )
    words = np.array([0, 0, 0, 0])
    asked = []

    def choose(consistent, guesses, rng):
        asked.append((guesses.tolist(), consistent.copy()))
        return np.full(len(guesses), 7)

    guesses = players.play_games(lexicon, choose, words, np.random.default_rng(0), 3, begun)
    assert guesses.tolist() == [[1, 2, 7], [3, 7, 7], [7, 7, 7], [4, 0, players.NO_GUESS]]
    assert [each for each, _ in asked] == [[[]], [[3], [7]], [[1, 2], [3, 7], [7, 7]]]
    (consistent,) = players.consistent_words(lexicon, words[:1], begun[:1])
    assert (asked[-1][1][0] == consistent).all()
    answered = [(WORDS[i], PATTERN_TEXTS[lexicon.patterns[i, 0]]) for i in (1, 2)]
    assert (consistent == lexicon.consistent(answered)).all()


def test_draws_follow_the_weights():
    rng = np.random.default_rng(0)
    weights = np.array([0.0, 1.0, 0.0, 3.0, 0.0])
    counts = np.bincount(players.draw(np.broadcast_to(weights, (20_000, 5)), rng), minlength=5)
    assert counts[[0, 2, 4]].sum() == 0
    assert counts[3] / 20_000 == pytest.approx(0.75, abs=0.012)

    class Extreme:
        def __init__(self, value):
            self.value = value

        def random(self, shape):
            return np.full(shape, self.value)

    tiny = np.array([[0.0, 0.1, 0.2, 0.3, 0.0]])
    for value, expected in ((0.0, 3), (np.nextafter(1.0, 0.0), 1)):
        assert players.draw(tiny, Extreme(value)).tolist() == [expected]


LEXICON = Lexicon(load_words(40))
NAMES = [*players.NAMES]


def play_one(name, seed, letters="plain", word="music"):
    sample = Sample(0, OPENING, [], {"history": [OPENING], "word": word})
    return play(new(name, LEXICON, letters), players.WordlePartner(letters), sample, 6, seed)


def agrees(name, n=1000, first=0):
    games = generate_games(partial(player_games, LEXICON, new(name, LEXICON).choose, 6), n, seed=5)
    found = []
    for turn in range(first, 6):
        made = games.guesses[:, turn] != players.NO_GUESS
        consistent = players.consistent_words(LEXICON, games.words[made], games.guesses[made, :turn])
        found += consistent[np.arange(len(consistent)), games.guesses[made, turn]].tolist()
    return found


@pytest.mark.parametrize("name", ["consistent", "info_gain"])
def test_consistent_players_never_contradict_a_colour(name):
    assert all(agrees(name))


def test_wrong_player_always_contradicts_after_the_first_guess():
    assert not any(agrees("wrong", first=1))
    assert all(agrees("wrong", first=0)[:1000])


def test_mixture_is_consistent_as_often_as_its_parts():
    chance = np.mean(agrees("random", 4000))
    found = np.mean(agrees("mixture", 4000))
    assert chance < found < np.mean(agrees("consistent", 100)) == 1
    weights = new("mixture", LEXICON, p_consistent=0.34).weights(np.arange(40)[None] < 4, np.zeros((1, 1), dtype=int))
    assert weights.sum() == pytest.approx(1)
    assert weights[0, :4].sum() == pytest.approx(0.34 + 0.66 * 4 / 40)


def test_repeat_player_repeats_begun_games_as_often_as_they_do():
    weights = new("repeat", LEXICON).weights(np.ones((2, 40), dtype=bool), np.array([[3, 5, 3], [7, 8, 9]]))
    assert weights[0, [3, 5]].tolist() == [2, 1] and weights[1, [7, 8, 9]].tolist() == [1, 1, 1]
    assert weights.sum() == 6
    first = new("repeat", LEXICON, first_n=1).weights(np.ones((1, 40), dtype=bool), np.array([[3, 5, 3]]))
    assert first.sum() == first[0, 3] == 1


def test_either_of_two_players_has_the_law_of_their_mixture():
    lexicon, n = Lexicon(WORDS), 20_000
    player = new("either", lexicon, first="consistent", second="random", p_first=0.34)
    expected = law(new("mixture", lexicon), lexicon, redraw=False)
    games = generate_games(partial(player_games, lexicon, player.choose, T), n, seed=1)
    assert np.bincount(-games.returns, minlength=T + 1) / n == pytest.approx(expected, abs=0.02)


def test_monte_carlo_over_another_player_only_makes_its_guesses():
    consistent, rng = np.arange(40)[None] < 20, np.random.default_rng(0)
    blocks = {"again": {"id": "repeat"}, "thinker": {"id": "monte_carlo", "args": {"player": "again", "n_samples": 30}}}
    again = new("thinker", LEXICON, blocks=blocks)
    assert {int(again.choose(consistent, np.array([[30, 7]]), rng)[0]) for _ in range(9)} <= {7, 30}
    wrong = new("monte_carlo", LEXICON, player="wrong", n_samples=30)
    assert all(wrong.choose(consistent, np.array([[30]]), rng)[0] >= 20 for _ in range(9))


def test_monte_carlo_player_prefers_words_that_are_probably_right():
    lexicon = Lexicon(("aaaab", "aaaac", "aaaad", "zzzzz", "bcdaa"))
    player = new("monte_carlo", lexicon, n_samples=4000)
    rng = np.random.default_rng(0)
    consistent = np.array([[True, True, True, False, False]])
    assert player.choose(consistent, np.array([[3]]), rng)[0] in (0, 1, 2)
    # bcdaa tells the three others apart, and is one of the possible words: two turns at most.
    assert player.choose(np.array([[True, True, True, False, True]]), np.array([[3]]), rng).tolist() == [4]
    player = new("monte_carlo", LEXICON, max_turns=2, n_samples=5)
    consistent = np.arange(40)[None] == 17
    assert player.choose(consistent, np.zeros((1, 4), dtype=int), np.random.default_rng(0)).tolist() == [17]


@pytest.mark.parametrize("name", NAMES)
def test_every_player_speaks_the_language_of_the_game_and_style_changes_no_guess(name):
    plain, spaced = play_one(name, 4), play_one(name, 4, "spaced")
    assert plain.outcome["malformed"] == spaced.outcome["malformed"] == 0
    assert all(text in LEXICON.index for text in plain.texts(AGENT))
    assert plain.texts(AGENT) == [text.replace(" ", "") for text in spaced.texts(AGENT)]


@pytest.mark.parametrize("name", NAMES)
def test_start_words_are_the_first_guesses_only(name):
    player = new(name, LEXICON, start_words=["music", "ocean"])
    games = generate_games(partial(player_games, LEXICON, player.choose, 3), 30, seed=0)
    assert {LEXICON.words[i] for i in games.guesses[:, 0]} == {"music", "ocean"}
    later = {LEXICON.words[i] for i in games.guesses[:, 1] if i != players.NO_GUESS}
    assert name == "repeat" or not later <= {"music", "ocean"}


@pytest.mark.parametrize("name", NAMES)
def test_strange_histories_do_not_stop_a_player(name):
    player = new(name, LEXICON)
    player.reset({}, 0)
    contradiction, unknown = (
        [OPENING, "music", "ggggg", "music", "bbbbb"],
        [OPENING, "nonsense", NO_WORD, "zzzzz", "bbbbb"],
    )
    for history in (contradiction, unknown, [OPENING, "music", NO_WORD], ["hello"], []):
        assert player.say(history) in LEXICON.index


def test_a_hint_without_a_word_that_agrees_says_so():
    player = new("consistent", LEXICON)
    assert player.hint([OPENING]) in LEXICON.index
    with pytest.raises(DataError, match="none of the 40 words of its list agrees with all colours"):
        player.hint([OPENING, "music", "ggggg", "music", "bbbbb"])


def test_answers_to_other_guesses_count():
    player = new("consistent", LEXICON)
    hidden = "music"
    partner = players.WordlePartner()
    partner.reset({"word": hidden}, 0)
    history = [OPENING]
    for guess in ("mumps", "basic"):  # not in the list
        history.append(guess)
        history.append(str(partner.reply(history).text))
    for seed in range(20):
        player.reset({}, seed)
        assert player.say(history) == hidden


def hiding(word, **args):
    partner = players.WordlePartner(**args)
    partner.reset({"word": word}, seed=0)
    return partner


def test_wrong_guesses_cost_one_and_the_word_ends_the_game():
    partner = hiding("crane")
    assert partner.pays and partner.checks_samples and partner.outcomes == ("success", "malformed")
    assert partner.reply([OPENING, "clean"]) == PartnerReply("gbyyy", reward=-1.0)
    assert partner.outcome() == {"success": 0.0, "malformed": 0.0}
    assert partner.reply([OPENING, "clean", "gbyyy", "crane"]) == PartnerReply("ggggg", reward=0.0, leaves=True)
    assert partner.outcome() == {"success": 1.0, "malformed": 0.0}


@pytest.mark.parametrize("nonsense", ["", "cran", "cranes", "CRANE", "c r a n e", "bbbb ", "no word", "a" * 9999, "\0"])
def test_what_is_no_guess_costs_one_and_gets_no_colours(nonsense):
    partner = hiding("crane")
    assert partner.reply([OPENING, nonsense]) == PartnerReply("no word", reward=-1.0)
    partner.reply([OPENING, nonsense, "no word", nonsense])
    assert partner.outcome() == {"success": 0.0, "malformed": 2.0}


def test_letters_and_colours_are_those_that_are_chosen():
    partner = hiding("crane", letters="spaced")
    assert partner.reply([OPENING, "c l e a n"]) == PartnerReply("g b y y y", reward=-1.0)
    assert partner.reply([OPENING, "clean"]).text == "no word"
    assert partner.reply([OPENING, "c r a n e"]).leaves
    assert hiding("abide").reply([OPENING, "speed"]).text == "bbyyy"
    assert hiding("abide", duplicates="official").reply([OPENING, "speed"]).text == "bbyby"


def test_any_five_letters_are_a_guess_unless_a_list_is_given(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("crane\nclean\n")
    assert hiding("crane").reply([OPENING, "zzzzz"]) == PartnerReply("bbbbb", reward=-1.0)
    listed = hiding("crane", guesses="listed", path=str(path))
    assert listed.reply([OPENING, "zzzzz"]) == PartnerReply("no word", reward=-1.0)
    assert listed.reply([OPENING, "clean"]) == PartnerReply("gbyyy", reward=-1.0)
    assert hiding("music", guesses="listed", word_list=40).reply([OPENING, "crane"]).text == "no word"
    with pytest.raises(DataError, match=r"is a word of the partner's list, not 'music'; use the datapool wordle, with"):
        listed.reset({"word": "music"}, 0)


@pytest.mark.parametrize("meta_info", [{}, {"word": "cran"}, {"word": "Crane"}, {"word": None}, {"word": ["crane"]}])
def test_sample_without_a_word_is_an_error(meta_info):
    with pytest.raises(DataError, match=r"meta_data\['word'\] is five lower-case letters, not .*datapool wordle"):
        players.WordlePartner().reset(meta_info, seed=0)


@pytest.mark.parametrize(("name", "value"), [("letters", "spaced"), ("duplicates", "official")])
def test_sample_of_other_rules_is_an_error(name, value):
    meta_info = {"word": "crane", name: value}
    with pytest.raises(DataError, match=f"has {name}: (plain|simple), but the sample was made with {name}: {value}"):
        players.WordlePartner().reset(meta_info, seed=0)
    players.WordlePartner(**{name: value}).reset(meta_info, seed=0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"word_list": 40}, "word_list and path are the words that guesses: listed allows"),
        ({"path": "x.txt"}, "word_list and path are the words that guesses: listed allows"),
        ({"guesses": "listed"}, "neither of them is given"),
        ({"guesses": "listed", "word_list": 40, "path": "x.txt"}, "both of them is given"),
        ({"guesses": "listed", "path": "/no/such/file"}, "/no/such/file cannot be read"),
    ],
)
def test_list_without_use_and_use_without_list_are_errors(args, message):
    PartnerRegistry.check("wordle", args)
    with pytest.raises(DataError, match=message):
        PartnerRegistry.get("wordle", args)


def test_law_of_blind_guesses_is_geometric():
    lexicon = Lexicon(WORDS)
    expected = [(7 / 8) ** k / 8 for k in range(T)] + [(7 / 8) ** T]
    assert law(new("random", lexicon), lexicon, redraw=False) == pytest.approx(expected)
    first = [1 / 8] + [0] * (T - 1) + [7 / 8]
    assert law(new("repeat", lexicon), lexicon, redraw=False) == pytest.approx(first)


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [("mixture", 240, -3.829), ("consistent", 240, -2.127), ("mixture", 40, -3.063), ("consistent", 40, -1.485)],
)
def test_returns_are_those_measured(name, words, expected):
    lexicon, n = Lexicon(load_words(words)), 5000
    returns = generate_games(partial(player_games, lexicon, new(name, lexicon).choose, T), n, seed=3).returns
    assert returns.mean() == pytest.approx(expected, abs=4 * returns.std() * np.sqrt(1 / n + 1 / 20_000))
