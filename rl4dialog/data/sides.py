"""The other side of logged dialogues: what people said to the agent, learned as a simulated user.

A conversation is learned as one row, from the partner's first utterance to its last, after which it says `END`. Its
prompt begins with its goal, if the data has one. Instructions of the agent and answers of tools, which people do not
see, are left out.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NotRequired

from pydantic import ConfigDict
from typing_extensions import TypedDict

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import MIN_SAMPLES, Sample
from rl4dialog.data.dialogue_format import DialogueFormat, Message
from rl4dialog.data.messages import Notes
from rl4dialog.data.rows import Row, is_empty
from rl4dialog.data.splits import Said, folded, shuffled

Learned = Literal["agent", "partner"]
END = "[end]"
"""What a learned partner says after its last word."""
_FEWEST_PEOPLE = 3  # one for each split
_REPEATED = 0.1  # share of utterances from which the data is said to repeat itself; it is far below 0.01 in DailyDialog

_logger = logging.getLogger(__name__)
_warn_once = functools.cache(_logger.warning)  # and not whenever rows are read


class People(TypedDict):
    """Whose conversations are used."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]
    # Column that names a person, or several if both sides are people; dots refer to nested ones (``meta_data.user``).
    # All conversations of a person of the first column are in the same split.
    by: str | list[str]
    # Number of groups in which the people are divided, of about as many conversations. No person is in two.
    groups: NotRequired[Count]
    # Numbers of the groups that are used, from 0, or names of people. Default: all.
    only: NotRequired[list[int | str]]


class Sides(NamedTuple):
    """Which side of a log is learned, and whose conversations are used."""

    learn: Learned = "agent"
    goal: str | None = None  # column with what the partner wants
    people: People | None = None
    draws_splits: bool = True  # whether splits are drawn from the rows that are used

    @property
    def columns(self) -> list[str]:
        """Columns with goals and people."""
        return [*([self.goal] if self.goal else []), *(_columns(self.people) if self.people is not None else [])]

    @property
    def goal_key(self) -> str:
        """Key of the goal in the meta data of samples."""
        return (self.goal or "").rpartition(".")[2]

    @property
    def person_key(self) -> str:
        """Key of the person in the meta data of samples."""
        return "" if self.people is None else _columns(self.people)[0].rpartition(".")[2]

    def about(self, row: Row) -> dict[str, str]:
        """Meta data of a row: its goal and its person, if there are any."""
        found = {}
        if self.goal is not None and not is_empty(row.get(self.goal)):
            found[self.goal_key] = " ".join(row.texts(self.goal))
        if self.people is not None:
            found[self.person_key] = row.text(_columns(self.people)[0])
        return found

    def person_of(self, row: Row) -> Said:
        """What keeps the rows of a person in the same split."""
        assert self.people is not None
        return Said(row.text(_columns(self.people)[0]), row.place, [])

    def check(self, splits: Iterable[str]) -> None:
        if self.people is not None and "groups" in self.people and [*splits] != ["train"]:
            cure = "use one file, or give the names of people in 'only'"
            raise DataError(
                f"people.groups divides one file, and there are several splits ({', '.join(splits)}); {cure}"
            )

    def chosen(self, read: Callable[[], Iterable[Row]], seed: int) -> Iterator[Row]:
        """The rows about people that are used, which are read twice."""
        assert self.people is not None
        columns, groups, only = _columns(self.people), self.people.get("groups"), self.people.get("only")
        counts = Counter(name for row in read() for name in _names(row, columns))
        if len(counts) < (groups or 2 * self.draws_splits):
            found = f"only {len(counts)} ({', '.join(counts)})" if counts else "nobody"
            raise DataError(f"people.by: {' and '.join(columns)} name {found}, so nobody can be held out")
        members: Mapping[str, int | str] = {name: name for name in counts}
        if groups is not None:
            members = grouped(counts, groups, seed)
        known = {*members.values()}
        if only is not None and (unknown := [each for each in only if each not in known]):
            of = f"groups 0 to {groups - 1}" if groups is not None else f"people such as {', '.join([*counts][:3])}"
            raise DataError(f"people.only: {unknown[0]!r} is none of the {of}")
        used = known if only is None else {*only}
        if self.draws_splits and (n := sum(members[name] in used for name in counts)) < _FEWEST_PEOPLE:
            raise DataError(f"people: {n} of {len(counts)} people are used, and at least {_FEWEST_PEOPLE} are needed")
        between = unnamed = 0
        for row in read():
            names = _names(row, columns)
            own = {members[name] for name in names}
            unnamed += len(names) < len(columns)
            between += bool(own & used) and not own <= used
            if len(names) == len(columns) and own <= used:
                yield row
        if between or unnamed:
            what = "%d conversations with people of other groups and %d without names of people are left out"
            _warn_once(f"people: {what}", between, unnamed)

    def samples(
        self,
        dialogues: Iterable[tuple[str | int, Sequence[Message], bool, dict[str, Any], Row]],
        form: DialogueFormat,
        split: str,
        notes: Notes,
        max_size: int | None,
    ) -> list[Sample]:
        """Samples of the partner's side: ids, messages, whether they have an end, meta data and rows are given."""

        def made() -> Iterator[Sample]:
            for id, messages, is_whole, meta_data, row in dialogues:
                about = self.about(row)
                if self.goal is not None and self.goal_key not in about:
                    notes[f"conversations without a goal in {self.goal!r}, left out"] += 1
                    continue
                said = alternating(messages)
                if not any(is_own for is_own, _ in said):
                    notes["conversations in which the partner says nothing, left out"] += 1
                    continue
                try:
                    goal = about.get(self.goal_key)
                    yield partner_sample(id, said, is_whole, {**meta_data, **about}, goal, form)
                except DataError as error:
                    raise row.error(str(error)) from error

        found = [*itertools.islice(made(), max_size)]
        if split != "train":
            return found
        if not found and self.goal is not None and notes:
            raise DataError(f"no conversation has a goal in {self.goal!r}: correct the name, or leave goal out")
        check_partner(found)
        if self.goal is None:
            _logger.warning("learn: partner without goal: it will say what is likely, whatever a sample is about")
        if self.people is None:
            _logger.warning("learn: partner without people: the same people may be in the train and the test split")
        if named := [name for sample in found if (name := self._name_in(sample))]:
            what = f"conversations of the train split have the name of their person in them, such as {named[0]!r}"
            _logger.warning(f"{len(named)} {what}: the partner learns to say it; replace names")
        return found

    def _name_in(self, sample: Sample) -> str:
        """The person of a conversation, if its name is in what was said."""
        info = sample.meta_data or {}
        name, said = info.get(self.person_key, ""), " | ".join([*sample.references, *info["continuation"]])
        is_there = len(name) > 2 and re.search(rf"\b{re.escape(name)}\b", said, re.IGNORECASE)
        return name if is_there else ""


