"""Human ratings of dialogues and replies: prepared datasets, JSON lines, user feedback; and preference pairs.

A line of a ratings file is a conversation in ``messages`` (``role`` and ``content``), with ``ratings`` by name: of the
conversation, beside ``messages``, or of single replies, in messages of the assistant. Optional are its ``id``, and the
``system`` that replied. Lines of user feedback (:mod:`rl4dialog.core.feedback`) rate single replies or conversations;
of them, the latest judgement of each reply, pair of replies or conversation holds.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rl4dialog.core.arguments import parsed
from rl4dialog.core.cache import content_hash
from rl4dialog.core.downloads import download, file_from_wheel
from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.feedback import KINDS, Feedback, counted, read_feedback
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, RatedDialogue, Turn, given_turns, is_number, is_whole_number
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.data.messages import read_messages
from rl4dialog.data.rows import FilePath, Row, TypedRow, expand_path, parse_json, read_lines, read_rows, report_unread
from rl4dialog.data.small_talk.pool import rated_small_talk
from rl4dialog.data.splits import prepared_folder

_logger = logging.getLogger(__name__)


def read_latest(path: Path) -> list[Feedback]:
    """Read a feedback file without the judgements that later ones replace; see :func:`latest`."""
    given = read_feedback(path)
    for each in given:
        each.check_is_no_answer(str(path))
    kept = latest(given)
    if not kept:
        raise DataError(f"{path} has no feedback; rl4dialog chat and rl4dialog ui write it")
    if n_lost := len(given) - len(kept):
        _logger.info("%s: later lines replace or withdraw %d of %d judgements", path, n_lost, len(given))
    return kept


def latest(given: Iterable[Feedback]) -> list[Feedback]:
    """Keep the last judgement about the same thing, at the place of the first one.

    A later rating of the same conversation replaces an earlier one. After the same turns, a later rating or correction
    of a reply replaces an earlier one, and so does a later choice between the same two replies, whatever their order. A
    correction is also a choice between the correction and the reply: the later one of a correction and such a choice
    holds. A judgement that was withdrawn is left out. In a study, all of this holds for each rater.
    """
    found: dict[Hashable, Feedback] = {}
    corrected: dict[Hashable, Hashable] = {}  # key of the last correction of each reply
    for each in given:
        place, texts = (each.rater, each.persona, *each.turns), [reply.text for reply in each.replies]
        key: Hashable = (place, texts[0])
        if each.rates_conversation:
            key = (each.rater, each.persona, "", *each.utterances)
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
    """What tells the conversation of a judgement from others: its first utterances, this many."""
    said = feedback.utterances if feedback.rates_conversation else feedback.turns
    return content_hash([feedback.persona or "", *said[:start_utterances]])


def judged_dialogue(feedback: Feedback, reply: str) -> Dialogue:
    """The conversation up to a reply, of which only this reply is judged; or one that is judged as a whole."""
    turns = (*given_turns(feedback.turns), Turn(reply, AGENT))
    persona = {} if feedback.persona is None else {"persona": feedback.persona}
    if not feedback.rates_conversation:
        return Dialogue(feedback.id, turns, meta_data=persona, n_given=len(turns) - 1)
    # An empty text stands for a partner that said nothing, as in logs.
    whole = (*turns, Turn(feedback.answer or "", PARTNER))
    return Dialogue(feedback.id, tuple(turn for turn in whole if turn.text or turn.speaker == AGENT), meta_data=persona)


# The Chit-Chat Challenge: conversations between people, rated witty, upbeat and interesting from 1 to 10.
#
# The package ``chitchat-dataset`` contains the data (Myers, Etchart and Fulda 2020, "Conversational Scaffolding: An
# Analogy-Based Approach to Response Prioritization in Open-Domain Dialogs").
FILE = "dataset.json"
_PACKAGE = "chitchat-dataset==0.9.0"
_MEMBER = "chitchat_dataset/dataset.json"
_HASH = "d2a5d0bf6acf354fef51f3af39cbece2220d3b8f6086b658c3d335105798312a"


class _Said(TypedRow):
    sender: Any
    text: str


class _ChitChat(TypedRow):
    messages: Annotated[list[Annotated[list[_Said], Field(min_length=1)]], Field(min_length=1)]
    prompt: str | None = None
    ratings: dict[str, float] | None = None


def fetch_chitchat(folder: Path) -> None:
    """Extract the data from the package's wheel."""
    shutil.copyfile(file_from_wheel(_PACKAGE, _MEMBER, _HASH), folder / FILE)


