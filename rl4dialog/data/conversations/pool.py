"""The datapool of logged conversations, and the layouts in which it reads them.

They are our own, and those of TRL, LMRL-Gym, ILQL and user feedback, which are converted to lines of our own layout.
Sources: "Dataset formats and types" in TRL's documentation; ``train_ilql.py`` of LMRL-Gym's Wordle (Abdulhai et al.
2023, arXiv 2311.18232); ILQL's file of tweets (Snell et al. 2022, arXiv 2206.11871); `rl4dialog.core.feedback`.
"""

from __future__ import annotations

import functools
import itertools
import logging
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import Feedback, of_record
from rl4dialog.core.files import file_hash
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import SYSTEM_KEY, Dialogue, Sample
from rl4dialog.data import splits
from rl4dialog.data.conversational import plain_or_messages, preference_of, refuse_foreign, reply_of
from rl4dialog.data.conversations.record import ROLES, read_dialogues
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, Message, RenderChat, chat_messages
from rl4dialog.data.messages import Notes, log_notes
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import Row, TypedRow
from rl4dialog.data.sides import Learned, People, Sides
from rl4dialog.data.splits import HeldOutShare, IndexFiles, SplitPath

# Wordle games of people. Tweets show only the colours of guesses. ILQL's ``build_human_datastructure.py`` writes one
# JSON object: ``games`` is a list of pairs, the day's word and the colours of each guess (``"<b><b><y><y><b>"``), and
# ``transitions`` maps each hidden word to colours, and these to the guesses that have them.
_OPENING = "new word"  # of the partner, as in the task wordle
_SOLVED = "<g>" * 5
_Colours = Annotated[str, Field(pattern=r"^(<[gyb]>){5}$")]


class _Tweets(TypedRow):
    games: list[Annotated[tuple[str, Annotated[list[_Colours], Field(min_length=1)]], Field(strict=False)]]
    transitions: dict[str, dict[str, list[str]]]


def game_rows(
    read: Callable[[], Iterable[Row]],
    seed: int,
    true_words: bool = False,
    only: Collection[int] | None = None,
    notes: Notes | None = None,
) -> Iterator[Row]:
    """Yield each game, or those with some numbers, as a line of a conversation log.

    As ILQL does by default, a game gets any hidden word that its colours allow, drawn with equal probability, and for
    each guess any word with its colours; so the same game has the same words in every reading. With ``true_words``, the
    hidden word is the day's. A game that no such word allows is left out, as there; ``notes`` has their number. Every
    other guess costs 1.
    """
    n_left_out = 0
    for row in read():
        tweets = row.parsed(_Tweets)
        words = sorted(tweets.transitions)
        if only and max(only) >= len(tweets.games):
            raise row.error(f"index_file lists game {max(only)}, but there are {len(tweets.games)}, from 0")
        for number, (of_day, colours) in enumerate(tweets.games):
            if only and number not in only:
                continue
            rng = random.Random(derive_seed(seed, "tweets", number))
            possible = [word for word in (of_day,) if word in tweets.transitions] if true_words else words
            if (word := _hidden_word(colours, tweets.transitions, possible, rng)) is not None:
                guesses = [rng.choice(tweets.transitions[word][each]) for each in colours]
                yield Row(_record(number, word, guesses, colours), f"{row.place}, game {number}")
            else:
                n_left_out += 1
    if notes is not None:
        notes["left out games whose colours no hidden word allows"] = n_left_out


def _hidden_word(
    colours: list[str], transitions: Mapping[str, Mapping[str, list[str]]], words: list[str], rng: random.Random
) -> str | None:
    left = words.copy()
    while left:
        place = rng.randrange(len(left))
        left[place], left[-1] = left[-1], left[place]
        word = left.pop()
        if all(transitions[word].get(each) for each in colours):
            return word
    return None


