"""How much a simulated user talks like people whom it never met.

What partners of a run said in conversations (``rl4dialog simulate``) is compared with held-out conversations of people.
Conversations of other people are measured with the same ruler: nobody is nearer to people than people are.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.text import Text
from torch.nn import functional

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.config import TextConfig
from rl4dialog.core.console import Console
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.files import write_json
from rl4dialog.core.types import AGENT, PARTNER, TOOL, Dialogue, Sample, Turn
from rl4dialog.data.conversations.pool import LoggedConversations
from rl4dialog.data.dialogue_text import persona_in
from rl4dialog.data.sides import END, Sides
from rl4dialog.data.splits import folded, shuffled
from rl4dialog.functional.statistics import Estimate, bootstrap_intervals, roc_auc
from rl4dialog.partners.several import names_of
from rl4dialog.runs.report.pages import write_page
from rl4dialog.runs.summary import format_interval, format_number, number_table
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.conversations import members_of, with_settings_of_run

if TYPE_CHECKING:
    from rl4dialog.partners.language_model import LanguageModelPartner

N_RESAMPLES = 500
MIN_TURNS, MIN_CONVERSATIONS = 50, 10
"""With less, nothing is compared."""
MAX_AUC = 0.75
"""From here on, a reader of single utterances tells a partner from people most of the time."""
_GOODBYE = re.compile(r"\b(?:good ?bye|bye|thanks?|thank you|cheers|have a (?:good|nice|great) \w+)\b", re.IGNORECASE)
_PIECE = re.compile(r"\w+|[^\w\s]")
_PLAIN = frozenset({"yes", "no", "true", "false", "none"})  # values that say nothing by themselves


@dataclass(frozen=True)
class UserSide:
    """One side of a conversation: what the user said."""

    turns: Sequence[str]
    heard: Sequence[str]  # what the other side had said before each turn
    goal: str
    values: Sequence[str]  # of the goal
    person: str | None = None
    is_whole: bool = True  # whether the first turn is the user's, and not one of the data


class Measure(NamedTuple):
    """A number of a conversation, and how far from people's mean it may be to count as the same."""

    of: Callable[[UserSide], float | None]
    tolerance: float
    relative: bool = False
    needs_goal: bool = False
    needs_start: bool = False


def plain(text: str) -> str:
    """A text in lower case without punctuation, with times such as ``9pm``."""
    return f" {re.sub(r'(?<=[0-9]) (?=[ap]m )', '', folded(text) + ' ')}"


def spoken(dialogue: Dialogue) -> list[tuple[int, Turn]]:
    """Utterances with their places, without calls of tools and their answers."""
    later = [turn.speaker for turn in dialogue.turns[1:]]
    pairs = zip(dialogue.turns, [*later, PARTNER], strict=True)
    return [(i, turn) for i, (turn, then) in enumerate(pairs) if TOOL not in (turn.speaker, then) and turn.text.strip()]


def turned(dialogue: Dialogue) -> Dialogue:
    """A conversation that was learned from the partner's side, as the agent heard it."""
    others = {AGENT: PARTNER, PARTNER: AGENT}
    turns = (Turn(each.text.removesuffix(END).rstrip(), others[each.speaker]) for each in dialogue.turns)
    return replace(dialogue, turns=tuple(turns))


def user_side(dialogue: Dialogue, goal_key: str, person_key: str, is_of_people: bool) -> UserSide:
    """What the user of a conversation said; what the data said for a partner is no utterance of its own."""
    said = spoken(dialogue)
    own = [i for i, turn in said if turn.speaker == PARTNER and (is_of_people or i >= dialogue.n_given)]
    turns = [dialogue.turns[i].text for i in own]
    heard = [" ".join(turn.text for place, turn in said if turn.speaker == AGENT and place < i) for i in own]
    is_whole = is_of_people or not any(turn.speaker == PARTNER for turn in dialogue.turns[: dialogue.n_given])
    info = dialogue.meta_data
    goal, values = persona_in(info, goal_key) or "", info.get("goal_values")
    if values is None:  # names, numbers and times
        values = re.findall(r"\d[\d/:.]*(?: ?[ap]m\b)?|(?<=[a-z,'] )[A-Z]\w+(?: [A-Z]\w+)*", goal)
    found = tuple(dict.fromkeys(value for value in map(str, values) if value.casefold() not in _PLAIN))
    person = info.get(person_key)
    return UserSide(turns, heard, goal, found, None if person is None else str(person), is_whole)


