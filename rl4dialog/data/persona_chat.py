"""PersonaChat: two people with given personas get to know each other.

Reads the text files of PersonaChat and ConvAI2, or a hub dataset with the columns ``personality``, ``history`` and
``candidates`` (the true reply last). The agent is the side called "your" in the files. Source: Zhang et al. 2018,
"Personalizing Dialogue Agents: I have a dog, do you have pets too?"; file format of ParlAI.

With persona sentences p1, p2 and utterances u1, u2, format ``eou`` gives ``p1 p2<EOU>u1<EOU>u2 <EOU>``: the personas
are an additional first utterance. Format ``chat_template`` uses them as the system message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat, SampleUnit
from rl4dialog.data.hub import load_hub_dataset
from rl4dialog.data.pool import SPLITS, TextGenPool, check_split, limit_samples
from rl4dialog.data.text_files import FilePath, expand_path, is_count, read_lines

HUB_ID = "bavard/personachat_truecased"
PersonaSide = Literal["self", "other", "both", "none"]
PERSONA_SIDES = get_args(PersonaSide)

_YOURS = "your persona:"
_PARTNERS = "partner's persona:"
# ParlAI's placeholder for the partner's turn when the agent speaks first.
_SILENCE = "__SILENCE__"
_FILE_PREFIXES = {"train": "train", "val": "valid", "test": "test"}


@dataclass
class Exchange:
    """One reply of the agent and its context.

    Attributes:
        history: Utterances before the reply, oldest first.
        reply: The agent's reply.
        persona: Sentences about the agent.
        partner_persona: Sentences about the other side.
        candidates: Candidate replies, if available; they include the true one.
        place: File and line, for messages.
    """

    history: list[str]
    reply: str
    persona: list[str]
    partner_persona: list[str]
    candidates: list[str]
    place: str = ""

    @property
    def said(self) -> list[str]:
        """The utterances of the dialogue up to and including the reply."""
        return [*self.history, self.reply]


class PersonaChat(TextGenPool):
    """Small talk between two personas (PersonaChat, ConvAI2), from the hub or from text files."""

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

        Args:
            split: ``train``, ``val`` or ``test``.
            context_size: Maximum number of utterances in a prompt, without personas.
            path: A text file (used for every split), a folder with files such as ``valid_self_original.txt``, or a
                mapping from split to file; by default the hub dataset is loaded.
            format: ``eou`` or ``chat_template``.
            persona_side: Persona in the prompt: ``self``, ``other``, ``both`` or ``none``. With ``both`` each one is
                preceded by ``your persona:`` or ``partner's persona:``.
            max_size: Keep only the first samples.
            render_chat: Formats chat messages as a prompt; required for ``chat_template``.
            dataset_id: Hub dataset to use without ``path``. If it has no test split, the first half of its validation
                split is ``val`` and the second half is ``test``.
            samples: ``replies``: one sample for each reply. ``dialogues``: one for each dialogue, which begins with the
                reply to the first utterance; all later utterances are in the meta data as ``continuation``, for the
                partner ``replay``.

        Returns:
            A pool whose samples have ``history``, ``persona`` and ``candidates`` in their meta data.

        Raises:
            DataError: If an argument is invalid, or the data is missing, malformed or empty.
        """
        check_split(split)
        dialogue_format = DialogueFormat(format, context_size, render_chat)
        if path is None:
            source, exchanges = dataset_id, _load_from_hub(split, dataset_id)
        else:
            file = find_file(split, path, persona_side)
            source, exchanges = str(file), parse_exchanges(read_lines(file), str(file))
        found = _make_samples(exchanges, dialogue_format, persona_side, source, samples)
        pool = cls(limit_samples(found, max_size, "persona_chat", split, source))
        pool.use_format(dialogue_format)
        return pool


def find_file(split: str, path: FilePath | Mapping[str, FilePath], persona_side: PersonaSide = "self") -> Path:
    """Find the text file of a split.

    Args:
        split: ``train``, ``val`` or ``test``.
        path: A file, a folder, or a mapping from split to file.
        persona_side: Preferred files in a folder: those named after this side, then ``both``, then ``self``; among
            them original personas before revised ones, and files with candidates before those without.

    Returns:
        An existing file.

    Raises:
        DataError: If there is none; the message lists the names that were tried.
    """
    if isinstance(path, Mapping):
        if split not in path:
            raise DataError(
                f"datapool 'persona_chat': path has no file for split {split!r}, only for {', '.join(path) or 'none'}"
            )
        path = path[split]
    place = expand_path(path)
    if place.is_file():
        return place
    sides = dict.fromkeys([persona_side, "both", "self"])
    names = [
        f"{_FILE_PREFIXES[split]}_{side}_{wording}{suffix}.txt"
        for side in sides
        for wording in ("original", "revised")
        for suffix in ("", "_no_cands")
    ]
    for name in names:
        if (place / name).is_file():
            return place / name
    raise DataError(
        f"{place} contains no PersonaChat file for split {split!r}: tried {', '.join(names)}. Alternatively, set one "
        f"file per split: path: {{{', '.join(f'{name}: FILE' for name in SPLITS)}}}"
    )