def read_chitchat(folder: Path) -> list[RatedDialogue]:
    """Read the conversations that were answered, those without ratings included.

    Consecutive messages of one person are one utterance, joined by spaces. Both speakers are people and a rating is for
    the whole conversation; the one who answers first has the agent's side.
    """
    path = folder / FILE
    conversations = parse_json("\n".join(read_lines(path)), str(path))
    if not isinstance(conversations, dict):
        raise DataError(f"{path} must contain an object with one conversation per id, not {shown(conversations)}")
    found = []
    for id, values in conversations.items():
        conversation = parsed(_ChitChat, values, f"{path}: conversation {id}")
        groups = conversation.messages
        turns = tuple(
            Turn(
                " ".join(part.text.strip() for part in group),
                PARTNER if group[0].sender == groups[0][0].sender else AGENT,
            )
            for group in groups
        )
        if len(turns) > 1:
            found.append(RatedDialogue(Dialogue(id, turns, conversation.prompt), conversation.ratings or {}, id))
    return found


# DSTC9's interactive evaluation: conversations of people with chatbots, with human ratings.
#
# The files are those of Li et al. 2021, "Conversations Are Not Flat: Modeling the Dynamic Information Flow across
# Dialogue Utterances" (https://github.com/ictnlp/DialoFlow), one per chatbot, with one row per rater of a conversation.
# The evaluation is that of Gunasekara et al. 2020, "Overview of the Ninth Dialog System Technology Challenge: DSTC9".
_FILES = packaged_yaml(Path(__file__).with_suffix(".yaml"))
_URL, _HASHES = _FILES["url"], _FILES["sha256"]
_TEXT = "context"
_NOT_RATED = "N/A"
_SPEAKERS = {"User": PARTNER, "System": AGENT}
_SPEAKER = re.compile(r"^(User|System):", re.MULTILINE)


def fetch_dstc9(folder: Path) -> None:
    """Download the files of all 11 chatbots."""
    for number, sha256 in enumerate(_HASHES, start=1):
        download(_URL.format(number), folder / f"chatbot{number}.json", sha256)


def read_dstc9(folder: Path) -> list[RatedDialogue]:
    """Read the conversations of all chatbots in a folder, not necessarily of all 11.

    The ratings of a conversation are means over its raters; one that no rater gave is left out. Several words of a name
    are joined by ``_``, and ``human (overall)`` is ``overall``.
    """
    files = sorted(folder.glob("chatbot*.json"), key=lambda path: (len(path.name), path.name))
    if not files:
        raise DataError(f"{folder} contains no files of DSTC9's chatbots (chatbot1.json, chatbot2.json, ...)")
    return [rated for file in files for rated in _read_chatbot(file)]


def _read_chatbot(file: Path) -> list[RatedDialogue]:
    raters: dict[str, list[Row]] = defaultdict(list)
    for row in read_rows(file):
        raters[row.text(_TEXT)].append(row)
    found = []
    for number, (text, rows) in enumerate(raters.items()):
        before, *parts = _SPEAKER.split(text)
        if before.strip() or not parts:
            raise rows[0].error(f"column {_TEXT!r} must be utterances that each start with User: or System:")
        turns = (Turn(said.strip(), _SPEAKERS[name]) for name, said in zip(parts[::2], parts[1::2], strict=True))
        id = f"{file.stem}_{number}"
        dialogue = Dialogue(id, tuple(turns), meta_data={"n_raters": len(rows)})
        found.append(RatedDialogue(dialogue, _mean_ratings(rows), id, file.stem))
    return found


def _mean_ratings(rows: Iterable[Row]) -> dict[str, float]:
    given: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.values.items():
            if name == _TEXT or value == _NOT_RATED:
                continue
            if not is_number(value):
                raise row.error(f"the rating {name!r} must be a number or {_NOT_RATED!r}, not {value!r}")
            given["overall" if "overall" in name else name.replace(" ", "_")].append(float(value))
    return {name: sum(values) / len(values) for name, values in given.items()}


Unit = Literal["dialogue", "reply"]
PLURALS: Mapping[Unit, str] = {"dialogue": "dialogues", "reply": "replies"}

