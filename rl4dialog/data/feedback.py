"""The datapool of user feedback: ratings of replies or conversations, choices between two replies, and corrections.

It serves two purposes. A reward model learns from judgements: ratings, and pairs of which one reply is better, as a
correction is than the reply. All other algorithms get prompts with the replies to learn: corrections, chosen replies,
and replies that were rated up. Ratings of whole conversations are for reward models only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.feedback import Feedback, in_words
from rl4dialog.core.types import AGENT, Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.dialogue_text import dialogue_text
from rl4dialog.data.judged_texts import N_WORDS_OF_WORSE, RATING, WORSE, JudgedTexts
from rl4dialog.data.latest_feedback import conversation_of, count_kinds, judged_dialogue, read_latest
from rl4dialog.data.pool import TextGenPool, check_split
from rl4dialog.data.ratings import FEEDBACK_RATING
from rl4dialog.data.small_talk.person import small_talk_feedback
from rl4dialog.data.splits import drawn_conversations
from rl4dialog.data.text_files import FilePath, expand_path

Use = Literal["preferences", "corrections", "ratings", "all", "conversation_ratings"]
_OF_REPLIES = ("preference", "correction", "rating")
# Values of down and up.
_SCALE = (-1.0, 1.0)

_logger = logging.getLogger(__name__)


class FeedbackPool(TextGenPool):
    """Feedback of users on replies, as ``rl4dialog chat`` and ``rl4dialog ui`` write it.

    Args:
        feedback: All judgements of a split.
        dialogue_format: Format of the prompts.
        source: Where they are from, for messages.
        start_utterances: Number of utterances by which conversations are told apart.
    """

    why_empty = (
        ": replies to learn are corrections, chosen replies and those that were rated up; other judgements are for "
        "alg.id: reward_model"
    )

    def __init__(
        self,
        feedback: Sequence[Feedback],
        dialogue_format: DialogueFormat,
        source: str = "feedback",
        start_utterances: int = 1,
    ) -> None:
        self._feedback, self._source, self._start_utterances = list(feedback), source, start_utterances
        super().__init__(list(_learned_replies(self._feedback, dialogue_format, start_utterances)))
        self.use_format(dialogue_format)

    @classmethod
    def prepare(
        cls,
        split: str,
        path: FilePath | None = None,
        dataset: Literal["small_talk"] | None = None,
        use: Use = "all",
        context_size: Count | None = None,
        format: FormatName = "eou",
        in_conversation: bool = False,
        held_out_share: Annotated[float, Field(ge=0, lt=0.5)] = 0.25,
        split_seed: int = 0,
        start_utterances: Count = 1,
        max_size: Count | None = None,
        render_chat: RenderChat | None = None,
    ) -> FeedbackPool:
        """Load one split. The later judgement of the same reply holds, and splits are drawn by conversation.

        Args:
            split: ``train``, ``val`` or ``test``.
            path: A feedback file.
            dataset: Instead of a file: ``small_talk``, the feedback of a simulated person on generated dialogues.
            use: Judgements to learn from: ``preferences``, ``corrections``, ``ratings``, or ``all`` of these, which are
                about replies; or ``conversation_ratings``, for reward models of whole conversations.
            context_size: Number of utterances before a reply, in prompts and in the texts of a reward model; by default
                all.
            format: Format of prompts: ``eou`` or ``chat_template``.
            in_conversation: Whether prompts have the markup of conversations of several turns, as in runs with
                ``env.args.max_turns`` above 1; relevant for ``eou`` only.
            held_out_share: Share of the conversations in each of ``val`` and ``test``. With 0, all are in ``train``,
                which is of use in a mixture with other data.
            split_seed: Random seed of the splits.
            start_utterances: Conversations count as one if they start with the same utterances, this many; more than
                one for tasks in which all conversations have the same opening.
            max_size: Keep only the first judgements.
            render_chat: Formats chat messages as a prompt; required for ``chat_template``.

        Returns:
            A pool with one sample per reply to learn: a correction, a chosen reply, or one that was rated up.

        Raises:
            DataError: If the file is missing, malformed or empty, has no such judgements, or too few for three splits.
            ConfigError: If both or neither of ``path`` and ``dataset`` are set.
        """
        check_split(split)
        if (path is None) == (dataset is None):
            raise ConfigError("datapool.args: set either path, to a feedback file, or dataset")
        source = str(path if path is not None else dataset)
        given = small_talk_feedback() if path is None else read_latest(expand_path(path))
        kinds = _OF_REPLIES if use == "all" else (use.removesuffix("s"),)
        used = [each for each in given if each.kind in kinds]
        if not used:
            wanted = "judgements of replies" if use == "all" else in_words(use)
            raise DataError(f"{source} has no {wanted} (it has {count_kinds(given)}); choose another use")
        if use == "all" and split == "train" and len(used) < len(given):
            others = count_kinds(each for each in given if each.rates_conversation)
            _logger.warning("%s: %s left out; use: conversation_ratings learns from them", source, others)
        if use == "conversation_ratings" and context_size is not None:
            raise ConfigError("datapool.args.context_size has no meaning with conversations, which are read whole")
        chosen = used if split == "train" else []
        if held_out_share > 0:
            starts = [conversation_of(each, start_utterances) for each in used]
            own = drawn_conversations(starts, split, held_out_share, split_seed, source)
            chosen = [each for each, start in zip(used, starts, strict=True) if start in own]
        dialogue_format = DialogueFormat(format, context_size, render_chat, in_conversation)
        pool = cls(chosen[:max_size], dialogue_format, source, start_utterances)
        if split == "train":
            _logger.info("%s: %s in split 'train'", source, count_kinds(pool._feedback))
        return pool

    def judged(self) -> JudgedTexts:
        """Return the judgements for a reward model.

        Raises:
            DataError: If there are none.
        """
        assert self.dialogue_format is not None
        context_size = self.dialogue_format.context_size
        if not self._feedback:
            raise DataError(f"{self._source}: with held_out_share 0, there are no judgements to evaluate on; use 0.25")
        _warn_of_positions(self._feedback, self._source)
        samples = [_judgement(each, context_size, self._start_utterances) for each in self._feedback]
        pool = JudgedTexts(samples)  # type: ignore[abstract]
        pool.context_size = context_size
        if self._feedback[0].rates_conversation:
            pool.unit = "dialogue"
        if any(each.rating is not None for each in self._feedback):
            pool.ratings, pool.scale = (FEEDBACK_RATING,), _SCALE
        return pool


def _learned_replies(
    feedback: Iterable[Feedback], dialogue_format: DialogueFormat, start_utterances: int
) -> Iterable[Sample]:
    """The replies to learn, with their prompts: none that was corrected or rated down."""
    feedback = [each for each in feedback if not each.rates_conversation]
    bad = {
        (each.persona, *each.turns, each.replies[0].text)
        for each in feedback
        if each.kind == "correction" or each.rating == -1
    }
    for each in feedback:
        reply = each.correction
        if reply is None:
            reply = each.replies[each.chosen or 0].text
            if (each.persona, *each.turns, reply) in bad:
                continue
        context = dialogue_format.context(each.turns)
        persona = {} if each.persona is None else {"persona": [each.persona]}
        conversation = conversation_of(each, start_utterances)
        meta_data = {"history": context, "conversation": conversation, "kind": each.kind, **persona}
        yield Sample(each.id, dialogue_format.prompt(context, each.persona), [reply], meta_data)


def _judgement(feedback: Feedback, context_size: int | None, start_utterances: int) -> Sample:
    """What a reward model learns from an item."""
    better, worse = feedback.compared or (feedback.replies[0].text, None)
    dialogue = judged_dialogue(feedback, better)
    text = dialogue_text(dialogue, context_size)
    n_words = sum(len(said.split()) for said in dialogue.texts(AGENT))
    meta_data = {"n_words": n_words, "conversation": conversation_of(feedback, start_utterances)}
    if worse is None:
        assert feedback.rating is not None
        lowest, highest = _SCALE
        return Sample(feedback.id, text, [], {RATING: (feedback.rating - lowest) / (highest - lowest), **meta_data})
    other = dialogue_text(judged_dialogue(feedback, worse), context_size)
    return Sample(feedback.id, text, [], {WORSE: other, N_WORDS_OF_WORSE: len(worse.split()), **meta_data})


def _warn_of_positions(feedback: Iterable[Feedback], source: str) -> None:
    """Warn if always the same side was chosen, which may say more about the page than about the replies."""
    choices = [each.chosen for each in feedback if each.chosen is not None]
    if len(choices) >= 10 and len(set(choices)) == 1:
        side = ("first", "second")[choices[0]]
        _logger.warning("%s: in all %d preferences of a split, the %s reply was chosen", source, len(choices), side)
