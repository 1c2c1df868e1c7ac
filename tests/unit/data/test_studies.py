"""Studies and their raters."""

import pytest
from studies import PREFERENCE, QUALITY, REPLIES

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.feedback import JudgedReply, QueuedReplies
from rl4dialog.data.studies import rater_of, read_study


@pytest.mark.parametrize("name", ["reply_quality", "conversation_quality", "preference"])
def test_shipped_studies_are_read(name):
    study = read_study(f"docs/examples/study_{name}.yml")
    assert study.raters_per_item == 3 and study.consent and (study.bounds == (1, 5)) == (name != "preference")


def test_wrong_studies_are_refused(tmp_path):
    text = "title: T\ninstructions: I\nquestion: Q\nraters_per_item: 2\n"
    for more, problem in (
        ("scale: {1: bad, 3: good}\n", "in steps of 1, lowest first"),
        ("scale: {1: bad}\n", "at least two ratings"),
        ("rater_per_item: 3\n", "raters_per_item"),
    ):
        (tmp_path / "study.yml").write_text(text + more)
        with pytest.raises(DataError, match=problem):
            read_study(tmp_path / "study.yml")
    whole = QueuedReplies("w", ["hi"], [JudgedReply("m", "oh")], is_conversation=True)
    for study, queue in ((PREFERENCE, REPLIES), (QUALITY, [*REPLIES, whole])):
        with pytest.raises(ConfigError, match="needs a queue of"):
            study.items(queue)
    for name in ("", " \n", "a" * 101, "a\x00"):
        with pytest.raises(ConfigError, match="please enter your name"):
            rater_of(name)
    assert rater_of("  Ann  B ") == "ann b"
