"""The phrases of comments and replies, with the vocabulary, slots and marks of small_talk.

A phrase that starts with ``+`` or ``-`` is said only by a speaker who likes or dislikes the thing that the comment is
about.
"""

from __future__ import annotations

from rl4dialog.data.small_talk.phrases import parse_phrases
from rl4dialog.tasks.comment_reply.rudeness import MILD, POLITE, STRONG

COMMENTS = parse_phrases("""\
+ i {did} {one} {place} {when}, and it {joy}.
+ i {did} {one} with {my_kin} {when}. it was {good}!
+ {these} are so {good}, everyone should {do} one.
+ {my_kin} and i love {these}. who else does?
- i {did} {one} {place} {when}, but it {woe}.
- i {did} {one} with {my_kin} {when}. it was too {bad}.
- {these} are too {bad}, i will never {do} one again.
- why do so many people {do} {these}? they are {bad}.
{my_kin} says {these} are better than {others}. is that true?
should i {do} {one} or {other}?
what is the best place to {do} {one}?
has anyone here heard of {these} {place}?""")

REPLIES = parse_phrases("""\
+ i love {many} too.
+ {many} are {good}.
+ i {did} {one} {past_day}, and it {joy}.
+ {my_kin} {did} {one} {past_day}. it was {good}!
- i think {others} are better.
- for me {many} are often too {bad}.
- i {did} {one} {past_day}, but it {woe}.
- {my_kin} {did} {one} {past_day}. it was too {bad}.
my advice is to {do} {other} first.
i never {did} one myself.
you should ask {new_name} about {many}.
{my_kin} likes {others} more.""")
"""What replies say about the thing; every reply has one of these, whatever its rudeness."""

BEFORE = {
    POLITE: ("thank you for your comment.", "good question.", "i see what you mean.", ""),
    MILD: ("duh,", "yawn.", "so what?", "who asked?", "oh please,"),
    STRONG: ("shut up.", "what a stupid comment.", "only a fool would say that.", "dumb as ever, i see."),
}
"""Openings of replies by their rudeness."""

AFTER = {
    POLITE: ("have a nice day!", "i hope that helps.", ""),
    MILD: ("whatever.", "obviously.", "get over it."),
    STRONG: ("you clown.", "go away, loser.", "you are an idiot."),
}
"""Ends of replies by their rudeness."""