def _said(side: UserSide, text: str) -> list[bool]:
    return [plain(value) in plain(text) for value in side.values]


def _first(side: UserSide) -> float | None:
    return float(np.mean(_said(side, side.turns[0]))) if side.values else None


def _any(side: UserSide) -> float | None:
    return float(np.mean(_said(side, " . ".join(side.turns)))) if side.values else None


def _at_once(side: UserSide) -> float | None:
    return float(any(all(_said(side, turn)) for turn in side.turns)) if len(side.values) > 1 else None


def _contradicts(side: UserSide, known: Iterable[str]) -> float | None:
    """Whether the user says a number, or a value of another goal, that neither the goal nor the other side has."""
    if not side.goal:
        return None
    for turn, heard in zip(side.turns, side.heard, strict=True):
        text, source = plain(turn), plain(f"{side.goal} {' '.join(side.values)} {heard}")
        others = [value for value in known if value in text and value not in source]
        if others or set(re.findall(r"\d+", text)) - set(re.findall(r"\d+", source)):
            return 1.0
    return 0.0


def _repeats(side: UserSide) -> float:
    texts = [plain(turn) for turn in side.turns]
    return 1 - len({*texts}) / len(texts)


MEASURES: Mapping[str, Measure] = {
    "values said in the first turn": Measure(_first, 0.05, needs_goal=True, needs_start=True),
    "values said in any turn": Measure(_any, 0.05, needs_goal=True),
    "all values in one turn": Measure(_at_once, 0.05, needs_goal=True),
    "values that contradict the goal": Measure(lambda side: None, 0.05, needs_goal=True),  # needs all goals
    "turns": Measure(lambda side: len(side.turns), 0.15, relative=True),
    "words per turn": Measure(lambda side: len(" ".join(side.turns).split()) / len(side.turns), 0.15, relative=True),
    "questions": Measure(lambda side: sum("?" in turn for turn in side.turns) / len(side.turns), 0.05),
    "thanks or goodbye at the end": Measure(lambda side: float(bool(_GOODBYE.search(side.turns[-1]))), 0.05),
    "repeated turns": Measure(_repeats, 0.05),
}


@dataclass(frozen=True)
class Row:
    """One measure of a partner beside that of people."""

    name: str
    people: Estimate | None = None
    others: Estimate | None = None  # of people in other conversations
    partner: Estimate | None = None
    verdict: str = ""  # ``like``, ``unlike`` or, if the interval allows both, ``unclear``
    problem: str = ""  # why there is none


@dataclass
class Found:
    """What was found about one partner."""

    name: str
    rows: list[Row]
    faults: list[str] = field(default_factory=list)
    giveaways: list[str] = field(default_factory=list)  # words by which it is known
    examples: list[str] = field(default_factory=list)  # its least human utterances

    @property
    def verdict(self) -> str:
        """One sentence."""
        named = {kind: [row.name for row in self.rows if row.verdict == kind] for kind in ("like", "unlike", "unclear")}
        parts = [f"talks like people in {_listed(named['like'])}"] if named["like"] else []
        parts += [f"not in {_listed(named['unlike'])}"] if named["unlike"] else []
        parts += [f"it is unclear for {_listed(named['unclear'])}"] if named["unclear"] else []
        return "; ".join(parts) or "nothing could be compared"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def check_enough(sides: Sequence[UserSide], what: str) -> list[UserSide]:
    """The conversations in which the user speaks; a `DataError` if they are too few."""
    spoken = [side for side in sides if side.turns]
    n_turns = sum(len(side.turns) for side in spoken)
    if n_turns < MIN_TURNS or len(spoken) < MIN_CONVERSATIONS:
        raise DataError(
            f"{what}: {n_turns} utterances of the user in {len(spoken)} conversations are too few to compare; "
            f"{MIN_TURNS} in {MIN_CONVERSATIONS} are needed"
        )
    return spoken


