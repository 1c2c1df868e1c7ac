"""Delexicalized words: texts with placeholders such as ``[restaurant_phone]`` in place of values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rl4dialog.tasks.dialogue_acts.acts import BOOKING, GENERAL, INFORM, DialogueAct
from rl4dialog.tasks.dialogue_acts.ontology import CHOICE
from rl4dialog.tasks.dialogue_acts.templates import Templates

PLACEHOLDER = re.compile(r"\[([a-z]+)_([^\[\]_]+)(?:_(\d+))?\]")
_NUMBER = r"\d+|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|several|many|multiple|a few|a couple(?: of)?"
_COUNTED = re.compile(rf"\b((?:there(?:'s| is| are)|(?:i|we)(?: have|'ve)?(?: found| find| got)?) )({_NUMBER})\b", re.I)


def placeholder(act: DialogueAct) -> str:
    """The placeholder of a delexicalized act: ``[restaurant_name]`` for the first name, ``[restaurant_name_2]``."""
    number = "" if act.value in ("", "1") else f"_{act.value}"
    return f"[{act.domain}_{act.slot}{number}]"


def placeholders_in(text: str) -> list[DialogueAct]:
    """The placeholders of a text as delexicalized acts ``inform``, in their order; each one once."""
    acts = (DialogueAct(INFORM, domain, slot, number or "1") for domain, slot, number in PLACEHOLDER.findall(text))
    return list(dict.fromkeys(acts))


def filled(text: str, values: Mapping[tuple[str, str, str], str]) -> str:
    """Put values in place of placeholders.

    Args:
        text: A delexicalized text.
        values: Values by domain, slot and number. A placeholder without one stays as it is.
    """

    def value(match: re.Match[str]) -> str:
        domain, slot, number = match.groups()
        return values.get((domain, slot, number or "1")) or match[0]

    return PLACEHOLDER.sub(value, text)


class Delexicalizer:
    """Puts placeholders in place of the values of an utterance of a corpus.

    Args:
        templates: Sentences of the world, which know its values.
    """

    def __init__(self, templates: Templates) -> None:
        self._templates = templates

    def __call__(self, text: str, acts: Sequence[DialogueAct], active: str) -> str:
        """Delexicalize an utterance of the agent.

        Values of its acts are replaced, and other values of the database about the same domain. The number of entities
        that were found is the placeholder of ``choice``. Words of templates become the same words with placeholders;
        so does an utterance of which only the acts are known.

        Args:
            text: The utterance; empty if its words are not known.
            acts: Its acts, with values.
            active: The domain that is being talked about.
        """
        if text in ("", self._templates.render(acts, "agent")):
            return self._templates.render(with_placeholders(acts, active), "agent")
        about = {act.domain if act.domain != BOOKING else active for act in acts} - {GENERAL, ""} or {active} - {""}
        known = {act.value.lower(): (_domain(act, active), act.slot) for act in acts if act.value and act.slot}
        for name in sorted(about):
            for slot, value in self._templates.distinctive_values(name):
                known.setdefault(value, (name, slot))
        spoken = {_letters(value): slot for value, slot in known.items() if _letters(value)}
        numbers: dict[tuple[str, str], list[str]] = {}

        def put(match: re.Match[str]) -> str:
            value = _letters(match[0])
            domain, slot = spoken[value]
            values = numbers.setdefault((domain, slot), [])
            if value not in values:
                values.append(value)
            return placeholder(DialogueAct(INFORM, domain, slot, str(values.index(value) + 1)))

        if spoken:
            either = "|".join(map(_spelled, sorted(spoken, key=lambda value: (-len(value), value))))
            text = re.sub(rf"(?<!\w)(?:{either})(?!\w)", put, text, flags=re.I)
        name = min(about, default="")
        return _COUNTED.sub(rf"\g<1>[{name}_{CHOICE}]", text) if name else text


def _letters(text: str) -> str:
    """The words of a text without case and punctuation; of one with digits, only its letters and digits."""
    words = re.findall(r"[^\W_]+", text.lower())
    return "".join(words) if any(map(str.isdigit, text)) else " ".join(words)


def _spelled(letters: str) -> str:
    """A pattern of all spellings of a value, such as ``c.b 1, 7 d.y`` for ``cb17dy``."""
    if any(map(str.isdigit, letters)):
        return r"[\W_]{0,3}".join(letters)
    return r"[\W_]+".join(map(re.escape, letters.split()))


def with_placeholders(acts: Sequence[DialogueAct], active: str) -> list[DialogueAct]:
    """Acts with placeholders as values."""
    values: dict[tuple[str, str, str], list[str]] = {}
    found = []
    for act in acts:
        if act.value:
            own = values.setdefault(act[:3], [])
            if act.value not in own:
                own.append(act.value)
            number = str(own.index(act.value) + 1)
            act = act._replace(value=placeholder(DialogueAct(INFORM, _domain(act, active), act.slot, number)))
        found.append(act)
    return found


def _domain(act: DialogueAct, active: str) -> str:
    return active if act.domain == BOOKING else act.domain
