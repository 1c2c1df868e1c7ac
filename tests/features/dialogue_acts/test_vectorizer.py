"""Observations: every bit has a name, and means what its name says."""

import numpy as np
import pytest
from worlds import ONTOLOGY, tiny_world

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.tasks.acts import DialogueAct, delexicalized
from rl4dialog.features.dialogue_acts.tasks.dialogue import BeliefState
from rl4dialog.features.dialogue_acts.tasks.vectorizer import DEFAULT_BLOCKS, ActVectorizer

WORLD = tiny_world()


def vectorizer(blocks=DEFAULT_BLOCKS):
    return ActVectorizer(WORLD, blocks)


def set_bits(blocks, belief, heard, progress=0.0):
    made = vectorizer(blocks)
    silence = np.zeros(len(WORLD.system_acts), np.int8)
    bits = made.observation(delexicalized(heard), silence, belief, progress)
    layout = made.layout
    assert len(layout) == len(bits) and set(np.unique(bits)) <= {0, 1}
    return {str(name) for name, bit in zip(layout, bits, strict=True) if bit}


def heard_belief(*acts):
    belief = BeliefState(ONTOLOGY)
    belief.hear(acts)
    return belief


def test_blocks_say_what_is_believed_asked_and_found():
    thai = DialogueAct("inform", "restaurant", "food", "thai")
    phone = DialogueAct("request", "restaurant", "phone")
    belief = heard_belief(thai, phone)
    assert len(set_bits(["user_acts"], belief, [thai, phone])) == 2
    assert set_bits(["belief"], belief, []) == set_bits(["belief"], heard_belief(thai), [])
    assert len(set_bits(["belief"], belief, [])) == len(set_bits(["requests"], belief, [])) == 1
    assert set_bits(["offered"], belief, []) == set_bits(["booked"], belief, []) == set()
    belief.say([DialogueAct("inform", "restaurant", "name", "x"), DialogueAct("book", "restaurant", "ref", "1")])
    assert len(set_bits(["offered"], belief, [])) == len(set_bits(["booked"], belief, [])) == 1


def test_number_of_entities_has_a_bit_per_domain():
    everything = set_bits(["db"], BeliefState(ONTOLOGY), [])
    nothing = set_bits(["db"], heard_belief(DialogueAct("inform", "restaurant", "food", "indian")), [])
    assert len(everything) == len(nothing) == 2, "taxis are made up, and not counted"
    assert len(everything - nothing) == 1
    belief = BeliefState(ONTOLOGY)
    counts = [len(set_bits(["turn"], belief, [], progress)) for progress in (0.0, 0.05, 0.5, 0.95)]
    assert counts == sorted(counts) and counts[0] < counts[-1] == 10


@pytest.mark.parametrize(
    ("blocks", "message"),
    [(["belief", "beliefs"], "beliefs"), (["db", "db"], "different blocks"), ([], "block")],
    ids=["unknown", "twice", "none"],
)
def test_wrong_blocks_are_refused(blocks, message):
    with pytest.raises(ConfigError, match=message):
        vectorizer(blocks)
