"""Settings of a run that conditions read, and rows of a condition and a message."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rl4dialog.policies.generation import GenerationSettings


class Settings:
    """What conditions read: settings by the last part of their key, with defaults, and what follows from them.

    Runs do not have all of them: a condition that reads one that is not set is about other runs.
    """

    # -- the run
    alg_id: str
    n_processes: int
    has_fsdp: bool
    data_parallel: bool
    shardable: bool
    not_with_fsdp: list[str]
    n_iters: int  # not of a run that only evaluates
    eval_every: int
    keep_best: Any
    patience: int
    # -- text
    policy_id: str
    has_rollouts: bool
    backend: str
    samples_outside: bool
    warm_start: Any
    graph_refusal: str
    too_long: tuple[str, int, int]
    beams: str
    post_processed: str
    lora_dropout: float
    evaluation_partner: Any
    has_partner: bool
    task_readers: list[str]
    has_task: bool
    known_tasks: str
    pool_id: str
    pool_note: str
    bootstrap_truncated: bool
    max_turns: int
    terminate_on_eos: bool
    max_partner_length: int
    max_prompt_length: int
    max_secret_length: int
    toolbox: Any
    once: bool
    # -- algorithm and policy
    n_envs: int
    n_steps: int
    learning_rate: Any
    baseline: str
    credit: Any
    turn_factor: str
    n_generations: int
    mask_truncated: bool
    mask_every: int
    masks: bool
    has_mask: bool
    guided: bool
    fitting_policy: str
    needs_critic: bool
    chosen_critic: str
    critic_from: str
    critic_reads: str
    critic_warmup_iters: int
    vf_coef: float
    only_of_ppo: str
    value_rank_states: int
    unmeasured: str
    is_corrected: bool
    corrected: GenerationSettings
    own_block: str
    reference: str
    reference_decay: float
    reference_every: int
    offload_reference: bool
    # -- rewards
    coeff: float
    target_kl_of_penalty: float
    pay: str
    weightless_rewards: list[str]
    reward_timeout: float
    n_prompts: int
    turns_of_games: int
    # -- a partner
    place: str
    partner_id: str
    partner_timeout: float
    first_speaker: str
    opening: str
    snapshot_every: int
    latest_share: float
    in_evaluations: bool
    plays_itself: bool
    learns: str
    own_sampling: Any
    copies_every: int
    can_open: bool
    has_secret: bool
    rule: str
    of_partner: Any
    of_datapool: Any
    # -- what rewards need of it
    can: Any
    first: str
    takes: bool
    names: str
    outcomes: list[tuple[str, str]]
    unknown: tuple[str, str]
    known: str
    lacks_tools: str

    def __init__(self, values: Mapping[str, Any] = MappingProxyType({})) -> None:
        vars(self).update({name: value for name, value in values.items() if value is not None})

    def over(self, other: Mapping[str, Any]) -> Self:
        """Of the same class, with other values where it has none."""
        return type(self)({**other, **vars(self)})

    if not TYPE_CHECKING:  # a type checker knows which names there are

        def __getattr__(self, name: str) -> Any:
            raise _Unset(name) if name in _names(type(self)) else AttributeError(name)


@functools.cache
def _names(kind: type[Settings]) -> frozenset[str]:
    """Names of all settings, those of parent classes included."""
    return frozenset(itertools.chain.from_iterable(vars(each).get("__annotations__", ()) for each in kind.__mro__))


class _Unset(Exception):
    """A condition reads what a run does not have."""


S = TypeVar("S", bound=Settings)
Row = tuple[Callable[[S], object], str]


def rows_met(rows: Iterable[Row[S]], settings: S) -> Iterator[str]:
    """Messages, filled in, of the rows whose condition holds."""
    for holds, message in rows:
        with suppress(_Unset):
            if holds(settings):
                yield message.format(**vars(settings))
