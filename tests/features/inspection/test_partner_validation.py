"""What partners say beside what people say: measures, classifier, verdict, faults, and the command."""

import json
import math
import random
from types import SimpleNamespace

import pytest
from rated import write_lines
from runs import make_config, write_config
from tiny import make_gpt2, make_tokenizer

from rl4dialog.cli import main
from rl4dialog.core.config_blocks import ComponentConfig
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER, TOOL, Dialogue, Turn
from rl4dialog.features.inspection import partner_validation
from rl4dialog.features.inspection.partner_validation import (
    UserSide,
    check_enough,
    classify,
    compare_partners,
    language_models,
    perplexity_row,
    user_side,
)

AUC = "single utterances (AUC of a classifier)"
OPENINGS = ["hi there", "hello , can you help me ?", "hey", "good morning"]
THANKS = ["thanks , bye", "thank you so much !", "great , goodbye", "ok"]
WAYS = ["my name is {}", "{}", "it's {} , please", "sorry , {} of course", "that would be {}"]


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    monkeypatch.setattr(partner_validation, "N_RESAMPLES", 40)


def goal_of(i):
    values = [random.Random(i).choice(names) for names in (("Ann", "Bob", "Cleo"), ("Castle", "Harbour", "Zoo"))]
    return f"You are {values[0]} and want a ride to {values[1]} at {i % 9 + 1} pm.", [*values, f"{i % 9 + 1} pm"]


def talks(first, n=40, person="p{}"):
    """People who say a value at a time, in the first turn with some chance."""
    found = []
    for i in range(first, first + n):
        goal, values = goal_of(i)
        rng = random.Random(f"people {i}")
        turns = [rng.choice(OPENINGS)] + [rng.choice(WAYS).format(value) for value in values] + [rng.choice(THANKS)]
        if rng.random() < 0.3:
            turns[0] += f" , i am {values[0]}"
        found.append(UserSide(turns, [""] * len(turns), goal, values, person.format(i % 5)))
    return found


def changed(sides, make):
    return [UserSide(turns := make(side), [""] * len(turns), side.goal, side.values) for side in sides]


def rows_of(found):
    return {row.name: row for row in found.rows}


def test_people_are_like_people_and_rules_are_not():
    people, others = talks(0), talks(100)
    rules = changed(people, lambda side: ["I need a ride .", *(f"The value is {value} ." for value in side.values)])
    of_people, of_rules = compare_partners(people, others, {"people": talks(200), "rules": rules})
    assert rows_of(of_people)[AUC].verdict == "like" and rows_of(of_people)[AUC].partner.value < 0.65
    assert rows_of(of_rules)[AUC].verdict == "unlike" and rows_of(of_rules)[AUC].partner.value > 0.9
    assert rows_of(of_rules)["values said in any turn"].verdict == "like"
    assert (
        of_rules.verdict.startswith("talks like people in values said in any turn") and "; not in " in of_rules.verdict
    )
    assert any("value" in each for each in of_rules.giveaways) and not of_people.faults


def test_auc_is_that_of_pairs():
    """The classifier cannot tell equal texts apart, and always tells texts without a common word apart."""
    same = [UserSide(["yes please"], [""], "", ())] * 12
    other = [UserSide(["well of course"], [""], "", ())] * 12
    assert classify(same, same).auc.value == pytest.approx(0.5)
    assert classify(other, same).auc.value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda side: ["a ride"] * 5, "it repeats itself: 80% of its turns"),
        (lambda side: ["no thanks"], "it ends at once: 1.0 turns per conversation, people 5.0"),
        (lambda side: [side.goal, "ok", "thanks", "bye"], "it tells everything at once in 100% of its conversations"),
    ],
)
def test_useless_partners_are_named(make, fault):
    (found,) = compare_partners(people := talks(0), talks(100), {"partner": changed(people, make)})
    assert any(fault in each for each in found.faults)


def test_logs_without_goals_and_with_one_person_are_named():
    people = [UserSide(side.turns, side.heard, "", (), "me") for side in talks(0)]
    (found,) = compare_partners(people, [], {"partner": talks(100)})
    assert any("are of one person" in each for each in found.faults)
    assert any("have no goals" in each for each in found.faults)
    assert rows_of(found)["values said in the first turn"].problem == "the conversations of people have no goals"
    assert rows_of(found)["questions"].partner is not None and rows_of(found)[AUC].others is None


def test_ten_turns_are_too_few():
    with pytest.raises(DataError, match="partner x: 10 utterances of the user in 2 conversations are too few"):
        check_enough(talks(0, n=2), "partner x")


