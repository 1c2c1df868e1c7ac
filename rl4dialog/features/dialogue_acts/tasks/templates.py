"""Dialogue acts in words, and back: plain sentences from acts, and acts from what a person types.

`Templates.parse` reads everything that `Templates.render` writes as exactly the same acts. Other sentences are searched
for known values and for names of slots, so that people need not know the templates.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.features.dialogue_acts.tasks.acts import BOOKING, DONT_CARE, GENERAL, INFORM, REQUEST, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.ontology import REFERENCE, Database

Side = Literal["user", "agent"]


class Words(NamedTuple):
    """Words of a domain or a slot."""

    nouns: tuple[str, ...]  # its names; sentences use the first one
    phrase: str = ""  # words around a value of the slot, such as ``in the {}``. Default: ``with NOUN {}``


_TABLE = packaged_yaml(Path(__file__).with_suffix(".yaml"))
SLOTS = {slot: Words(tuple(nouns), *phrase) for slot, (nouns, *phrase) in _TABLE["slots"].items()}
"""Words of common slots. A slot that is not here is called by its name."""
# What begins a sentence; the first of each is written, all are read. The noun of the domain follows.
_OPENINGS: Mapping[tuple[str, Side], Sequence[str]] = {
    (intent, side): openings for side, each in _TABLE["openings"].items() for intent, openings in each.items()
}
_BOOKING_OF_USER = "Please book a"
_GENERAL: Mapping[str, Sequence[str]] = _TABLE["general"]
_GENERAL_OF = {text.lower().strip("?"): intent for intent, texts in _GENERAL.items() for text in texts}
_INTENTS = {
    opening.removesuffix(" a").lower(): intent for (intent, _), openings in _OPENINGS.items() for opening in openings
} | {_BOOKING_OF_USER.removesuffix(" a").lower(): INFORM, "book": INFORM}
_OPENING = re.compile(rf"(?:{'|'.join(sorted(map(re.escape, _INTENTS), key=len, reverse=True))})\b", re.I)
_SIGNS: dict[str, Any] = _TABLE["patterns"]
GENERAL_SIGNS = {intent: re.compile(sign, re.I) for intent, sign in _SIGNS.pop("general").items()}
"""Regular expressions of acts that belong to no domain, by intent."""
SIGNS = {
    name: re.compile(sign.replace("{question}", _SIGNS["question"]).replace("{number}", _SIGNS["number"]), re.I)
    for name, sign in _SIGNS.items()
}
"""Regular expressions of what people say, by name; see `templates.yaml`."""
_BETWEEN = re.compile(r"\s+(?:(?:an?|the|another|some|any)\s+)?", re.I)  # an opening and the noun of a domain
_LITERAL = re.compile(r"(\w+)-(\w+)\(([^()=]*)(?:=(.*?))?\)(?=\s|$)")
_ENDS = re.compile(r"(?<=[.?!])\s+")
_MASK = 0xE000  # first code point of a private area: masked characters separate nothing


class Templates:
    """Sentences of a world."""

    def __init__(
        self,
        database: Database,
        values: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
        words: Mapping[str, Words] | None = None,
    ) -> None:
        self.ontology = ontology = database.ontology
        known = {**SLOTS, **(words or {})}
        self._domains = {name: known.get(name, Words((name,))).nouns for name in (*ontology.domains, BOOKING)}
        self._slots: dict[str, dict[str, Words]] = {}
        self._values: dict[str, dict[str, dict[str, str]]] = {}
        for name, spec in ontology.domains.items():
            self._slots[name] = _distinct({slot: known.get(slot, Words((slot,))) for slot in spec.slots})
            self._values[name] = {slot: {} for slot in spec.slots}
            known_values = [item for entity in database.entities(name) for item in entity.items()]
            known_values += ((slot, value) for slot, each in (values or {}).get(name, {}).items() for value in each)
            for slot, value in known_values:
                if slot in self._values[name] and value != DONT_CARE:
                    self._values[name][slot][value.lower()] = value
            for each in self._values[name].values():
                each.update([(synonym, value) for synonym, value in ontology.synonyms.items() if value in each])
        self._slots[BOOKING] = {slot: words for slots in self._slots.values() for slot, words in slots.items()}
        self._values[BOOKING] = {
            slot: {key: value for each in self._values.values() for key, value in each.get(slot, {}).items()}
            for slot in self._slots[BOOKING]
        }
        self._compile()

    def _compile(self) -> None:
        self._domain_of = {noun: name for name, nouns in self._domains.items() for noun in nouns}
        nouns = _one_of(self._domain_of)
        self._domain = re.compile(rf"\b({nouns})s?\b", re.I)
        # A value of several words may contain what separates sentences and items, or the noun of a domain.
        parts = re.compile(rf"[.,?!].*\w|\b(?:{nouns})\b", re.I)
        every = {value for slots in self._values.values() for each in slots.values() for value in each}
        masked = [value for value in every if parts.search(value) and value not in self._domain_of]
        self._masked = re.compile(rf"(?<!\w)(?:{_one_of(masked)})(?!\w)", re.I) if masked else None
        self._patterns: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
        self._spots: dict[str, list[tuple[re.Pattern[str], Mapping[str, str]]]] = {}  # made on first use
        self._nouns: dict[str, tuple[re.Pattern[str], dict[str, str]]] = {}
        for name, slots in self._slots.items():
            by_length = sorted(slots, key=lambda slot: -len(slots[slot].phrase))
            self._patterns[name] = [(slot, _around(slots[slot].phrase, "(.+)")) for slot in by_length]
            slot_of = {noun: slot for slot, words in reversed(slots.items()) for noun in words.nouns}
            slot_of |= {words.nouns[0]: slot for slot, words in slots.items()}
            self._nouns[name] = (re.compile(rf"\b({_one_of(slot_of)})\b", re.I), slot_of)

    def noun(self, domain: str, slot: str = "") -> str:
        """The noun for a domain or one of its slots."""
        return self._slots[domain][slot].nouns[0] if slot else self._domains[domain][0]

    def items(self, domain: str, values: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
        """Values of slots in words, such as ``serving thai food, in the north``."""
        texts, unsaid = [], {"": "some", DONT_CARE: "any"}
        for slot, value in values.items() if isinstance(values, Mapping) else values:
            words = self._slots[domain][slot]
            is_said = value not in unsaid
            texts.append(words.phrase.format(value) if is_said else f"with {unsaid[value]} {words.nouns[0]}")
        return ", ".join(texts)

    def render(self, acts: Sequence[DialogueAct], side: Side) -> str:
        """Say acts with values: one sentence for adjacent acts of the same intent and domain.

        An act without a template is written as it is printed, such as ``hotel-confirm(area=north)``; `parse` reads it.
        """
        return " ".join(
            self._sentence(intent, name, list(group), side)
            for (intent, name), group in itertools.groupby(acts, key=lambda act: act[:2])
        )

    def _sentence(self, intent: str, name: str, acts: list[DialogueAct], side: Side) -> str:
        if name == GENERAL and intent in _GENERAL and not any(act.slot for act in acts):
            text = _GENERAL[intent][0]
            return " ".join([text if text.endswith("?") else f"{text}."] * len(acts))
        slots = self._slots.get(name, {})
        filled = [act for act in acts if act.slot]
        if (filled and len(filled) < len(acts)) or any(act.slot not in slots for act in filled):
            return " ".join(str(act) for act in acts)
        noun = self._domains[name][0] if slots else ""
        if intent == REQUEST and filled and not any(act.value for act in acts):
            nouns = " and the ".join(slots[act.slot].nouns[0] for act in filled)
            return f"What is the {nouns} of the {noun}?" if side == "user" else f"Tell me the {nouns} of the {noun}."
        openings = _OPENINGS.get((intent, side)) or _OPENINGS.get((intent, "agent"))
        if openings is None or not slots or (not filled and len(acts) > 1):
            return " ".join(str(act) for act in acts)
        opening = openings[0]
        bookable = self.ontology[name].bookable if name in self.ontology else ()
        if side == "user" and intent == INFORM and filled and all(act.slot in bookable for act in filled):
            opening = _BOOKING_OF_USER
        article = "n" if opening.endswith(" a") and noun[0] in "aeiou" else ""
        end = "?" if opening.startswith(("Shall", "Would")) else "."
        items = self.items(name, ((act.slot, act.value) for act in filled))
        return f"{opening}{article} {noun} {items}".rstrip() + end

    def parse(self, text: str, context: Sequence[DialogueAct] = ()) -> list[DialogueAct]:
        """Understand a text, of either side.

        The `context`, what the other side said before, gives the slots it asked for, and a domain if none is named.
        """
        names = [act.domain for act in context if act.domain in self.ontology]
        name, found = names[-1] if names else self.ontology.only, list[DialogueAct]()
        asked = [act for act in context if act.intent == REQUEST and act.domain == name and act.slot]
        for part in _split_literals(text):
            if isinstance(part, DialogueAct):
                found.append(part)
                continue
            masked = self._masked.sub(lambda value: _shifted(value[0], _MASK), part) if self._masked else part
            for sentence in _ENDS.split(masked.strip()):
                if sentence:
                    acts = self._read(sentence, name, asked)
                    name = next((act.domain for act in reversed(acts) if act.domain != GENERAL), name)
                    found += acts
        return found

    def _read(self, sentence: str, name: str, asked: Sequence[DialogueAct]) -> list[DialogueAct]:
        general = [_general(part) for part in re.split(r",\s*|\band\b", sentence)]
        if all(general):
            return [DialogueAct(intent, GENERAL) for intent in general if intent]
        body = re.sub(r"[.?!]\Z", "", sentence)
        about = self._domain.search(body)
        name = self._domain_of[about[1].lower()] if about else name
        if not name:
            return []
        if SIGNS["asking"].match(body) and (asked_for := self._requests(body, name)):
            return asked_for
        opening = _OPENING.match(body)
        intent = _INTENTS[opening[0].lower()] if opening else INFORM
        if opening and about and _BETWEEN.fullmatch(body, opening.end(), about.start()):
            items = body[about.end() :].strip()
            found = [item for piece in re.split(r",\s+", items) for item in self._items_in(_unmasked(piece), name)]
        else:
            found = self._spotted(_unmasked(body[opening.end() :] if opening else body), name)
        if not found and not about and asked:
            value = (
                DONT_CARE
                if SIGNS["no_matter"].search(body)
                else self._known(name, asked[0].slot, _unmasked(body).strip())
            )
            found = [(asked[0].slot, value)] if value else []
        if found:
            return [DialogueAct(intent, name, slot, value) for slot, value in found]
        if about:
            return [DialogueAct(intent, name)]
        return self._requests(body, name)  # such as "and the postcode, please"

    def slots_named(self, text: str, domain: str) -> list[str]:
        """Slots of a domain whose nouns occur in a text, in their order there."""
        pattern, slot_of = self._nouns[domain]
        return list(dict.fromkeys(slot_of[noun.lower()] for noun in pattern.findall(text)))

    def domain_named(self, text: str) -> str:
        """The domain whose noun occurs first in a text; empty if there is none."""
        about = self._domain.search(text)
        return self._domain_of[about[1].lower()] if about else ""

    def distinctive_values(self, domain: str) -> Iterator[tuple[str, str]]:
        """Slots of a domain and their known values, in lower case; without numbers and nouns of domains."""
        for slot, values in self._values[domain].items():
            yield from ((slot, value) for value in values if self._is_distinctive(value))

    def _is_distinctive(self, value: str) -> bool:
        return len(value) > 3 and not value.isdigit() and value not in self._domain_of

    def _requests(self, body: str, name: str) -> list[DialogueAct]:
        return [DialogueAct(REQUEST, name, slot) for slot in self.slots_named(body, name)]

    def _items_in(self, piece: str, name: str) -> list[tuple[str, str]]:
        """Slots and values of a piece between commas."""
        pattern, slot_of = self._nouns[name]
        without = re.fullmatch(rf"with (any|some) {pattern.pattern}", piece, re.I)
        if without is not None:
            return [(slot_of[without[2].lower()], DONT_CARE if without[1].lower() == "any" else "")]
        for slot, around in self._patterns[name]:
            match = around.fullmatch(piece)
            if match and (value := self._known(name, slot, match[1])):
                return [(slot, value)]
        return self._spotted(piece, name)

    def _spotted(self, text: str, name: str) -> list[tuple[str, str]]:
        """Slots and values anywhere in a text, in their order there."""
        if name not in self._spots:
            self._spots[name] = self._make_spots(name)
        found: list[tuple[int, str, str]] = []
        for pattern, slot_of in self._spots[name]:
            for match in pattern.finditer(text):
                slot = slot_of.get(match[1].lower(), slot_of.get("", ""))
                value = DONT_CARE if match[0].lower().startswith("any ") else self._known(name, slot, match[1])
                if value:
                    found.append((match.start(), slot, value))
                    text = text[: match.start()] + "\n" * len(match[0]) + text[match.end() :]
        return [(slot, value) for _, slot, value in sorted(found)]

    def _make_spots(self, name: str) -> list[tuple[re.Pattern[str], Mapping[str, str]]]:
        """Patterns of "any NOUN", of values with the words around them, and of values alone, and the slots of each."""
        nouns, slot_of = self._nouns[name]
        spots: list[tuple[re.Pattern[str], Mapping[str, str]]] = [
            (re.compile(rf"\bany {nouns.pattern}", re.I), slot_of)
        ]
        for slot, _ in self._patterns[name]:
            values = [_one_of(self._values[name][slot])] if self._values[name][slot] else []
            either = "|".join([*values, r"\d[\d:]*"] if self._is_open(name, slot) else values)
            spots.append((_around(self._slots[name][slot].phrase, f"({either})"), {"": slot}))
        slots = reversed(self._slots[name])
        alone = {value: slot for slot in slots for value in filter(self._is_distinctive, self._values[name][slot])}
        return [*spots, (re.compile(rf"(?<!\w)({_one_of(alone)})(?!\w)", re.I), alone)] if alone else spots

    def _is_open(self, name: str, slot: str) -> bool:
        """Whether a slot has values with digits that are not known in advance."""
        values = self._values[name][slot]
        return not values or any(any(map(str.isdigit, value)) for value in values)

    def _known(self, name: str, slot: str, text: str) -> str:
        """The value that a text gives for a slot; empty if it is none."""
        values = self._values[name][slot]
        if text.lower() in values:
            return values[text.lower()]
        if slot == REFERENCE:
            return text
        value = self.ontology.normalized(name, slot, text) if name in self.ontology else text
        if value in values or value == DONT_CARE:
            return values.get(value, value)
        if self._is_open(name, slot):
            return value if not values or any(map(str.isdigit, value)) else ""
        near = difflib.get_close_matches(value, values, 1, 0.85)
        return values[near[0]] if near else ""


def _distinct(slots: Mapping[str, Words]) -> dict[str, Words]:
    """Complete the words of a domain's slots; a slot whose words another one has is called by its name."""
    nouns, phrases, found = set[str](), set[str](), {}
    for slot, words in slots.items():
        if words.nouns[0] in nouns:
            words = Words((slot,))
        phrase = words.phrase if words.phrase and words.phrase not in phrases else f"with {words.nouns[0]} {{}}"
        nouns.add(words.nouns[0])
        phrases.add(phrase)
        found[slot] = Words(words.nouns, phrase)
    return found