def parse_exchanges(lines: Iterable[str], file: str) -> list[Exchange]:
    """Parse the numbered lines of a PersonaChat file.

    ``1 your persona: ...`` and ``1 partner's persona: ...`` contain one sentence each; other lines are
    ``7 PARTNER'S UTTERANCE<TAB>REPLY``, optionally followed by a reward column and by the candidates, joined by ``|``.
    A new dialogue starts at number 1.

    Args:
        lines: Lines without line ends.
        file: Name of the file, for messages.

    Returns:
        The exchanges of all dialogues, in order.

    Raises:
        DataError: If a line has another format; the message contains file and line number.
    """
    exchanges: list[Exchange] = []
    history: list[str] = []
    yours: list[str] = []
    partners: list[str] = []
    last_number = 0
    for line_number, line in enumerate(lines, start=1):
        place = f"{file}:{line_number}"
        number, _, content = line.partition(" ")
        if not is_count(number):
            raise DataError(f"{place}: the line must start with its number in the dialogue, not with {number!r}")
        if int(number) == 1:
            history, yours, partners = [], [], []
        elif int(number) != last_number + 1:
            raise DataError(f"{place}: number {number} follows {last_number}; expected {last_number + 1}, or 1")
        last_number = int(number)
        if content.startswith(_YOURS):
            yours.append(_persona_sentence(content, _YOURS, place))
        elif content.startswith(_PARTNERS):
            partners.append(_persona_sentence(content, _PARTNERS, place))
        else:
            said, reply, candidates = _parse_exchange_line(content, place)
            if said != _SILENCE:
                history.append(said)
            exchanges.append(Exchange([*history], reply, yours, partners, candidates, place))
            history.append(reply)
    return exchanges


def _persona_sentence(content: str, prefix: str, place: str) -> str:
    sentence = content.removeprefix(prefix).strip()
    if not sentence:
        raise DataError(f"{place}: no sentence after {prefix!r}")
    return sentence


def _parse_exchange_line(content: str, place: str) -> tuple[str, str, list[str]]:
    fields = [field.strip() for field in content.split("\t")]
    if not 2 <= len(fields) <= 4:
        raise DataError(
            f"{place}: expected 'partner<TAB>reply' with up to two more columns (reward, candidates), "
            f"but the line has {len(fields)} column(s)"
        )
    said, reply = fields[:2]
    if not said or not reply:
        raise DataError(f"{place}: the {'reply' if said else 'utterance of the partner'} is empty")
    candidates = fields[3].split("|") if len(fields) == 4 and fields[3] else []
    return said, reply, [candidate.strip() for candidate in candidates]


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
    """Format the personas of a prompt.

    Args:
        persona: Sentences about the agent.
        partner_persona: Sentences about the other side.
        side: A ``PersonaSide``; with ``both``, each one is preceded by ``your persona:`` or ``partner's persona:``.
        source: Path or hub id of the data, for messages.

    Returns:
        The text; ``None`` for side ``none``.

    Raises:
        DataError: If a persona has no sentences.
    """
    if side == "none":
        return None
    chosen = {"self": [(_YOURS, persona)], "other": [(_PARTNERS, partner_persona)]}
    groups = chosen.get(side, chosen["self"] + chosen["other"])
    for prefix, sentences in groups:
        if not sentences:
            raise DataError(
                f"{source} has a dialogue without a '{prefix}' line, which persona_side {side!r} requires; choose "
                f"another persona_side ({', '.join(PERSONA_SIDES)}) or another file"
            )
    if side == "both":
        return " ".join(" ".join([prefix, *sentences]) for prefix, sentences in groups)
    return " ".join(groups[0][1])


def _load_from_hub(split: str, dataset_id: str) -> list[Exchange]:
    hint = "Without a network, set 'path:' to ConvAI2's text file, or a folder of such files."
    splits = load_hub_dataset(dataset_id, hint)
    if split == "train" or "test" in splits:
        name = "validation" if split == "val" else split
        if name not in splits:
            raise DataError(f"hub dataset {dataset_id!r} has no split {name!r}, only {', '.join(splits)}")
        rows = list(splits[name])
    else:
        rows = _half_of_validation(split, list(splits["validation"]), dataset_id)
    exchanges = []
    for row in rows:
        try:
            history, candidates, persona = row["history"], row["candidates"], row["personality"]
        except KeyError as error:
            raise DataError(
                f"hub dataset {dataset_id!r} has no column {error}; required: personality, history, candidates"
            ) from error
        said = [text for text in history if text != _SILENCE]
        exchanges.append(Exchange(said, candidates[-1], list(persona), [], list(candidates)))
    return exchanges


def _half_of_validation(split: str, rows: list[dict[str, Any]], dataset_id: str) -> list[dict[str, Any]]:
    """Return whole conversations of the first half (val) or the second half (test) of the validation split."""
    if rows and "conv_id" not in rows[0]:
        raise DataError(f"hub dataset {dataset_id!r} has no test split, and no column 'conv_id' to create one")
    conversations = list(dict.fromkeys(row["conv_id"] for row in rows))
    middle = (len(conversations) + 1) // 2
    kept = set(conversations[:middle] if split == "val" else conversations[middle:])
    return [row for row in rows if row["conv_id"] in kept]
