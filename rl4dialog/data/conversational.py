"""Chat and preference data with TRL's columns: ``messages``, ``prompt``, ``completion``, ``chosen``, ``rejected``.

Conversations are lists of messages with ``role`` and ``content``. All columns can also contain plain text: a plain
prompt is used verbatim, or as a single user message in the format ``chat_template``. See "Dataset formats and types" in
TRL's documentation.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data.chat_markup import INSTRUCTIONS, Message
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.messages import read_messages, render_messages
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import Row
from rl4dialog.data.splits import FILES_HINT, HeldOutShare, SplitPath, file_readers, read_split
from rl4dialog.data.tables import DRAW_HINT, dataset_split

Turns = Literal["last", "all", "first"]

_logger = logging.getLogger(__name__)


class Conversational(TextGenPool):
    """Chat and preference data with TRL's columns: messages, prompt and completion, chosen and rejected."""

    @classmethod
    def prepare(
        cls,
        split: str,
        path: SplitPath | None = None,
        dataset_id: str | None = None,
        name: str | None = None,
        revision: str | None = None,
        splits: Mapping[str, str] | None = None,
        turns: Turns = "last",
        format: FormatName = "eou",
        context_size: Count | None = None,
        meta_data_columns: Sequence[str] = (),
        held_out_share: HeldOutShare | None = None,
        split_seed: int = 0,
        max_size: Count | None = None,
        render_chat: RenderChat | None = None,
    ) -> Conversational:
        """Load one split.

        A row has one of these forms, in the order in which columns are checked:

        - ``chosen`` and ``rejected``, after ``prompt`` or, if they start with the whole conversation, after their
          common beginning. The chosen reply is the reference;
        - ``messages``: every reply of the assistant, or the last one, is a sample;
        - ``prompt``, with ``completion`` as reference, or without it and with one empty reference.

        Args:
            split: ``train``, ``val`` or ``test``.
            path: A table file per split (``{train: FILE, val: FILE, test: FILE}``), a folder of them, or one file.
            dataset_id: Hub dataset, instead of ``path``.
            name: Configuration of the hub dataset.
            revision: Branch, tag or commit on the hub.
            splits: The hub dataset's split for each split; see `HFDataset.prepare`.
            turns: Replies of the assistant in ``messages`` to use: ``last``, ``all`` or ``first``. With ``first``, all
                later messages are in the meta data as ``continuation``, for the partner ``replay``.
            format: Format of prompts: ``eou`` or ``chat_template``. With ``chat_template`` a plain prompt is a single
                user message; with ``eou`` it is used verbatim.
            context_size: Maximum number of messages in a prompt, without the system message; ``None`` for all.
            meta_data_columns: Additional columns passed to rewards and metrics under the same names.
            held_out_share: Share of ``train`` that is sampled for each of ``val`` and ``test`` that is missing.
            split_seed: Random seed of this sampling.
            max_size: Keep only the first samples.
            render_chat: Formats chat messages as a prompt; required for ``chat_template``.

        Returns:
            A pool whose samples have the ``history`` of a conversation and the ``rejected`` reply in their meta data.

        Raises:
            DataError: If an argument is invalid, or the data is missing, malformed or empty.
        """
        check_split(split)
        dialogue_format = DialogueFormat(format, context_size, render_chat)
        if path is None:
            rows = dataset_split(split, dataset_id, None, name, revision, splits, held_out_share, split_seed)
        elif dataset_id is not None or name is not None or revision is not None or splits is not None:
            raise DataError("pass either path (files) or dataset_id with name, revision and splits (a hub dataset)")
        else:
            hint = FILES_HINT + DRAW_HINT
            rows = read_split(split, file_readers(path), str(path), held_out_share, split_seed, hint)
        samples = limit_samples(
            (
                _with_columns(sample, row, meta_data_columns)
                for index, row in enumerate(rows)
                for sample in _samples(index, row, turns, dialogue_format)
            ),
            max_size,
            "conversational",
            split,
            str(path or dataset_id),
        )
        pool = cls(samples)
        kinds = {"history" in (sample.meta_data or {}) for sample in samples}
        if len(kinds) > 1:
            raise DataError(f"{path or dataset_id} mixes plain prompts and conversations; use only one kind")
        if kinds == {False} and split == "train":
            _logger.warning(
                "the prompts of %s are plain text and used verbatim; format: chat_template would make each a user "
                "message, and format: %s only affects messages",
                path or dataset_id,
                format,
            )
        if kinds == {True}:
            pool.use_format(dialogue_format)
        return pool


