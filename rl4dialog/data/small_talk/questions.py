"""The questions of the little dialogues, each kind with the informs that answer it."""

from __future__ import annotations

from dataclasses import dataclass

from rl4dialog.data.small_talk.phrases import LISTENER, TELLER, Phrase, parse_phrases


@dataclass(frozen=True)
class Question:
    """A kind of question.

    Attributes:
        speaker: Who asks: ``TELLER``, ``LISTENER``, or ``None`` for both.
        told: True when the story must have been told before, False when it must not, ``None`` for either.
        say: Ways to ask.
        answers: Informs that answer it.
        tells: True when the answer tells the story.
        needs: Name of a flag of `Frame` that must be set.
        about: What nobody asks who knows it already, see `Frame.known`.
    """

    speaker: str | None
    told: bool | None
    say: tuple[Phrase, ...]
    answers: tuple[Phrase, ...]
    tells: bool = False
    needs: str | None = None
    about: str | None = None


def _question(
    speaker: str | None,
    told: bool | None,
    say: str,
    answers: str,
    tells: bool = False,
    needs: str | None = None,
    about: str | None = None,
) -> Question:
    return Question(speaker, told, parse_phrases(say), parse_phrases(answers), tells, needs, about)


# Questions that anybody may ask out of the blue, when `speaker`, `told` and `needs` allow it.
QUESTIONS = {
    "news": _question(
        LISTENER,
        False,
        """did you {do} {one} {when}?
        so you {did} {one} {place}?""",
        """yes, i {did} it {place} {when}.
        yes, i {did} it with {my_kin} {when}.
        + (happiness) yes, i {did} it with {my_kin}, it was {good}.""",
        tells=True,
    ),
    "news_what": _question(
        LISTENER,
        False,
        """what did you do {place} {when}?
        what did you do with {your_kin} {when}?""",
        """i {did} {one} {place}.
        i {did} {one} with {my_kin} {place}.
        + (happiness) i {did} {one}, and it {joy}.
        - (woe) i {did} {one}, but it {woe}.""",
        tells=True,
    ),
    "when": _question(
        LISTENER,
        True,
        "when did you {do} {it}?\nwhen did you {do} {it} with {your_kin}?",
        "i {did} {it} {when} {time}.\ni {did} it {when} with {my_kin}.",
        about="when",
    ),
    "when_guess": _question(
        LISTENER,
        True,
        "did you {do} {it} {wrong_when}?",
        "no, i {did} it {when} {time}.\nno, i {did} {it} {when}.",
        about="when",
    ),
    "where": _question(
        LISTENER,
        True,
        "where did you {do} {it}?\nwhere did you and {your_kin} {do} {it}?",
        "i {did} {it} {place}.\ni {did} it {place} with {my_kin}.",
        about="place",
    ),
    "where_guess": _question(
        LISTENER,
        True,
        "did you {do} {it} {wrong_place}?",
        "no, i {did} {it} {place}.\nno, i {did} it {place} {when}.",
        about="place",
    ),
    "who": _question(
        LISTENER,
        True,
        "who was with you {place} {when}?\nwho helped you with {it}?",
        "{my_kin} was with me {place}.\n{my_kin} helped me with {it} {when}.",
        about="my_kin",
    ),
    "alone": _question(
        LISTENER,
        True,
        "did you {do} {it} alone?",
        "no, i {did} it with {my_kin} {place}.\nno, {my_kin} helped me with {it}.",
        about="my_kin",
    ),
    "how": _question(
        LISTENER,
        True,
        "how was {it} {place}?\nhow did you like {it}?",
        """+ (happiness) {it} was very {good}, i loved it.
        + (happiness) i loved it, because {it} {joy}.
        - (woe) i did not like it, because {it} {woe}.
        - {it} was much too {bad} for me.""",
    ),
    "good": _question(
        LISTENER,
        True,
        "was {it} {good}?\nwas {it} {good} {place}?",
        """+ (happiness) yes, {it} was very {good}.
        + (happiness) yes, {my_kin} and i loved it so much.
        - no, {it} was much too {bad}.
        - (woe) no, {it} was {bad}, and it {woe}.""",
    ),
    "feel": _question(
        LISTENER,
        True,
        "were you happy with {it}?\nwas {your_kin} happy with {it}?",
        """+ (happiness) yes, {my_kin} and i were very happy with it.
        + (happiness) yes, we were very happy because {it} {joy}.
        - (woe) no, we were {feeling} because {it} {woe}.""",
    ),
    "event": _question(
        LISTENER,
        True,
        "and what happened with {it} {place}?\nwhat happened with {it} then?",
        """+ (happiness) {it} {joy}, and we were very happy.
        - (woe) {it} {woe}, and we were very {feeling}.""",
        about="event",
    ),
    "why": _question(
        LISTENER,
        True,
        "why did you {do} {one}?",
        """because {my_kin} told me about {many}.
        because {my_kin} wanted to {do} {one}.
        + because i like {many} very much.""",
    ),
    "again": _question(
        LISTENER,
        True,
        "do you want to {do} {one} again?",
        """+ yes, i want to {do} {one} again soon.
        + (happiness) yes, i love {many} so much.
        - no, i want to {do} {other} next time.
        - no, {many} are too {bad} for me.""",
    ),
    "next": _question(
        LISTENER,
        True,
        "what do you want to {do} next?",
        "i want to {do} {other} next.\n{my_kin} and i want to {do} {other} next.",
    ),
    "wow": _question(
        LISTENER,
        True,
        "(surprise) wow, did you really {do} {one}?\n(surprise) wow, did {your_kin} really {do} {one} too?",
        """+ (happiness) yes, and {it} {joy}.
        + (happiness) yes, and we were so happy about it.
        - (woe) yes, but {it} {woe}.""",
        about="event",
    ),
    "problem": _question(
        LISTENER,
        True,
        "was there a problem with {it}?",
        """+ no, {it} was very {good}.
        + (happiness) no, {it} {joy}.
        - (woe) yes, {it} {woe} {when}.
        - yes, {it} was too {bad} for {my_kin}.""",
        about="event",
    ),
    "your_kin": _question(
        LISTENER,
        None,
        "does {your_kin} like {many}?",
        """+ yes, {my_kin} likes {many} very much.
        - no, {my_kin} thinks that {many} are too {bad}.""",
    ),
    "price": _question(
        LISTENER,
        True,
        "how much was {it}?\nhow much did you pay for {it}?",
        "{it} was {price} dollars {place}.\ni paid {price} dollars for it.",
        needs="has_price",
    ),
    "like": _question(
        TELLER,
        None,
        "do you like {many}?\ndo you and {your_kin} like {many}?",
        """+ (happiness) yes, i love {many}.
        + yes, i like {many} very much.
        - no, i like {others} more.
        - (disgust) no, i really hate {many}.
        - no, {many} are too {bad} for me.""",
    ),
    "rather": _question(
        TELLER,
        None,
        "do you like {many} or {others}?",
        """+ i like {many} more than {others}.
        + (happiness) i love {many}, they are so {good}.
        - i like {others} more.
        - i like {others}, because {many} are too {bad}.""",
    ),
    "ever": _question(
        TELLER,
        None,
        "did you ever {do} {one}?\ndid you and {your_kin} ever {do} {one}?",
        """yes, i {did} one {wrong_place} {past_day}.
        yes, i {did} one with {my_kin} {past_day}.
        no, i never {did} {one}.""",
    ),
    "which": _question(
        TELLER,
        None,
        "what kind of {thing} do you like?\nwhich {things} do you like most?",
        "+ i like {many} most.\n- i like {alts} more than {these}.\n- i like {alts} most.",
    ),
    "think": _question(
        TELLER,
        True,
        "what do you think about {it}?\nwhat does {your_kin} think about {many}?",
        """+ i think that {many} are very {good}.
        + {my_kin} and i think that {many} are {good}.
        - i think that {many} are too {bad}.""",
    ),
    "my_kin": _question(
        TELLER,
        None,
        "does {your_kin} like {many}?",
        "+ yes, {my_kin} loves {many}.\n- no, {my_kin} likes {others} more.",
    ),
    "remember": _question(
        TELLER,
        True,
        "do you know where i {did} {it}?",
        "i think that you {did} it {place}.\ni think that you {did} {it} {wrong_place}.",
        about="place",
    ),
    "heard": _question(
        TELLER,
        True,
        "did {new_name} tell you about {it}?",
        """yes, {name} told me about {it} {past_day}.
        no, {name} only told me about {other}.
        (surprise) no, and i am surprised to hear about {it}!""",
    ),
    "want": _question(
        TELLER,
        True,
        "would you like {one} too?",
        """+ (happiness) yes, i would love to have {one}.
        + (happiness) yes, that is so nice of you.
        - no, {many} are too {bad} for me.""",
        needs="can_be_had",
    ),
    "friend": _question(
        None,
        None,
        "does {new_name} like {many}?\nwhat does {new_name} think about {many}?",
        "{name} thinks that {many} are very {good}.\n{name} thinks that {many} are too {bad}.",
    ),
    "free": _question(
        None,
        None,
        "are you free {new_day}?\nare you free {new_day} {new_time}?",
        """i am free {day} {time}.
        i am not free {day} because {my_kin} needs me.""",
    ),
    "plan": _question(
        None,
        None,
        "what do you want to do {new_day}?",
        "i want to {do} {other} {day}.\n{my_kin} and i want to {do} {other} {day}.",
    ),
    "compare": _question(
        None,
        None,
        "is {one} better than {other}?",
        """+ yes, {many} are better than {others}.
        - no, {others} are better than {many}.""",
    ),
}

