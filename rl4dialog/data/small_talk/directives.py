"""The directives of the little dialogues, each kind with the commissives, informs and questions that follow it."""

from __future__ import annotations

from dataclasses import dataclass

from rl4dialog.data.small_talk.phrases import LISTENER, TELLER, Phrase, parse_phrases

# What a directive can replace the answer of.
ANY_QUESTION, THING_QUESTION = "any question", "question about the thing"


@dataclass(frozen=True)
class Directive:
    """A kind of directive, and what can follow it.

    Attributes:
        speaker: Who says it, see `Question`.
        told: See `Question`.
        say: Ways to say it.
        accept: Commissives that agree.
        decline: Commissives that refuse.
        objections: Informs that answer neither yes nor no.
        doubts: Kinds of questions that answer it.
        thanks: Informs after ``accept``.
        then_ask: Kinds of questions after ``accept``.
        after_inform: True when it can follow an inform.
        after_question: In place of which answers it can be said: ``ANY_QUESTION``, ``THING_QUESTION`` for questions
            that are about the thing, ``None`` for none.
        needs: See `Question`.
        regrets: Informs after ``decline``.
        regret_ask: Kinds of questions after ``decline``.
    """

    speaker: str | None
    told: bool | None
    say: tuple[Phrase, ...]
    accept: tuple[Phrase, ...]
    decline: tuple[Phrase, ...]
    objections: tuple[Phrase, ...]
    doubts: tuple[str, ...]
    thanks: tuple[Phrase, ...]
    then_ask: tuple[str, ...]
    after_inform: bool = True
    after_question: str | None = None
    needs: str | None = None
    regrets: tuple[Phrase, ...] = ()
    regret_ask: tuple[str, ...] = ()


# What is said after most refusals.
_REGRETS = """(sadness) that is a pity, i am sad about that.
    (sadness) that is a pity, i like {many} so much.
    (sadness) what a pity, {my_kin} is sad about that too.
    no problem, {new_name} can help me too.
    no problem, {my_kin} has time for that {new_day}."""


def _directive(
    speaker: str | None,
    told: bool | None,
    say: str,
    accept: str,
    decline: str,
    objections: str,
    doubts: tuple[str, ...],
    thanks: str,
    then_ask: tuple[str, ...],
    after_inform: bool = True,
    after_question: str | None = None,
    needs: str | None = None,
    regrets: str = _REGRETS,
    regret_ask: tuple[str, ...] = ("helper", "free", "other_time"),
) -> Directive:
    return Directive(
        speaker=speaker,
        told=told,
        say=parse_phrases(say),
        accept=parse_phrases(accept),
        decline=parse_phrases(decline),
        objections=parse_phrases(objections),
        doubts=doubts,
        thanks=parse_phrases(thanks),
        then_ask=then_ask,
        after_inform=after_inform,
        after_question=after_question,
        needs=needs,
        regrets=parse_phrases(regrets),
        regret_ask=regret_ask,
    )


