"""A study in which people talk: whom they talk to about what, what they see, what is recorded, and its results."""

import itertools
import json
from collections import Counter
from dataclasses import replace

import pytest
from echo_model import Echo
from page_client import Tab
from page_process import served_page
from pages import EXAMPLES

from rl4dialog.cli import main
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.features import features
from rl4dialog.core.protocols import Toolbox
from rl4dialog.core.types import Call, PartnerReply, Sample
from rl4dialog.data.conversations.pool import LoggedConversations
from rl4dialog.data.studies import TalkStudy, read_study
from rl4dialog.features.serving.talk_study import TalkJudging, TalkStudyPage

STUDY = TalkStudy("Talks", "Talk.", "How well?", {1: "badly", 2: "", 3: "well"}, conversations=4, max_messages=2)
GOALS = [Sample(i, "hi", [], {"partner_persona": f"You want {i}.", "history": ["hi"]}) for i in range(5)]


class Till(Toolbox):
    """Answers calls, and pays for one of the goal."""

    def reset(self, meta_info, seed):
        self.goal, self.n_right = meta_info.get("partner_persona", ""), 0

    def takes(self, said):
        return said.startswith("CALL")

    def read(self, said):
        return Call("", problem="")

    def answer(self, said, is_cut=False):
        self.n_right += said.removeprefix("CALL ") in self.goal.upper()
        return PartnerReply("sold", call=Call("x"), leaves="last" in said.lower())

    def outcome(self):
        return {"right_call": float(self.n_right > 0)}


def judging(file, study=STUDY):
    models = [Echo("better"), Echo("worse")]
    models[0].toolbox = models[1].toolbox = Till()
    return TalkJudging(study, models, GOALS, file)


def talk(found, rater, text="hello", rating=None):
    found.say(rater, found.current(rater).id, text)
    model = found._talks[rater].model
    found.pick(rater, found.current(rater).id, 0, rating or ("3" if model == 0 else "1"))


def rows_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_models_and_goals_are_balanced_and_no_name_is_shown(tmp_path):
    found = judging(tmp_path / "answers.jsonl")
    for _ in range(4):
        for rater in map(str, range(10)):  # ten people at the same time
            assert "better" not in str(found.current(rater)) and "worse" not in str(found.current(rater))
        for rater in map(str, range(10)):
            talk(found, rater)
    rows = rows_of(tmp_path / "answers.jsonl")
    own = [[row for row in rows if row["rater"] == rater] for rater in map(str, range(10))]
    assert all(Counter(row["system"] for row in each) == {"better": 2, "worse": 2} for each in own)
    assert all(len({row["meta_data"]["goal"] for row in each}) == 4 for each in own)
    for place in range(4):
        assert Counter(each[place]["system"] for each in own) == {"better": 5, "worse": 5}
    about = Counter((row["system"], row["meta_data"]["goal"]) for row in rows)
    assert len(about) == 10 and max(about.values()) - min(about.values()) <= 2
    assert found.current("0") is None and found.counts("0") == (4, 0)


def test_calls_are_counted_and_not_shown(tmp_path):
    found = judging(tmp_path / "answers.jsonl")
    goal = found.current("ann").persona
    *_, number = goal.rstrip(".").split()
    found.say("ann", found.current("ann").id, f"call want {number}")
    shown = found.current("ann")
    assert [*shown.turns, shown.replies[0].text] == [f"call want {number}", "SOLD"]
    found.say("ann", shown.id, "call last")
    shown = found.current("ann")
    assert shown.replies[0].text == "(It used its system, and says nothing more.)"
    found.pick("ann", shown.id, 0, "2")
    (row,) = rows_of(tmp_path / "answers.jsonl")
    assert [each["role"] for each in row["messages"]] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert row["outcome"] == {"right_call": 1.0} and row["ratings"] == {"rating": 2}
    (dialogue,) = LoggedConversations.prepare("train", tmp_path / "answers.jsonl").conversations()
    assert dialogue.meta_data["goal"] == goal and dialogue.outcome == {"right_call": 1.0}


def test_conversation_is_rated_after_it_began_and_has_an_end(tmp_path):
    found = judging(tmp_path / "answers.jsonl")
    shown = found.current("ann")
    assert found.options(shown, None) == {} and shown.replies[0].text == "Please write the first message."
    with pytest.raises(ConfigError, match="an answer must be one of"):
        found.pick("ann", shown.id, 0, "3")
    with pytest.raises(ConfigError, match="cannot be empty"):
        found.say("ann", shown.id, " ")
    for _ in range(2):
        found.say("ann", found.current("ann").id, "hello")
    with pytest.raises(ConfigError, match="out of date"):
        found.say("ann", shown.id, "again")
    with pytest.raises(ConfigError, match="please rate it"):
        found.say("ann", found.current("ann").id, "again")
    assert not (tmp_path / "answers.jsonl").exists()


def test_study_continues_where_it_stopped_and_its_file_has_nothing_else(tmp_path):
    file = tmp_path / "answers.jsonl"
    found = judging(file)
    talk(found, "ann")
    again = judging(file)
    assert again.counts("ann") == (1, 3) and again._talk("ann").model != again._held[0].model
    with pytest.raises(ConfigError, match="answers of another study than the study 'Other' with better and worse"):
        judging(file, replace(STUDY, title="Other"))
    with pytest.raises(DataError, match=r"5 different goals in meta_data.*each person has 6 conversations"):
        judging(tmp_path / "new.jsonl", replace(STUDY, conversations=6))


def test_page_hides_names_and_takes_messages_and_ratings(tmp_path):
    file = tmp_path / "answers.jsonl"
    with served_page(lambda: TalkStudyPage(judging(file))) as address:
        tab = Tab(address)
        assert tab.props["intro"]["visible"] and not tab.props["text"]["visible"]
        tab.act("begin", rater="Ann")
        assert "Your goal: You want" in str(tab.value("help")) and tab.options() == []
        tab.act("send", text="hello")
        assert tab.turns() == ["hello", "HELLO"] and tab.options() == ["1", "2", "3"]
        tab.choose("2", name="choose")
        assert "Your answer was saved: 2." in tab.status and "(1 of 4 done)" in str(tab.value("help"))
        assert not {"better", "worse"} & set(str(tab.props).split())
    assert rows_of(file)[0]["rater"] == "ann"


@pytest.mark.skipif("feedback" not in features(), reason="results are of the feature feedback")
def test_results_have_intervals_over_people(tmp_path, capsys):
    file, folder = tmp_path / "answers.jsonl", tmp_path / "results"
    found = judging(file)
    for rater, _ in itertools.product(map(str, range(6)), range(4)):
        talk(found, rater, rating="2" if rater == "0" else None)
    assert main(["study-results", "--feedback", str(file), "--output_dir", str(folder)]) == 0
    assert "Talks: 24 conversations of 6 people" in capsys.readouterr().out
    means = json.loads((folder / "summary.json").read_text())["measures"]["rating"]
    assert means["better"]["value"] == pytest.approx(17 / 6) and means["worse"]["value"] == pytest.approx(7 / 6)
    difference = means["worse - better"]
    assert difference["value"] == pytest.approx(-10 / 6)
    low, high = difference["interval"]
    assert low == -2 and -2 < high < 0
    assert (folder / "answers.csv").read_text().splitlines()[0] == "rater,model,goal,rating,messages,right_call"


def test_study_of_the_docs_is_read():
    assert read_study(EXAMPLES / "study_talks.yml", TalkStudy).conversations == 4