# Questions that answer a question; the first two only one that is about the thing.
THING_COUNTER_QUESTIONS = ("mean", "why_thing")
COUNTER_QUESTIONS = {
    "mean": _question(
        None,
        None,
        "do you mean {it} or {other}?\ndo you mean {it} {place}?",
        "i mean {it} {place}.\ni mean {it}, not {other}.",
    ),
    "why_thing": _question(
        None,
        None,
        "why do you ask me about {many}?",
        """because i want to {do} {one} too.
        because {my_kin} asked me about {many}.
        because {new_name} told me about {many}.""",
    ),
    "why_ask": _question(
        None,
        None,
        "why do you want to know that?\nwhy do you and {your_kin} want to know that?",
        "because i want to {do} {one} too.\nbecause {my_kin} wants to know it too.",
    ),
    "secret": _question(
        None,
        None,
        "can i tell you a secret about {it}?",
        "yes, you can tell me everything about {it}.\nyes, you can tell me all your secrets.",
    ),
    "know": _question(
        None,
        None,
        "didn't {new_name} tell you that already?\ndidn't {my_kin} tell you that already?",
        "no, nobody told me anything about that.\nno, and i want to know it now.",
    ),
    "asked": _question(
        None,
        None,
        "did you ask {new_name} about that too?",
        "yes, but {name} did not know it.\nno, {name} is {wrong_place} now.",
    ),
}

