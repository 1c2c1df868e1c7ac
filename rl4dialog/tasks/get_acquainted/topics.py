"""The topics of the conversations: facts about people, and questions for them, in lower-case words.

The name of a topic is in all its facts and questions and in those of no other topic, and no question shares a word with
a fact of another topic. The partner ``facts`` therefore answers every question with the fact of its topic, if there is
one.
"""

from __future__ import annotations

from dataclasses import dataclass

_WORDS = {
    "work": (
        "i work as {} .",
        ("a nurse", "a teacher", "a baker", "a pilot", "a farmer", "a lawyer", "a plumber", "a painter"),
        ("what do you do for work ?", "where do you work ?", "do you like your work ?"),
    ),
    "pet": (
        "my pet is {} .",
        ("a dog", "a cat", "a parrot", "a rabbit", "a hamster", "a turtle", "a goldfish", "a snake"),
        ("do you have a pet ?", "what pet do you have ?", "who is your pet ?"),
    ),
    "food": (
        "my favorite food is {} .",
        ("pizza", "pasta", "rice", "soup", "curry", "salad", "chicken", "cheese"),
        ("what food do you like ?", "what is your favorite food ?", "which food do you love ?"),
    ),
    "drink": (
        "i drink a lot of {} .",
        ("tea", "coffee", "milk", "water", "juice", "lemonade", "cocoa", "beer"),
        ("what do you drink ?", "what is your favorite drink ?", "which drink do you like most ?"),
    ),
    "music": (
        "i listen to {} music .",
        ("jazz", "rock", "folk", "soul", "pop", "classical", "country", "techno"),
        ("what music do you like ?", "do you like music ?", "what is your favorite music ?"),
    ),
    "sport": (
        "my sport is {} .",
        ("tennis", "football", "golf", "hockey", "rugby", "judo", "rowing", "cycling"),
        ("what is your sport ?", "do you do any sport ?", "which sport do you like ?"),
    ),
    "home": (
        "my home is in {} .",
        ("paris", "london", "rome", "madrid", "berlin", "tokyo", "boston", "cairo"),
        ("where is your home ?", "do you like your home ?", "what is your home like ?"),
    ),
    "family": (
        "in my family there are {} .",
        ("two boys", "three boys", "two girls", "three girls", "six cousins", "four aunts", "five uncles", "twins"),
        ("do you have a family ?", "who is in your family ?", "how is your family ?"),
    ),
    "travel": (
        "i travel to {} .",
        ("spain", "italy", "greece", "norway", "japan", "kenya", "peru", "iceland"),
        ("where do you travel ?", "do you like to travel ?", "do you travel a lot ?"),
    ),
    "movie": (
        "my favorite movie is about {} .",
        ("robots", "pirates", "ghosts", "cowboys", "spies", "dragons", "wizards", "aliens"),
        ("what is your favorite movie ?", "which movie do you like ?", "do you have a favorite movie ?"),
    ),
    "book": (
        "i read a book about {} .",
        ("history", "gardens", "stars", "trains", "castles", "oceans", "birds", "flowers"),
        ("what book do you read ?", "which book do you like ?", "do you have a favorite book ?"),
    ),
    "color": (
        "my favorite color is {} .",
        ("red", "blue", "green", "yellow", "purple", "orange", "white", "black"),
        ("what is your favorite color ?", "which color do you like ?", "do you have a favorite color ?"),
    ),
}


@dataclass(frozen=True)
class Topic:
    """A topic.

    Attributes:
        name: A word that occurs in all its facts and questions.
        facts: One sentence for each value; a person has at most one of them.
        questions: Ways to ask for the fact.
    """

    name: str
    facts: tuple[str, ...]
    questions: tuple[str, ...]


TOPICS = tuple(
    Topic(name, tuple(template.format(value) for value in values), questions)
    for name, (template, values, questions) in _WORDS.items()
)
SMALL_TALK = "small_talk"
"""Goal of utterances without a topic."""
GOALS = (*(topic.name for topic in TOPICS), SMALL_TALK)
GREETINGS = ("hello .", "hi there .", "good morning .", "nice to meet you .")
REACTIONS = ("that sounds nice .", "oh , i see .", "good to know .", "how interesting .")
NOTHING = "nothing special ."
"""Answer to a question about a topic of which the persona has no fact; that of the partner ``facts``."""

_GOALS_BY_TEXT = {text: topic.name for topic in TOPICS for text in (*topic.facts, *topic.questions)}


def goal_of(sentence: str) -> str | None:
    """Return the topic of a fact or question; ``None`` for other sentences."""
    return _GOALS_BY_TEXT.get(sentence)
