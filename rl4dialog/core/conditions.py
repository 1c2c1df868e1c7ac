"""Conditions under which a setting cannot do what it is for: the rows of a table, and those that a config meets.

Loading a config, ``--dry_run``, the start of a run and ``rl4dialog doctor`` read the same tables: :data:`CONDITIONS`
here, about keys of a config alone, and ``training/building/conditions.py``, about arguments with their defaults and
about numbers that follow from them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rl4dialog.core.config_blocks import TrainEvaluationConfig

if TYPE_CHECKING:
    from rl4dialog.core.run_config import RunConfig

Level = Literal["note", "warn", "refuse", "error"]
_FIELDS = TrainEvaluationConfig.model_fields


@dataclass(frozen=True)
class Condition:
    """A row of a table.

    Attributes:
        level: What a config that meets the condition leads to. ``note``: a line when it is loaded. ``warn``: the doctor
            warns, too. ``refuse``: the run would be useless, so ``--dry_run`` and the start of a run refuse it, and the
            doctor fails. ``error``: no command accepts the config.
        holds: The condition. The names of its parameters are those of the values that it reads, and it is about all
            runs that have these values.
        message: Which key it is, what is wrong and what would be right, with the values in braces.
    """

    level: Level
    holds: Callable[..., bool]
    message: str


@dataclass(frozen=True)
class Met:
    """A condition that a config meets: its level, and its message with the values filled in."""

    level: Level
    message: str


def conditions_met(table: Iterable[Condition], values: Mapping[str, Any]) -> list[Met]:
    """Return the conditions that values meet, in the order of the table. A value of ``None`` counts as missing."""
    known = {name: value for name, value in values.items() if value is not None}
    found = []
    for row in table:
        names = list(inspect.signature(row.holds).parameters)
        if all(name in known for name in names) and row.holds(*(known[name] for name in names)):
            found.append(Met(row.level, row.message.format(**known)))
    return found


def config_values(config: RunConfig) -> dict[str, Any]:
    """Values that conditions read, by the last part of their key; those of other keys follow in higher layers."""
    evaluation, kl_div = config.train_evaluation, getattr(config.alg, "kl_div", None)
    return {
        "alg_id": config.alg.id,
        "n_iters": config.n_iters or None,  # a run that only evaluates needs none of what is for training
        "eval_every": evaluation.eval_every,
        "save_every": evaluation.save_every,
        "keep_best": evaluation.keep_best and evaluation.keep_best.metric,
        **({} if kl_div is None else kl_div.model_dump(include={"coeff", "target_kl"})),
    }


CONDITIONS = (
    Condition(
        "warn",
        lambda keep_best, eval_every, n_iters: eval_every > n_iters,
        "train_evaluation.keep_best has no effect: eval_every is {eval_every} and n_iters {n_iters}, so only the last "
        "iteration is evaluated, whose checkpoint is kept anyway; lower eval_every",
    ),
    Condition(
        "note",
        lambda eval_every, n_iters: eval_every > n_iters and eval_every != _FIELDS["eval_every"].default,
        "train_evaluation.eval_every is {eval_every}, more than the {n_iters} iterations of the run: the val split is "
        "evaluated only before and after training",
    ),
    Condition(
        "note",
        lambda save_every, n_iters: save_every > n_iters and save_every != _FIELDS["save_every"].default,
        "train_evaluation.save_every is {save_every}, more than the {n_iters} iterations of the run: there is only the "
        "checkpoint of its end",
    ),
    Condition(
        "note",
        lambda target_kl, coeff: not coeff,
        "alg.kl_div.target_kl has no effect: alg.kl_div.coeff is 0, and stays 0 when it is multiplied",
    ),
)
