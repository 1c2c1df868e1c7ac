"""Builds the conversation partner of a run, and checks that it fits the rewards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from rl4dialog.catalog import DataPoolRegistry, PartnerRegistry
from rl4dialog.core.config import TextConfig
from rl4dialog.core.config_blocks import ComponentConfig, EnvArgs
from rl4dialog.core.errors import ConfigError, DataError, RL4DialogError
from rl4dialog.core.protocols import Partner, PartnerService
from rl4dialog.core.reward_parts import RewardPart, names_needing
from rl4dialog.core.types import Sample
from rl4dialog.data.run_data import Data
from rl4dialog.envs.outside_partner import OutsidePartner, PartnersSide
from rl4dialog.scores.conversation import OutcomeReward, PartnerReward
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.building.self_play import check_self_play, plays_itself, self_play_arguments
from rl4dialog.training.building.texts import Texts

AnyPartner = Partner | PartnerService


def check_partner(config: TextConfig) -> None:
    """Check ids and arguments of the partners, and that they can do what a conversation asks of them."""
    if config.train_evaluation.partner is not None and not chosen_partners(config):
        raise ConfigError("train_evaluation.partner replaces env.args.partner in evaluations, but there is none")
    for chosen, where in chosen_partners(config):
        PartnerRegistry.check(chosen.id, chosen.args, f"{where}.args")
        if plays_itself(chosen):
            check_self_play(config, chosen, where)
        assert config.env is not None
        if config.env.args.first_speaker == "partner" and not abilities(chosen).can_open:
            raise ConfigError(
                f"env.args.first_speaker is partner, but partner {chosen.id!r} has no first utterance; use "
                f"first_speaker: sample or agent"
            )
        if chosen.id == config.datapool.id:
            _check_rules(config, chosen, where)


def _check_rules(config: TextConfig, chosen: ComponentConfig, where: str) -> None:
    """Check that a partner and the datapool of its games play by the same rules."""
    pools = {**DataPoolRegistry.defaults(config.datapool.id), **config.datapool.args}
    partners = {**PartnerRegistry.defaults(chosen.id), **chosen.args}
    for name in getattr(PartnerRegistry.resolve(chosen.id), "rules", ()):
        if partners[name] != pools[name]:
            raise ConfigError(
                f"{where}.args.{name} is {partners[name]}, but datapool.args.{name} is {pools[name]}, so the data have "
                f"other rewards than the partner pays; set the same"
            )


def chosen_partners(config: TextConfig) -> list[tuple[ComponentConfig, str]]:
    """Partners of rollouts and evaluations, with their keys; empty if the run has none."""
    if config.env is None or config.env.args.conversation_partner is None:
        return []
    own = config.train_evaluation.partner
    others = [(own, "train_evaluation.partner")] if own is not None else []
    return [(config.env.args.conversation_partner, "env.args.partner"), *others]


def abilities(chosen: ComponentConfig) -> Any:
    """Return the object that says what a partner can do: the partner itself, or its class if building it is costly."""
    partner = PartnerRegistry.resolve(chosen.id)
    is_class = inspect.isclass(partner)
    is_provided = PartnerRegistry.provided & inspect.signature(partner).parameters.keys()
    if is_class and (issubclass(partner, PartnerService) or is_provided):
        return partner
    return resolve_partner(chosen)


def build_partner(
    chosen: ComponentConfig,
    config: TextConfig,
    texts: Texts,
    end_of_turn: EndOfTurn | None = None,
    vocab_size: int | None = None,
    is_evaluation: bool = False,
) -> AnyPartner:
    """Build a partner.

    Args:
        chosen: The partner.
        config: The run's config, with an ``env`` block.
        texts: The run's texts.
        end_of_turn: Detects the ends of the agent's replies, if its model is known.
        vocab_size: Number of rows of its model's embedding, if it is known.
        is_evaluation: Whether the conversations are those of evaluations.
    """
    assert config.env is not None
    args = config.env.args
    max_length = args.max_partner_length or texts.lengths.reply
    of_agent = {}
    if plays_itself(chosen):
        of_agent = self_play_arguments(chosen, config, texts, max_length, end_of_turn, vocab_size, is_evaluation)
    partner = resolve_partner(
        chosen,
        tokenizer=texts.tokenizer,
        world=texts.data.world,
        max_prompt_length=texts.lengths.prompt,
        max_length=max_length,
        **of_agent,
    )
    if isinstance(partner, PartnerService):
        _check_first_prompts(partner.side, args, texts)
    return partner


def _check_first_prompts(outside: OutsidePartner, args: EnvArgs, texts: Texts) -> None:
    """Check that a partner in the main process accepts the first prompt of all conversations."""
    side = PartnersSide(replace(outside, max_prompt_length=min(outside.max_prompt_length, texts.lengths.prompt)))

    def given(sample: Sample) -> list[str]:
        return (sample.meta_data or {}).get("history", [""]) if args.first_speaker == "sample" else []

    def kind(sample: Sample) -> tuple[int, str]:
        """Who speaks first in the prompt, and the persona in front of it."""
        return len(given(sample)) % 2, str((sample.meta_data or {}).get(outside.persona_key))

    def start(sample: Sample) -> None:
        side.begin(sample.meta_data or {})
        side.asked([] if args.first_speaker == "partner" else [*given(sample), "a"])

    check_starts(texts, kind, start)


def check_starts(texts: Texts, kind: Callable[[Sample], Hashable], start: Callable[[Sample], None]) -> None:
    """Check that one sample of each kind can start a conversation."""
    known = set()
    for split in texts.data.pools:
        for sample in texts.data.samples(split):
            if (its_kind := kind(sample)) in known:
                continue
            known.add(its_kind)
            try:
                start(sample)
            except DataError as error:
                raise DataError(
                    f"sample {sample.id!r} of the {split} split cannot start a conversation: {error}"
                ) from error


def check_partners_data(partner: Partner, data: Data, splits: Iterable[str]) -> None:
    """Check that a partner can start a conversation about every sample of these splits."""
    for split in splits:
        for sample in data.samples(split):
            try:
                partner.reset(sample.meta_data or {}, seed=0)
            except DataError as error:
                raise DataError(f"sample {sample.id!r} of the {split} split: {error}") from error


def resolve_partner(chosen: ComponentConfig, **provided: Any) -> AnyPartner:
    """Build a partner from its arguments and those that a run provides."""
    try:
        partner = PartnerRegistry.get(chosen.id, chosen.args, **provided)
    except RL4DialogError:
        raise
    except Exception as error:
        raise ConfigError(f"partner {chosen.id!r} cannot be built: {type(error).__name__}: {error}") from error
    if not isinstance(partner, (Partner, PartnerService)):
        raise ConfigError(
            f"partner {chosen.id!r} is a {type(partner).__name__}; it must be a subclass of Partner or PartnerService "
            f"of rl4dialog.core.protocols"
        )
    return partner


def check_rewards(config: TextConfig, parts: Sequence[RewardPart]) -> None:
    """Check that the rewards get from the partners what they need."""
    takes = any(isinstance(part.function, PartnerReward) for part in parts)
    weights = {
        key: part.name for part in parts if isinstance(part.function, OutcomeReward) for key in part.function.weights
    }
    names = names_needing(parts, "references")
    partners = chosen_partners(config)
    if takes and not partners:
        raise ConfigError("reward 'partner' pays what a partner's replies carry, but there is no env.args.partner")
    if weights and not partners:
        raise ConfigError(
            f"reward {next(iter(weights.values()))!r} pays a partner's outcome, but there is no env.args.partner"
        )
    for chosen, where in partners:
        assert config.env is not None
        can, max_turns, first = abilities(chosen), config.env.args.max_turns, config.env.args.first_speaker
        if names and first != "sample" and not (first == "partner" and can.gives_references):
            raise ConfigError(
                f"reward {names} compares replies with references, but with env.args.first_speaker: {first} the first "
                f"reply of a conversation has none; use first_speaker: sample or another reward"
            )
        if max_turns > 1 and names and not can.gives_references:
            raise ConfigError(
                f"reward {names} compares replies with references, but with env.args.max_turns: {max_turns} only the "
                f"first reply of a conversation has some: {where}.id: {chosen.id} gives none. Use partner replay, "
                f"another reward, or max_turns: 1"
            )
        if takes and not can.pays:
            raise ConfigError(
                f"reward 'partner' pays what the replies of {where}.id: {chosen.id} carry, which never pays"
            )
        if can.pays and not takes:
            raise ConfigError(
                f"the replies of {where}.id: {chosen.id} carry rewards, which nothing uses; add the reward 'partner', "
                f"alone or as a part of 'composite'"
            )
        for key, name in weights.items():
            if key not in can.outcomes:
                known = ", ".join(can.outcomes) or "none"
                raise ConfigError(
                    f"reward {name!r} pays the outcome {key!r}, but {where}.id: {chosen.id} reports {known}"
                )
