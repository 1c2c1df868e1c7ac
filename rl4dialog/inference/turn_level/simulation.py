"""Writes dialogues of an agent with the simulated user to a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, SPEAKERS
from rl4dialog.data.conversations.record import ROLES, VERSION
from rl4dialog.inference.continued_file import ContinuedFile, Record
from rl4dialog.inference.simulation import print_simulation, simulated_dialogue
from rl4dialog.inference.turn_level.loading import TurnLevelAgent
from rl4dialog.runs.conversations import TURNS_KEY
from rl4dialog.runs.progress import Progress
from rl4dialog.training.turn_level.evaluation import RETURN, evaluate_episodes

_BATCH = 100
_ROLES = {name: ROLES[speaker] for speaker, name in SPEAKERS.items()}


def simulate_agent(agent: TurnLevelAgent, split: str, n: int, seed: int, path: Path) -> int:
    """Write dialogues as a log, which the datapools ``conversations`` and ``conversational`` read; print a table.

    Each line has the ``messages``, also with the acts; the ``rewards`` of the assistant's; ``return``, their sum; and
    all else that `rl4dialog.tasks.dialogue_acts.transcript.transcript` returns. Every batch has its own seed, so an
    interruption changes nothing.

    Args:
        agent: The agent.
        split: Split of the goals.
        n: Number of dialogues.
        seed: Random seed.
        path: Output ``.jsonl`` file; an incomplete one is continued.

    Returns:
        Number of newly written dialogues.
    """

    def about(number: int) -> dict[str, Any]:
        return {"sample_id": number, "seed": derive_seed(seed, "simulation", split), "system": agent.name}

    def n_after(record: Record, n_done: int) -> int | None:
        return n_done + 1 if all(record.get(key) == value for key, value in about(n_done).items()) else None

    envs = agent.envs(split)
    player, deterministic = agent.player(envs), agent.config.train_evaluation.deterministic
    with ContinuedFile(path, n_after, "dialogue {} of this command") as file:
        n_before = file.n_done
        with Progress("Simulating", "dialogue", n, n_before, line_every_s=30.0) as progress:
            for start in range(n_before - n_before % _BATCH, n, _BATCH):
                of_batch = derive_seed(seed, "simulation", split, start)
                episodes = evaluate_episodes(player, envs, min(_BATCH, n - start), deterministic, of_batch)
                for number, episode in enumerate(episodes, start):
                    if TURNS_KEY not in episode:
                        raise ConfigError(f"env.id: {agent.config.env.id} has no dialogues; simulate needs some")
                    if number >= n_before:
                        file.write({**about(number), **_line(episode)})
                        progress.advance()
        if file.n_done > n_before:
            print_simulation([simulated_dialogue(record) for record in file.records()], is_scored=True)
        return file.n_done - n_before


def _line(episode: Mapping[str, Any]) -> dict[str, Any]:
    turns = [dict(turn) for turn in episode[TURNS_KEY]]
    messages = [{"role": _ROLES[turn.pop("speaker")], "content": turn.pop("text"), **turn} for turn in turns]
    rewards = [message.pop("reward") for message in messages if "reward" in message]
    kept = ("outcome", "ended_by", "failures", "goal", "goal_text", "persona", "partner_persona")
    scores = {"rewards": rewards, "return": episode[RETURN]}
    n_given = sum(bool(message.pop("given", False)) for message in messages)
    fixed = {"version": VERSION, "agent": ROLES[AGENT], "n_given": n_given}
    return {**fixed, "messages": messages, **scores, **{key: episode[key] for key in kept if key in episode}}