_PREPARED: dict[str, Callable[[Path], list[RatedDialogue]]] = {"dstc9": read_dstc9, "chitchat": read_chitchat}
FEEDBACK_RATING = "rating"  # name of the ratings in user feedback: 1 for up, -1 for down


def load_ratings(source: FilePath, unit: Unit | None = None) -> tuple[Unit, list[RatedDialogue]]:
    """Load the unit of a source, dialogues or replies, and all that have a rating.

    The source is ``dstc9`` or ``chitchat``, as prepared by ``rl4dialog prepare``; ``small_talk`` for generated
    dialogues, rated by a rule; or a ratings file. By default, the unit is the one that the source has.
    """
    found: dict[Unit, list[RatedDialogue]] = {"dialogue": [], "reply": []}
    if source == "small_talk":
        found["dialogue"], found["reply"] = rated_small_talk()
    elif source in _PREPARED:
        found["dialogue"] = _PREPARED[str(source)](prepared_folder(str(source)))
    else:
        path = expand_path(source)
        first = next(iter(read_rows(path)), None)
        if first is not None and "kind" in first:
            for kind, rated in _of_feedback(path):
                found[kind].append(rated)
        else:
            for number, row in enumerate(report_unread(read_rows(path))):
                for kind, rated in _of_row(row, number):
                    found[kind].append(rated)
    rated_by_unit = {kind: [each for each in rated if each.ratings] for kind, rated in found.items()}
    units = [kind for kind, rated in rated_by_unit.items() if rated and unit in (None, kind)]
    if not units:
        raise DataError(f"{source} has no ratings of {'dialogues or replies' if unit is None else PLURALS[unit]}")
    if len(units) > 1:
        raise DataError(f"{source} has ratings of both dialogues and replies; choose one of them (dialogue or reply)")
    return units[0], rated_by_unit[units[0]]


class _Rated(TypedRow):
    ratings: dict[str, float | None] | None = None

    @property
    def given(self) -> dict[str, float]:
        return {name: value for name, value in (self.ratings or {}).items() if value is not None}


class _RatedLine(_Rated):
    messages: list[_Rated]


def _of_row(row: Row, number: int) -> Iterator[tuple[Unit, RatedDialogue]]:
    """The conversation of a line, if it is rated, and its rated replies."""
    messages = read_messages(row, "messages", ("system", "developer", "user", "assistant"), also=("ratings",))
    line, id = row.parsed(_RatedLine), number if row.get("id") is None else row["id"]
    if not is_whole_number(id, at_least=0):
        id = row.text("id")
    system = None if row.get("system") is None else row.text("system")
    turns: list[Turn] = []
    persona = {"persona": messages[0]["content"]} if messages[0]["role"] in ("system", "developer") else {}
    for position, (message, rated) in enumerate(zip(messages, line.messages, strict=True)):
        is_agent = message["role"] == "assistant"
        if not (is_agent or message["role"] == "user"):
            if rated.given or position:
                raise row.error("a system message must be the first one, and has no ratings")
            continue
        turns.append(Turn(message["content"], AGENT if is_agent else PARTNER))
        if rated.given:
            if not is_agent:
                raise row.error(f"message {position} has ratings, but is not a reply (role: {message['role']})")
            dialogue = Dialogue(f"{id}_{position}", tuple(turns), meta_data=dict(persona), n_given=len(turns) - 1)
            yield "reply", RatedDialogue(dialogue, rated.given, id, system)
    if line.given:
        if not any(turn.speaker == AGENT for turn in turns):
            raise row.error("the conversation is rated, but has no message of the role assistant")
        yield "dialogue", RatedDialogue(Dialogue(id, tuple(turns), meta_data=dict(persona)), line.given, id, system)


def _of_feedback(path: Path) -> Iterator[tuple[Unit, RatedDialogue]]:
    """The rated replies and conversations of a feedback file; the last rating holds."""
    latest = read_latest(path)
    if others := count_kinds(each for each in latest if each.rating is None):
        _logger.warning("%s: %s: only ratings are read here; the datapool feedback reads all", path, others)
    for each in latest:
        if each.rating is not None:
            ratings, (reply,) = {FEEDBACK_RATING: float(each.rating)}, each.replies
            rated = RatedDialogue(judged_dialogue(each, reply.text), ratings, conversation_of(each), reply.model)
            yield "dialogue" if each.rates_conversation else "reply", rated