def _samples(index: int, row: Row, turns: Turns, dialogue_format: DialogueFormat) -> Iterator[Sample]:
    if "chosen" in row:
        prompt, chosen, rejected = preference_of(row)
        if isinstance(prompt, str) and "prompt" not in row and dialogue_format.name == "chat_template":
            raise row.error(
                "plain chosen and rejected have no separate prompt that could be the user message, which format: "
                "chat_template requires; add a column prompt, or remove format"
            )
        yield _sample(index, row, prompt, chosen, dialogue_format, {"rejected": rejected})
    elif "messages" in row:
        messages = read_messages(row, "messages")
        replies = [
            number
            for number, message in enumerate(messages)
            if message["role"] == "assistant" and any(m["role"] not in INSTRUCTIONS for m in messages[:number])
        ]
        if not replies:
            raise row.error("messages contains no reply of the assistant to another message")
        for number in {"first": replies[:1], "last": replies[-1:], "all": replies}[turns]:
            id = f"{index}_{number}" if turns == "all" else index
            meta_data = {"continuation": _continuation(row, messages[number + 1 :])} if turns == "first" else {}
            yield _sample(id, row, messages[:number], messages[number]["content"], dialogue_format, meta_data)
    else:
        prompt = plain_or_messages(row, "prompt")
        reply = ""
        if "completion" in row:
            reply = reply_of(row, "completion", plain_or_messages(row, "completion"))
        yield _sample(index, row, prompt, reply, dialogue_format, {})


def _continuation(row: Row, messages: Sequence[Message]) -> list[str]:
    """Return the texts after the first reply."""
    for message, role in zip(messages, itertools.cycle(("user", "assistant"))):
        if message["role"] != role:
            raise row.error(
                f"with turns: first, messages after the first reply must alternate between user and assistant, but a "
                f"message of the {message['role']} stands where one of the {role} is expected"
            )
    return [message["content"] for message in messages]


def _sample(
    id: str | int,
    row: Row,
    prompt: str | list[Message],
    reply: str,
    dialogue_format: DialogueFormat,
    meta_data: dict[str, Any],
) -> Sample:
    if isinstance(prompt, str):
        if dialogue_format.name != "chat_template":
            return Sample(id, prompt, [reply], meta_data)
        prompt = [{"role": "user", "content": prompt}]
    text, history = render_messages(prompt, row, dialogue_format)
    return Sample(id, text, [reply], {**meta_data, "history": history})


def _with_columns(sample: Sample, row: Row, columns: Sequence[str]) -> Sample:
    sample.meta_data = {**(sample.meta_data or {}), **{column: row[column] for column in columns}}
    return sample


def preference_of(row: Row) -> tuple[str | list[Message], str, str]:
    """Return prompt, chosen reply and rejected reply.

    Raises:
        DataError: If they are not of the same kind, or one is no single reply.
    """
    chosen, rejected = plain_or_messages(row, "chosen"), plain_or_messages(row, "rejected")
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise row.error("chosen and rejected must both be texts, or both be lists of messages")
    begins_anew = not isinstance(chosen, str) and chosen[0]["role"] != "assistant"
    if "prompt" in row and not begins_anew:
        prompt = plain_or_messages(row, "prompt")
        return prompt, reply_of(row, "chosen", chosen), reply_of(row, "rejected", rejected)
    n_common = _common_length(chosen, rejected)
    prompt = chosen[:n_common]
    return prompt, reply_of(row, "chosen", chosen[n_common:]), reply_of(row, "rejected", rejected[n_common:])


def _common_length(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """Length of the common beginning of both replies, in messages or characters."""
    n_common = 0
    while n_common < min(len(chosen), len(rejected)) and chosen[n_common] == rejected[n_common]:
        n_common += 1
    if not isinstance(chosen, str):
        # If both are equal, the last message is the reply.
        return min(n_common, len(chosen) - 1, len(rejected) - 1)
    # Words are not cut in two, and as in TRL a leading space belongs to the reply.
    while n_common and not chosen[n_common - 1].isspace():
        n_common -= 1
    return n_common - 1 if n_common and chosen[n_common - 1] == " " else n_common


def reply_of(row: Row, column: str, reply: str | list[Message]) -> str:
    """Return the text of a reply, which is plain text or one message of the assistant.

    Raises:
        DataError: If it is anything else.
    """
    if isinstance(reply, str):
        return reply
    if len(reply) != 1 or reply[0]["role"] != "assistant":
        roles = ", ".join(message["role"] for message in reply) or "nothing"
        raise row.error(f"{column} must end with one message of the assistant after the prompt, not with {roles}")
    return reply[0]["content"]


def plain_or_messages(row: Row, column: str) -> str | list[Message]:
    """Return a column of plain text or messages.

    Raises:
        DataError: If it contains anything else.
    """
    return row.text(column) if isinstance(row[column], str) else read_messages(row, column)
