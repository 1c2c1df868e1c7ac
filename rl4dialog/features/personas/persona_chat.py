"""PersonaChat: two people with given personas get to know each other.

Reads the text files of PersonaChat and ConvAI2, or a hub dataset with the columns ``personality``, ``history`` and
``candidates`` (the true reply last). The agent is the side called "your" in the files. Source: Zhang et al. 2018,
"Personalizing Dialogue Agents: I have a dog, do you have pets too?"; file format of ParlAI.

With persona sentences p1, p2 and utterances u1, u2, format ``eou`` gives ``p1 p2<EOU>u1<EOU>u2 <EOU>``: the personas
are an additional first utterance. Format ``chat_template`` uses them as the system message.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data import splits
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat, SampleUnit
from rl4dialog.data.pool import TextGenPool, check_split, hub_split, limit_samples
from rl4dialog.data.rows import FilePath, Row, expand_path, is_count, read_lines, table_suffix
from rl4dialog.data.splits import HeldOutShare, SplitPath

HUB_ID = "bavard/personachat_truecased"
PersonaSide = Literal["self", "other", "both", "none"]
_YOURS = "your persona:"
_PARTNERS = "partner's persona:"
# ParlAI's placeholder for the partner's turn when the agent speaks first.
_SILENCE = "__SILENCE__"
_FILE_PREFIXES = {"train": "train", "val": "valid", "test": "test"}


@dataclass
class Exchange:
    """One reply of the agent and its context."""

    history: list[str]  # utterances before the reply, oldest first
    reply: str  # the agent's reply
    persona: list[str]  # sentences about the agent
    partner_persona: list[str]  # sentences about the other side
    candidates: list[str]  # candidate replies, if available; they include the true one
    place: str = ""  # file and line, for messages

    @property
    def said(self) -> list[str]:
        """The utterances of the dialogue up to and including the reply."""
        return [*self.history, self.reply]


class PersonaChat(TextGenPool):
    """Small talk between two personas (PersonaChat, ConvAI2), from the hub or from text files.

    Args:
        context_size: Maximum number of utterances in a prompt, without personas.
        path: A text file (used for every split), a folder with files such as ``valid_self_original.txt``, or a mapping
            from split to file; by default the hub dataset is loaded.
        persona_side: Persona in the prompt: ``self``, ``other``, ``both`` or ``none``. With ``both`` each one is
            preceded by ``your persona:`` or ``partner's persona:``.
        dataset_id: Hub dataset to use without ``path``. If it has no test split, the first half of its validation split
            is ``val`` and the second half is ``test``.
    """

    @classmethod
    def prepare(
        cls,
        split: str,
        context_size: Count = 5,
        path: FilePath | Mapping[str, FilePath] | None = None,
        format: FormatName = "eou",
        persona_side: PersonaSide = "self",
        max_size: Count | None = None,
        render_chat: RenderChat | None = None,
        dataset_id: str = HUB_ID,
        samples: SampleUnit = "replies",
    ) -> PersonaChat:
        """Load one split: one sample for each reply of the agent with at least one earlier utterance.

        Samples have ``history``, ``persona`` and ``candidates`` in their meta data.
        """
        check_split(split)
        dialogue_format = DialogueFormat(format, context_size, render_chat)
        if path is None:
            source, exchanges = dataset_id, _load_from_hub(split, dataset_id)
        else:
            file = find_file(split, path, persona_side)
            source, exchanges = str(file), parse_exchanges(read_lines(file), str(file))
        found = _make_samples(exchanges, dialogue_format, persona_side, source, samples)
        return cls(limit_samples(found, max_size, "persona_chat", split, source), dialogue_format=dialogue_format)


def find_file(split: str, path: FilePath | Mapping[str, FilePath], persona_side: PersonaSide = "self") -> Path:
    """Find the text file of a split.

    In a folder, files named after this side are preferred, then ``both``, then ``self``; among them original personas
    before revised ones, and files with candidates before those without.
    """
    if isinstance(path, Mapping):
        if split not in path:
            raise DataError(f"path has no file for split {split!r}, only for {', '.join(path) or 'none'}")
        path = path[split]
    place = expand_path(path)
    if place.is_file():
        return place
    sides = dict.fromkeys([persona_side, "both", "self"])
    kinds = itertools.product(sides, ("original", "revised"), ("", "_no_cands"))
    names = [f"{_FILE_PREFIXES[split]}_{side}_{wording}{suffix}.txt" for side, wording, suffix in kinds]
    for name in names:
        if (place / name).is_file():
            return place / name
    raise DataError(
        f"{place} contains no PersonaChat file for split {split!r}: tried {', '.join(names)}. {splits.FILES_HINT}"
    )


def parse_exchanges(lines: Iterable[str], file: str) -> list[Exchange]:
    """Parse the numbered lines of a PersonaChat file.

    ``1 your persona: ...`` and ``1 partner's persona: ...`` contain one sentence each; other lines are
    ``7 PARTNER'S UTTERANCE<TAB>REPLY``, optionally followed by a reward column and by the candidates, joined by ``|``.
    A new dialogue starts at number 1.
    """
    exchanges: list[Exchange] = []
    history: list[str] = []
    personas: dict[str, list[str]] = {_YOURS: [], _PARTNERS: []}
    last_number = 0
    for line_number, line in enumerate(lines, start=1):
        place = f"{file}:{line_number}"
        number, _, content = line.partition(" ")
        if not is_count(number):
            raise DataError(f"{place}: the line must start with its number in the dialogue, not with {number!r}")
        if int(number) == 1:
            history, personas = [], {_YOURS: [], _PARTNERS: []}
        elif int(number) != last_number + 1:
            raise DataError(f"{place}: number {number} follows {last_number}; expected {last_number + 1}, or 1")
        last_number = int(number)
        if prefix := next(filter(content.startswith, personas), None):
            if not (sentence := content.removeprefix(prefix).strip()):
                raise DataError(f"{place}: no sentence after {prefix!r}")
            personas[prefix].append(sentence)
        else:
            fields = [field.strip() for field in content.split("\t")]
            if not 2 <= len(fields) <= 4:
                expected = "'partner<TAB>reply' with up to two more columns (reward, candidates)"
                raise DataError(f"{place}: expected {expected}, but the line has {len(fields)} column(s)")
            said, reply = fields[:2]
            if not said or not reply:
                raise DataError(f"{place}: the {'reply' if said else 'utterance of the partner'} is empty")
            if said != _SILENCE:
                history.append(said)
            candidates = [each.strip() for each in fields[3].split("|")] if len(fields) == 4 and fields[3] else []
            exchanges.append(Exchange([*history], reply, personas[_YOURS], personas[_PARTNERS], candidates, place))
            history.append(reply)
    return exchanges


def _make_samples(
    exchanges: Sequence[Exchange], dialogue_format: DialogueFormat, persona_side: str, source: str, unit: SampleUnit
) -> list[Sample]:
    samples = []
    for dialogue in dialogue_ranges(exchanges):
        answered = [index for index in dialogue if exchanges[index].history]
        for index in answered[:1] if unit == "dialogues" else answered:
            exchange = exchanges[index]
            context = dialogue_format.context(exchange.history)
            meta_data: dict[str, Any] = {"history": context, "persona": exchange.persona}
            if exchange.partner_persona:
                meta_data["partner_persona"] = exchange.partner_persona
            if exchange.candidates:
                meta_data["candidates"] = exchange.candidates
            if unit == "dialogues":
                meta_data["continuation"] = exchanges[dialogue[-1]].said[len(exchange.said) :]
            persona = persona_text(exchange.persona, exchange.partner_persona, persona_side, source)
            prompt = dialogue_format.prompt(context, persona)
            samples.append(Sample(index, prompt, [exchange.reply], meta_data))
    return samples


def dialogue_ranges(exchanges: Sequence[Exchange]) -> Iterator[range]:
    """Yield the positions of each dialogue's exchanges: the history of each continues that of the one before."""
    start = 0
    for index in range(1, len(exchanges) + 1):
        said = exchanges[index - 1].said
        if index == len(exchanges) or exchanges[index].history[: len(said)] != said:
            yield range(start, index)
            start = index