def _record(number: int, word: str, guesses: list[str], colours: list[str]) -> dict[str, Any]:
    messages = [{"role": "user", "content": _OPENING}]
    for guess, shown_colours in zip(guesses, colours, strict=True):
        messages += [
            {"role": "assistant", "content": guess},
            {"role": "user", "content": "".join(filter(str.isalpha, shown_colours))},
        ]
    rewards = [0.0 if each == _SOLVED else -1.0 for each in colours]
    return {"id": number, "messages": messages, "rewards": rewards, "meta_data": {"word": word}}


Layout = Literal["messages", "completion", "preference", "lmrl", "feedback", "tweets"]
Record = Mapping[str, Any]


class _Layout(NamedTuple):
    columns: tuple[str, ...]  # that a row must have
    records: Callable[[Row], Iterator[Record]] | None = None  # converts a row to lines of our own layout


def guess_layout(row: Row) -> Layout:
    """Determine the layout from the columns of the first row."""
    found = [name for name, layout in _LAYOUTS.items() if not _missing(row, layout)]
    if not found:
        refuse_foreign(row)
    if len(found) != 1:
        what = f"columns of several layouts ({', '.join(found)})" if found else "the columns of no layout"
        layouts = "; ".join(f"{name}: {', '.join(layout.columns)}" for name, layout in _LAYOUTS.items())
        raise row.error(f"has {what}: {', '.join(row.values) or 'none'}; set layout to one of: {layouts}")
    return found[0]


def dialogues_of(row: Row, number: int, layout: Layout, agent: str) -> Iterator[Dialogue]:
    """Read the conversations of a row."""
    if missing := _missing(row, _LAYOUTS[layout]):
        raise row.error(f"no column {missing[0]!r}, but all rows of a log must have the same layout, here {layout!r}")
    if (records := _LAYOUTS[layout].records) is None:
        yield from read_dialogues(row, number, agent)
        return
    for record in records(row):
        kept = {key: row.get(key) for key in ("id", "meta_data") if row.get(key) is not None}
        id = kept.get("id", number)
        if (part := record.get("part")) is not None:
            kept["id"] = f"{id}_{part}"
        yield from read_dialogues(Row({**kept, **record}, row.place), number)


def _missing(row: Row, layout: _Layout) -> list[str]:
    return [name for name in layout.columns if row.values.get(name) is None]


class _Labelled(TypedRow):
    label: bool | float | None = None


def _completions(row: Row) -> Iterator[Record]:
    """A prompt and a reply, which TRL's KTO labels with true or false."""
    label = row.parsed(_Labelled).label
    prompt = plain_or_messages(row, "prompt")
    yield _reply(prompt, reply_of(row, "completion", plain_or_messages(row, "completion")), label)


def _preferences(row: Row) -> Iterator[Record]:
    """A prompt with a better and a worse reply."""
    prompt, chosen, rejected = preference_of(row, as_messages=True)
    meta_data = {**(row.get("meta_data") or {}), "rejected": rejected}  # for the metric q_rank
    yield {**_reply(prompt, chosen, 1.0), "part": "chosen", "meta_data": meta_data}
    yield {**_reply(prompt, rejected, 0.0), "part": "rejected"}


class _Trajectory(TypedRow):
    sequence: list[Annotated[tuple[str, Annotated[bool, Field(strict=False)]], Field(strict=False)]]
    reward: list[float]
    done: bool


def _lmrl(row: Row) -> Iterator[Record]:
    """LMRL-Gym's trajectories.

    ``sequence`` is a list of pairs, a text and whether the agent said it. ``reward`` has a number for each text or, as
    in LMRL-Gym's files, for each but the first; those of other texts are 0. ``done`` says whether the end was reached.
    """
    found = row.parsed(_Trajectory)
    n_missing = len(found.sequence) - len(found.reward)
    if n_missing not in (0, 1):
        raise row.error(
            f"reward must have a number for each of the {len(found.sequence)} texts of sequence, or for each but the "
            f"first, not {len(found.reward)}"
        )
    rewards = [0.0] * n_missing + found.reward
    for number, ((_, is_action), reward) in enumerate(zip(found.sequence, rewards, strict=True)):
        if reward and not is_action:
            raise row.error(f"reward of text {number} of sequence must be 0, because the agent did not say it")
    yield {
        "messages": [
            {"role": "assistant" if is_action else "user", "content": text.strip()}
            for text, is_action in found.sequence
        ],
        "rewards": [reward for (_, is_action), reward in zip(found.sequence, rewards, strict=True) if is_action],
        "terminated": found.done,
    }


