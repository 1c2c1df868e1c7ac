"""Texts that people judged, as reward models learn from them: rated ones, and pairs of which one is better.

A sample is one judgement. Its prompt is the text that was rated, or the better one of two. Its meta data contain
`RATING`, from 0 to 1, or `WORSE`, the other text.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError, DataError, nearest_hint
from rl4dialog.core.feedback import Feedback, in_words
from rl4dialog.core.types import AGENT, Dialogue, RatedDialogue, Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.dialogue_text import dialogue_text
from rl4dialog.data.mixture import Mixture, named_samples
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.ratings import (
    FEEDBACK_RATING,
    PLURALS,
    Unit,
    conversation_of,
    count_kinds,
    judged_dialogue,
    load_ratings,
    read_latest,
)
from rl4dialog.data.rows import FilePath, expand_path
from rl4dialog.data.splits import HeldOutShare, drawn_conversations
from rl4dialog.features.feedback.simulated_person import small_talk_feedback

_logger = logging.getLogger(__name__)
RATING = "rating"  # key of the meta data: the rating of the text, from 0 to 1
WORSE = "worse_text"  # key of the meta data: the text that the sample's is better than
N_WORDS_OF_WORSE = "n_words_of_worse"  # the agent's number of words in that text; ``n_words`` is that of the sample's


class JudgedTexts(TextGenPool):
    """Judgements of one split."""

    unit: Unit = "reply"  # whether replies or whole dialogues were judged
    ratings: tuple[str, ...] = ()  # names of the ratings whose mean is learned; empty if there are only comparisons
    # the ratings that are 0 and 1; ``None`` without ratings, or where pools of several scales are mixed
    scale: tuple[float, float] | None = None
    context_size: int | None = None  # number of utterances before a reply; ``None`` for all
    has_prompts = False

    @property
    def remark(self) -> str:
        """Number of comparisons among the samples, if any."""
        n_compared = sum(is_comparison(sample) for sample, _ in self)
        return f" ({n_compared} comparisons)" if n_compared else ""

    def judged(self) -> JudgedTexts:
        """Return the judgements, as pools do that can also be used for prompts and replies."""
        return self

    def without(self, left_out: set[int]) -> Self:
        """Return the judgements without those at some indices."""
        kept = [i for i in range(len(self)) if i not in left_out]
        pool = copy.copy(self)
        pool._samples, pool._weights = [self._samples[i] for i in kept], [self._weights[i] for i in kept]
        return pool


def is_comparison(sample: Sample) -> bool:
    """Whether a judgement compares two texts."""
    return WORSE in (sample.meta_data or {})


def meta_data_of(sample: Sample) -> Mapping[str, Any]:
    return sample.meta_data or {}


def judged_texts(samples: Sequence[Sample]) -> list[str]:
    """All texts of judgements: the rated or better text of each, then the worse text of each comparison, in order."""
    worse = (str(meta_data_of(sample)[WORSE]) for sample in samples if is_comparison(sample))
    return [*(sample.prompt_or_input_text for sample in samples), *worse]


class RatedDialogues(JudgedTexts):
    """Replies or dialogues rated by people, for ``alg.id: reward_model``.

    Args:
        path: A ratings file, or a file of user feedback; see the page on human ratings.
        dataset: Instead of a file: ``dstc9`` or ``chitchat``, prepared by ``rl4dialog prepare``; or ``small_talk``,
            generated dialogues rated by a rule.
        ratings: Name of the rating to learn, or several names for their mean; by default the only one. Dialogues and
            replies without one of them are left out.
        unit: Whether to learn ratings of replies (``reply``) or whole conversations (``dialogue``); by default the
            source's.
        context_size: Number of utterances before a rated reply; by default all.
        scale: Lowest and highest rating, which become 0 and 1; by default those in ``train``.
        held_out_share: Share of the conversations in each of ``val`` and ``test``.
    """

    @classmethod
    def prepare(
        cls,
        split: str,
        path: FilePath | None = None,
        dataset: Literal["dstc9", "chitchat", "small_talk"] | None = None,
        ratings: str | Annotated[list[str], Field(min_length=1)] | None = None,
        unit: Unit | None = None,
        context_size: Count | None = None,
        scale: tuple[float, float] | None = None,
        held_out_share: HeldOutShare = 0.25,
        split_seed: int = 0,
        max_size: Count | None = None,
    ) -> RatedDialogues:
        """Load one split. Splits are drawn by conversation, so all rated replies of a conversation are in one split.

        Samples have the text as prompt and no references; the meta data contain ``rating`` (from 0 to 1), the original
        ``ratings``, ``n_words`` of the agent, and the ``conversation``.
        """
        check_split(split)
        source = _source(path, dataset, "ratings")
        found_unit, rated = load_ratings(source, unit)
        if found_unit == "dialogue" and context_size is not None:
            raise ConfigError("datapool.args.context_size has no meaning with dialogues, which are read whole")
        names = _chosen(ratings, rated)
        complete = [each for each in rated if names <= each.ratings.keys()]

        def of_split(split: str) -> list[RatedDialogue]:
            conversations = (each.conversation for each in complete)
            own = drawn_conversations(conversations, split, held_out_share, split_seed, source)
            return [each for each in complete if each.conversation in own]

        if scale is not None and scale[0] >= scale[1]:
            raise ConfigError(f"datapool.args.scale must be the lowest and the highest rating, not {[*scale]}")
        values = [_mean(each, names) for each in of_split("train")]
        lowest, highest = scale or (min(values), max(values))
        if min(values) == max(values):
            raise DataError(f"{source}: the rating is always {values[0]:g} in split 'train', so nothing can be learned")
        if split == "train":
            learned, units = " and ".join(map(repr, sorted(names))), PLURALS[found_unit]
            _logger.info("%s: the ratings %s of %s are learned", source, learned, units)
            if n_gaps := len(rated) - len(complete):
                _logger.warning("%s: %d of %d %s lack one and are left out", source, n_gaps, len(rated), units)
            if scale is None:
                _logger.info("%s: the ratings %g to %g, the range in train, become 0 to 1", source, lowest, highest)
        samples = []
        for each in of_split(split):
            value = _mean(each, names)
            if scale is not None and not lowest <= value <= highest:
                raise DataError(f"{source}: the rating {value:g} of {each.dialogue.id!r} is not in scale {[*scale]}")
            about = {RATING: (value - lowest) / (highest - lowest), "ratings": dict(each.ratings)}
            samples.append(_judged(each.dialogue, context_size, each.conversation, about))
        pool = cls(limit_samples(samples, max_size, "rated_dialogues", split, source))
        pool.unit, pool.ratings, pool.context_size = found_unit, tuple(sorted(names)), context_size
        pool.scale = (lowest, highest)
        return pool


def _chosen(ratings: str | list[str] | None, rated: Sequence[RatedDialogue]) -> set[str]:
    """Names of the ratings to learn."""
    known = list(dict.fromkeys(name for each in rated for name in each.ratings))
    chosen = [ratings] if isinstance(ratings, str) else ratings or known
    if not ratings and len(known) > 1:
        raise ConfigError(f"datapool.args.ratings: choose one or several of {', '.join(known)}")
    for name in chosen:
        if name not in known:
            raise ConfigError(
                f"datapool.args.ratings: there is no rating {name!r}{nearest_hint(name, known)} "
                f"(ratings: {', '.join(known)})"
            )
    return set(chosen)


def _source(path: FilePath | None, dataset: str | None, what: str) -> str:
    if (path is None) == (dataset is None):
        raise ConfigError(f"datapool.args: set either path, to a {what} file, or dataset")
    return str(path if path is not None else dataset)


def _judged(dialogue: Dialogue, context_size: int | None, conversation: str | int, about: dict[str, Any]) -> Sample:
    n_words = sum(len(text.split()) for text in dialogue.texts(AGENT))
    meta_data = {**about, "n_words": n_words, "conversation": conversation}
    return Sample(dialogue.id, dialogue_text(dialogue, context_size), [], meta_data)


def _mean(rated: RatedDialogue, names: set[str]) -> float:
    return math.fsum(rated.ratings[name] for name in names) / len(names)


# The datapool of user feedback: ratings of replies or conversations, choices between two replies, and corrections.
#
# It serves two purposes. A reward model learns from judgements: ratings, and pairs of which one reply is better, as a
# correction is than the reply. All other algorithms get prompts with the replies to learn: corrections, chosen replies,
# and replies that were rated up. Ratings of whole conversations are for reward models only.
Use = Literal["preferences", "corrections", "ratings", "all", "conversation_ratings"]
_OF_REPLIES = ("preference", "correction", "rating")
# Values of down and up.
_SCALE = (-1.0, 1.0)


class FeedbackPool(TextGenPool):
    """Feedback of users on replies, as ``rl4dialog chat`` and ``rl4dialog ui`` write it.

    Args:
        path: A feedback file.
        dataset: Instead of a file: ``small_talk``, the feedback of a simulated person on generated dialogues.
        use: Judgements to learn from: ``preferences``, ``corrections``, ``ratings``, or ``all`` of these, which are
            about replies; or ``conversation_ratings``, for reward models of whole conversations.
        context_size: Number of utterances before a reply, in prompts and for a reward model; by default all.
        in_conversation: Whether prompts have the markup of conversations of several turns, as in runs with
            ``env.args.max_turns`` above 1; relevant for ``eou`` only.
        held_out_share: Share of the conversations in each of ``val`` and ``test``. With 0, all are in ``train``, which
            is of use in a mixture with other data.
        start_utterances: Conversations count as one if they start with the same utterances, this many; more than one
            for tasks in which all conversations have the same opening.
        max_size: Keep only the first judgements.
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

        There is one sample per reply to learn: a correction, a chosen reply, or one that was rated up.
        """
        check_split(split)
        source = _source(path, dataset, "feedback")
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
        """Return the judgements for a reward model."""
        assert self.dialogue_format is not None
        context_size = self.dialogue_format.context_size
        if not self._feedback:
            raise DataError(f"{self._source}: with held_out_share 0, there are no judgements to evaluate on; use 0.25")
        # Always the same side may say more about the page than about the replies.
        choices = [each.chosen for each in self._feedback if each.chosen is not None]
        if len(choices) >= 10 and len(set(choices)) == 1:
            what = (
                f"in all {len(choices)} preferences of a split, the {('first', 'second')[choices[0]]} reply was chosen"
            )
            _logger.warning("%s: %s", self._source, what)
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
    if worse is not None:
        other = dialogue_text(judged_dialogue(feedback, worse), context_size)
        about: dict[str, Any] = {WORSE: other, N_WORDS_OF_WORSE: len(worse.split())}
    else:
        assert feedback.rating is not None
        about = {RATING: (feedback.rating - _SCALE[0]) / (_SCALE[1] - _SCALE[0])}
    return _judged(dialogue, context_size, conversation_of(feedback, start_utterances), about)


def without_judgements(pool_class: Any) -> str:
    """Why a reward model cannot learn from a datapool, if it has no judgements."""
    if pool_class is Mixture or hasattr(pool_class, "judged"):
        return ""
    return "has no judgements for alg.id: reward_model; use rated_dialogues or feedback"


def judged(pool: TextGenPool) -> JudgedTexts:
    """The judgements of a pool, those of a mixture by share."""
    if not isinstance(pool, Mixture):
        return pool.judged()  # type: ignore[attr-defined, no-any-return]
    pools = {name: judged(each) for name, each in pool.pools.items()}
    first = next(iter(pools.values()))
    for key in ("unit", "context_size"):
        if len(values := {getattr(each, key): None for each in pools.values()}) > 1:
            different = " and ".join(map(repr, values))
            raise ConfigError(
                f"datapool 'mixture': the {key} of all datapools of a reward model must be equal, not {different}"
            )
    rows = pool.mixed([list(named_samples(name, each)) for name, each in pools.items()])
    found = JudgedTexts([sample for sample, _ in rows], [weight for _, weight in rows])  # type: ignore[abstract]
    found.unit, found.context_size = first.unit, first.context_size
    found.ratings = tuple(sorted({name for each in pools.values() for name in each.ratings}))
    scales = {each.scale for each in pools.values() if each.ratings}
    found.scale = scales.pop() if len(scales) == 1 else None
    return found
