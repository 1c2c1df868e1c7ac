"""Two rewards of whole conversations: one for each turn, in the workers, and one at the end, in the main process."""

from rl4dialog import BatchedConversationReward, ConversationReward, RewardFunctionRegistry
from rl4dialog.core.types import AGENT


@RewardFunctionRegistry.register("asked_before")
class AskedBefore(ConversationReward):
    """A penalty for an utterance that the model has said before in this conversation."""

    def __init__(self, penalty: float = 0.1):
        self.penalty = penalty

    def __call__(self, dialogue, over):
        *earlier, last = dialogue.texts(AGENT)
        return -self.penalty if last in earlier else 0.0


@RewardFunctionRegistry.register("shared_success")
class SharedSuccess(BatchedConversationReward):
    """The success of a conversation, paid in equal parts to all utterances of the model."""

    def __call__(self, dialogues, overs):
        return [self.shares(dialogue) if over else 0.0 for dialogue, over in zip(dialogues, overs, strict=True)]

    def shares(self, dialogue):
        n_turns = len(dialogue.texts(AGENT))
        return [dialogue.outcome["success"] / n_turns] * n_turns
