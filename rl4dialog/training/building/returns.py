"""Returns in front of prompts, for algorithms that condition on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rl4dialog.catalog import OfflineAlgorithmRegistry
from rl4dialog.core.config import OfflineConfig, RunConfig
from rl4dialog.core.types import Dialogue
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.pool import TextGenPool
from rl4dialog.data.return_prefix import ReturnPrefix, begins_with_return
from rl4dialog.text.prompts import with_turns


def return_prefix(config: RunConfig) -> ReturnPrefix | None:
    """The returns of a run's prompts; ``None`` if its algorithm does not condition on them."""
    if not isinstance(config, OfflineConfig) or not OfflineAlgorithmRegistry.resolve(config.alg.id).reads_returns:
        return None
    args = {**OfflineAlgorithmRegistry.defaults(config.alg.id), **config.alg.args}
    return ReturnPrefix(args["target_return"], args["decimals"])


def asking(
    prompt: str, prefix: ReturnPrefix | None, dialogue_format: DialogueFormat | None, turn_end: str | None
) -> str:
    """Let a prompt ask for the target return, unless it already begins with a return.

    Args:
        prompt: The prompt.
        prefix: The returns of the run's prompts; without them, the prompt stays the same.
        dialogue_format: Format of the prompt.
        turn_end: Text at the end of the turns of a plain prompt.
    """
    if prefix is None or begins_with_return(prompt):
        return prompt
    return prefix.prompt(with_turns(prompt, turn_end), dialogue_format)


class AskingPool(TextGenPool):
    """The samples of another pool, whose prompts ask for the target return. Its conversations stay as they are.

    Args:
        pool: The other pool.
        prefix: The returns.
    """

    def __init__(self, pool: TextGenPool, prefix: ReturnPrefix) -> None:
        samples = [
            replace(
                sample,
                prompt_or_input_text=asking(
                    sample.prompt_or_input_text, prefix, pool.dialogue_format, pool.end_of_turn
                ),
            )
            for sample, _ in pool
        ]
        super().__init__(samples, [weight for _, weight in pool])
        self.end_of_turn, self.dialogue_format = pool.end_of_turn, pool.dialogue_format
        self.players, self.has_rewards, self.source_key = pool.players, pool.has_rewards, pool.source_key
        self._pool = pool

    def prompted_conversations(self) -> Iterator[Dialogue]:
        return self._pool.prompted_conversations()


def with_own_returns(
    conversations: Iterable[Dialogue], prefix: ReturnPrefix | None, pool: TextGenPool
) -> Iterator[Dialogue]:
    """Yield logged conversations behind their returns.

    Args:
        conversations: The conversations, with prompts.
        prefix: The returns; without them, the conversations stay the same.
        pool: Their pool.
    """
    for each in conversations:
        if prefix is None:
            yield each
        else:
            assert each.prompt is not None
            yield prefix.dialogue(each, with_turns(each.prompt, pool.end_of_turn), pool.dialogue_format)