def compare_partners(
    people: Sequence[UserSide], others: Sequence[UserSide], partners: Mapping[str, Sequence[UserSide]], seed: int = 0
) -> list[Found]:
    """Compare partners with people, and with each other by a classifier."""
    known = {plain(value) for side in (*people, *others) for value in side.values if len(value) > 2}
    measures = dict(MEASURES)
    name = "values that contradict the goal"
    measures[name] = measures[name]._replace(of=functools.partial(_contradicts, known=known))
    tables = {id(sides): _table(sides, measures) for sides in (people, others, *partners.values())}
    floor = classify(others, people, seed) if others else None
    read = {each: classify(sides, people, seed) for each, sides in partners.items()}
    found = []
    for each, sides in partners.items():
        rows = [
            _row(measure, measures[measure], tables[id(people)], tables[id(others)], tables[id(sides)], sides)
            for measure in measures
        ]
        ceiling = max((other.auc.value for key, other in read.items() if key != each), default=1.0)
        rows.append(_auc_row(read[each], floor, max(ceiling, read[each].auc.value)))
        giveaways, examples = read[each].giveaways, read[each].examples
        found.append(
            Found(each, rows, _faults(sides, people, tables[id(sides)], tables[id(people)]), giveaways, examples)
        )
    return found


_Table = Mapping[str, NDArray[np.float64]]


def _table(sides: Sequence[UserSide], measures: Mapping[str, Measure]) -> _Table:
    """Numbers of each conversation, NaN where there is none."""
    numbers = {name: [measure.of(side) for side in sides] for name, measure in measures.items()}
    return {name: np.array([math.nan if each is None else each for each in row]) for name, row in numbers.items()}


def _row(name: str, measure: Measure, people: _Table, others: _Table, own: _Table, sides: Sequence[UserSide]) -> Row:
    columns = [table[name][~np.isnan(table[name])] for table in (people, others, own)]
    if not len(columns[0]):
        return Row(name, problem="the conversations of people have no goals")
    if not len(columns[2]):
        return Row(name, _mean(columns[0]), _mean(columns[1]), problem="its conversations have no goals")
    if measure.needs_start and not all(side.is_whole for side in sides):
        why = "its conversations begin with an utterance of the data; set env.args.first_speaker: partner"
        return Row(name, _mean(columns[0]), _mean(columns[1]), problem=why)
    means = [_mean(column) for column in columns]

    def difference(a: NDArray[np.int64], b: NDArray[np.int64]) -> list[float]:
        return [columns[2][a].mean() - columns[0][b].mean()]

    (interval,) = bootstrap_intervals(difference, len(columns[2]), len(columns[0]), n_resamples=N_RESAMPLES)
    mine, theirs = means[2].value, means[0].value  # type: ignore[union-attr]
    allowed = measure.tolerance * (abs(theirs) if measure.relative else 1.0)
    if means[1] is not None:  # other people can differ by more
        allowed = max(allowed, abs(means[1].value - theirs))
    verdict = "like" if abs(mine - theirs) <= allowed else "unclear" if 0.0 in interval else "unlike"
    return Row(name, means[0], means[1], means[2], verdict)


def _mean(column: NDArray[np.float64]) -> Estimate | None:
    if not len(column):
        return None
    (interval,) = bootstrap_intervals(lambda rows: [column[rows].mean()], len(column), n_resamples=N_RESAMPLES)
    return Estimate(float(column.mean()), interval)


