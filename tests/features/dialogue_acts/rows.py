"""Rows of this feature in tables of tests about all components."""

import functools

import pytest
from cafe_agent import Cafe
from multiwoz_files import write_multiwoz
from stand_in_data import write_original

from rl4dialog.features.dialogue_acts.task_chat import TaskPage, TaskTerminalChat
from rl4dialog.features.dialogue_acts.tasks.camrest import camrest
from rl4dialog.features.dialogue_acts.tasks.multiwoz import multiwoz
from rl4dialog.features.dialogue_acts.tasks.town_guide import town_guide


def talk_about_a_goal(tab):
    tab.wait_until_ready()
    tab.send("<b>is</b> there tea ?")
    tab.wait_until_usable()
    tab.write("#text textarea", "bye\n")
    tab.wait_for(lambda: "Success: the goal is reached." in tab.one("#chat-0").text, "success")


USED_PAGES = [(lambda file: TaskPage(Cafe), talk_about_a_goal)]
LABELLED_PAGES = [(lambda file: TaskPage(Cafe), 3)]
TERMINALS = {TaskTerminalChat: Cafe()}
POOLS_WITHOUT_FILES = {"task_dialogues": {}}
OFFERED_TO_POOLS = {"world": functools.partial(town_guide, n_dialogues=20)}
TASK_FILES = [
    pytest.param(
        functools.partial(write_original, "camrest"),
        lambda folder: camrest(folder, min_count=1),
        ("db/CamRestDB", "val"),
        id="camrest",
    ),
    pytest.param(
        write_multiwoz,
        lambda folder: multiwoz(folder, splits={"train": "val"}, min_count=1),
        ("db/hotel_db", "db/taxi_db", "val"),
        id="multiwoz",
    ),
]
