"""Writes replies to a file of prompts, and conversations of a model or of players with the run's partner, to files.

A rerun command continues its file after an interruption.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from rich.text import Text

from rl4dialog.core.config import RunConfig, text_config
from rl4dialog.core.console import Console
from rl4dialog.core.errors import ConfigError, DataError, nearest_hint
from rl4dialog.core.files import ContinuedFile, Record, to_plain
from rl4dialog.core.protocols import Player
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, PARTNER, TOOL, Dialogue, Turn
from rl4dialog.core.yaml_loader import apply_overrides
from rl4dialog.data.conversations.record import ROLES, logged_record
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.messages import read_messages, render_messages
from rl4dialog.data.rows import Row, read_lines, read_rows, report_unread, table_suffix
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.policies.generation import NOT_IN_CONVERSATIONS, GenerationSettings
from rl4dialog.rollouts.conversing import Conversing
from rl4dialog.rollouts.talk import Talk, with_tokens
from rl4dialog.runs.progress import Progress
from rl4dialog.runs.summary import format_number, number_table
from rl4dialog.scores.conversation import ConversationMetric
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids
from rl4dialog.text.tokenizer import tokenizer_hash
from rl4dialog.training.assembly import Assembly, part
from rl4dialog.training.building.conversations import build_conversing, chosen_partners, plays_itself
from rl4dialog.training.evaluation import is_kept
from rl4dialog.training.random_state import random_states_kept

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
        found = [
            PromptLine(_prompt(row, dialogue_format, persona), row.values) for row in report_unread(read_rows(path))
        ]
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
    lines = read_prompts(prompts, loaded.dialogue_format, loaded.persona or None)
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


class WithoutModel(Assembly):
    """A run on text in which scripted players or a person speak instead of the model, which is never loaded."""

    generation_kwargs: Mapping[str, Any] = {}

    def __init__(self, config: RunConfig) -> None:
        super().__init__(text_config(config))

    @part
    def policy(self) -> Any:
        """What conversations read of a policy."""
        tokenizer = self.tokenizer
        end_of_turn = EndOfTurn(tokenizer, end_of_sequence_ids(tokenizer), self.turn_marker)
        model = SimpleNamespace(get_input_embeddings=lambda: torch.nn.Embedding(len(tokenizer), 1))
        limit = self.lengths.reply
        sizes = {"reply_limit": lambda **kwargs: limit, "remembering_prompts": nullcontext}
        return SimpleNamespace(end_of_turn=end_of_turn, language_model=model, lockstep=False, **sizes)

    @part
    def conversing(self) -> Conversing | None:
        if any(plays_itself(chosen) for chosen, _ in chosen_partners(self.config)):
            raise ConfigError("the partner is the model itself; pass --run or --model, which load it")
        return build_conversing(self.config, self.texts, self.scorer)


def simulate_to_file(
    loaded: LoadedPolicy | WithoutModel,
    path: Path,
    split: str,
    n: int,
    seed: int,
    agent: str,
    new_player: Callable[[], Player] | None = None,
    overrides: Sequence[str] = (),
    after: Callable[[Talk], None] | None = None,
) -> int:
    """Write conversations as a log, which the datapools ``conversations`` and ``conversational`` read; print a table.

    Each line is a record of :func:`~rl4dialog.data.conversations.record.logged_record`, with token ids and rewards and,
    unless a player spoke, log-probabilities. ``return`` is the sum of the rewards, or ``null`` if the run scores no
    conversations. ``sample_id``, ``seed`` and ``system``, the name of the agent, identify the conversation.

    Conversations are about the samples of a split, repeated with other seeds if there are fewer. New players speak
    instead of the policy. The overrides are those of the sampling settings of the run's evaluations, as ``key=value``.
    `after` is called with each conversation, of which there is one at a time, instead of showing the progress.
    Conversations whose reward or partner failed are left out if the run masks such failures.
    """
    config, tokenizer = loaded.config, tokenizer_hash(loaded.texts.tokenizer)
    kwargs = apply_overrides(dict(loaded.generation_kwargs), overrides)
    GenerationSettings.from_kwargs(kwargs, only_sampling=NOT_IN_CONVERSATIONS)
    is_scored = loaded.scorer is not None and config.train_evaluation.score_predictions
    conversing = _checked(loaded.conversing)
    bootstraps = config.env is not None and config.env.args.bootstrap_truncated
    pool = loaded.data.pools[split]

    def about(number: int) -> dict[str, Any]:
        sample = pool[number % len(pool)][0]
        return {"sample_id": sample.id, "seed": derive_seed(seed, "simulation", number), "system": agent}

    def lines(numbers: range) -> Iterator[Record | None]:
        samples = [pool[number % len(pool)][0] for number in numbers]
        seeds = [about(number)["seed"] for number in numbers]
        players = None if new_player is None else [new_player() for _ in numbers]
        with random_states_kept():
            torch.manual_seed(derive_seed(seed, "simulation", "batch", numbers.start))
            talks = conversing(loaded.policy, samples, seeds, players, **kwargs)
        for number, talk in zip(numbers, talks, strict=True):
            if after is not None:
                after(talk)
            if not is_kept(talk, config):
                yield None
                continue
            is_cut = bootstraps and talk.dialogue.ended_by == "length"
            dialogue = with_tokens(replace(talk.dialogue, id=number), talk.replies, tokenizer, is_cut)
            record: dict[str, Any] = to_plain(logged_record(dialogue))
            yield {**record, "return": talk.total if is_scored else None}

    size = config.train_evaluation.eval_batch_size if after is None else 1
    return write_simulated(path, n, size, about, lines, is_scored, after is not None)


def write_simulated(
    path: Path,
    n: int,
    size: int,
    about: Callable[[int], dict[str, Any]],
    lines: Callable[[range], Iterable[Record | None]],
    is_scored: bool,
    is_quiet: bool = False,
) -> int:
    """Hold n conversations in batches, write them, and print a table; returns how many were written.

    The table is of what was written, also after an interruption. If it is quiet, no progress is shown.

    ``about`` returns the keys that identify a conversation by its number, and ``lines`` the others of a batch, ``None``
    for a conversation that is left out. Every batch has its own seed, so an interruption changes nothing.
    """

    def n_after(record: Record, n_done: int) -> int | None:
        # Conversations that were left out are not in the file.
        for number in range(n_done, max(n, n_done + 1)):
            if all(record.get(key) == value for key, value in about(number).items()):
                return number + 1
        return None

    with ContinuedFile(path, n_after, "conversation {} of this command, or a later one") as file:
        n_before, n_written = file.n_done, 0
        every_s = math.inf if is_quiet else 30.0
        progress = Progress("Simulating", "conversation", n, n_before, every_s, not is_quiet, has_bar=not is_quiet)
        try:
            for start in range(n_before - n_before % size, n, size):
                numbers = range(start, min(start + size, n))
                for number, line in zip(numbers, lines(numbers), strict=True):
                    if number < n_before:
                        continue
                    if line is not None:
                        file.write({**about(number), **line})
                        n_written += 1
                    progress.advance()
        finally:
            progress.close()
            if n_written:
                print_simulation([simulated_dialogue(record) for record in file.records()], is_scored)
    return n_written


def begin_conversing(loaded: LoadedPolicy) -> Conversing:
    """What lets a policy talk with the partner of its run, without rewards."""
    conversing = _checked(build_conversing(loaded.config, loaded.texts, None))
    loaded.begin_conversations(conversing)
    return conversing


def _checked(conversing: Conversing | None) -> Conversing:
    if conversing is None:
        raise ConfigError(
            "the run has no conversation partner, so there is nobody to talk with; set one, such as --set "
            "'env.args.partner={id: rules, args: {...}}'; rl4dialog generate, and select --unit reply, need none"
        )
    return conversing


def print_simulation(dialogues: Sequence[Dialogue], is_scored: bool) -> None:
    """Print length, return, outcome and end of conversations."""
    console = Console()
    scores = {key.partition("/")[2]: corpus for key, (_, corpus) in ConversationMetric().compute([*dialogues]).items()}
    if not is_scored:
        del scores["return"]
    table = number_table(console, ("metric", "mean"), whole_keys=False)
    for key, value in scores.items():
        table.add_row(Text(key), format_number(value))
    console.print()
    console.print(Text(f"{len(dialogues):,} conversations", style="bold"))
    console.print(table)


def chosen_player(
    loaded: Assembly, split: str, name: str, problem: str = "--player {!r} is no player"
) -> Callable[[], Player]:
    """What makes a scripted player of the datapool."""
    pool = loaded.data.pools[split]
    if (found := pool.players.get(name)) is not None:
        return found
    known = f"its players: {', '.join(pool.players)}" if pool.players else "it has none"
    hint = f"{nearest_hint(name, pool.players)} ({known})"
    raise ConfigError(f"{problem.format(name)} of datapool {loaded.config.datapool.id!r}{hint}")


def simulated_dialogue(record: Record) -> Dialogue:
    """The conversation of a line, with the reward of each utterance in one number."""
    said = record["messages"][record["n_given"] :]
    rewards = iter(record["rewards"][-sum(message["role"] == ROLES[AGENT] for message in said) :])
    turns = tuple(
        Turn(message["content"], AGENT, reward=(next(rewards) or 0.0) + sum(message.get("token_rewards", ())))
        if message["role"] == ROLES[AGENT]
        else Turn(message["content"], TOOL if message["role"] == ROLES[TOOL] else PARTNER)
        for message in said
    )
    return Dialogue(record["sample_id"], turns, outcome=record["outcome"], ended_by=record["ended_by"])