def _feedback(row: Row) -> Iterator[Record]:
    """Feedback: 1 or -1 for a rated reply or conversation, 1 for the better of two replies and for a correction."""
    given = {key: value for key, value in row.values.items() if value is not None}
    row.unread.clear()
    feedback = of_record(given, row.place, Feedback)
    feedback.check_is_no_answer(row.place)
    if feedback.withdrawn:
        return
    system = [] if not feedback.persona else [{"role": "system", "content": feedback.persona}]
    prompt = [*system, *chat_messages(feedback.turns)]
    if feedback.rates_conversation:
        answer = [] if feedback.answer is None else [{"role": "user", "content": feedback.answer}]
        (reply,) = feedback.replies
        record = _reply(prompt, reply.text, float(feedback.rating or 0))
        yield {**record, "messages": [*record["messages"], *answer], "n_given": 0, "meta_data": {"model": reply.model}}
        return
    if feedback.correction is not None:
        yield _reply(prompt, feedback.correction, 1.0)
        return
    for number, reply in enumerate(feedback.replies):
        score = float(number == feedback.chosen) if feedback.rating is None else float(feedback.rating)
        part = {} if feedback.rating is not None else {"part": number}
        yield {**_reply(prompt, reply.text, score), "meta_data": {"model": reply.model}, **part}


def _reply(prompt: str | list[Message], reply: str, reward: float | None) -> Record:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    messages = [*messages, {"role": "assistant", "content": reply}]
    return {"messages": messages, "n_given": len(messages) - 1, "reward": None if reward is None else float(reward)}


_LAYOUTS: Mapping[Layout, _Layout] = {
    "messages": _Layout(("messages",)),
    "completion": _Layout(("prompt", "completion"), _completions),
    "preference": _Layout(("chosen", "rejected"), _preferences),
    "lmrl": _Layout(("sequence", "reward", "done"), _lmrl),
    "feedback": _Layout(("kind", "turns", "replies"), _feedback),
    "tweets": _Layout(("games", "transitions")),
}
_logger = logging.getLogger(__name__)
_SUFFIXES = (".jsonl", ".json", ".parquet")
_PICKLES = (".pkl", ".pickle")


