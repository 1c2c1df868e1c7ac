"""The datapool of openers: one message each, to be answered freely."""

from __future__ import annotations

import re
from pathlib import Path

from rl4dialog.core.arguments import Count
from rl4dialog.core.types import Sample
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples

LINES = Path(__file__).with_suffix(".yaml")
_COMMON = """
about again already been before came every finally first from gave have into just know last like made more most much
myself never next said same since some somebody something that their them there they think this time today tomorrow
tonight used very want went were what when where which with without yesterday
"""
_COMMON_WORDS = frozenset(_COMMON.split())


class Openers(TextGenPool):
    """Openers of everyday chats, such as "We missed our train by two minutes.", for rewards without references.

    Args:
        system: Instruction for the replying side: system message in ``chat_template``, first utterance in ``eou``.
    """

    @classmethod
    def prepare(
        cls,
        split: str,
        system: str | None = None,
        format: FormatName = "eou",
        max_size: Count | None = None,
        render_chat: RenderChat | None = None,
    ) -> Openers:
        """Load one split. No topic is in two splits.

        Samples have an empty reference, ``topic``, the line's ``words`` (for the reward ``keyword``), and ``history``.
        """
        check_split(split)
        dialogue_format = DialogueFormat(format, 1, render_chat)
        samples = []
        for topic, lines in topics(split).items():
            for number, line in enumerate(lines):
                meta_data = {"topic": topic, "words": content_words(line), "history": [line]}
                samples.append(Sample(f"{topic}_{number}", dialogue_format.prompt([line], system), [""], meta_data))
        return cls(limit_samples(samples, max_size, "openers", split, str(LINES)), dialogue_format=dialogue_format)


def content_words(line: str) -> list[str]:
    """Words that a line is about: those with four letters or more, without common ones."""
    words = re.findall(r"[a-z]{4,}", line.lower())
    return [word for word in words if word not in _COMMON_WORDS] or words


def topics(split: str) -> dict[str, list[str]]:
    """Lines of a split, by topic."""
    places = {"train": (0, 1, 2), "val": (3,), "test": (4,)}[split]  # of each five topics
    return {topic: lines for i, (topic, lines) in enumerate(packaged_yaml(LINES).items()) if i % 5 in places}