class Reading(NamedTuple):
    """How well a classifier tells utterances from those of people."""

    auc: Estimate
    giveaways: list[str]
    examples: list[str]


_N_FOLDS, _MAX_FEATURES, _PENALTY, _N_SHOWN = 5, 5000, 1.0, 12


def classify(sides: Sequence[UserSide], people: Sequence[UserSide], seed: int = 0) -> Reading:
    """Tell single utterances from those of people, by logistic regression on their words and pairs of words.

    Cross-validated by conversation. Values of goals and digits are masked, because goals can differ.
    """
    owners = [*sides, *people]
    rows = [(i, turn) for i, side in enumerate(owners) for turn in side.turns]
    owner, labels = np.array([i for i, _ in rows]), np.array([float(i < len(sides)) for i, _ in rows])
    grams = [_grams(turn, owners[i].values) for i, turn in rows]
    fold_of = np.empty(len(owners), dtype=int)
    for start, end in ((0, len(sides)), (len(sides), len(owners))):
        fold_of[start + np.array(shuffled(end - start, f"folds/{seed}"), dtype=int)] = np.arange(end - start) % _N_FOLDS
    scores = np.empty(len(rows))
    for fold in range(_N_FOLDS):
        test = fold_of[owner] == fold
        fitted = _fit([each for each, out in zip(grams, test, strict=True) if not out], labels[~test])
        scores[test] = [_score(fitted, each) for each, out in zip(grams, test, strict=True) if out]
    weights = _fit(grams, labels)
    places = [np.flatnonzero(owner == i) for i in range(len(owners))]

    def auc(a: NDArray[np.int64], b: NDArray[np.int64]) -> list[float]:
        ours = np.concatenate([scores[places[i]] for i in a])
        theirs = np.concatenate([scores[places[len(sides) + i]] for i in b])
        return [roc_auc(ours, theirs)]

    value = auc(np.arange(len(sides)), np.arange(len(people)))[0]
    (interval,) = bootstrap_intervals(auc, len(sides), len(people), n_resamples=N_RESAMPLES)
    best = sorted(weights, key=lambda gram: -weights[gram])
    last = [rows[i][1] for i in np.argsort(-scores) if labels[i]]
    return Reading(
        Estimate(float(value), interval), [each for each in best if each][:_N_SHOWN], [*dict.fromkeys(last)][:_N_SHOWN]
    )


def _grams(turn: str, values: Sequence[str]) -> set[str]:
    for value in sorted(values, key=len, reverse=True):
        turn = re.sub(rf"\b{re.escape(value)}\b", " _ ", turn, flags=re.IGNORECASE)
    words = [re.sub(r"\d+", "0", word) for word in _PIECE.findall(turn.lower())]
    return {"", *words, *map(" ".join, zip(["<", *words], [*words, ">"], strict=True))}  # "" is the intercept


def _fit(grams: Sequence[set[str]], labels: NDArray[np.float64]) -> dict[str, float]:
    """Weights of a logistic regression with a penalty on their squares, of words that occur at least twice."""
    counts = Counter(itertools.chain.from_iterable(grams))
    kept = sorted((gram for gram, n in counts.items() if n > 1), key=lambda gram: (-counts[gram], gram))[:_MAX_FEATURES]
    number = {gram: i for i, gram in enumerate(kept)}
    rows = [[number[gram] for gram in each if gram in number] for each in grams]
    columns = torch.tensor([*itertools.chain.from_iterable(rows)])
    starts = torch.tensor([0, *itertools.accumulate(map(len, rows[:-1]))])
    own = torch.tensor(labels, dtype=torch.float32)
    # Both sides have the same weight, however many utterances they have.
    weight = torch.where(own == 1, 0.5 / own.mean(), 0.5 / (1 - own.mean()))
    w = torch.zeros(len(kept), requires_grad=True)

    def loss() -> torch.Tensor:
        w.grad = None
        scores = functional.embedding_bag(columns, w[:, None], starts, mode="sum")[:, 0]
        found = weight @ functional.softplus((1 - 2 * own) * scores) + _PENALTY / 2 * w @ w
        found.backward()
        return found

    torch.optim.LBFGS([w], max_iter=200, line_search_fn="strong_wolfe").step(loss)
    return dict(zip(kept, w.tolist(), strict=True))


