"""Chat and preference data with TRL's columns: ``messages``, ``prompt``, ``completion``, ``chosen``, ``rejected``.

Conversations are lists of messages with ``role`` and ``content``. All columns can also contain plain text: a plain
prompt is used verbatim, or in the format ``chat_template`` as a user message. See TRL's "Dataset formats and types".
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, Message, RenderChat
from rl4dialog.data.messages import EMPTY, UNREAD, Notes, log_notes, read_messages, render_messages, reply_numbers
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import ELSEWHERE, Row
from rl4dialog.data.splits import Copies, HeldOutShare, Said, SplitPath, file_readers, split_reader
from rl4dialog.data.tables import dataset_split

Turns = Literal["last", "all", "first"]

_logger = logging.getLogger(__name__)
# Tags of speakers in the texts of hh-rlhf (Bai et al. 2022, arXiv 2204.05862).
_TAG, _OPENING_TAG, _REPLY_TAG = re.compile(r"\n\n(Human|Assistant):"), "\n\nHuman:", "\n\nAssistant:"


class NoSharedPrompt(DataError):
    """Two texts with tagged speakers differ before their last reply."""


class Conversational(TextGenPool):
    """Chat and preference data with TRL's columns: messages, prompt and completion, chosen and rejected.

    Args:
        path: A table file per split (``{train: FILE, val: FILE, test: FILE}``), a folder of them, or one file.
        dataset_id: Hub dataset, instead of ``path``.
        name: Configuration of the hub dataset.
        revision: Branch, tag or commit on the hub.
        splits: The hub dataset's split for each split; see `HFDataset`.
        turns: Replies of the assistant in ``messages`` to use: ``last``, ``all`` or ``first``. With ``first``, all
            later messages are in the meta data as ``continuation``, for the partner ``replay``.
        format: Format of prompts: ``eou`` or ``chat_template``. With ``chat_template`` a plain prompt is a single user
            message; with ``eou`` it is used verbatim.
        context_size: Maximum number of messages in a prompt, without the system message; ``None`` for all.
        meta_data_columns: Additional columns passed to rewards and metrics under the same names.
    """

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
          common messages. Plain texts are split after the last tag ``Assistant:``, as in hh-rlhf, and without tags
          after their common beginning. The chosen reply is the reference;
        - ``messages``: every reply of the assistant, or the last one, is a sample;
        - ``prompt``, with ``completion`` as reference, or without it and with one empty reference.

        Samples have the ``history`` of a conversation and the ``rejected`` reply in their meta data.
        """
        check_split(split)
        dialogue_format = DialogueFormat(format, context_size, render_chat)

        def said(row: Row) -> Said:
            found = [(_text(prompt), reply) for _, prompt, reply, _ in _examples(row, turns, is_chat, Notes())]
            prompts = [prompt for prompt, _ in found]
            text = f"{prompts[-1]} {found[-1][1]}" if "messages" in row else prompts[-1] if found else ""
            return Said(text, text, prompts)

        copies, is_chat = Copies(said), format == "chat_template"
        if path is None:
            rows = dataset_split(split, dataset_id, None, name, revision, splits, held_out_share, split_seed, copies)()
        elif dataset_id is not None or name is not None or revision is not None or splits is not None:
            raise DataError("pass either path (files) or dataset_id with name, revision and splits (a hub dataset)")
        else:
            readers = file_readers(path)
            rows = split_reader(split, readers, str(path), held_out_share, split_seed, copies=copies)()
        notes = Notes()

        def read() -> Iterator[tuple[Sample, str]]:
            for index, row in enumerate(rows):
                for ending, prompt, reply, info in _examples(row, turns, is_chat, notes):
                    notes[EMPTY] += reply is not None and not reply.strip()
                    text = _text(prompt)
                    if isinstance(prompt, str) and is_chat:
                        prompt = [{"role": "user", "content": prompt}]
                    if not isinstance(prompt, str):
                        prompt, info["history"] = render_messages(prompt, row, dialogue_format)
                    columns = {column: row[column] for column in meta_data_columns}
                    id = f"{index}{ending}" if ending else index
                    yield Sample(id, prompt, [reply or ""], {**info, **columns}), text

        kept = copies.kept([*itertools.islice(read(), max_size)], notes)
        samples = limit_samples(kept, max_size, "conversational", split, str(path or dataset_id))
        log_notes(notes, f"{path or dataset_id}, {split}")
        pool = cls(samples)
        kinds = {"history" in (sample.meta_data or {}) for sample in samples}
        if len(kinds) > 1:
            raise DataError(f"{path or dataset_id} mixes plain prompts and conversations; use only one kind")
        if kinds == {False} and split == "train":
            _logger.warning(
                "the prompts of %s are plain text and used verbatim, whatever the format; format: chat_template makes "
                "each a user message, or several where speakers are tagged as in hh-rlhf",
                path or dataset_id,
            )
        if kinds == {True}:
            pool.use_format(dialogue_format)
        return pool


