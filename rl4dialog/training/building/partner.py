"""Builds the conversation partner of a run, and checks that it fits the rewards."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.config import TextConfig
from rl4dialog.core.config_blocks import ComponentConfig, EnvArgs
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import Partner, PartnerService
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.rewards.conversation import OutcomeReward, PartnerReward
from rl4dialog.training.building.texts import Texts

AnyPartner = Partner | PartnerService


def check_partner(config: TextConfig) -> None:
    """Check ids and arguments of the partners, and that they can do what a conversation asks of them.

    Raises:
        ConfigError: If not.
    """
    own = config.train_evaluation.partner
    if config.env is None or config.env.args.conversation_partner is None:
        if own is not None:
            raise ConfigError("train_evaluation.partner replaces env.args.partner in evaluations, but there is none")
        return
    args = config.env.args
    for chosen, where in ((args.conversation_partner, "env.args.partner"), (own, "train_evaluation.partner")):
        if chosen is None:
            continue
        PartnerRegistry.check(chosen.id, chosen.args, f"{where}.args")
        partner = PartnerRegistry.resolve(chosen.id)
        if inspect.isclass(partner) and issubclass(partner, Partner) and not _takes_tokenizer(partner):
            partner = PartnerRegistry.get(chosen.id, chosen.args)
        if args.first_speaker == "partner" and not getattr(partner, "can_open", True):
            raise ConfigError(
                f"env.args.first_speaker is partner, but partner {chosen.id!r} has no first utterance; use "
                f"first_speaker: sample or agent"
            )


def build_partner(chosen: ComponentConfig, args: EnvArgs, texts: Texts) -> AnyPartner:
    """Build a partner.

    Raises:
        ConfigError: If it is not a partner, or an argument is invalid.
    """
    partner = PartnerRegistry.get(
        chosen.id,
        chosen.args,
        tokenizer=texts.tokenizer,
        max_prompt_length=texts.lengths.prompt,
        max_length=args.max_partner_length or texts.lengths.reply,
    )
    if not isinstance(partner, (Partner, PartnerService)):
        raise ConfigError(
            f"partner {chosen.id!r} is a {type(partner).__name__}; it must be a subclass of Partner or PartnerService "
            f"of rl4dialog.core.protocols"
        )
    return partner


def _takes_tokenizer(partner: type) -> bool:
    return "tokenizer" in inspect.signature(partner).parameters


def check_rewards(name: str | None, max_turns: int, partner: AnyPartner | None, parts: Sequence[RewardPart]) -> None:
    """Check that the rewards get from the partner what they need.

    Args:
        name: Id of the partner.
        max_turns: Maximum number of the agent's utterances.
        partner: The partner, if there is one.
        parts: All rewards.

    Raises:
        ConfigError: If a reward compares later replies with references that nobody gives, if the partner pays and
            nothing takes it or the reverse, or if the partner does not report an outcome that is rewarded.
    """
    names = ", ".join(repr(part.name) for part in parts if getattr(part.function, "needs_references", False))
    if max_turns > 1 and names and partner is not None and not partner.gives_references:
        raise ConfigError(
            f"reward {names} compares replies with references, but with env.args.max_turns: {max_turns} only the "
            f"first reply of a conversation has some: partner {name!r} gives none. Use partner replay, another reward, "
            f"or max_turns: 1"
        )
    takes = any(isinstance(part.function, PartnerReward) for part in parts)
    if takes and (partner is None or not partner.pays):
        who = "there is no env.args.partner" if partner is None else f"partner {name!r} never pays"
        raise ConfigError(f"reward 'partner' pays what the partner's replies carry, but {who}; remove the reward")
    if partner is not None and partner.pays and not takes:
        raise ConfigError(
            f"the replies of partner {name!r} carry rewards, which nothing uses; add the reward 'partner', alone or as "
            f"a part of 'composite'"
        )
    for part in parts:
        if isinstance(part.function, OutcomeReward):
            known = partner.outcomes if partner is not None else ()
            for key in part.function.weights:
                if key not in known:
                    who = (
                        f"partner {name!r} reports {', '.join(known) or 'no outcome'}"
                        if name
                        else "there is no partner"
                    )
                    raise ConfigError(f"reward {part.name!r} pays the outcome {key!r}, but {who}")
