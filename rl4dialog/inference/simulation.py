"""Writes conversations of a trained model, of a scripted player, or of a person who plays, with the run's partner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.config import RunConfig, text_config
from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.core.files import ContinuedFile, Record, to_plain
from rl4dialog.core.protocols import Player
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Sample, Turn
from rl4dialog.core.yaml_loader import apply_overrides
from rl4dialog.data.conversations.record import ROLES, logged_record
from rl4dialog.data.dialogue_text import persona_in
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.policies.generation import NOT_IN_CONVERSATIONS, GenerationSettings
from rl4dialog.rollouts.conversing import Conversing
from rl4dialog.rollouts.talk import Talk, with_tokens
from rl4dialog.runs.progress import Progress
from rl4dialog.runs.summary import format_number, number_table
from rl4dialog.scores.conversation import ConversationMetric
from rl4dialog.serving.terminal import PlayTerminal, ReadLine, Stopped, Write
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids
from rl4dialog.text.prompts import encode_reply
from rl4dialog.text.tokenizer import tokenizer_hash
from rl4dialog.training.assembly import Assembly, part
from rl4dialog.training.building.conversations import build_conversing, chosen_partners, plays_itself
from rl4dialog.training.evaluation import is_kept
from rl4dialog.training.random_state import random_states_kept


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


@dataclass(frozen=True)
class Simulation:
    """What to simulate: conversations about the samples of a split, repeated with other seeds if there are fewer."""

    loaded: LoadedPolicy | WithoutModel  # the policy, with the config of the conversations
    split: str  # ``train``, ``val`` or ``test``
    n: int
    seed: int
    agent: str  # name of the speaker, written to the file
    new_player: Callable[[], Player] | None = None  # makes players that speak instead of the policy
    overrides: Sequence[str] = ()  # overrides of the sampling settings of the run's evaluations, as ``key=value``
    batch_size: int | None = None  # conversations at the same time; by default as in evaluations
    after: Callable[[Talk], None] | None = None  # called with each conversation, instead of showing the progress

    def sample(self, number: int) -> Sample:
        pool = self.loaded.data.pools[self.split]
        return pool[number % len(pool)][0]

    def about(self, number: int) -> dict[str, Any]:
        """The fields that identify a conversation in the file."""
        seed = derive_seed(self.seed, "simulation", number)
        return {"sample_id": self.sample(number).id, "seed": seed, "system": self.agent}


def simulate_to_file(simulation: Simulation, path: Path) -> int:
    """Write conversations as a log, which the datapools ``conversations`` and ``conversational`` read; print a table.

    Each line is a record of :func:`~rl4dialog.data.conversations.record.logged_record`, with token ids and rewards and,
    unless a player spoke, log-probabilities. ``return`` is the sum of the rewards, or ``null`` if the run scores no
    conversations. ``sample_id``, ``seed`` and ``system`` identify the conversation.

    Conversations whose reward or partner failed are left out if the run masks such failures.
    """
    loaded = simulation.loaded
    config, tokenizer = loaded.config, tokenizer_hash(loaded.texts.tokenizer)
    kwargs = apply_overrides(dict(loaded.generation_kwargs), simulation.overrides)
    GenerationSettings.from_kwargs(kwargs, only_sampling=NOT_IN_CONVERSATIONS)
    is_scored = loaded.scorer is not None and config.train_evaluation.score_predictions
    conversing = _checked(loaded.conversing)
    bootstraps = config.env is not None and config.env.args.bootstrap_truncated
    new_player = simulation.new_player

    def lines(numbers: range) -> Iterator[Record | None]:
        samples = [simulation.sample(number) for number in numbers]
        seeds = [simulation.about(number)["seed"] for number in numbers]
        players = None if new_player is None else [new_player() for _ in numbers]
        with random_states_kept():
            torch.manual_seed(derive_seed(simulation.seed, "simulation", "batch", numbers.start))
            talks = conversing(loaded.policy, samples, seeds, players, **kwargs)
        for number, talk in zip(numbers, talks, strict=True):
            if simulation.after is not None:
                simulation.after(talk)
            kept = is_kept(talk, config)
            yield conversation_line(number, talk, tokenizer, bootstraps, is_scored) if kept else None

    size = simulation.batch_size or config.train_evaluation.eval_batch_size
    return write_simulated(path, simulation.n, size, simulation.about, lines, is_scored, simulation.after is not None)


def write_simulated(
    path: Path,
    n: int,
    size: int,
    about: Callable[[int], dict[str, Any]],
    lines: Callable[[range], Iterable[Record | None]],
    is_scored: bool = True,
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


def conversation_line(
    number: int, talk: Talk, tokenizer: str, bootstraps: bool, is_scored: bool = True
) -> dict[str, Any]:
    """Fields of a line that contain the conversation; its number becomes its id."""
    is_cut = bootstraps and talk.dialogue.ended_by == "length"
    dialogue = with_tokens(talk.dialogue, talk.replies, tokenizer, is_cut)
    record: dict[str, Any] = to_plain(logged_record(replace(dialogue, id=number)))
    return {**record, "return": talk.total if is_scored else None}


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
        else Turn(message["content"], PARTNER)
        for message in said
    )
    return Dialogue(record["sample_id"], turns, outcome=record["outcome"], ended_by=record["ended_by"])


class ModelHints(Player):
    """Says what a trained model would say."""

    def __init__(self, loaded: LoadedPolicy) -> None:
        if loaded.dialogue_format is None:
            raise ConfigError(f"--hint: datapool {loaded.config.datapool.id!r} of the run contains no dialogues")
        self._loaded, self._format = loaded, loaded.dialogue_format

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._persona, self._seed = persona_in(meta_info), seed

    def say(self, history: list[str]) -> str:
        prompt = self._format.prompt(self._format.context(history), self._persona)
        return self._loaded.generate(prompt, seed=derive_seed(self._seed, "hint", len(history)))


def play_in_terminal(
    run: LoadedPolicy | WithoutModel,
    hint: Player | None,
    split: str,
    n: int | None,
    seed: int,
    path: Path,
    read_line: ReadLine,
    write: Write,
) -> None:
    """Let a person play games about the samples of a split, after those that are in the file."""
    partners = chosen_partners(run.config)
    rules = PartnerRegistry.describe(partners[-1][0].id)[0] if partners else ""
    write(f"You are the agent. The partner: {rules}\n")
    terminal = PlayTerminal(_check(run), hint, read_line, write)
    n_games = n or len(run.data.pools[split])
    simulation = Simulation(run, split, n_games, seed, "person", lambda: terminal, (), 1, terminal.finish)
    with suppress(Stopped):
        simulate_to_file(simulation, path)
    n_done = len(path.read_bytes().splitlines())
    write(f"{n_done} of {n_games} games are in {path}; the same command continues after them.\n")


def _check(run: LoadedPolicy | WithoutModel) -> Callable[[str], None]:
    """What refuses a text that the tokens of the run's replies cannot write."""
    tokenizer, n_tokens, end = run.tokenizer, run.lengths.reply, run.policy.end_of_turn
    dialogue_format = run.data.pools["train"].dialogue_format

    def check(text: str) -> None:
        if dialogue_format is not None:
            dialogue_format.check_said(text)
        heard = end.reply_text(encode_reply(tokenizer, text, None, n_tokens))
        if "".join(heard.split()) != "".join(text.split()):
            raise ConfigError(f"this would be read as {heard!r} in the run's tokens, of which a reply has {n_tokens}")

    return check