def _around(phrase: str, value: str) -> re.Pattern[str]:
    before, after = phrase.split("{}")
    return re.compile(rf"(?<!\w){re.escape(before)}{value}{re.escape(after)}(?!\w)", re.I)


def _one_of(texts: Iterable[str]) -> str:
    """A regular expression for any of the texts, the longest one first."""
    return "|".join(re.escape(text) for text in sorted(texts, key=lambda text: (-len(text), text)))


def _general(text: str) -> str:
    """The intent of a phrase such as "Goodbye."; empty if it is none."""
    return _GENERAL_OF.get(text.strip(" .?!,").lower(), "")


def _split_literals(text: str) -> Iterable[str | DialogueAct]:
    """Acts that are written as they are printed, and the texts between them."""
    start = 0
    for match in _LITERAL.finditer(text):
        yield text[start : match.start()]
        domain, intent, slot, value = match.groups()
        yield DialogueAct(intent, domain, slot, value or "")
        start = match.end()
    yield text[start:]


def _shifted(text: str, by: int) -> str:
    return "".join(chr(ord(char) + by) if ord(char) < 0x1900 else char for char in text)


def _unmasked(text: str) -> str:
    return "".join(chr(ord(char) - _MASK) if _MASK <= ord(char) < _MASK + 0x1900 else char for char in text)
