"""Sentences with slots, and what the two sides of a little dialogue tell each other unasked.

The *teller* has done something with a thing, the *listener* hears about it. A phrase may begin with marks:
``+`` or ``-`` when it is only said by somebody who likes or dislikes the thing, and ``(emotion)``; ``(woe)`` stands
for the emotion of the story's mishap. Slots are explained in `frame`; questions with their answers are in `questions`,
directives with their consequences in `directives`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rl4dialog.data.labels import EMOTIONS, NO_EMOTION

TELLER, LISTENER = "teller", "listener"
# Emotion of a phrase whose label depends on the topic's mishap.
WOE = -1

_EMOTION_IDS = {name: number for number, name in EMOTIONS.items()} | {"woe": WOE}
_PHRASE = re.compile(r"(?P<liking>[+-])?\s*(?:\((?P<emotion>\w+)\))?\s*(?P<text>.+)", re.DOTALL)


@dataclass(frozen=True)
class Phrase:
    """A sentence with slots.

    Attributes:
        text: The sentence.
        emotion: Its label, or ``WOE``.
        liking: True or False when only somebody who likes or dislikes the thing says this, otherwise ``None``.
        slots: Names of the slots in ``text``.
    """

    text: str
    emotion: int = NO_EMOTION
    liking: bool | None = None
    slots: frozenset[str] = frozenset()


def parse_phrases(text: str) -> tuple[Phrase, ...]:
    """Read phrases with their marks, one per line."""
    phrases = []
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _PHRASE.fullmatch(line)
        assert match is not None
        emotion, liking = match["emotion"], match["liking"]
        number = _EMOTION_IDS[emotion] if emotion else NO_EMOTION
        slots = frozenset(re.findall(r"{(\w+)}", match["text"]))
        phrases.append(Phrase(match["text"], number, None if liking is None else liking == "+", slots))
    return tuple(phrases)


# The teller begins the story.
STORY = parse_phrases(
    """i {did} {one} {place} {when}.
    i {did} {one} with {my_kin} {when}.
    {my_kin} and i {did} {one} {place}.
    + (happiness) i {did} {one} {when}, and it {joy}.
    - (woe) i {did} {one} {when}, but it {woe}."""
)
# The teller adds to the story.
MORE_STORY = parse_phrases(
    """{my_kin} told me a lot about {many}.
    i told {new_name} about {it} {past_day}.
    {new_name} wants to {do} {one} too.
    {new_name} told me the same about {many}.
    + (happiness) {it} {joy}, and {my_kin} was happy too.
    + (happiness) i am still so happy about {it}.
    - (woe) {it} {woe}, and {my_kin} was {feeling} too.
    - (woe) i am still {feeling} because {it} {woe}."""
)
# The listener reacts to good news, to bad news, to other news about the thing, and to all other news.
GLAD = parse_phrases(
    """(happiness) how nice, i am happy for you and {your_kin}.
    + (happiness) that sounds {good}, i love {many}.
    (happiness) i am so happy to hear that about {many}.
    {my_kin} {did} {one} {past_day} too."""
)
SORRY = parse_phrases(
    """(sadness) i am so sorry to hear that.
    (sadness) oh no, i am so sorry for you and {your_kin}.
    {my_kin} had the same problem with {one}.
    - {many} are often too {bad}."""
)
CURIOUS = parse_phrases(
    """(surprise) oh, i did not know that about {many}!
    (surprise) oh, that is a surprise, i only know {others}!
    {my_kin} and i {did} {one} {past_day}.
    {new_name} told me about {many} too.
    + (happiness) how nice, i love {many} too."""
)
NOTED = parse_phrases(
    """i know, {my_kin} told me that {past_day}.
    i know that, because {new_name} told me.
    (surprise) oh, i did not know that before!
    good, i can tell that to {new_name} {new_day}."""
)
# Either side, at the end.
FAREWELLS = parse_phrases(
    """i have to go now, {my_kin} needs me.
    i have to go now, {new_name} is here.
    (happiness) it was nice to talk about {many}.
    (happiness) it was nice to talk to you about {it}."""
)