def persona_text(persona: Sequence[str], partner_persona: Sequence[str], side: str, source: str) -> str | None:
    """The personas of a prompt; ``None`` for side ``none``."""
    own, other = (_YOURS, persona), (_PARTNERS, partner_persona)
    groups = {"self": [own], "other": [other], "both": [own, other], "none": []}[side]
    for prefix, sentences in groups:
        if not sentences:
            raise DataError(
                f"{source} has a dialogue without a '{prefix}' line, which persona_side {side!r} requires; choose "
                f"another persona_side ({', '.join(get_args(PersonaSide))}) or another file"
            )
    texts = [" ".join([prefix, *sentences] if side == "both" else sentences) for prefix, sentences in groups]
    return " ".join(texts) if texts else None


def _load_from_hub(split: str, dataset_id: str) -> list[Exchange]:
    hint = "Without a network, set 'path:' to ConvAI2's text file, or a folder of such files."
    found = splits.load_hub_dataset(dataset_id, hint)
    is_halved = split != "train" and "test" not in found
    name = "validation" if is_halved else hub_split(split)
    if name not in found:
        raise DataError(f"hub dataset {dataset_id!r} has no split {name!r}, only {', '.join(found)}")
    rows = list(splits.dataset_rows(found[name], f"hub dataset {dataset_id!r}, split {name}"))
    if is_halved:  # whole conversations of the first half are val, those of the second half test
        conversations = list(dict.fromkeys(row["conv_id"] for row in rows))
        middle = (len(conversations) + 1) // 2
        kept = set(conversations[:middle] if split == "val" else conversations[middle:])
        rows = [row for row in rows if row["conv_id"] in kept]
    exchanges = []
    for row in rows:
        said = [text for text in row["history"] if text != _SILENCE]
        candidates = list(row["candidates"])
        exchanges.append(Exchange(said, candidates[-1], list(row["personality"]), [], candidates))
    return exchanges


