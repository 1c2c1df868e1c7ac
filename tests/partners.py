"""Conversation partners for tests: in workers, failing in many ways, and as a service in the main process."""

import time

from rl4dialog.core.protocols import Partner, PartnerService
from rl4dialog.core.types import PartnerReply
from rl4dialog.data.dialogue_format import EOU_TOKEN, DialogueFormat
from rl4dialog.envs.conversation import OutsidePartner
from rl4dialog.partners.scripted import RulesPartner
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.prompts import encoder_of

LONG = "w5 " * 33_334
# What a partner may return or do, and whether it is a failure.
ANSWERS = {
    "raises": (ZeroDivisionError("no answer"), True),
    "hangs": (time.sleep, True),
    "number": (3, True),
    "failed": (PartnerReply(failed="the line is dead"), True),
    "reward": (PartnerReply("w1", reward=float("nan")), True),
    "undeclared reward": (PartnerReply("w1", reward=0.5), True),
    "labels": (PartnerReply("w1", info={"labels": 3}), True),
    "ids": (PartnerReply("w1", ids=[10**6]), True),
    "no ids": (PartnerReply("w1", ids=[]), True),
    "none": (None, False),
    "long": (LONG, False),
    "nul": ("\0w1\0", False),
    "surrogates": ("w1 \ud800", False),
    "control": ("<eos> <EOU> w1 <pad>", False),
    "only control": ("<EOU>", False),
    "blank": (" \n", False),
}


class Failing(Partner):
    """Returns, raises or calls its answer at one place (`reset`, `open`, `reply`, `outcome`), in some of the seeds."""

    can_open = True
    outcomes = ("success",)

    def __init__(self, answer=None, where="reply", every=1):
        self._answer, self._where, self._every = answer, where, every

    def _said(self, where, otherwise):
        if where != self._where or self._seed % self._every:
            return otherwise
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer(60.0) if callable(self._answer) else self._answer

    def reset(self, meta_info, seed):
        self._seed = seed
        self._said("reset", None)

    def open(self):
        return self._said("open", "w1")

    def reply(self, history):
        return self._said("reply", "w2")

    def outcome(self):
        return self._said("outcome", {"success": 1.0})


class RulesService(PartnerService):
    """The partner ``rules`` in the main process, with the run's own tokenizer and the markers of ``eou``."""

    def __init__(
        self, rules, otherwise=None, opening=None, tokenizer=None, max_prompt_length=40, max_length=8, broken=None
    ):
        self._rules = RulesPartner(rules, otherwise, opening)
        self._rules.reset({}, 0)
        self._opening, self._tokenizer, self._broken = opening, tokenizer, broken
        end = EndOfTurn(tokenizer, [tokenizer.eos_token_id], EOU_TOKEN)
        eou = DialogueFormat("eou", None, in_conversation=True)
        self._side = OutsidePartner(eou, end, len(tokenizer), max_prompt_length, max_length)
        self.seen = []

    @property
    def side(self):
        return self._side

    def answers(self, observations):
        found = [
            self._answer(ids[mask == 1].tolist())
            for ids, mask in zip(observations["prompt_ids"], observations["prompt_mask"], strict=True)
        ]
        return found if self._broken is None else self._broken(found)

    def _answer(self, prompt):
        text = str(self._tokenizer.decode(prompt, skip_special_tokens=False))
        self.seen.append(text)
        history = text.split(EOU_TOKEN)[:-1]
        reply = PartnerReply(self._opening) if not history[-1].strip() else self._rules.reply([history[-1].strip()])
        if reply.leaves and reply.text is None:
            return None
        ids = encoder_of(self._tokenizer).ids(f"{reply.text or ''} {EOU_TOKEN}")
        return ids[: self._side.max_length]
