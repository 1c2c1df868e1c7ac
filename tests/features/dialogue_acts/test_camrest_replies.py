"""What the simulated user understands of people: replies of CamRest's test dialogues, labelled by hand.

`camrest_replies.tsv` has 100 agent replies, drawn with seed 0, with placeholders in place of values, and their acts.
CamRest676: Wen et al. 2017 (arXiv 1604.04562).
"""

from pathlib import Path

from rl4dialog.features.dialogue_acts.tasks.acts import GENERAL, INFORM, NO_OFFER, REQUEST, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.camrest import ONTOLOGY, RESTAURANT
from rl4dialog.features.dialogue_acts.tasks.ontology import Database
from rl4dialog.features.dialogue_acts.tasks.placeholders import ReplyReader
from rl4dialog.features.dialogue_acts.tasks.templates import Templates

ABOUT_A_RESTAURANT = (INFORM, REQUEST, NO_OFFER)


def labelled(label):
    intent, slot, number = [*label.split(":"), "", ""][:3]
    domain = RESTAURANT if intent in ABOUT_A_RESTAURANT else GENERAL
    return DialogueAct(intent, domain, slot, (number or "1") if intent == INFORM else "")


def test_acts_have_an_f1_above_ninety_percent():
    reader = ReplyReader(Templates(Database(ONTOLOGY, {RESTAURANT: []})))
    n_right = n_read = n_wanted = 0
    for line in Path(__file__).with_name("camrest_replies.tsv").read_text(encoding="utf-8").splitlines():
        text, labels = line.split("\t")
        wanted, read = set(map(labelled, labels.split())), set(reader.read(text))
        n_right, n_read, n_wanted = n_right + len(wanted & read), n_read + len(read), n_wanted + len(wanted)
    assert n_wanted == 271
    assert 2 * n_right / (n_read + n_wanted) > 0.99
