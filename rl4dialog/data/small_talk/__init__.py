"""Small generated dialogues from a seeded grammar over many everyday topics, with DailyDialog's acts and emotions."""

from rl4dialog.data.small_talk.pool import SmallTalk, generate_dialogues

__all__ = ["SmallTalk", "generate_dialogues"]
