"""A person plays the agent of a task, with hints of a scripted player or a model; the games are written as a log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import Player
from rl4dialog.core.seeding import derive_seed
from rl4dialog.data.dialogue_text import persona_in
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.inference.simulation import Simulation, WithoutModel, simulate_to_file
from rl4dialog.serving.terminal import PlayTerminal, ReadLine, Stopped, Write
from rl4dialog.text.prompts import encode_reply
from rl4dialog.training.building.conversations import chosen_partners


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
