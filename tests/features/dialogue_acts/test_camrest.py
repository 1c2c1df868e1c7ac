"""CamRest676, from files in ConvLab-2's format."""

import json
import zipfile

import pytest
from stand_in_data import write_original

from rl4dialog.core.errors import DataError
from rl4dialog.features.dialogue_acts.tasks.acts import DialogueAct
from rl4dialog.features.dialogue_acts.tasks.camrest import camrest


@pytest.fixture
def folder(tmp_path):
    return write_original("camrest", tmp_path)


def edited(folder, split, **goal):
    path = folder / f"{split}.json"
    dialogues = json.loads(path.read_text())
    dialogues[0]["goal"] |= goal
    path.write_text(json.dumps(dialogues))


def test_acts_goals_and_entities_are_read(folder):
    world = camrest(str(folder), min_count=1)
    assert DialogueAct("request", "restaurant", "phone") in world.user_acts
    assert DialogueAct("inform", "restaurant", "name", "1") in world.system_acts
    turn = world.dialogues["train"][0].turns[0]
    assert turn.user[0] == DialogueAct("inform", "restaurant", "food", "thai")
    assert (turn.user_text, turn.system_text) == ("thai food in the north?", "Try thai.")
    assert world.goals["val"][0].domains["restaurant"].info == {"food": "greek", "area": "north"}
    assert world.database.query("restaurant", {"food": "french"}) == (2,)


def test_first_wish_is_read_from_the_text(folder):
    text = "It should serve russian food. If there is no such venue how about greek type of food."
    edited(folder, "val", text=text)
    goal = camrest(str(folder), min_count=1).goals["val"][0].domains["restaurant"]
    assert (goal.fail_info, goal.first_info["food"], goal.info["food"]) == ({"food": "russian"}, "russian", "greek")


def test_unreachable_goals_are_dropped_or_an_error(folder, caplog):
    edited(folder, "test", info={"food": "french", "area": "south"})
    assert len(camrest(str(folder), min_count=1).goals["test"]) == 3
    assert "camrest, test: dropped 1 goal(s) that the database cannot satisfy" in caplog.text
    with pytest.raises(DataError, match=r"camrest, test: 1 goal.* cannot be reached"):
        camrest(str(folder), min_count=1, on_unreachable="error")


def test_archives_are_read(folder):
    text = (folder / "val.json").read_text()
    (folder / "val.json").unlink()
    with zipfile.ZipFile(folder / "val.json.zip", "w") as archive:
        archive.writestr("val.json", text)
    assert len(camrest(str(folder), min_count=1).dialogues["val"]) == 4


@pytest.mark.parametrize(("split", "other"), [("train", "val"), ("val", "test"), ("test", "val")])
def test_missing_split_is_named_with_the_key_of_another(folder, split, other):
    (folder / f"{split}.json").unlink()
    hint = rf"Another split can stand in for it: task\.args\.splits: {{{split}: {other}}}"
    with pytest.raises(DataError, match=rf"{split}\.json \(or {split}\.json\.zip\) is missing in .*{hint}"):
        camrest(str(folder))
    with pytest.raises(DataError, match=rf"splits: {split}: 'dev' is not a split"):
        camrest(str(folder), splits={split: "dev"})


def test_unknown_slot_is_named_with_file_dialogue_and_turn(folder):
    path = folder / "train.json"
    path.write_text(path.read_text().replace('["food", "thai"]', '["colour", "thai"]'))
    with pytest.raises(DataError, match=r"train\.json, dialogue 1, turn 1: act .*colour.*unknown slot"):
        camrest(str(folder))
