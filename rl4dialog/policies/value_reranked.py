"""Language model whose sampled replies are ranked by values of replies, for offline learning.

A turn of the agent is one action. Heads estimate its value Q(s, a) from the hidden state behind its last token, and
V(s) from the hidden state before its first one (ILQL with utterances; Snell et al. 2022, arXiv 2206.11871, section 4.4,
and CHAI; Verma et al. 2022, arXiv 2204.08426).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl4dialog.functional.replies import Replies
from rl4dialog.functional.turns import Turns
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.guidance import Reranking
from rl4dialog.policies.guided_search import Sample, reranked
from rl4dialog.policies.heads import ActionValueHeads
from rl4dialog.policies.lagging_values import LaggingValuesMixin


@dataclass(frozen=True)
class TurnHidden:
    """Hidden states of a trunk at the U turns of replies.

    Attributes:
        tokens: Before each of the N agent tokens. Shape (N, H).
        starts: Before the first token of each turn, for V. Shape (U, H).
        ends: Of each turn as a whole, for Q. Shape (U, H).
    """

    tokens: Tensor
    starts: Tensor
    ends: Tensor

    def detach(self) -> TurnHidden:
        """The same states without gradients."""
        return TurnHidden(self.tokens.detach(), self.starts.detach(), self.ends.detach())


class ValueRerankedCausalLMPolicy(LaggingValuesMixin, CausalLMActorCriticPolicy):
    """Decoder-only language model, whose reply is the best of several samples by their values.

    Log-probabilities are those of the language model, which proposes the replies.

    Args:
        args: Arguments of :class:`~rl4dialog.policies.lagging_values.LaggingValuesMixin`.
        features: What Q reads of a turn: the hidden state behind its ``last`` token, or the ``mean`` of those behind
            all its tokens.
        kwargs: Keyword arguments of :class:`~rl4dialog.policies.lagging_values.LaggingValuesMixin`; ``guidance`` has
            the settings of :class:`~rl4dialog.policies.guidance.Reranking`.

    Raises:
        ConfigError: If an argument is invalid.
    """

    reranked = True
    guidance_class = Reranking
    guidance: Reranking

    def __init__(self, *args: Any, features: Literal["last", "mean"] = "last", **kwargs: Any) -> None:
        self._features = features
        super().__init__(*args, **kwargs)

    def _n_actions(self, model: PreTrainedModel) -> int:
        return 1

    # -- values of the U turns of replies ---------------------------------------------------------------------------

    def _read(self, trunk: Any, replies: Replies) -> TurnHidden:
        turns = Turns.of(replies)
        pad, mask = torch.nn.functional.pad, replies.response_mask
        # States behind tokens are those before the next ones, so one place more is read in each row.
        wanted = pad(mask, (0, 1)) | pad(mask, (1, 0))
        further = pad(replies.token_mask, (1, 0), value=True)
        ids = pad(replies.response_ids, (0, 1))
        hidden = self._hidden_states(trunk, Replies(replies.prompt_ids, replies.prompt_mask, ids, wanted, further))
        numbers = (wanted.flatten().cumsum(dim=0) - 1).view(wanted.shape)
        before, behind = numbers[:, :-1][mask], numbers[:, 1:][mask]
        tokens = hidden[before]
        ends = hidden[behind[turns.last]] if self._features == "last" else turns.means(hidden[behind])
        return TurnHidden(tokens, tokens[turns.first], ends)

    @staticmethod
    def turn_q(heads: ActionValueHeads, hidden: TurnHidden) -> Tensor:
        """Values of turns by each of the J heads. Shape (J, U)."""
        return heads.q_all(hidden.ends).squeeze(-1)

    @torch.no_grad()
    def target_turn_q(self, hidden: TurnHidden) -> Tensor:
        """Lagging estimates min_j Q_j(s, a) of turns. Shape (U,)."""
        return self.turn_q(self._target_heads, hidden).amin(dim=0)

    @torch.no_grad()
    def turn_values(self, replies: Replies) -> Tensor:
        """Values Q(s, a) of turns, by which they are ranked. Shape (U,)."""
        heads, hidden = self._guiding(replies)
        return self.turn_q(heads, hidden).amin(dim=0)

    @torch.no_grad()
    def q_values(self, replies: Replies) -> Tensor:
        """Value Q(s, a) of the turn that each response token belongs to; 0 where masked. Shape (B, T)."""
        return replies.scattered(Turns.of(replies).spread(self.turn_values(replies)))

    @torch.no_grad()
    def advantages(self, replies: Replies) -> Tensor:
        """Advantage Q(s, a) - V(s) of the turn that each response token belongs to; 0 where masked. Shape (B, T)."""
        heads, hidden = self._guiding(replies)
        advantages = self.turn_q(heads, hidden).amin(dim=0) - heads(hidden.starts)
        return replies.scattered(Turns.of(replies).spread(advantages))

    @torch.no_grad()
    def predict_sequence_values(self, replies: Replies) -> Tensor:
        """Value V(s) of the state before the turn of each response token; 0 where masked. Shape (B, T)."""
        hidden = self.value_hidden(replies)
        return replies.scattered(Turns.of(replies).spread(self.heads(hidden.starts)))

    # -- the reranked policy ----------------------------------------------------------------------------------------

    def ranks(self, replies: Replies) -> Tensor:
        """Ranks Q(s, a) + lambda log pi_beta(a|s) of one reply per row, lambda = ``log_prob_weight``. Shape (B,)."""
        ranks, weight = self.turn_values(replies), self.guidance.log_prob_weight
        return ranks + weight * self.sequence_log_probs(replies).sum(dim=1) if weight else ranks

    def sample(self, obs: dict[str, Tensor], **generation_kwargs: Any) -> Replies:
        """Sample one reply of the language model per prompt; arguments as for :meth:`generate`."""
        return CausalLMActorCriticPolicy.generate(self, obs, **generation_kwargs)

    def _search(self, sample: Sample, obs: dict[str, Tensor], settings: GenerationSettings, limit: int) -> Replies:
        return reranked(self, sample, obs, settings)
