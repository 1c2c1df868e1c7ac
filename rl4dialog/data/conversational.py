"""Chat and preference data with the columns that TRL names: ``messages``, ``prompt``, ``completion``, ``chosen``.

Conversations are lists of messages with ``role`` and ``content``; everything may also be plain text, which is then
used as it stands. See "Dataset formats and types" in the documentation of TRL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError, nearest_hint
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import Row
from rl4dialog.data.splits import FILES_HINT, HeldOutShare, SplitPath, file_readers, read_split
from rl4dialog.data.tables import DRAW_HINT, dataset_split

Turns = Literal["last", "all"]

_ROLES = ("system", "developer", "user", "assistant", "tool")
# Messages of these roles are said before the conversation and not in it.
_INSTRUCTIONS = ("system", "developer")

Message = dict[str, str]


class Conversational(TextGenPool):
    """Chat and preference data as TRL names its columns: messages, prompt and completion, chosen and rejected."""

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

        A row is one of these, in the order in which its columns are looked for:

        - ``chosen`` and ``rejected``, behind ``prompt`` or, where they begin with the whole conversation, behind what
          they have in common. The reference is the chosen reply;
        - ``messages``: every reply of the assistant, or the last one, is a sample;
        - ``prompt`` with ``completion``, or alone, which gives one empty reference.

        Args:
            split: ``train``, ``val`` or ``test``.
            path: A table file per split (``{train: FILE, val: FILE, test: FILE}``), a folder of them, or one file.
            dataset_id: In place of it, a hub dataset.
            name: Which of the hub dataset's configurations.
            revision: Branch, tag or commit on the hub.
            splits: The hub dataset's own split for each of ours; see `HFDataset.prepare`.
            turns: ``last`` or ``all`` replies of the assistant in ``messages``.
            format: How messages are written: ``eou`` or ``chat_template``.
            context_size: Messages in a prompt at most, beside the system's; ``None`` for all.
            meta_data_columns: Further columns that rewards and metrics get under the same names.
            held_out_share: Share of ``train`` that is drawn for each of ``val`` and ``test`` that is missing.
            split_seed: Decides that draw.
            max_size: Keep only the first samples.
            render_chat: Makes a prompt from chat messages; needed by ``chat_template``.

        Returns:
            A pool whose samples carry the ``history`` of a conversation and the reply that was ``rejected`` in their
            meta data.

        Raises:
            DataError: If an argument is wrong, or the data is missing, malformed or empty.
        """
        check_split(split)
        dialogue_format = DialogueFormat(format, context_size, render_chat)
        if path is None:
            rows = dataset_split(split, dataset_id, None, name, revision, splits, held_out_share, split_seed)
        elif dataset_id is not None or name is not None or revision is not None or splits is not None:
            raise DataError("give either path (files) or dataset_id with name, revision and splits (a hub dataset)")
        else:
            hint = FILES_HINT + DRAW_HINT
            rows = read_split(split, file_readers(path), str(path), held_out_share, split_seed, hint)
        samples = limit_samples(
            (
                _with_columns(sample, row, meta_data_columns)
                for index, row in enumerate(rows)
                for sample in _samples(index, row, turns == "all", dialogue_format)
            ),
            max_size,
            "conversational",
            split,
            str(path or dataset_id),
        )
        pool = cls(samples)
        kinds = {"history" in (sample.meta_data or {}) for sample in samples}
        if len(kinds) > 1:
            raise DataError(f"{path or dataset_id} has both plain prompts and conversations; a pool must have one kind")
        if kinds == {True}:
            pool.end_of_turn = dialogue_format.end_of_turn
            pool.between_turns = dialogue_format.between_turns
        return pool


def _samples(index: int, row: Row, all_turns: bool, dialogue_format: DialogueFormat) -> Iterator[Sample]:
    if "chosen" in row:
        prompt, chosen, rejected = _preference(row)
        yield _sample(index, row, prompt, chosen, dialogue_format, {"rejected": rejected})
    elif "messages" in row:
        messages = read_messages(row, "messages")
        replies = [
            number
            for number, message in enumerate(messages)
            if message["role"] == "assistant" and any(m["role"] not in _INSTRUCTIONS for m in messages[:number])
        ]
        if not replies:
            raise row.error("messages has no reply of the assistant to somebody")
        for number in replies if all_turns else replies[-1:]:
            id = f"{index}_{number}" if all_turns else index
            yield _sample(id, row, messages[:number], messages[number]["content"], dialogue_format, {})
    else:
        prompt = _plain_or_messages(row, "prompt")
        reply = ""
        if "completion" in row:
            reply = _reply(row, "completion", _plain_or_messages(row, "completion"))
        yield _sample(index, row, prompt, reply, dialogue_format, {})


