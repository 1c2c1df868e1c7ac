"""Conversations between a scripted player and a partner, without a model."""

from __future__ import annotations

from rl4dialog.core.errors import PartnerError
from rl4dialog.core.partner_replies import checked_reply
from rl4dialog.core.protocols import Partner, Player
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, EndedBy, Sample, Turn, given_turns


def play(player: Player, partner: Partner, sample: Sample, max_turns: int, seed: int) -> Dialogue:
    """Let a player and a partner talk about a sample.

    Args:
        player: The agent's side.
        partner: The other side.
        sample: Source of the meta data and of the first utterances, the last of which is the partner's.
        max_turns: Number of turns after which the conversation ends.
        seed: Seed, which determines everything that is random.

    Returns:
        The conversation.
    """
    meta_data = sample.meta_data or {}
    history = list(meta_data.get("history", [sample.prompt_or_input_text]))
    n_given = len(history)
    turns = [*given_turns(history)]
    player.reset(meta_data, derive_seed(seed, "player"))
    partner.reset(meta_data, derive_seed(seed, "partner"))
    ended_by: EndedBy = "max_turns"
    for _ in range(max_turns):
        history.append(player.say(history))
        reply = checked_reply(partner.reply(history), type(partner).__name__)
        if reply.failed is not None:
            raise PartnerError(f"the partner failed on sample {sample.id!r}: {reply.failed}")
        turns.append(Turn(history[-1], AGENT, reward=reply.reward))
        if reply.text is not None:
            history.append(reply.text)
            turns.append(Turn(reply.text, PARTNER))
        if reply.leaves:
            ended_by = "partner"
            break
    return Dialogue(
        sample.id, tuple(turns), meta_data=meta_data, n_given=n_given, outcome=partner.outcome(), ended_by=ended_by
    )