def test_contradictions_are_what_nobody_said():
    goal, values = goal_of(0)
    known = [UserSide(["hi"], [""], *goal_of(i)) for i in range(20)]
    said = {f"i am {values[0]}": 0.0, "at 11 pm": 1.0, "to the zoo , or the castle , or the harbour": 1.0, "yes": 0.0}
    for text, found in said.items():
        (row,) = [
            row
            for row in compare_partners([*known], [], {"x": [UserSide([text], [""], goal, values)] * 2})[0].rows
            if row.name == "values that contradict the goal"
        ]
        assert row.partner.value == found, text


def test_calls_and_given_utterances_are_not_the_users():
    turns = [(PARTNER, "given"), (AGENT, "Where ?"), (PARTNER, "home"), (AGENT, "call ride to=home"), (TOOL, "booked")]
    turns += [(AGENT, "It is booked ."), (PARTNER, "bye")]
    info = {"partner_persona": "You want to go to Zoo at 3 pm.", "user": 7}
    dialogue = Dialogue(0, tuple(Turn(text, speaker) for speaker, text in turns), meta_data=info, n_given=1)
    side = user_side(dialogue, "partner_persona", "user", is_of_people=False)
    assert side.turns == ["home", "bye"] and side.heard == ["Where ?", "Where ? It is booked ."]
    assert side.values == ("Zoo", "3 pm") and side.person == "7" and not side.is_whole
    assert user_side(dialogue, "partner_persona", "user", is_of_people=True).turns[0] == "given"


def test_perplexity_is_that_of_the_users_turns(tmp_path):
    tokenizer = make_tokenizer(marker="<EOU>")
    tokenizer.save_pretrained(tmp_path)
    make_gpt2(tokenizer).save_pretrained(tmp_path)
    chosen = ComponentConfig(id="language_model", args={"model_name": str(tmp_path)})
    args = SimpleNamespace(partner=chosen, max_prompt_length=12, max_partner_length=None, max_episode_length=6)
    ((name, partner),) = language_models(SimpleNamespace(env=SimpleNamespace(args=args)))
    assert name == "language_model" and partner.side.max_length == 6
    turns = [(PARTNER, "hello"), (AGENT, "hi"), (PARTNER, "bye now")]
    dialogue = Dialogue(0, tuple(Turn(text, speaker) for speaker, text in turns), meta_data={"partner_persona": "me"})
    row = perplexity_row(partner, [dialogue] * 3, 4, 0)
    assert 1 < row.partner.value < 1e4 and math.isfinite(row.partner.value)


def log_of(sides):
    for i, side in enumerate(sides):
        said = [turn for text in side.turns for turn in (("user", text), ("assistant", "ok ."))]
        messages = [{"role": role, "content": text} for role, text in said]
        info = {"partner_persona": side.goal, "goal_values": [*side.values], "user": side.person}
        yield {"version": 1, "id": i, "messages": messages, "n_given": 0, "meta_data": info}


def test_command_writes_a_page_with_a_verdict(tmp_path, capsys):
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    write_lines(train, log_of(talks(0, person="a{}")))
    write_lines(test, log_of(talks(100)))
    pool = {
        "id": "conversations",
        "args": {"path": {name: str(test if name == "test" else train) for name in ("train", "val", "test")}},
    }
    config = write_config(tmp_path, make_config(tmp_path, datapool=pool))
    simulated = tmp_path / "rules.jsonl"
    write_lines(simulated, log_of(changed(talks(200), lambda side: ["The goal :", *side.values, "The end ."])))
    command = ["validate-partner", "--config_path", str(config), "--output_path", str(tmp_path / "out"), "--partner"]
    assert main([*command, f"rules={simulated}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "rules talks like people in" in printed and "not in" in printed
    found = json.loads((tmp_path / "out" / "partners.json").read_text())
    assert found["verdicts"]["rules"].startswith("talks like people in")
    rows = {row["name"]: row for row in found["partners"][0]["rows"]}
    assert rows["values said in any turn"]["partner"]["value"] == 1
    asked = rows["questions"]["people"]
    assert 0 < asked["interval"]["low"] < asked["value"] < asked["interval"]["high"] < 1
    page = (tmp_path / "out" / "partners.html").read_text()
    assert "It talks like people in" in page and "What gives it away" in page
    assert main([*command, str(simulated)]) == 2
    assert "NAME=FILE" in capsys.readouterr().err