def check_partner(samples: Sequence[Sample]) -> None:
    """Check what a partner is to learn from: that it is enough, and does not repeat itself."""
    said = [[each.references[0], *(each.meta_data or {})["continuation"][1::2]] for each in samples]
    said = [[text for text in each if text != END] for each in said]
    if (n_said := sum(map(len, said))) < MIN_SAMPLES:
        what = f"the partner says {n_said} utterances in the train split"
        raise DataError(f"{what}, and at least {MIN_SAMPLES} are needed: use more people or conversations")
    n_again = sum(len(each) - len({*map(folded, each)}) for each in said)
    if n_again > _REPEATED * n_said:
        what = "of the partner's utterances repeat an earlier one of their conversation"
        _logger.warning(f"{n_again / n_said:.0%} {what}")


def _columns(people: People) -> list[str]:
    return [people["by"]] if isinstance(people["by"], str) else people["by"]


def _names(row: Row, columns: Sequence[str]) -> list[str]:
    return [row.text(column) for column in columns if not is_empty(row.get(column))]


def grouped(counts: Counter[str], n: int, seed: int) -> dict[str, int]:
    """The group of each person: those with most conversations first, to the group that has fewest; ties at random."""
    names, sizes, found = sorted(counts), [0] * n, dict[str, int]()
    for name in sorted((names[i] for i in shuffled(len(names), f"people/{seed}")), key=lambda name: -counts[name]):
        found[name] = sizes.index(min(sizes))
        sizes[found[name]] += counts[name]
    return found


def alternating(messages: Sequence[Message]) -> list[tuple[bool, str]]:
    """What both sides said in turn, and whether it was the partner; successive messages of one side are one."""
    said = list[tuple[bool, str]]()
    for message in messages:
        is_own = message["role"] == "user"
        if message["role"] not in ("user", "assistant") or not message["content"].strip():
            continue
        if said and said[-1][0] == is_own:
            said[-1] = is_own, f"{said[-1][1]}\n{message['content']}"
        else:
            said.append((is_own, message["content"]))
    return said


def partner_sample(
    id: str | int,
    said: list[tuple[bool, str]],
    is_whole: bool,
    meta_data: dict[str, Any],
    goal: str | None,
    form: DialogueFormat,
) -> Sample:
    """A conversation from the partner's side, whose utterances are those of the assistant."""
    for text in (goal or "", *(text for _, text in said)):
        form.check_said(text)
    before = [] if said[0][0] else [said[0][1]]
    texts = [text for _, text in said[len(before) :]]
    if is_whole and said[-1][0]:
        texts[-1] = f"{texts[-1]} {END}"
    elif is_whole:
        texts.append(END)
    prompt = form.prompt(before, goal) if before else form.opening_prompt(goal)
    return Sample(id, prompt, texts[:1], {**meta_data, "history": before, "continuation": texts[1:]})
