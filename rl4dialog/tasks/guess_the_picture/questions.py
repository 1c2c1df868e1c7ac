"""Everything that is said in the game, in lower-case words separated by spaces, and the reading of it."""

from __future__ import annotations

from dataclasses import dataclass

from rl4dialog.tasks.guess_the_picture.scenes import ATTRIBUTES, Attribute, Scene

YES, NO = "yes", "no"
PROBABLY, PROBABLY_NOT = "i think so", "i do not think so"
NOT_SEEN, NOT_UNDERSTOOD = "i can not tell", "i do not understand"


@dataclass(frozen=True)
class Question:
    """A question of the agent.

    Attributes:
        words: The question without its question mark.
        attribute: Name of the attribute.
        values: The values for which the answer is yes; ``None`` for an open question.
        is_broad: Whether it asks for a group of values, which can be answered if the attribute is hard to see.
    """

    words: str
    attribute: str
    values: frozenset[str] | None = None
    is_broad: bool = False

    @property
    def text(self) -> str:
        """The question as it is said."""
        return f"{self.words} ?"

    def is_answered(self, hard_to_see: frozenset[str]) -> bool:
        """Whether the answer says anything, if these attributes are hard to see."""
        return self.is_broad or self.attribute not in hard_to_see


OPEN_QUESTIONS = tuple(Question(attribute.open_question, name) for name, attribute in ATTRIBUTES.items())
"""One question for the value of each attribute."""
YES_NO_QUESTIONS = tuple(
    question
    for name, attribute in ATTRIBUTES.items()
    for question in (
        Question(attribute.group_question, name, attribute.group, is_broad=True),
        *(Question(f"{attribute.asks} {value}", name, frozenset({value})) for value in attribute.values),
    )
)
"""For each attribute, one question for its group of values and one for each value."""
QUESTIONS = (*OPEN_QUESTIONS, *YES_NO_QUESTIONS)

_BY_WORDS = {question.words: question for question in QUESTIONS}


def parse(text: str) -> Question | None:
    """Read a question. Case, spaces and question marks at the end do not matter.

    Returns:
        The question; ``None`` if the text is not exactly one question of the game.
    """
    return _BY_WORDS.get(" ".join(text.lower().split()).rstrip(" ?"))


def answer(question: Question, scene: Scene, in_sentences: bool) -> str:
    """Answer a question about a scene.

    Args:
        question: The question.
        scene: The scene.
        in_sentences: Whether what is easy to see is answered in whole sentences, such as ``yes , it is``.
    """
    attribute, value = ATTRIBUTES[question.attribute], scene.values[question.attribute]
    if not question.is_answered(scene.hard_to_see):
        return NOT_SEEN
    if question.values is None:
        return f"{attribute.states} {value}" if in_sentences else value
    is_so = value in question.values
    if question.attribute in scene.hard_to_see:
        return PROBABLY if is_so else PROBABLY_NOT
    if in_sentences:
        return _yes(attribute) if is_so else _no(attribute)
    return YES if is_so else NO


def values_left(question: Question, answer: str) -> frozenset[str] | None:
    """Return the values of the question's attribute that an answer leaves possible; ``None`` if it says nothing."""
    attribute = ATTRIBUTES[question.attribute]
    if question.values is None:
        said = answer.removeprefix(f"{attribute.states} ")
        return frozenset({said}) if said in attribute.values else None
    if answer in (YES, PROBABLY, _yes(attribute)):
        return question.values
    if answer in (NO, PROBABLY_NOT, _no(attribute)):
        return frozenset(attribute.values) - question.values
    return None


def _yes(attribute: Attribute) -> str:
    return f"{YES} , {attribute.states}"


def _no(attribute: Attribute) -> str:
    return f"{NO} , {attribute.states} not"