def _text(prompt: str | list[Message]) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)


_Example = tuple[str, str | list[Message], str | None, dict[str, Any]]


def _examples(row: Row, turns: Turns, as_messages: bool, notes: Notes) -> Iterator[_Example]:
    """For each sample of a row: the ending of its id, prompt, reply (``None`` in data without), and meta data."""
    if "chosen" in row:
        try:
            prompt, chosen, rejected = preference_of(row, as_messages)
        except NoSharedPrompt:
            notes["pairs of hh-rlhf whose texts do not have the same turns before one last reply, left out"] += 1
            return
        if isinstance(prompt, str) and "prompt" not in row and not _TAG.search(prompt):
            notes["pairs without a prompt, which is taken to be their common beginning, even if a reply begins there; "
                  "a column prompt makes it clear"] += 1  # fmt: skip
        yield "", prompt, chosen, {"rejected": rejected}
    elif "messages" in row:
        messages = read_messages(row, "messages")
        replies = reply_numbers(messages)
        if not replies:
            raise row.error("messages contains no reply of the assistant to another message")
        notes[UNREAD] += 0 if turns == "first" else len(messages) - 1 - replies[-1]
        for number in {"first": replies[:1], "last": replies[-1:], "all": replies}[turns]:
            info = {"continuation": _continuation(row, messages[number + 1 :])} if turns == "first" else {}
            yield f"_{number}" if turns == "all" else "", messages[:number], messages[number]["content"], info
    else:
        refuse_foreign(row)
        has_reply = "completion" in row
        reply = reply_of(row, "completion", plain_or_messages(row, "completion")) if has_reply else None
        yield "", plain_or_messages(row, "prompt"), reply, {}


def _continuation(row: Row, messages: Sequence[Message]) -> list[str]:
    """Return the texts after the first reply."""
    for message, role in zip(messages, itertools.cycle(("user", "assistant"))):
        if message["role"] != role:
            raise row.error(
                f"with turns: first, messages after the first reply must alternate between user and assistant, but "
                f"there is one of the {message['role']} instead of the {role}"
            )
    return [message["content"] for message in messages]


