"""RL4LMs' penalty for replies that repeat CommonGen's prompt instead of forming a sentence."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import BatchedRewardFunction, SentenceRewardFunction

_PREFIX = "generate a sentence with: "
_INSTRUCTION_WORDS = ("generate", "sentence")


def repeat_penalty(prompt_text: str, gen_text: str, prefix: str = _PREFIX) -> float:
    """-1 for a reply with the prompt's words in sequence, its prefix, "generate" or "sentence"; otherwise 0.

    Args:
        prompt_text: The prefix, the words, and one final character, as in RL4LMs' configs.
        gen_text: The reply.
        prefix: Beginning of every prompt.

    Raises:
        DataError: If the prompt does not start with the prefix.
    """
    _, has_prefix, rest = prompt_text.partition(prefix)
    if not has_prefix:
        raise DataError(
            f"common_gen_repeat_penalty needs prompts that start with {prefix!r}, not {prompt_text[:60]!r}; set "
            f"datapool.args.prefix to this prefix"
        )
    text = gen_text.lower()
    repeated = (rest[:-1].lower(), prefix, *_INSTRUCTION_WORDS)
    return -1.0 if any(part and part in text for part in repeated) else 0.0


class CommonGenRepeatPenalty(SentenceRewardFunction):
    """-1 for a reply that repeats CommonGen's prompt, otherwise 0 (RL4LMs)."""

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        return repeat_penalty(prompt_text, gen_text)


class BatchedCommonGenRepeatPenalty(BatchedRewardFunction):
    """-1 for a reply that repeats CommonGen's prompt, otherwise 0; scored in the main process (RL4LMs)."""

    def __call__(
        self,
        prompt_texts: list[str],
        gen_texts: list[str],
        ref_texts: list[list[str]],
        dones: list[bool],
        meta_infos: list[dict[str, Any]] | None = None,
    ) -> list[float]:
        rows = zip(prompt_texts, gen_texts, dones, strict=True)
        return [repeat_penalty(prompt, text) if done else 0.0 for prompt, text, done in rows]