def _sample(
    id: str | int,
    row: Row,
    prompt: str | list[Message],
    reply: str,
    dialogue_format: DialogueFormat,
    meta_data: dict[str, Any],
) -> Sample:
    if isinstance(prompt, str):
        return Sample(id, prompt, [reply], meta_data)
    text, history = render_messages(prompt, row, dialogue_format)
    return Sample(id, text, [reply], {**meta_data, "history": history})


def render_messages(messages: Sequence[Message], row: Row, dialogue_format: DialogueFormat) -> tuple[str, list[str]]:
    """The prompt that asks for a reply to messages, and the utterances that it shows.

    Raises:
        DataError: If nothing was said but instructions.
    """
    instructions = [message for message in messages if message["role"] in _INSTRUCTIONS]
    said = dialogue_format.context([message for message in messages if message["role"] not in _INSTRUCTIONS])
    if not said:
        raise row.error("the conversation is empty before the reply")
    history = [message["content"] for message in said]
    if dialogue_format.render_chat is not None and dialogue_format.name == "chat_template":
        return dialogue_format.render_chat([*instructions, *said]), history
    return dialogue_format.prompt(history, " ".join(message["content"] for message in instructions)), history


def _with_columns(sample: Sample, row: Row, columns: Sequence[str]) -> Sample:
    sample.meta_data = {**(sample.meta_data or {}), **{column: row[column] for column in columns}}
    return sample


def _preference(row: Row) -> tuple[str | list[Message], str, str]:
    """Prompt, chosen reply and rejected reply."""
    chosen, rejected = _plain_or_messages(row, "chosen"), _plain_or_messages(row, "rejected")
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise row.error("chosen and rejected must both be texts or both be lists of messages")
    begins_anew = not isinstance(chosen, str) and chosen[0]["role"] != "assistant"
    if "prompt" in row and not begins_anew:
        prompt = _plain_or_messages(row, "prompt")
        return prompt, _reply(row, "chosen", chosen), _reply(row, "rejected", rejected)
    n_common = _common_length(chosen, rejected)
    prompt = chosen[:n_common]
    return prompt, _reply(row, "chosen", chosen[n_common:]), _reply(row, "rejected", rejected[n_common:])


def _common_length(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """How many messages, or how many characters, both replies have in common from the start."""
    n_common = 0
    while n_common < min(len(chosen), len(rejected)) and chosen[n_common] == rejected[n_common]:
        n_common += 1
    if not isinstance(chosen, str):
        # Equal replies leave the last message to be the reply.
        return min(n_common, len(chosen) - 1, len(rejected) - 1)
    # No word is cut in two, and as in TRL a blank belongs to the reply.
    while n_common and not chosen[n_common - 1].isspace():
        n_common -= 1
    return n_common - 1 if n_common and chosen[n_common - 1] == " " else n_common


def _reply(row: Row, column: str, reply: str | list[Message]) -> str:
    if isinstance(reply, str):
        return reply
    if len(reply) != 1 or reply[0]["role"] != "assistant":
        roles = ", ".join(message["role"] for message in reply) or "nothing"
        raise row.error(f"{column} must end in one message of the assistant behind the prompt, not in {roles}")
    return reply[0]["content"]


def _plain_or_messages(row: Row, column: str) -> str | list[Message]:
    return row.text(column) if isinstance(row[column], str) else read_messages(row, column)


def read_messages(row: Row, column: str) -> list[Message]:
    """A column of messages with role and content.

    Raises:
        DataError: If it holds anything else.
    """
    value = row[column]
    if not isinstance(value, list) or not value:
        raise row.error(f"{column} must be a list of messages with role and content, not {value!r}")
    messages = []
    for number, message in enumerate(value):
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise row.error(f"message {number} of {column} must have role and content, not {message!r}")
        if message["role"] not in _ROLES:
            hint = nearest_hint(str(message["role"]), _ROLES)
            raise row.error(
                f"message {number} of {column} has the unknown role {message['role']!r}{hint} "
                f"(roles: {', '.join(_ROLES)})"
            )
        messages.append({"role": message["role"], "content": _content(message["content"], row, column, number)})
    return messages


def _content(content: Any, row: Row, column: str, number: int) -> str:
    """Text of a message, which may come in parts of type ``text``."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content):
        return "".join(part["text"] for part in content)
    raise row.error(f"content of message {number} of {column} must be text, not {content!r}")