DIRECTIVES = {
    "join": _directive(
        None,
        None,
        say="""+ let's {do} {one} together {new_day}.
        + let's {do} {one} {place} {new_day}.
        - let's {do} {other} together {new_day}.""",
        accept="""ok, i will come with you {day}.
        ok, i will come with {my_kin} {day} {new_time}.
        (happiness) sure, i will come {day}, i am so happy.""",
        decline="sorry, i can't come with you {day}.\nsorry, i can't come {day} {new_time}.",
        objections="but i have a lot of work {day}.\nbut i have no {new_item} for that.",
        doubts=("meet_when", "meet_at", "need_item", "guest"),
        thanks="""(happiness) great, {my_kin} is happy about that too.
        (happiness) great, i am very happy about {day_name}.
        thank you, {new_name} wants to come too.""",
        then_ask=("meet_when", "meet_at", "need_item", "guest"),
    ),
    "bring": _directive(
        None,
        None,
        say="please bring me your {new_item} {new_day}.\nplease bring the {new_item} {new_day} {new_time}.",
        accept="ok, i will bring you the {item} {day}.\nsure, i will bring the {item} {day} {time}.",
        decline="sorry, i can't bring you the {item} {day}.\nsorry, i can't find the {item} now.",
        objections="{new_name} has the {item} now.\nthe {item} is {wrong_place} now.",
        doubts=("which_item", "at_home"),
        thanks="""thank you, i need the {item} for {one}.
        (happiness) thank you, i like the {item} very much.""",
        then_ask=("which_item", "at_home", "free"),
    ),
    "ask": _directive(
        None,
        None,
        say="please ask {new_name} about {many}.\nplease ask {new_name} about that {new_day}.",
        accept="ok, i will ask {name} about {many}.\nsure, i will ask {name} about that {day}.",
        decline="sorry, i can't ask {name} about {many}.\nsorry, i can't call {name} {day}.",
        objections="{name} is {wrong_place} now.\n{name} has no time until {weekday}.",
        doubts=("knows", "whereabouts"),
        thanks="""thank you, {name} knows a lot about {many}.
        good, {name} {did} {one} {past_day}.
        (happiness) great, {name} loves {many} so much.""",
        then_ask=("knows", "whereabouts"),
        after_question=THING_QUESTION,
    ),
    "think": _directive(
        None,
        None,
        say="please let me think about {many} first.\nplease give me more time for that question.",
        accept="ok, i will give you time until {weekday}.\nsure, i will ask {new_name} about {many} first.",
        decline="sorry, i can't wait until {weekday}.\nsorry, i can't wait, {my_kin} needs me now.",
        objections="it is only a small question about {many}.\n{my_kin} wants to know it {new_day}.",
        doubts=("need_time",),
        thanks="""thank you, i need more time for that.
        thank you, i know more about {many} {new_day}.
        (happiness) thank you so much, i am happy about that.""",
        then_ask=("free", "friend"),
        after_inform=False,
        after_question=THING_QUESTION,
    ),
    "again": _directive(
        None,
        None,
        say="please ask me again {new_day}.\nplease ask me that again {new_day} {new_time}.",
        accept="ok, i will ask you again {day}.\nsure, i will call you {day} {new_time}.",
        decline="sorry, i can't wait until {weekday}.\nsorry, i can't ask you again {day}.",
        objections="but {my_kin} wants to know it now.\n{my_kin} and i have no time {day}.",
        doubts=("need_time_until",),
        thanks="""thank you, i am free {day} {new_time}.
        thank you, i need time until {weekday}.
        (happiness) great, i am happy to hear from you {day}.""",
        then_ask=("at_home", "friend"),
        after_inform=False,
        after_question=ANY_QUESTION,
    ),
    "call": _directive(
        None,
        None,
        say="please call me {new_day} {new_time}.\nplease call me about {it} {new_day}.",
        accept="ok, i will call you {day} {time}.\nsure, i will call you about {it} {day}.",
        decline="sorry, i can't call you {day}.\nsorry, i can't call you {day} {time}.",
        objections="{my_kin} has my phone {day}.\ni have no phone at work {day}.",
        doubts=("at_home",),
        thanks="""thank you, i am at home {day}.
        good, {my_kin} is at home {day} too.
        (happiness) great, i am happy to hear from you {day}.""",
        then_ask=("at_home", "friend"),
        after_question=ANY_QUESTION,
    ),
    "tell": _directive(
        LISTENER,
        True,
        say="please tell me more about {it}.\nplease tell me more about {your_kin} and {it}.",
        accept="ok, i will tell you everything about {it}.\nsure, i will tell you more about {it} {new_day}.",
        decline="sorry, i can't tell you more about {it}.\nsorry, i can't talk about {it} {new_day}.",
        objections="""+ (happiness) well, {it} {joy}.
        + (happiness) well, {it} was very {good}.
        - (woe) well, {it} {woe}.""",
        doubts=("hear",),
        thanks="""(happiness) great, i love stories about {many}.
        thank you, {my_kin} likes stories about {many} too.""",
        then_ask=("when", "where", "who", "how", "event", "why"),
    ),
    "show": _directive(
        LISTENER,
        True,
        say="please show me a photo of {it}.\nplease show me your photos of {it} {new_day}.",
        accept="ok, i will show you a photo of {it}.\nsure, i will show you my photos of {it} {day}.",
        decline="sorry, i can't find my photos of {it}.\nsorry, i can't show you {it} {day}.",
        objections="{my_kin} has all the photos of {it}.\n{new_name} took the photos of {it} {when}.",
        doubts=("at_home", "hear"),
        thanks="(happiness) great, i love photos of {many}.\nthank you, {my_kin} wants to see {it} too.",
        then_ask=("photo", "at_home"),
        needs="can_be_shown",
    ),
    "look": _directive(
        TELLER,
        True,
        say="please look at my photo of {it}.\nplease look at this photo of {it} {place}.",
        accept="ok, i will look at your photo of {it}.\nsure, i will look at it with {my_kin} {new_day}.",
        decline="sorry, i have no time for photos of {it}.\nsorry, i can't look at photos of {it} now.",
        objections="+ (happiness) oh, {it} looks very {good}.\n- {it} looks too {bad} for me.",
        doubts=("photo",),
        thanks="""thank you, {my_kin} took the photo {place}.
        thank you, it is my best photo of {it}.
        + (happiness) thank you, i am so happy with this photo.""",
        then_ask=("think", "want", "friend"),
        after_question=THING_QUESTION,
        needs="can_be_shown",
    ),
    "try": _directive(
        TELLER,
        True,
        say="+ please {do} {one} {place} too.\n+ please try to {do} {one} {new_day} too.",
        accept="ok, i will try to do that {day}.\nsure, i will do that with {my_kin} {new_day}.",
        decline="sorry, i can't promise that about {many}.\nsorry, i can't do that {new_day}.",
        objections="+ {my_kin} says the same about {many}.\n- {many} are too {bad} for me.",
        doubts=("really",),
        thanks="(happiness) great, {many} are so {good}.\ngood, {new_name} wants to do that too.",
        then_ask=("free", "friend", "my_kin"),
    ),
    "calm": _directive(
        LISTENER,
        True,
        say="please don't be {feeling} about {it}.\nplease don't think about {it} any more.",
        accept="ok, i will try to forget {it}.\nok, i will not think about {it} {new_day}.",
        decline="sorry, i can't forget {it} so soon.\nsorry, i can't stop thinking about {it}.",
        objections="""(woe) but i am still {feeling} about {it}.
        (woe) but {my_kin} is still {feeling} about {it}.""",
        doubts=("help",),
        thanks="good, {my_kin} can help you with {it}.\n(happiness) good, i am happy to hear that.",
        then_ask=("next", "free", "plan"),
        needs="bad_news",
        regrets="""(sadness) i am so sorry to hear that about {it}.
        (sadness) that is sad, i am sorry for you.
        {my_kin} had the same problem with {one}.""",
        regret_ask=("help_you", "next", "free"),
    ),
}
