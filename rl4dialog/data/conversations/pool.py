"""The datapool: logged conversations with their rewards, for offline learning, evaluations and warm starts."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.manifest import file_hash
from rl4dialog.core.types import AGENT, SYSTEM_KEY, Dialogue, Sample, Turn
from rl4dialog.data.conversations.layout import Layout, dialogues_of, guess_layout, unread_columns
from rl4dialog.data.conversations.record import is_finite
from rl4dialog.data.conversations.tweets import game_rows
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import Row
from rl4dialog.data.splits import FILES_HINT, HeldOutShare, SplitPath, file_readers, split_reader
from rl4dialog.data.tables import DRAW_HINT
from rl4dialog.data.text_files import expand_path

_logger = logging.getLogger(__name__)
_SUFFIXES = (".jsonl", ".json", ".parquet")
_PICKLES = (".pkl", ".pickle")


class LoggedConversations(TextGenPool):
    """Logged conversations with rewards, as JSON lines or Parquet, also in the layouts of TRL, LMRL-Gym and ILQL."""

    has_rewards = True

    def __init__(self, samples: list[Sample], read: Callable[[], Iterator[Dialogue]]) -> None:
        super().__init__(samples)
        self._read = read

    def conversations(self) -> Iterator[Dialogue]:
        """Yield all conversations in the order of the files, which are read anew and never held in memory."""
        return self._read()

    def split(self, split_ratios: list[float]) -> list[TextGenPool]:
        """Not supported, because conversations are not held in memory.

        Raises:
            DataError: Always.
        """
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
        reward_scale: float = 1.0,
        reward_shift: float = 0.0,
        min_turns: Count = 1,
        max_size: Count | None = None,
        max_samples: Count = 10_000,
        render_chat: RenderChat | None = None,
    ) -> LoggedConversations:
        """Load one split.

        Conversations are read from the files when they are needed. Only samples are held in memory: the prompt is what
        was said before the agent's first utterance, which is the reference; all later utterances are in the meta data
        as ``continuation``.

        Args:
            split: ``train``, ``val`` or ``test``.
            path: A log per split (``{train: FILE, val: FILE, test: FILE}``), or one log: a ``.jsonl``, ``.jsonl.gz``,
                ``.json`` or ``.parquet`` file, or a folder of such files. Files of a folder that are named after splits
                are their logs; without any, all files together are ``train``.
            layout: Layout of the rows: ``messages``, ``completion``, ``preference``, ``lmrl``, ``feedback`` or
                ``tweets``. By default the one whose columns the first row has.
            agent: Role of the agent in ``messages``, for lines that do not name it.
            format: Format of prompts: ``eou`` or ``chat_template``.
            held_out_share: Share of ``train`` that is sampled for each of ``val`` and ``test`` that is missing.
            split_seed: Random seed of this sampling, and of the words of ``tweets``.
            reward_scale: Factor of all rewards.
            reward_shift: Number added to the scaled reward of each utterance of the agent.
            min_turns: Leave out conversations with fewer utterances of the agent.
            max_size: Keep only the first conversations.
            max_samples: Make samples of only the first conversations.
            render_chat: Formats chat messages as a prompt; required for ``chat_template``.

        Returns:
            A pool with one sample per conversation. The meta data are those of the log, with ``history`` and
            ``continuation``.

        Raises:
            DataError: If an argument is invalid, or the data is missing, malformed or empty. Conversations after the
                samples are checked when they are read.
        """
        check_split(split)
        for name, value in {"reward_scale": reward_scale, "reward_shift": reward_shift}.items():
            if not is_finite(value):
                raise DataError(f"datapool 'conversations': {name} must be a finite number, not {value!r}")
        dialogue_format = DialogueFormat(format, None, render_chat)
        _refuse_pickles(path)
        readers = file_readers(path, _SUFFIXES, with_shards=True)
        first = next((row for read in readers.values() for row in read()), None)
        if first is None:
            raise DataError(f"{path} is empty; a log has one conversation per line")
        layout = _known_layout(first, layout, split)
        if layout == "tweets":
            readers = {name: functools.partial(_games, read, split_seed) for name, read in readers.items()}
            layout = "messages"
        rows = split_reader(split, readers, str(path), held_out_share, split_seed, FILES_HINT + DRAW_HINT)

        def read() -> Iterator[tuple[Dialogue, Row]]:
            found = (
                (_rewarded(dialogue, reward_scale, reward_shift), row)
                for number, row in enumerate(rows())
                for dialogue in dialogues_of(row, number, layout, agent)
                if sum(turn.speaker == AGENT for turn in dialogue.said) >= min_turns
            )
            for dialogue, row in itertools.islice(found, max_size):
                _check_texts(dialogue, row, dialogue_format)
                yield dialogue, row

        found = (_sample(dialogue, row, dialogue_format) for dialogue, row in read())
        samples = limit_samples(found, max_samples, "conversations", split, str(path))
        if len(samples) == max_samples and (max_size is None or max_size > max_samples):
            _logger.info(
                "%s: samples of split %s are those of the first %d conversations (max_samples)",
                path,
                split,
                len(samples),
            )
        pool = cls(samples, lambda: (dialogue for dialogue, _ in read()))
        pool.use_format(dialogue_format)
        settings = [layout, agent, format, held_out_share, split_seed, reward_scale, reward_shift, min_turns, max_size]
        pool.source_key = {"files": _file_hashes(path), "split": split, "settings": settings}
        return pool


def _file_hashes(path: SplitPath) -> dict[str, str]:
    """Hashes of all files of a path, by place."""
    places = [expand_path(each) for each in (path.values() if isinstance(path, Mapping) else [path])]
    files = [file for place in places for file in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    return {str(number): file_hash(file) for number, file in enumerate(files) if file.is_file()}


def _refuse_pickles(path: SplitPath) -> None:
    """Raise a `DataError` if a path is a pickle, or a folder of pickles."""
    for each in path.values() if isinstance(path, Mapping) else [path]:
        place = expand_path(each)
        entries = sorted(place.iterdir()) if place.is_dir() else [place]
        if pickle := next((entry for entry in entries if entry.suffix.lower() in _PICKLES), None):
            raise DataError(
                f"{pickle} is a pickle, which can run any code when it is loaded; where you trust it, load it with the "
                f"program that wrote it, and write each conversation as a line of JSON with messages and rewards "
                f"(docs/logs.md)"
            )


def _known_layout(first: Row, layout: Layout | None, split: str) -> Layout:
    """Determine the layout, and log it once."""
    known = layout or guess_layout(first)
    if split == "train":
        _logger.info(
            "%s: layout %s (%s)", first.place, known, "guessed from the columns" if layout is None else "as set"
        )
        if unread := unread_columns(first, known):
            _logger.warning("%s: these columns are not read: %s", first.place, ", ".join(unread))
    return known


def _games(read: Callable[[], Iterable[Row]], seed: int) -> Iterator[Row]:
    return game_rows(read(), seed)


def _rewarded(dialogue: Dialogue, scale: float, shift: float) -> Dialogue:
    """Scale all rewards, and shift those of the agent's utterances."""
    if scale == 1 and shift == 0:
        return dialogue

    def changed(turn: Turn) -> Turn:
        if turn.speaker != AGENT:
            return turn
        of_tokens = turn.token_rewards
        scaled = None if of_tokens is None else tuple(scale * each for each in of_tokens)
        return replace(turn, reward=scale * turn.reward + shift, token_rewards=scaled)

    said = tuple(map(changed, dialogue.said))
    return replace(dialogue, turns=(*dialogue.turns[: dialogue.n_given], *said))


def _check_texts(dialogue: Dialogue, row: Row, dialogue_format: DialogueFormat) -> None:
    """Raise a `DataError` if a text contains markup of the format, unless its tokens are known."""
    texts = [turn.text for turn in dialogue.turns if turn.ids is None]
    try:
        for text in (dialogue.meta_data.get(SYSTEM_KEY, ""), *texts):
            dialogue_format.check_said(text)
    except DataError as error:
        raise row.error(str(error)) from error


def _sample(dialogue: Dialogue, row: Row, dialogue_format: DialogueFormat) -> Sample:
    """The first utterance of the agent as a sample."""
    n_before = next(i for i, turn in enumerate(dialogue.turns) if i >= dialogue.n_given and turn.speaker == AGENT)
    history, (reference, *continuation) = [
        [turn.text for turn in turns] for turns in (dialogue.turns[:n_before], dialogue.turns[n_before:])
    ]
    try:
        prompt = dialogue_format.prompt(history, dialogue.meta_data.get(SYSTEM_KEY))
    except DataError as error:
        raise row.error(str(error)) from error
    meta_data: dict[str, Any] = {**dialogue.meta_data, "history": history, "continuation": continuation}
    return Sample(dialogue.id, prompt, [reference], meta_data)