class LoggedConversations(TextGenPool):
    """Logged conversations with rewards, as JSON lines or Parquet, also in the layouts of TRL, LMRL-Gym and ILQL.

    Args:
        path: A log per split (``{train: FILE, val: FILE, test: FILE}``), or one log: a ``.jsonl``, ``.jsonl.gz``,
            ``.json`` or ``.parquet`` file, or a folder of such files. Files of a folder that are named after splits are
            their logs; without any, all files together are ``train``.
        layout: Layout of the rows: ``messages``, ``completion``, ``preference``, ``lmrl``, ``feedback`` or ``tweets``.
            By default the one whose columns the first row has.
        agent: Role of the agent in ``messages``, for lines that do not name it.
        split_seed: Random seed of this sampling, and of the words of ``tweets``.
        true_words: Whether the hidden words of ``tweets`` are those of the day, not drawn.
        reward_scale: Factor of all rewards.
        reward_shift: Number added to the scaled reward of each utterance of the agent.
        min_turns: Leave out conversations with fewer utterances of the agent.
        max_size: Keep only the first conversations.
        max_samples: Make samples of only the first conversations.
    """

    has_rewards = True

    def __init__(self, samples: list[Sample], read: Callable[[], Iterator[Dialogue]]) -> None:
        super().__init__(samples)
        self._read = read

    def conversations(self) -> Iterator[Dialogue]:
        """Yield all conversations in the order of the files, which are read anew and never held in memory."""
        return self._read()

    def split(self, split_ratios: list[float]) -> list[TextGenPool]:
        """Not supported, because conversations are not held in memory."""
        raise DataError("datapool 'conversations' cannot be split into parts; use held_out_share")

    @classmethod
    def prepare(
        cls,
        split: str,
        path: SplitPath,
        layout: Layout | None = None,
        agent: str = "assistant",
        format: FormatName = "eou",
        held_out_share: HeldOutShare | None = None,
        split_seed: int = 0,
        index_file: IndexFiles | None = None,
        true_words: bool = False,
        reward_scale: float = 1.0,
        reward_shift: float = 0.0,
        min_turns: Count = 1,
        max_size: Count | None = None,
        max_samples: Count = 10_000,
        learn: Learned = "agent",
        goal: str | None = None,
        people: People | None = None,
        render_chat: RenderChat | None = None,
    ) -> LoggedConversations:
        """Load one split.

        Conversations are read from the files when they are needed. Only samples are held in memory: the prompt is what
        was said before the agent's first utterance, which is the reference; all later utterances are in the meta data
        as ``continuation``, with what was said before as ``history`` and the meta data of the log.
        """
        check_split(split)
        indexed = {} if index_file is None else {"index": _file_hashes(index_file)}
        dialogue_format = DialogueFormat(format, None, render_chat)
        _refuse_pickles(path)
        readers = splits.file_readers(path, _SUFFIXES, with_shards=True)
        first = next((row for read in readers.values() for row in read()), None)
        if first is None:
            raise DataError(f"{path} is empty; a log has one conversation per line")
        how, layout = "guessed from the columns" if layout is None else "as set", layout or guess_layout(first)
        if split == "train":
            _logger.info("%s: layout %s (%s)", first.place, layout, how)
        if true_words and layout != "tweets":
            raise DataError(f"datapool 'conversations': true_words is for layout: tweets, not {layout}")
        left_out = Notes()
        if layout == "tweets":
            # Numbers of games count those that are left out, too.
            only = None if index_file is None else splits.listed_rows(split, index_file, readers, held_out_share)
            make = functools.partial(game_rows, seed=split_seed, true_words=true_words, only=only, notes=left_out)
            readers = {split if only else name: functools.partial(make, read) for name, read in readers.items()}
            layout, index_file = "messages", None
        (sides := Sides(learn, goal, people, held_out_share is not None)).check(readers)
        copies = splits.Copies(sides.person_of) if people is not None else None
        if people is not None:
            readers = {name: functools.partial(sides.chosen, read, split_seed) for name, read in readers.items()}
        of_split = held_out_share, split_seed
        rows = splits.split_reader(split, readers, str(path), *of_split, index_file=index_file, copies=copies)

        def read() -> Iterator[tuple[Dialogue, Row]]:
            found = (
                (_rewarded(dialogue, reward_scale, reward_shift), row)
                for number, row in enumerate(rows())
                for dialogue in dialogues_of(row, number, layout, agent)
                if len(dialogue.agent_turns) >= min_turns
            )
            for dialogue, row in itertools.islice(found, max_size):
                # Markup of the format is an error, unless the tokens of the text are known.
                texts = [turn.text for turn in dialogue.turns if turn.ids is None]
                try:
                    for text in (dialogue.meta_data.get(SYSTEM_KEY, ""), *texts):
                        dialogue_format.check_said(text)
                except DataError as error:
                    raise row.error(str(error)) from error
                dialogue.meta_data.update(sides.about(row))
                yield dialogue, row

        if learn == "partner":
            if layout not in ("messages", "lmrl"):
                raise DataError(f"datapool 'conversations': learn: partner needs conversations, not layout {layout}")
            form, notes = replace(dialogue_format, in_conversation=True), Notes()
            turned = (_from_partner(dialogue, row) for dialogue, row in read())
            samples = sides.samples(turned, form, split, notes, None)
            log_notes(notes, f"{path}, {split}")
            samples = limit_samples(samples, max_samples, "conversations", split, str(path))
            pool = cls(samples, lambda: TextGenPool.conversations(pool))
            pool.use_format(form)
            pool.has_rewards = False
            return pool
        found = (_sample(dialogue, row, dialogue_format) for dialogue, row in read())
        samples = limit_samples(found, max_samples, "conversations", split, str(path))
        if len(samples) == max_samples and (max_size is None or max_size > max_samples):
            what = f"samples of split {split} are those of the first {len(samples)} conversations (max_samples)"
            _logger.info("%s: %s", path, what)
        if split == "train" or split in readers:  # val and test that are drawn from train are counted there
            log_notes(left_out, f"{path}, {split}")
        pool = cls(samples, lambda: (dialogue for dialogue, _ in read()))
        pool.use_format(dialogue_format)
        settings = [layout, agent, format, held_out_share, split_seed, reward_scale, reward_shift, min_turns, max_size]
        settings += [True] if true_words else []  # logs that were encoded before keep their key
        pool.source_key = {"files": _file_hashes(path), "split": split, "settings": settings, **indexed}
        return pool