def _score(weights: Mapping[str, float], grams: Iterable[str]) -> float:
    return sum(weights.get(gram, 0.0) for gram in grams)


def _auc_row(read: Reading, floor: Reading | None, ceiling: float) -> Row:
    name, value = "single utterances (AUC of a classifier)", read.auc.value
    least = floor.auc.value if floor else 0.5
    is_near = value <= MAX_AUC and value - least <= (ceiling - least) / 2
    return Row(name, Estimate(0.5), floor and floor.auc, read.auc, "like" if is_near else "unlike")


def _faults(sides: Sequence[UserSide], people: Sequence[UserSide], own: _Table, theirs: _Table) -> list[str]:
    """What makes a partner useless, or the comparison weak."""

    def means(name: str) -> tuple[float, float]:
        ours, other = (table[name][~np.isnan(table[name])] for table in (own, theirs))
        return (float(ours.mean()), float(other.mean())) if len(ours) and len(other) else (0.0, 0.0)

    found = []
    known = {side.person for side in people} - {None}
    if len(known) == 1:
        found.append("all conversations are of one person: it is unknown how other people talk")
    elif not known:
        found.append("it is unknown who talked, so that the partner can have learned from the same people")
    if not any(side.goal for side in people):
        found.append("the conversations have no goals: what was said when, and what contradicts it, is not compared")
    mine, other = means("repeated turns")
    if mine > other + 0.2:
        found.append(f"it repeats itself: {mine:.0%} of its turns were said before, of people's {other:.0%}")
    mine, other = means("turns")
    if mine < 0.4 * other:
        found.append(f"it ends at once: {mine:.1f} turns per conversation, people {other:.1f}")
    mine, other = means("all values in one turn")
    if mine > other + 0.3:
        found.append(f"it tells everything at once in {mine:.0%} of its conversations, people in {other:.0%}")
    return found


def perplexity_row(partner: LanguageModelPartner, dialogues: Sequence[Dialogue], max_turns: int, seed: int) -> Row:
    """Perplexity of people's utterances under a partner that is a language model, in its own prompts."""
    from rl4dialog.training.supervised import PaddingCollator, build_examples, mean_loss

    side, model = partner.side, partner.language_model
    form, samples = side.dialogue_format, list[Sample]()
    for dialogue in dialogues:
        persona, history = persona_in(dialogue.meta_data, side.persona_key), list[str]()
        for _, turn in spoken(dialogue):
            if turn.speaker == PARTNER:
                prompt = form.prompt(history, persona) if history else form.opening_prompt(persona)
                samples.append(Sample(len(samples), prompt, [turn.text]))
            history.append(turn.text)
    drawn = [samples[i] for i in shuffled(len(samples), f"perplexity/{seed}")[:max_turns]]
    tokenizer = side.end_of_turn.tokenizer
    examples, _ = build_examples(
        drawn,
        tokenizer,
        end_of_turn=form.end_of_turn,
        max_prompt_length=side.max_prompt_length,
        max_reply_length=None,
        in_encoder=model.config.is_encoder_decoder,
    )
    loss = mean_loss(model, examples, PaddingCollator(tokenizer.pad_token_id or 0), 8)
    return Row("perplexity of people's utterances", partner=Estimate(math.exp(min(loss, 700.0))))


