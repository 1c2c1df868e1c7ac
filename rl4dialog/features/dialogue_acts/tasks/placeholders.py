"""Words with placeholders such as ``[restaurant_phone]`` in place of values, and what a user understands of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl4dialog.features.dialogue_acts.tasks.acts import (
    BOOK,
    BOOKING,
    GENERAL,
    INFORM,
    NO_BOOK,
    NO_OFFER,
    OFFER_BOOK,
    REQ_MORE,
    REQUEST,
    DialogueAct,
    numbered,
)
from rl4dialog.features.dialogue_acts.tasks.ontology import CHOICE, REFERENCE, Domain
from rl4dialog.features.dialogue_acts.tasks.templates import GENERAL_SIGNS, SIGNS, Templates

PLACEHOLDER = re.compile(r"\[([a-z]+)_([^\[\]_]+)(?:_(\d+))?\]")


def placeholder(act: DialogueAct) -> str:
    """The placeholder of a delexicalized act: ``[restaurant_name]`` for the first name, ``[restaurant_name_2]``."""
    number = "" if act.value in ("", "1") else f"_{act.value}"
    return f"[{act.domain}_{act.slot}{number}]"


def placeholders_in(text: str) -> list[DialogueAct]:
    """The placeholders of a text as delexicalized acts ``inform``, in their order; each one once."""
    acts = (DialogueAct(INFORM, domain, slot, number or "1") for domain, slot, number in PLACEHOLDER.findall(text))
    return list(dict.fromkeys(acts))


def filled(text: str, values: Mapping[tuple[str, str, str], str]) -> str:
    """Put values in place of placeholders, by domain, slot and number. One without a value stays."""

    def value(match: re.Match[str]) -> str:
        domain, slot, number = match.groups()
        return values.get((domain, slot, number or "1")) or match[0]

    return PLACEHOLDER.sub(value, text)


def delexicalize(text: str, acts: Sequence[DialogueAct], active: str, templates: Templates) -> str:
    """Put placeholders in place of the values of an utterance of the agent.

    Values of its acts are replaced, and other values of the database about the same domain. The number of entities
    that were found is the placeholder of ``choice``. Words of templates become the same words with placeholders;
    so does an utterance of which only the acts are known.
    """
    if text in ("", templates.render(acts, "agent")):
        return templates.render(with_placeholders(acts, active), "agent")
    about = {act.domain if act.domain != BOOKING else active for act in acts} - {GENERAL, ""} or {active} - {""}
    known = {act.value.lower(): (_domain(act, active), act.slot) for act in acts if act.value and act.slot}
    for name in sorted(about):
        for slot, value in templates.distinctive_values(name):
            known.setdefault(value, (name, slot))
    spoken = {_letters(value): slot for value, slot in known.items() if _letters(value)}
    seen: dict[Any, list[str]] = {}

    def put(match: re.Match[str]) -> str:
        value = _letters(match[0])
        return placeholder(DialogueAct(INFORM, *spoken[value], numbered(value, spoken[value], seen)))

    if spoken:
        either = "|".join(map(_spelled, sorted(spoken, key=lambda value: (-len(value), value))))
        text = re.sub(rf"(?<!\w)(?:{either})(?!\w)", put, text, flags=re.I)
    name = min(about, default="")
    return SIGNS["counted"].sub(rf"\g<1>[{name}_{CHOICE}]", text) if name else text


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
    seen: dict[Any, list[str]] = {}
    found = []
    for act in acts:
        if act.value:
            number = numbered(act.value, act[:3], seen)
            act = act._replace(value=placeholder(DialogueAct(INFORM, _domain(act, active), act.slot, number)))
        found.append(act)
    return found


def _domain(act: DialogueAct, active: str) -> str:
    return active if act.domain == BOOKING else act.domain


class ReplyReader:
    """Reads delexicalized words of people, or of a language model that learned from people, as dialogue acts.

    Sentence by sentence: a placeholder is an ``inform``, or part of a booking. A question for a slot that a user can
    constrain or book is a ``request``. A negation without a name is ``nooffer``. The rest is searched for phrases.
    """

    def __init__(self, templates: Templates) -> None:
        self._ontology, self._templates = templates.ontology, templates

    def read(self, text: str, active: str = "") -> list[DialogueAct]:
        """Delexicalized acts of a text, each one once; `active` is the domain of sentences that name none."""
        name = active if active in self._ontology else self._ontology.only
        found: dict[DialogueAct, None] = {}
        for sentence in SIGNS["sentence_end"].split(text):
            informs = [act for act in placeholders_in(sentence) if act.domain in self._ontology]
            informs = [act for act in informs if act.slot in self._ontology[act.domain].slots]
            plain = PLACEHOLDER.sub(" ", sentence)
            named = informs[0].domain if informs else self._templates.domain_named(plain)
            name = named if named in self._ontology else name
            acts = self._about(sentence, plain, informs, self._ontology[name]) if name else []
            found |= dict.fromkeys(acts or self._general(plain))
        return list(found)

    def _about(self, sentence: str, plain: str, informs: list[DialogueAct], spec: Domain) -> list[DialogueAct]:
        asks, books = bool(SIGNS["asks"].search(sentence)), bool(SIGNS["books"].search(plain))
        negates = bool(SIGNS["negates"].search(SIGNS["harmless"].sub(" ", plain)))
        slots = {act.slot for act in informs}
        constrained = {*spec.informable, *spec.bookable}
        if spec.bookable and (books or REFERENCE in slots):
            if negates:
                return [DialogueAct(NO_BOOK, spec.name)]
            if REFERENCE in slots or not asks:
                others = [act for act in informs if act.slot != REFERENCE]
                return [*others, DialogueAct(BOOK, spec.name, REFERENCE, "1")]
            if spec.key in slots:
                return [act._replace(intent=OFFER_BOOK) for act in informs]
        if negates and not (slots - {*spec.informable}):
            return [DialogueAct(NO_OFFER, spec.name)]
        if asks and spec.key not in slots:
            named = [slot for slot in self._templates.slots_named(plain, spec.name) if slot in constrained]
            if len(slots - constrained) == 0:
                named += [act.slot for act in informs]
            if named:
                return [DialogueAct(REQUEST, spec.name, slot) for slot in dict.fromkeys(named)]
            if SIGNS["offers"].search(plain) and not informs:  # such as "would you like the address?"
                return [DialogueAct(REQ_MORE, GENERAL)]
        return informs

    def _general(self, plain: str) -> list[DialogueAct]:
        if SIGNS["more"].search(plain):
            return [DialogueAct(REQ_MORE, GENERAL)]
        return [DialogueAct(intent, GENERAL) for intent, pattern in GENERAL_SIGNS.items() if pattern.search(plain)]