def preference_of(row: Row, as_messages: bool) -> tuple[str | list[Message], str, str]:
    """Prompt, chosen reply and rejected reply; with `as_messages`, tagged speakers become messages.

    Texts with tagged speakers that differ before the last reply raise `NoSharedPrompt`. A prompt beside whole
    conversations must be a part of what they share.
    """
    chosen, rejected = plain_or_messages(row, "chosen"), plain_or_messages(row, "rejected")
    given = plain_or_messages(row, "prompt") if "prompt" in row else None
    if isinstance(chosen, str) and isinstance(rejected, str):
        if given is not None:
            if not (chosen.startswith(_OPENING_TAG) and rejected.startswith(_OPENING_TAG)):
                return given, chosen, rejected
            _check_is_shared(row, given, _split_texts(row, chosen, rejected, as_messages=False)[0])
        return _split_texts(row, chosen, rejected, as_messages)
    if isinstance(chosen, str) or isinstance(rejected, str):
        raise row.error("chosen and rejected must both be texts, or both be lists of messages")
    if given is not None and chosen[0]["role"] == "assistant":
        return given, reply_of(row, "chosen", chosen), reply_of(row, "rejected", rejected)
    # If both are equal, the last message is the reply.
    n = min(_common_length(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    if given is not None:
        _check_is_shared(row, given, chosen[:n])
    return chosen[:n], reply_of(row, "chosen", chosen[n:]), reply_of(row, "rejected", rejected[n:])


def _check_is_shared(row: Row, given: str | list[Message], shared: str | list[Message]) -> None:
    """Check that a prompt, which need not be complete, says nothing else than the messages before both replies."""
    one, other = _said(row, given), _said(row, shared)
    if not any(other[n : n + len(one)] == one for n in range(len(other))):
        raise row.error(
            f"column 'prompt' has {shown(one[-1][1])}, but chosen and rejected are whole conversations, which share "
            f"{shown(other[-1][1] if other else '')} before the reply; remove the one that is wrong"
        )


def _said(row: Row, prompt: str | list[Message]) -> list[tuple[str, str]]:
    """Roles and texts of a prompt; plain text is the user's."""
    if isinstance(prompt, str):
        tagged = f"\n\n{prompt.lstrip()}"
        is_tagged = tagged.startswith(_OPENING_TAG)
        prompt = _tagged_messages(row, tagged) if is_tagged else [{"role": "user", "content": prompt}]
    return [(message["role"], message["content"].strip()) for message in prompt]


def _tagged_messages(row: Row, text: str) -> list[Message]:
    """Convert a text with tagged speakers, as in hh-rlhf, to messages. An empty one at the end is left out."""
    before, *said = _TAG.split(text)
    if before.strip():
        raise row.error(f"chosen must begin with a tag such as {_REPLY_TAG.strip()!r}, not with {shown(before)}")
    roles = {"Human": "user", "Assistant": "assistant"}
    pairs = zip(said[::2], said[1::2], strict=True)
    messages = [{"role": roles[tag], "content": text.strip()} for tag, text in pairs]
    return messages if messages[-1]["content"] else messages[:-1]


def _split_texts(row: Row, chosen: str, rejected: str, as_messages: bool) -> tuple[str | list[Message], str, str]:
    """Split plain texts after the tag of the last reply, or without tags after their common beginning."""
    if _REPLY_TAG in chosen:
        prompt = chosen[: chosen.rfind(_REPLY_TAG) + len(_REPLY_TAG)]
        is_shared, chosen, rejected = rejected.startswith(prompt), chosen[len(prompt) :], rejected[len(prompt) :]
        if not is_shared or _TAG.search(chosen + rejected):
            what = "chosen and rejected must have the same turns before one last reply; leave out this pair"
            raise NoSharedPrompt(f"{row.place}: {what}")
        if not as_messages:
            return prompt, chosen, rejected
        return _tagged_messages(row, prompt), chosen.strip(), rejected.strip()
    if as_messages:
        raise row.error(
            "plain chosen and rejected have neither a column prompt nor tags as in hh-rlhf, so it is not known which "
            "messages come before the replies; add a column prompt"
        )
    n = _common_length(chosen, rejected)
    # Words are not cut in two, and as in TRL a leading space belongs to the reply.
    while n and not chosen[n - 1].isspace():
        n -= 1
    n -= bool(n and chosen[n - 1] == " ")
    return chosen[:n], chosen[n:], rejected[n:]


def _common_length(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """Length of the common beginning of both replies, in messages or characters."""
    pairs = zip(chosen, rejected, strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(chosen), len(rejected)))


def refuse_foreign(row: Row) -> None:
    """Raise a `DataError` with the way to read it if a row is of a known format that is not read here."""
    for column, cure in ELSEWHERE["columns"].items():
        if column in row.values:
            raise row.error(f"column {column!r} is that of {cure}")


def reply_of(row: Row, column: str, reply: str | list[Message]) -> str:
    """Return the text of a reply, read from a column: plain text, or one message of the assistant."""
    if isinstance(reply, str):
        return reply
    roles = [message["role"] for message in reply]
    if roles != ["assistant"]:
        found = ", ".join(roles) or "nothing"
        raise row.error(f"{column} must end with one message of the assistant after the prompt, not with {found}")
    return reply[0]["content"]


def plain_or_messages(row: Row, column: str) -> str | list[Message]:
    """Return a column of plain text or messages."""
    return row.text(column) if isinstance(row[column], str) else read_messages(row, column)