# Questions that answer a directive, or follow a commissive.
FOLLOW_UP_QUESTIONS = {
    "meet_when": _question(
        None,
        None,
        "when should we meet {place}?\nwhen should we meet {day}?",
        "{new_time} is fine for me.\ni think that {new_time} is fine.",
    ),
    "meet_at": _question(
        None,
        None,
        "should we meet {new_time}?\nshould we meet {place} {new_time}?",
        "yes, {time} is fine for me.\nno, {new_time} is better for me.",
    ),
    "need_item": _question(
        None,
        None,
        "do we need the {new_item} too?\nshould i bring the {new_item} too?",
        "yes, we need the {item} {day}.\nno, {new_name} has the {item} already.",
    ),
    "guest": _question(
        None,
        None,
        "can {new_name} come with us too?\ncan {my_kin} and {new_name} come too?",
        "yes, {name} is free {day} too.\nno, {name} has no time {day}.",
    ),
    "which_item": _question(
        None,
        None,
        "which {item} do you mean?\nwhich {item} do you need {day}?",
        "i mean the {new_colour} {item}.\ni need the {new_colour} {item} {day}.",
    ),
    "knows": _question(
        None,
        None,
        "does {name} know a lot about {many}?",
        "yes, {name} {did} one {past_day}.\nyes, {name} knows a lot about {many}.",
    ),
    "whereabouts": _question(
        None,
        None,
        "where is {name} now?\nwhere can i find {name} {day}?",
        "{name} is {wrong_place} with {my_kin}.\n{name} is {wrong_place} now.",
    ),
    "hear": _question(
        TELLER,
        None,
        "do you want to hear everything about {it}?",
        "yes, i want to hear everything about {it}.\n(happiness) yes, i love stories about {many}.",
    ),
    "really": _question(
        None,
        None,
        "are {many} really {good}?\nwhy should i {do} {one}?",
        "because {many} are very {good}.\n(happiness) i love {many}, they are so {good}.",
    ),
    "help": _question(
        TELLER,
        None,
        "can you help me with {it}?",
        "{my_kin} knows a lot about {many}.\nyes, i know a lot about {many}.",
    ),
    "at_home": _question(
        None,
        None,
        "are you at home {day} {new_time}?",
        "yes, i am at home {day} {time}.\nno, {my_kin} and i are away {day}.",
    ),
    "photo": _question(
        None,
        None,
        "who took the photos of {it}?\nwho took the best photo of {it}?",
        "{new_name} took all the photos of {it}.\n{my_kin} took the photos of {it} {place}.",
    ),
    "need_time_until": _question(
        None,
        None,
        "do you need time until {weekday}?\ndo you really need so much time?",
        "yes, i need time until {weekday}.\nyes, i am not free before {weekday}.",
    ),
    "need_time": _question(
        None,
        None,
        "do you need more time for {it}?",
        "yes, i need more time for {it}.\nyes, i need time until {weekday}.",
    ),
    "helper": _question(
        None,
        None,
        "can {new_name} help me with {it}?",
        "yes, {name} knows a lot about {many}.\nno, {name} is {wrong_place} {day}.",
    ),
    "help_you": _question(
        LISTENER,
        True,
        "can {new_name} help you with {it}?\ncan {my_kin} help you with {it}?",
        "no, i only need more time.\nno, i want to {do} {other} now.",
    ),
    "other_time": _question(
        None,
        None,
        "when do you have time for that?\ndo you have more time {new_day}?",
        "i have time {new_day} {new_time}.\ni have no time until {weekday}.",
    ),
}