# Reads personas from the files of convogym, ConvAI2 and Synthetic-Persona-Chat.
Persona = tuple[str, ...]
_FACT = "fact"
_USERS = ("user 1 personas", "user 2 personas")


class PersonaPair(NamedTuple):
    """The personas of a row or dialogue."""

    first: Persona  # sentences about one person
    second: Persona | None = None  # those about the other one, if the file has them


def read_personas(split: str, path: SplitPath, held_out_share: float | None, split_seed: int) -> list[PersonaPair]:
    """Read the personas of one split, in the order of the file.

    A text file is used for every split, a CSV file for ``train``, of which a share can be held out.
    """
    files = chain.from_iterable(place.iterdir() if place.is_dir() else [place] for place in splits.places_of(path))
    if any(table_suffix(file) == ".csv" for file in files):
        readers = splits.file_readers(path, (".csv",))
        return [*map(_pair_of, splits.split_reader(split, readers, str(path), held_out_share, split_seed)())]
    if held_out_share is not None:
        raise DataError(f"{path} has no CSV file, so held_out_share has no effect; remove it")
    return list(_pairs_in_text(str(find_file(split, path, "both"))))


def _pair_of(row: Row) -> PersonaPair:
    if set(_USERS) <= row.values.keys():
        return PersonaPair(*(_facts(row, row.text(column).splitlines(), f"column {column!r}") for column in _USERS))
    columns = [name for name in row.values if name.lower().startswith(_FACT)]
    if not columns:
        raise row.error(
            f"unknown columns ({', '.join(row.values)}); expected Fact 1, Fact 2, ... (convogym) or "
            f"{' and '.join(_USERS)} (Synthetic-Persona-Chat)"
        )
    return PersonaPair(_facts(row, map(row.text, columns), "the row"))


def _facts(row: Row, texts: Iterable[str], what: str) -> Persona:
    facts = tuple(filter(None, map(str.strip, texts)))
    if not facts:
        raise row.error(f"{what} has no facts")
    return facts


