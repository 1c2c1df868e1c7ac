"""Checks of conversations with a partner. Their limits are absolute: a conversation can be broken from the start."""

from __future__ import annotations

from rl4dialog.training.watch.check import History, RunFacts, check, mean

# Number of last iterations that are averaged.
WINDOW = 3

# The share of truncated prompts from which the doctor warns, too.
CONTEXT_DROPPED = 0.1

# Single timeouts of a service are normal. From a twentieth on, the conversations that are left are a biased sample,
# because partners tend to fail on particular ones.
PARTNER_FAILED = 0.05

# People hardly ever repeat an utterance literally: 0.02 % of the utterances of DailyDialog, none of PersonaChat's
# validation split.
PARTNER_ECHO = 0.1

# A mean of less than 1.1 turns leaves at most a tenth of the conversations with a second one.
ONE_TURN, LEFT_BY_PARTNER = 1.1, 0.9

# A reference reply is never empty. Replies that are empty by chance, before a model has learned to answer, are fewer.
EMPTY_REPLIES = 0.2


def _share_above(limit: float, history: History, key: str) -> str | None:
    """Return the mean of the last iterations as a percentage, if it is above the limit."""
    share = mean(history.last(key, WINDOW))
    return f"{share:.0%}" if share > limit else None


@check(
    "The agent answers without the oldest turns of its conversations, which rewards may still read: raise "
    "env.args.max_prompt_length, or lower max_turns, max_episode_length or max_partner_length."
)
def context_dropped(history: History, facts: RunFacts) -> str | None:
    share = _share_above(CONTEXT_DROPPED, history, "rollout/context_dropped")
    return share and f"{share} of the utterances were said without the oldest turns of their conversation"


@check(
    "Conversations whose partner fails are not trained on, which biases what is learned: read the error with "
    "env.args.partner_on_error: raise."
)
def partner_fails(history: History, facts: RunFacts) -> str | None:
    share = _share_above(PARTNER_FAILED, history, "rollout/partner_failed")
    return share and f"the partner failed in {share} of the conversations"


@check(
    "The partner repeats what it hears instead of answering: check that it gets its own side of the conversation, in "
    "the format that it was trained on. `rl4dialog doctor` shows a conversation."
)
def partner_echoes(history: History, facts: RunFacts) -> str | None:
    share = _share_above(PARTNER_ECHO, history, "rollout/partner_echo")
    return share and f"{share} of the partner's utterances repeat the agent's last one"


@check(
    "The partner ends nearly every conversation after its first answer, so later turns are never trained: check when "
    "it leaves, and the patterns of env.args.end_when.partner. `rl4dialog doctor` shows a conversation."
)
def partner_leaves_at_once(history: History, facts: RunFacts) -> str | None:
    turns, left = (mean(history.last(key, WINDOW)) for key in ("rollout/turns", "rollout/ended_by/partner"))
    if facts.max_turns == 1 or not (turns < ONE_TURN and left > LEFT_BY_PARTNER):
        return None
    return f"the partner ended {left:.0%} of the conversations, after {turns:.2f} of at most {facts.max_turns} turns"


@check(
    "The agent often says nothing: use a warm_start, set min_length in generation_kwargs, or check the reward of empty "
    "replies. length_penalty can set a minimum length."
)
def empty_replies(history: History, facts: RunFacts) -> str | None:
    share = _share_above(EMPTY_REPLIES, history, "rollout/empty_replies")
    return share and f"{share} of the replies are empty"


CHECKS = (context_dropped, partner_fails, partner_echoes, partner_leaves_at_once, empty_replies)
