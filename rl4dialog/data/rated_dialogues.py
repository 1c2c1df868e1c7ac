"""The datapool of human ratings, for reward models: rated replies or dialogues as texts with one number each."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError, DataError, nearest_hint
from rl4dialog.core.types import AGENT, RatedDialogue, Sample
from rl4dialog.data.dialogue_text import dialogue_text
from rl4dialog.data.judged_texts import RATING, JudgedTexts
from rl4dialog.data.pool import check_split, limit_samples
from rl4dialog.data.ratings import Unit, load_ratings
from rl4dialog.data.splits import HeldOutShare, drawn_conversations
from rl4dialog.data.text_files import FilePath

_logger = logging.getLogger(__name__)


class RatedDialogues(JudgedTexts):
    """Replies or dialogues rated by people, for ``alg.id: reward_model``."""

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

        Args:
            split: ``train``, ``val`` or ``test``.
            path: A ratings file, or a file of user feedback; see the page on human ratings.
            dataset: Instead of a file: ``dstc9`` or ``chitchat``, prepared by ``rl4dialog prepare``; or ``small_talk``,
                generated dialogues rated by a rule.
            ratings: Name of the rating to learn, or several names for their mean; by default the only one. Dialogues
                and replies without one of them are left out.
            unit: Whether to learn ratings of replies (``reply``) or of whole conversations (``dialogue``); by default
                those that the source has.
            context_size: Number of utterances before a rated reply; by default all.
            scale: Lowest and highest rating, which become 0 and 1; by default those in ``train``.
            held_out_share: Share of the conversations in each of ``val`` and ``test``.
            split_seed: Random seed of the splits.
            max_size: Keep only the first samples.

        Returns:
            A pool whose samples have the text as prompt and no references; the meta data contain ``rating`` (from 0 to
            1), the original ``ratings``, ``n_words`` of the agent, and the ``conversation``.

        Raises:
            DataError: If the source has no such ratings or too few, or they are constant or outside of ``scale``.
            ConfigError: If arguments contradict each other, or there is no rating of that name.
        """
        check_split(split)
        if (path is None) == (dataset is None):
            raise ConfigError("datapool.args: set either path, to a ratings file, or dataset")
        source = str(path if path is not None else dataset)
        found_unit, rated = load_ratings(source, unit)
        if found_unit == "dialogue" and context_size is not None:
            raise ConfigError("datapool.args.context_size has no meaning with dialogues, which are read whole")
        names = _chosen(ratings, rated)
        complete = [each for each in rated if names <= each.ratings.keys()]
        train = _of_split(complete, "train", held_out_share, split_seed, source)
        lowest, highest = _scale(scale, [_mean(each, names) for each in train], source)
        if split == "train":
            _say_what_is_learned(source, found_unit, names, len(rated) - len(complete), len(rated))
            if scale is None:
                _logger.info("%s: the ratings %g to %g, the range in train, become 0 to 1", source, lowest, highest)
        samples = []
        for each in _of_split(complete, split, held_out_share, split_seed, source):
            value = _mean(each, names)
            if scale is not None and not lowest <= value <= highest:
                raise DataError(f"{source}: the rating {value:g} of {each.dialogue.id!r} is not in scale {[*scale]}")
            samples.append(_sample(each, (value - lowest) / (highest - lowest), context_size))
        pool = cls(limit_samples(samples, max_size, "rated_dialogues", split, source))
        pool.unit, pool.ratings, pool.context_size = found_unit, tuple(sorted(names)), context_size
        pool.scale = (lowest, highest)
        return pool


_PLURALS: Mapping[Unit, str] = {"dialogue": "dialogues", "reply": "replies"}


def _chosen(ratings: str | list[str] | None, rated: Sequence[RatedDialogue]) -> set[str]:
    """Names of the ratings to learn.

    Raises:
        ConfigError: If one is unknown, or none is chosen out of several.
    """
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


def _of_split(
    rated: Sequence[RatedDialogue], split: str, held_out_share: float, split_seed: int, source: str
) -> list[RatedDialogue]:
    """The items of a split; all those of a conversation are in the same split."""
    own = drawn_conversations((each.conversation for each in rated), split, held_out_share, split_seed, source)
    return [each for each in rated if each.conversation in own]


def _say_what_is_learned(source: str, unit: Unit, names: set[str], n_gaps: int, n_rated: int) -> None:
    learned = " and ".join(map(repr, sorted(names)))
    _logger.info("%s: the ratings %s of %s are learned", source, learned, _PLURALS[unit])
    if n_gaps:
        _logger.warning("%s: %d of %d %s lack one and are left out", source, n_gaps, n_rated, _PLURALS[unit])


def _mean(rated: RatedDialogue, names: set[str]) -> float:
    return math.fsum(rated.ratings[name] for name in names) / len(names)


def _scale(scale: tuple[float, float] | None, values: Sequence[float], source: str) -> tuple[float, float]:
    """The ratings that become 0 and 1.

    Raises:
        ConfigError: If the given ones are not ascending.
        DataError: If there is nothing to learn from.
    """
    if scale is not None and scale[0] >= scale[1]:
        raise ConfigError(f"datapool.args.scale must be the lowest and the highest rating, not {[*scale]}")
    if min(values) == max(values):
        raise DataError(f"{source}: the rating is always {values[0]:g} in split 'train', so there is nothing to learn")
    return scale if scale is not None else (min(values), max(values))


def _sample(rated: RatedDialogue, value: float, context_size: int | None) -> Sample:
    meta_data: dict[str, Any] = {
        RATING: value,
        "ratings": dict(rated.ratings),
        "n_words": sum(len(text.split()) for text in rated.dialogue.texts(AGENT)),
        "conversation": rated.conversation,
    }
    return Sample(rated.dialogue.id, dialogue_text(rated.dialogue, context_size), [], meta_data)
