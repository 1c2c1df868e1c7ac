"""The partner's side of `turn_goals`: a partner for each conversation, or one that answers all of them at once."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence

from rl4dialog.core.errors import PartnerError, RL4DialogError
from rl4dialog.core.partner_replies import checked_reply
from rl4dialog.core.protocols import Partner, PartnerService
from rl4dialog.core.types import PartnerReply
from rl4dialog.envs.outside_partner import PartnersSide, first_prompts
from rl4dialog.envs.utterance_view import LEAVES_ACTION
from rl4dialog.rollouts.partner_answers import partner_answers
from rl4dialog.rollouts.turn_goals.conversation import GoalConversation


class Answering(ABC):
    """Answers in the conversations of `turn_goals`."""

    def begin(self, place: int, conversation: GoalConversation) -> None:  # noqa: B027 (a service has no state)
        """Begin a conversation, or return to where it is."""

    @abstractmethod
    def answers(self, conversations: Sequence[GoalConversation]) -> list[PartnerReply]:
        """Answer the agent's last utterance in each conversation.

        Raises:
            PartnerError: If the partner fails.
        """


class OwnPartners(Answering):
    """A copy of a partner for each conversation.

    Args:
        partner: The partner.
        n: Number of conversations.
    """

    def __init__(self, partner: Partner, n: int) -> None:
        self._partners, self._name = [copy.deepcopy(partner) for _ in range(n)], type(partner).__name__

    def begin(self, place: int, conversation: GoalConversation) -> None:
        partner, texts, n_given = self._partners[place], conversation.texts, len(conversation.meta_info["history"])
        partner.reset(conversation.meta_info, conversation.seed)
        for n in range(n_given + 1, len(texts), 2):
            partner.reply(texts[:n])

    def answers(self, conversations: Sequence[GoalConversation]) -> list[PartnerReply]:
        return [self._answer(*pair) for pair in zip(self._partners, conversations, strict=True)]

    def _answer(self, partner: Partner, conversation: GoalConversation) -> PartnerReply:
        try:
            reply = checked_reply(partner.reply(conversation.texts), self._name)
        except RL4DialogError:
            raise
        except Exception as error:
            raise PartnerError(
                f"partner {self._name!r} failed on sample {conversation.sample.id!r}: {type(error).__name__}: {error}"
            ) from error
        if reply.failed is not None:
            raise PartnerError(f"partner {self._name!r} failed on sample {conversation.sample.id!r}: {reply.failed}")
        return reply


class SharedPartner(Answering):
    """A partner in the main process, which answers all conversations in one batch.

    Args:
        service: The partner.
    """

    def __init__(self, service: PartnerService) -> None:
        self._service = service

    def answers(self, conversations: Sequence[GoalConversation]) -> list[PartnerReply]:
        side = PartnersSide(self._service.side)
        prompts = first_prompts(self._service.side, [(each.texts, each.meta_info) for each in conversations])
        answers, failures = partner_answers(self._service, prompts)
        for i, problem in failures.items():
            raise PartnerError(f"the partner failed on sample {conversations[i].sample.id!r}: {problem}")
        left = [list(ids) == [LEAVES_ACTION] for ids in answers]
        return [
            PartnerReply(leaves=True) if leaves else checked_reply(side.said(ids), "language_model")
            for ids, leaves in zip(answers, left, strict=True)
        ]


def answering(partner: Partner | PartnerService, n: int) -> Answering:
    """Return what lets a partner answer in n conversations."""
    return SharedPartner(partner) if isinstance(partner, PartnerService) else OwnPartners(partner, n)