def _pairs_in_text(file: str) -> Iterator[PersonaPair]:
    exchanges = parse_exchanges(read_lines(expand_path(file)), file)
    for dialogue in dialogue_ranges(exchanges):
        first = exchanges[dialogue.start]
        if not first.persona:
            raise DataError(f"{first.place}: the dialogue has no 'your persona:' line before this one")
        yield PersonaPair(tuple(first.persona), tuple(first.partner_persona) or None)


def distinct(pairs: Iterable[PersonaPair]) -> list[Persona]:
    """Return all personas once, in order; the same facts in another order are the same persona."""
    found: dict[frozenset[str], Persona] = {}
    for persona in chain.from_iterable(pairs):
        if persona is not None:
            found.setdefault(frozenset(persona), persona)
    return list(found.values())


class PersonaPairs(TextGenPool):
    """Two personas per sample, from files of convogym, ConvAI2 or Synthetic-Persona-Chat, without replies.

    Args:
        path: convogym's CSV files, ConvAI2's text files, or Synthetic-Persona-Chat's CSV files: one file, a folder of
            files named after their splits, or a mapping from split to file. One text file is used for every split; one
            CSV file is ``train``.
        order: ``random`` draws two different personas for each sample. ``sequence`` takes the pairs of the file in
            order; if it has single personas, the first and the second one, the third and the fourth one and so on, each
            persona once, without a last one that is left over.
        max_size: Number of samples that are drawn, by default one for each persona; with ``sequence``, the maximum.
        greeting: The partner's first utterance, which the agent answers with ``first_speaker: sample``.
        persona_side: Persona in the prompt: the agent's (``self``), the partner's (``other``), ``both`` or ``none``.
        held_out_share: Share of the personas in ``train`` for each of ``val`` and ``test`` that has no CSV file.
        seed: Random seed of the pairs and of the held-out personas.
    """

    @classmethod
    def prepare(
        cls,
        split: str,
        path: SplitPath,
        order: Literal["random", "sequence"] = "random",
        max_size: Count | None = None,
        greeting: str = "hello !",
        persona_side: PersonaSide = "self",
        held_out_share: HeldOutShare | None = None,
        seed: int = 0,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> PersonaPairs:
        """Load one split of samples without references.

        In the meta data are ``persona`` and ``partner_persona``, lists of sentences, and the greeting as ``history``.
        """
        check_split(split)
        if not greeting.strip():
            raise DataError("datapool 'persona_pairs': greeting is blank; the agent needs something to answer")
        dialogue_format = DialogueFormat(format, None, render_chat)
        found = read_personas(split, path, held_out_share, seed)
        in_order = _file_pairs(found) if order == "sequence" else _drawn_pairs(found, f"{seed}/{split}", str(path))
        n_samples = max_size if order == "sequence" or max_size is not None else len(distinct(found))
        samples = (
            Sample(
                index,
                dialogue_format.prompt([greeting], persona_text(persona, partner_persona, persona_side, str(path))),
                [],
                {"history": [greeting], "persona": [*persona], "partner_persona": [*partner_persona]},
            )
            for index, (persona, partner_persona) in enumerate(in_order)
        )
        return cls(
            limit_samples(samples, n_samples, "persona_pairs", split, str(path)), dialogue_format=dialogue_format
        )


def _file_pairs(found: Sequence[PersonaPair]) -> Iterator[tuple[Persona, Persona]]:
    if all(pair.second is not None for pair in found):
        return ((pair.first, pair.second) for pair in found if pair.second is not None)
    personas = distinct(found)
    return zip(personas[::2], personas[1::2], strict=False)


def _drawn_pairs(found: Sequence[PersonaPair], seed: str, source: str) -> Iterator[tuple[Persona, Persona]]:
    """Draw pairs without end."""
    personas = distinct(found)
    if len(personas) < 2:
        raise DataError(f"{source} has {len(personas)} persona in this split; pairs need at least two different ones")
    rng = random.Random(f"persona_pairs/{seed}")
    # random() alone has the same sequence in all versions of Python.
    for _ in itertools.count():
        one = int(rng.random() * len(personas))
        other = int(rng.random() * (len(personas) - 1))
        yield personas[one], personas[other + (other >= one)]
