"""Checks that conversations can begin about every sample of a run, before its model is loaded."""

from __future__ import annotations

import inspect
from typing import Any

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.config import TextConfig
from rl4dialog.core.config_blocks import EnvArgs
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply, Prompt, Sample
from rl4dialog.envs.conversation import Conversation, ConversationRules
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids
from rl4dialog.training.building.partner import build_partner, check_partners_data, check_starts, chosen_partners
from rl4dialog.training.building.texts import Texts


def check_conversations(config: TextConfig, texts: Texts) -> None:
    """Check the dialogue format, and that all samples can start a conversation, with each partner of the run."""
    if config.env is None:
        return
    args = config.env.args
    if args.conversation_partner is not None:
        texts.data.pools["train"].frame()
    _check_partners_data(config, args, texts)
    tokenizer = texts.tokenizer
    end_of_turn = EndOfTurn(tokenizer, end_of_sequence_ids(tokenizer), texts.data.turn_marker)
    rules = ConversationRules(first_speaker=args.first_speaker)
    conversation = Conversation(rules, end_of_turn, texts.lengths.prompt, texts.lengths.truncation_side)

    def start(sample: Sample) -> None:
        conversation.begin(sample, seed=0)
        if args.first_speaker == "partner":
            conversation.hear_opening(PartnerReply("a"))

    check_starts(texts, _opening_of, start)


def _check_partners_data(config: TextConfig, args: EnvArgs, texts: Texts) -> None:
    # Without rollouts, only evaluations hold conversations, and train samples may be single replies from elsewhere.
    splits = [split for split in texts.data.pools if config.has_rollouts or split != "train"]
    for chosen, _ in chosen_partners(config):
        found = PartnerRegistry.resolve(chosen.id)
        if not (inspect.isclass(found) and issubclass(found, Partner) and found.checks_samples):
            continue
        partner = build_partner(chosen, config, texts)
        assert isinstance(partner, Partner)
        check_partners_data(partner, texts.data, splits)


def _opening_of(sample: Sample) -> tuple[Any, ...] | None:
    """The beginning of a sample's prompt, and the markup at its end, on which the room for a turn depends."""
    prompt = sample.prompt_or_input_text
    return (prompt.opening, prompt.agent_opening, prompt.last_markup) if isinstance(prompt, Prompt) else None
