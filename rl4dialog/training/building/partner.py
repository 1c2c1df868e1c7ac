"""Builds the conversation partner of a run, and checks that it fits the rewards."""

from __future__ import annotations

from collections.abc import Sequence

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.config_blocks import ComponentConfig, EnvArgs
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import Partner
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.rewards.conversation import OutcomeReward, PartnerReward


def check_partner(config: OnPolicyConfig) -> None:
    """Check id and arguments of the partner, and that it can do what the conversation asks of it.

    Raises:
        ConfigError: If not.
    """
    args = config.env.args
    chosen = args.conversation_partner
    if chosen is None:
        return
    partner = build_partner(chosen)
    if args.first_speaker == "partner" and not partner.can_open:
        raise ConfigError(
            f"env.args.first_speaker is partner, but partner {chosen.id!r} has no first utterance; use first_speaker: "
            f"sample or agent"
        )


def build_partner(chosen: ComponentConfig, where: str = "env.args.partner") -> Partner:
    """Build a partner.

    Raises:
        ConfigError: If its id or an argument is unknown or invalid.
    """
    PartnerRegistry.check(chosen.id, chosen.args, f"{where}.args")
    partner = PartnerRegistry.get(chosen.id, chosen.args)
    if not isinstance(partner, Partner):
        raise ConfigError(f"{where}.id: {chosen.id!r} is not a subclass of rl4dialog.core.protocols.Partner")
    return partner


def check_rewards(args: EnvArgs, partner: Partner | None, parts: Sequence[RewardPart]) -> None:
    """Check that the rewards get from the partner what they need.

    Raises:
        ConfigError: If a reward compares later replies with references that nobody gives, if the partner pays and
            nothing takes it or the reverse, or if the partner does not report an outcome that is rewarded.
    """
    name = args.conversation_partner.id if args.conversation_partner is not None else None
    names = ", ".join(repr(part.name) for part in parts if getattr(part.function, "needs_references", False))
    if args.max_turns > 1 and names and partner is not None and not partner.gives_references:
        raise ConfigError(
            f"reward {names} compares replies with references, but with env.args.max_turns: {args.max_turns} only the "
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
