"""Replies to a file of prompts, in a file of JSON lines that a rerun command continues after an interruption."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl4dialog.core.errors import DataError
from rl4dialog.core.files import ContinuedFile, Record
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.yaml_loader import apply_overrides
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.messages import read_messages, render_messages
from rl4dialog.data.rows import Row, read_lines, read_rows, table_suffix
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.runs.progress import Progress

_logger = logging.getLogger(__name__)
_COLUMNS = ("prompt", "messages", "history")


class PromptLine(NamedTuple):
    """A prompt, and the fields of its line (none for a line of text)."""

    prompt: str
    given: Mapping[str, Any]


def read_prompts(path: Path, dialogue_format: DialogueFormat | None, persona: str | None = None) -> list[PromptLine]:
    """Read all prompts of a file.

    In a ``.txt`` file, each line is a prompt, used verbatim. In a ``.jsonl`` file, each line is an object with
    ``prompt`` (used verbatim), ``messages`` (with role and content) or ``history`` (texts, oldest first).
    """
    suffix = table_suffix(path)
    if suffix == ".txt":
        found = [PromptLine(line, {}) for line in read_lines(path)]
    elif suffix == ".jsonl":
        found = [PromptLine(_prompt(row, dialogue_format, persona), row.values) for row in read_rows(path)]
    else:
        raise DataError(f"{path} has an unknown format; prompts must be in a .txt or .jsonl file")
    if not found:
        raise DataError(f"{path} contains no prompts")
    uses_template = dialogue_format is not None and dialogue_format.name == "chat_template"
    reserved = dialogue_format.reserved if dialogue_format is not None and uses_template else ()
    if reserved and not any(token in line.prompt for line in found for token in reserved):
        _logger.warning(
            "%s: its prompts are used verbatim, without the chat template that the run was trained with; use "
            "history: [TEXT] instead of prompt to apply the template",
            path,
        )
    elif persona and not any(persona in line.prompt for line in found):
        _logger.warning(
            "%s: its prompts do not begin with %r, as all prompts of the training did; use history: [TEXT], which does",
            path,
            persona,
        )
    return found


def _prompt(row: Row, dialogue_format: DialogueFormat | None, persona: str | None) -> str:
    given = [column for column in _COLUMNS if column in row]
    if len(given) != 1:
        wrong = " and ".join(given) or f"none of them (columns: {', '.join(row.values) or 'none'})"
        raise row.error(f"needs exactly one of the columns {', '.join(_COLUMNS)}, and has {wrong}")
    if given == ["prompt"]:
        return row.text("prompt")
    if dialogue_format is None:
        raise row.error(f"{given[0]} needs a dialogue format, which the run's datapool does not have; use prompt")
    if given == ["history"]:
        return dialogue_format.prompt(dialogue_format.context(row.texts("history")), persona)
    return render_messages(read_messages(row, "messages"), row, dialogue_format, persona)[0]


class ReplyFile(ContinuedFile):
    """A ``.jsonl`` file with a reply to each prompt, in order."""

    def __init__(self, path: Path, prompts: Sequence[PromptLine]) -> None:
        self._prompts = prompts
        super().__init__(path, self._after, "a reply to prompt {} of the input")

    def append(self, reply: str) -> None:
        line = self._prompts[self.n_done]
        self.write({**line.given, "prompt": line.prompt, "reply": reply})

    def _after(self, record: Record, n_done: int) -> int | None:
        is_reply = "reply" in record and n_done < len(self._prompts)
        return n_done + 1 if is_reply and record.get("prompt") == self._prompts[n_done].prompt else None


def reply_to_file(
    loaded: LoadedPolicy, prompts: Path, replies: Path, overrides: Sequence[str] = (), batch_size: int | None = None
) -> int:
    """Write a reply to each prompt of a file, except prompts that already have one.

    Every batch has its own seed, so an interruption does not change any reply.
    """
    kwargs = apply_overrides(dict(loaded.generation_kwargs), overrides)
    GenerationSettings.from_kwargs(kwargs)
    lines = read_prompts(prompts, loaded.dialogue_format, loaded.persona)
    size = batch_size or loaded.config.train_evaluation.eval_batch_size
    with ReplyFile(replies, lines) as file:
        n_before = file.n_done
        with Progress("Replying", "prompt", len(lines), n_before, line_every_s=30.0) as progress:
            for start in range(n_before - n_before % size, len(lines), size):
                batch = [line.prompt for line in lines[start : start + size]]
                seed = derive_seed(loaded.config.seed, "replies", start)
                answers = loaded.generate(batch, batch_size=size, seed=seed, **kwargs)
                for reply in answers[file.n_done - start :]:
                    file.append(reply)
                    progress.advance()
        return file.n_done - n_before