def validate_partners(
    config: TextConfig,
    files: Mapping[str, str],
    split: str,
    other_split: str,
    goal_key: str | None = None,
    person_key: str | None = None,
    max_conversations: int = 300,
) -> list[Found]:
    """Compare what partners said, in logs by their names, with the conversations of a config's datapool.

    The keys are by default those of the config's ``goal`` and ``people``, else ``partner_persona`` and ``user``. A
    language model that is the partner of the config, and has the name of a log or is alone, gets its perplexity, too.
    """
    pools, seed, args = Assembly(config).data.pools, config.seed, config.datapool.args
    of_config = Sides(goal=args.get("goal"), people=args.get("people"))
    goal_key = goal_key or of_config.goal_key or "partner_persona"
    person_key = person_key or of_config.person_key or "user"

    def talks(name: str) -> list[Dialogue]:
        found = pools[name].conversations()
        return [*map(turned, found)] if args.get("learn") == "partner" else [*found]

    def drawn(dialogues: Sequence[Dialogue]) -> list[Dialogue]:
        return [dialogues[i] for i in sorted(shuffled(len(dialogues), f"partners/{seed}")[:max_conversations])]

    def sides(dialogues: Sequence[Dialogue], what: str, is_of_people: bool = True) -> list[UserSide]:
        found = [user_side(each, goal_key, person_key, is_of_people) for each in dialogues]
        return check_enough(found, what)

    all_people = talks(split)
    met = {side.person for side in (user_side(each, goal_key, person_key, True) for each in all_people)} - {None}
    people = drawn(all_people)
    elsewhere = [] if other_split == split else talks(other_split)
    elsewhere = [each for each in elsewhere if str(each.meta_data.get(person_key)) not in met]
    others = sides(drawn(elsewhere), f"split {other_split}") if elsewhere else []
    logs = {
        name: sides(drawn([*LoggedConversations.prepare("train", path).conversations()]), f"partner {name}", False)
        for name, path in files.items()
    }
    found = compare_partners(sides(people, f"split {split}"), others, logs, seed)
    for name, partner in language_models(config):
        own = next((each for each in found if each.name == name or len(found) == 1), None)
        if own is None:
            raise ConfigError(f"the partner {name!r} of the config has no log: --partner {name}=FILE")
        own.rows.append(perplexity_row(partner, people, 20 * MIN_TURNS, seed))
    return found


def language_models(config: TextConfig) -> Iterator[tuple[str, LanguageModelPartner]]:
    """Partners of a config that are language models, by name."""
    if config.env is None or (chosen := config.env.args.partner) is None:
        return
    args = config.env.args
    sizes = {
        "max_prompt_length": args.max_prompt_length,
        "max_length": args.max_partner_length or args.max_episode_length,
    }
    names = names_of(chosen.args.get("partners", [{"id": chosen.id}]))
    for name, (member, _) in zip(names, members_of(chosen), strict=True):
        if member.id == "language_model":
            of_run = with_settings_of_run(member)
            yield name, PartnerRegistry.resolve(of_run.id)(**{**sizes, **of_run.args})


def write_findings(found: Sequence[Found], folder: Path, about: Mapping[str, Any]) -> Path:
    """Write ``partners.json`` and the page ``partners.html``."""
    verdicts = {each.name: each.verdict for each in found}
    write_json(folder / "partners.json", {**about, "verdicts": verdicts, "partners": found})
    return write_page(
        Path(__file__).with_name("partners.html"),
        folder / "partners.html",
        found=found,
        about=about,
        notes=[],
        warnings=[],
    )


def print_findings(found: Sequence[Found]) -> None:
    console = Console()
    for each in found:
        table = number_table(console, ("measure", "people", "other people", each.name, "95 %", ""), whole_keys=False)
        for row in each.rows:
            means = (row.people, row.others, row.partner)
            cells = [format_number(None if mean is None else mean.value) for mean in means]
            interval = format_interval(row.partner.interval if row.partner else None)
            table.add_row(Text(row.name), *cells, interval, row.problem or row.verdict)
        console.print(table)
        for fault in each.faults:
            console.print(Text(f"{each.name}: {fault}"))
        console.print(Text(f"{each.name} {each.verdict}"))
