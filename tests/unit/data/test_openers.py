"""Openers: natural prompts without references, of other topics in each split."""

import yaml

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.data.openers import LINES, Openers, topics
from rl4dialog.data.pool import SPLITS


def render_chat(messages, **kwargs):
    return "".join(f"[{message['role']}] {message['content']}\n" for message in messages) + "[assistant]"


def test_splits_share_no_topic_and_leave_none_out():
    by_split = {split: topics(split) for split in SPLITS}
    names = [topic for found in by_split.values() for topic in found]
    assert sorted(names) == sorted(yaml.safe_load(LINES.read_text(encoding="utf-8")))
    assert [sum(map(len, by_split[split].values())) for split in SPLITS] == [108, 36, 36]


def test_a_prompt_has_the_system_message_in_any_format_and_no_reference():
    pool = Openers.prepare("test", system="Be kind.", format="chat_template", render_chat=render_chat)
    sample, _ = pool[0]
    assert sample.meta_data is not None
    line = sample.meta_data["history"][0]
    assert str(sample.prompt_or_input_text) == f"[system] Be kind.\n[user] {line}\n[assistant]"
    assert sample.references == [""]
    assert sample.meta_data["topic"] in topics("test")
    pool = DataPoolRegistry.get("openers", {"split": "val", "max_size": 2})
    assert len(pool) == 2
    assert str(pool[0][0].prompt_or_input_text).strip().endswith("<EOU>")
