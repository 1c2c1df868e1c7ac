"""A model for chats that says what the test wants."""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from rl4dialog.core.errors import ModelError, RewardError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.features.serving.replies import PartialReply, TokenDetails
from rl4dialog.scores.scoring import ReplyScores


class Echo:
    """Says the last utterance in capitals, a word at a time; Ctrl-C comes before the word STOP."""

    dialogue_format = DialogueFormat("eou", 3)
    generation_kwargs: Mapping[str, Any] = {"top_k": 5}
    beta: float | None = None
    persona: str | None = None
    max_prompt_tokens = 1000
    toolbox: Any = None

    def __init__(self, name="echo", ending=""):
        self.name, self._ending = name, ending
        self.asked = []
        self.reward_fails, self.knows_tokens = False, True
        self.fails_with = self.reads = None

    def stream(self, prompt, seed=None, beta=None, **generation_kwargs):
        self.asked.append((prompt, seed, generation_kwargs | ({} if beta is None else {"beta": beta})))
        words = f"{prompt.removesuffix(' <EOU>').split('<EOU>')[-1].upper()} {self._ending}".split()
        for n in range(1, len(words) + 1):
            if words[n - 1] == "STOP":
                raise KeyboardInterrupt
            if n == 2 and self.fails_with:
                raise self.fails_with
            yield PartialReply(" ".join(words[:n]), tuple(range(n)), False)
        yield PartialReply("" if words == ["SILENCE"] else " ".join(words), tuple(range(len(words))), True, True)

    def read(self, prompt):
        return self.reads or SimpleNamespace(prompt_ids=[0] * len(prompt.split()), n_dropped=0, n_cut=0)

    def score(self, prompt, reply, meta_info, on_error="raise"):
        parts = {"length": [float(len(reply))], "history": [len(meta_info["history"])]}
        if not self.reward_fails:
            return ReplyScores([len(reply) / 2], parts)
        if on_error == "raise":
            raise RewardError(f"it needs a reference for {reply!r}")
        return ReplyScores([math.nan], {**parts, "overlap": [math.nan]})

    def token_details(self, prompt, token_ids, beta=None):
        if not self.knows_tokens:
            raise ModelError("the tokens are not known")
        log_probs = [-0.5 * id for id in token_ids]
        missing = {"values": "there is no critic", "kl": "there is no reference"}
        advantages = [id - 1.0 for id in token_ids]
        if self.beta is None:
            advantages, missing["advantages"] = None, "no values guide it"
        return TokenDetails([f" t{id}" for id in token_ids], log_probs, advantages=advantages, missing=missing)
