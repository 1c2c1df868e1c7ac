"""What holds of a file of user feedback: the latest judgement of each reply, pair of replies or conversation."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Iterable
from pathlib import Path

from rl4dialog.core.cache import content_hash
from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import KINDS, Feedback, counted, read_feedback
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn, given_turns

_logger = logging.getLogger(__name__)


def read_latest(path: Path) -> list[Feedback]:
    """Read a feedback file without the judgements that later ones replace; see :func:`latest`."""
    given = read_feedback(path)
    kept = latest(given)
    if not kept:
        raise DataError(f"{path} has no feedback; rl4dialog chat and rl4dialog ui write it")
    if len(kept) < len(given):
        _logger.info(
            "%s: later lines replace or withdraw %d of %d judgements", path, len(given) - len(kept), len(given)
        )
    return kept


def latest(given: Iterable[Feedback]) -> list[Feedback]:
    """Keep the last judgement about the same thing, at the place of the first one.

    A later rating of the same conversation replaces an earlier one. After the same turns, a later rating or correction
    of a reply replaces an earlier one, and so does a later choice between the same two replies, whatever their order. A
    correction is also a choice between the correction and the reply: the later one of a correction and such a choice
    holds. A judgement that was withdrawn is left out.
    """
    found: dict[Hashable, Feedback] = {}
    corrected: dict[Hashable, Hashable] = {}  # key of the last correction of each reply
    for each in given:
        place, texts = (each.persona, *each.turns), [reply.text for reply in each.replies]
        key: Hashable = (place, texts[0])
        if each.rates_conversation:
            key = (each.persona, "", *each.utterances)
        elif each.kind != "rating":
            key = (place, frozenset([*texts, each.correction] if each.kind == "correction" else texts))
        if each.kind == "correction":
            earlier = corrected.get((place, texts[0]))
            if earlier in found and found[earlier].kind == "correction":
                del found[earlier]
            corrected[place, texts[0]] = key
        found[key] = each
    return [each for each in found.values() if not each.withdrawn]


def count_kinds(given: Iterable[Feedback]) -> str:
    """Say how many judgements of each kind there are, such as ``3 ratings, 1 preference``."""
    counts = Counter(each.kind for each in given)
    return ", ".join(counted(n, kind) for kind in KINDS if (n := counts[kind]))


def conversation_of(feedback: Feedback, start_utterances: int = 1) -> str:
    """Id of the conversation. Feedback does not tell conversations apart, so those that start alike count as one.

    Args:
        feedback: The judgement.
        start_utterances: Number of utterances by which conversations are told apart.
    """
    said = feedback.utterances if feedback.rates_conversation else feedback.turns
    return content_hash([feedback.persona or "", *said[:start_utterances]])


def judged_dialogue(feedback: Feedback, reply: str) -> Dialogue:
    """The conversation up to a reply, of which only this reply is judged; or one that is judged as a whole."""
    turns = (*given_turns(feedback.turns), Turn(reply, AGENT))
    persona = {} if feedback.persona is None else {"persona": feedback.persona}
    if feedback.rates_conversation:
        answer = () if feedback.answer is None else (Turn(feedback.answer, PARTNER),)
        # An empty text stands for a partner that said nothing, as in logs.
        said = tuple(turn for turn in (*turns, *answer) if turn.text or turn.speaker == AGENT)
        return Dialogue(feedback.id, said, meta_data=persona)
    return Dialogue(feedback.id, turns, meta_data=persona, n_given=len(turns) - 1)