def _from_partner(dialogue: Dialogue, row: Row) -> tuple[str | int, list[Message], bool, dict[str, Any], Row]:
    """Id, messages, whether nothing was cut, meta data and row of a conversation."""
    messages = [{"role": ROLES[turn.speaker], "content": turn.text} for turn in dialogue.turns]
    is_whole = dialogue.terminated and dialogue.ended_by not in ("max_turns", "length")
    meta_data = {key: value for key, value in dialogue.meta_data.items() if key != SYSTEM_KEY}
    return dialogue.id, messages, is_whole, meta_data, row


def _file_hashes(path: SplitPath) -> dict[str, str]:
    """Hashes of all files of a path, by place."""
    files = [
        file for place in splits.places_of(path) for file in (sorted(place.rglob("*")) if place.is_dir() else [place])
    ]
    return {str(number): file_hash(file) for number, file in enumerate(files) if file.is_file()}


def _refuse_pickles(path: SplitPath) -> None:
    """Raise a `DataError` if a path is a pickle, or a folder of pickles."""
    for place in splits.places_of(path):
        entries = sorted(place.iterdir()) if place.is_dir() else [place]
        if pickle := next((entry for entry in entries if entry.suffix.lower() in _PICKLES), None):
            raise DataError(
                f"{pickle} is a pickle, which can run any code when it is loaded; where you trust it, load it with the "
                f"program that wrote it, and write each conversation as a line of JSON with messages and rewards "
                f"(docs/logs.md)"
            )


def _rewarded(dialogue: Dialogue, scale: float, shift: float) -> Dialogue:
    """Scale all rewards, and shift those of the agent's utterances."""
    if scale == 1 and shift == 0:
        return dialogue
    turns = list(dialogue.turns)
    for i in dialogue.agent_turns:
        of_tokens = turns[i].token_rewards
        scaled = None if of_tokens is None else tuple(scale * each for each in of_tokens)
        turns[i] = replace(turns[i], reward=scale * turns[i].reward + shift, token_rewards=scaled)
    return replace(dialogue, turns=tuple(turns))


def _sample(dialogue: Dialogue, row: Row, dialogue_format: DialogueFormat) -> Sample:
    """The first utterance of the agent as a sample."""
    n_before, texts = dialogue.agent_turns[0], [turn.text for turn in dialogue.turns]
    meta_data = {**dialogue.meta_data, "history": texts[:n_before], "continuation": texts[n_before + 1 :]}
    try:
        prompt = dialogue_format.prompt(texts[:n_before], dialogue.meta_data.get(SYSTEM_KEY))
    except DataError as error:
        raise row.error(str(error)) from error
    return Sample(dialogue.id, prompt, [texts[n_before]], meta_data)
