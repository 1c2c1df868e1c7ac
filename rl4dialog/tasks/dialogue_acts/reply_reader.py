"""What a user understands of an agent's delexicalized words."""

from __future__ import annotations

import re

from rl4dialog.tasks.dialogue_acts.acts import (
    BOOK,
    BYE,
    GENERAL,
    GREET,
    NO_BOOK,
    NO_OFFER,
    OFFER_BOOK,
    REQ_MORE,
    REQUEST,
    THANK,
    WELCOME,
    DialogueAct,
)
from rl4dialog.tasks.dialogue_acts.ontology import REFERENCE, Domain, Ontology
from rl4dialog.tasks.dialogue_acts.placeholders import PLACEHOLDER, placeholders_in
from rl4dialog.tasks.dialogue_acts.templates import Templates

_QUESTION = r"which(?! is| are)|what|do you|would you|is there|are you|can i|may i|how (?:about|can)"
# A question after a comma is a sentence of its own.
_SENTENCES = re.compile(rf"(?<=[.?!])\s+|,\s*(?:and |but )?(?=(?:{_QUESTION})\b)", re.I)
_POLITE = r"^\W*(?:(?:and|or|so|ok(?:ay)?|sure|great|yes|sorry|please),? )*"
_ASKS = re.compile(
    rf"\?|{_POLITE}(?:what|which|where|do you|would you|are you looking|any (?:particular|preference)|(?:please )?"
    r"(?:tell|let) me|(?:please )?specify|(?:can|could) you|how about)\b",
    re.I,
)
_NEGATES = re.compile(r"\b(?:no|not|n't|none|neither|nothing|unable|cannot|unfortunately|without)\b|n't\b", re.I)
_HARMLESS = re.compile(
    r"\b(?:no|not a) (?:problem|worries)\b|\bif not\b|\bnot (?:sure|matter|too)\b|does(?:n't| not) matter", re.I
)
_BOOKS = re.compile(r"\b(?:book(?:ed|ing|s)?|reserv(?:e|ed|ation)s?)\b", re.I)
_MORE = re.compile(
    r"\b(?:anything|something|what) else\b|\b(?:any )?(?:other|more|further) (?:info\w*|questions?|help|assistance)\b|"
    r"\b(?:help|assist)(?: you)?(?: with| further|\?)|\bhow (?:can|may) i (?:help|assist)\b|\bhow else\b",
    re.I,
)
_OFFERS = re.compile(
    r"\b(?:would you (?:like|care|prefer|want)|do you (?:need|want)|(?:may|can|shall|should) i)\b", re.I
)
_ENJOYED = "day|meal|food|dinner|dining|time|evening|night"
_GENERAL = {
    BYE: re.compile(rf"\b(?:good ?bye|bye|good day|(?:enjoy|have)(?: a| your)? (?:\w+ )?(?:{_ENJOYED}))\b", re.I),
    WELCOME: re.compile(
        r"\b(?:you(?:'re| are|r)?(?: (?:most|quite|very))? welcome|my pleasure|glad (?:i|to)|happy to)\b", re.I
    ),
    GREET: re.compile(r"\b(?:hello|hi there|welcome to)\b", re.I),
    THANK: re.compile(r"\b(?:thanks?|thank you)\b", re.I),
}


class ReplyReader:
    """Reads delexicalized words of people, or of a language model that learned from people, as dialogue acts.

    Sentence by sentence: a placeholder is an ``inform``, or part of a booking. A question for a slot that a user can
    constrain or book is a ``request``. A negation without a name is ``nooffer``. The rest is searched for phrases such
    as "anything else".

    Args:
        ontology: The domains.
        templates: Nouns of domains and slots.
    """

    def __init__(self, ontology: Ontology, templates: Templates) -> None:
        self._ontology, self._templates = ontology, templates

    def read(self, text: str, active: str = "") -> list[DialogueAct]:
        """Understand a text.

        Args:
            text: The text.
            active: The domain that is being talked about, for sentences that name none.

        Returns:
            Delexicalized acts, each one once; none if nothing is understood.
        """
        only = next(iter(self._ontology.domains)) if len(self._ontology.domains) == 1 else ""
        name = active if active in self._ontology else only
        found: dict[DialogueAct, None] = {}
        for sentence in _SENTENCES.split(text):
            informs = [act for act in placeholders_in(sentence) if self._is_known(act)]
            plain = PLACEHOLDER.sub(" ", sentence)
            named = informs[0].domain if informs else self._templates.domain_named(plain)
            name = named if named in self._ontology else name
            acts = self._about(sentence, plain, informs, self._ontology[name]) if name else []
            found |= dict.fromkeys(acts or self._general(plain))
        return list(found)

    def _is_known(self, act: DialogueAct) -> bool:
        return act.domain in self._ontology and act.slot in self._ontology[act.domain].slots

    def _about(self, sentence: str, plain: str, informs: list[DialogueAct], spec: Domain) -> list[DialogueAct]:
        """Acts of a sentence about a domain."""
        asks, books = bool(_ASKS.search(sentence)), bool(_BOOKS.search(plain))
        negates = bool(_NEGATES.search(_HARMLESS.sub(" ", plain)))
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
            if _OFFERS.search(plain) and not informs:  # such as "would you like the address?"
                return [DialogueAct(REQ_MORE, GENERAL)]
        return informs

    def _general(self, plain: str) -> list[DialogueAct]:
        """Acts of a sentence that is about no domain."""
        if _MORE.search(plain):
            return [DialogueAct(REQ_MORE, GENERAL)]
        return [DialogueAct(intent, GENERAL) for intent, pattern in _GENERAL.items() if pattern.search(plain)]
