"""Results of studies: agreement of raters and one result per item, or ratings of models that people talked to."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import Feedback, read_feedback
from rl4dialog.core.files import write_csv, write_json, write_records
from rl4dialog.data.dialogue_format import chat_messages
from rl4dialog.data.ratings import FEEDBACK_RATING, conversation_of, latest
from rl4dialog.data.rows import read_rows
from rl4dialog.data.studies import item_of, texts_of
from rl4dialog.functional.statistics import bootstrap_intervals


def agreement(given: Iterable[tuple[str, str, int]], is_scale: bool) -> tuple[float | None, str]:
    """Krippendorff's alpha of answers, each with its rater and item, or why it is undefined.

    Items with one answer do not count. Ratings differ by their squared distance (Krippendorff 2011, "Computing
    Krippendorff's Alpha-Reliability").
    """
    from nltk.metrics.agreement import AnnotationTask
    from nltk.metrics.distance import binary_distance, interval_distance

    given = list(given)
    n_raters = Counter(item for _, item, _ in given)
    shared = [each for each in given if n_raters[each[1]] > 1]
    if not shared:
        return None, "no item has the answers of two raters"
    if len({answer for *_, answer in shared}) == 1:
        return None, "all answers are the same, so agreement by chance would be as good"
    return float(AnnotationTask(shared, interval_distance if is_scale else binary_distance).alpha()), ""


def write_results(source: Path, folder: Path) -> dict[str, Any]:
    """Write ``items.jsonl``, ``answers.csv`` and ``summary.json`` about a file of answers; returns the summary.

    ``items.jsonl`` is a ratings file of each item's mean, or feedback with the reply most raters prefer, without ties.
    """
    given = read_feedback(source)
    studies = {(each.study, each.scale) for each in given}
    if len(studies) != 1 or (None, None) in studies:
        raise DataError(f"{source} must have answers to one study alone; rl4dialog ui --study writes them")
    ((title, scale),) = studies
    items: dict[str, list[Feedback]] = defaultdict(list)
    answers = [(item_of(each), each) for each in latest(given)]
    for item, each in answers:
        items[item].append(each)
    if not answers:
        raise DataError(f"{source}: all answers were withdrawn")
    rated = [(str(each.rater), item, answer_of(each)) for item, each in answers]
    alpha, why_undefined = agreement(rated, is_scale=scale is not None)
    majorities = {} if scale else {key: majority(votes) for key, votes in items.items()}
    judged = [each for _, each in answers]
    models = {reply.model for each in judged for reply in each.replies}
    summary = {
        "study": title,
        "n_items": len(items),
        "n_raters": len({each.rater for each in judged}),
        "n_answers": len(answers),
        "items_by_n_answers": dict(sorted(Counter(map(len, items.values())).items())),
        "alpha": alpha,
        "why_alpha_is_undefined": why_undefined,
        "mean_by_model": _mean_by_model(judged) if scale or len(models) > 1 else {},
    }
    if scale is None:
        summary["n_tied_items"] = sum(each is None for each in majorities.values())
        summary["n_no_difference"] = sum(each.is_tie for each in judged)
    rows = [replace(each, rater=None, study=None).record() for each in majorities.values() if each is not None]
    rows = [_rated(votes) for votes in items.values()] if scale else rows
    write_records(folder / "items.jsonl", rows)
    write_json(folder / "summary.json", summary)
    columns = ["item", "rater", "answer", "time", "conversation", "reply_1", "reply_2"]
    votes = [[item, each.rater, answer_of(each), each.time] for item, each in answers]
    said = [["\n".join(each.turns), *texts_of(each)] for each in judged]
    write_csv(folder / "answers.csv", [columns, *map(itertools.chain, votes, said)])
    return summary


def is_of_talks(source: Path) -> bool:
    """Whether a file has conversations of people with models, with their ratings."""
    return any("messages" in row.values for row in itertools.islice(read_rows(source), 1))


def talk_results(source: Path, folder: Path, n_resamples: int = 1000) -> dict[str, Any]:
    """Write ``summary.json`` and ``answers.csv`` about a study in which people talk; returns the summary.

    Ratings, messages and outcomes of calls have a mean for each model with an interval over people, and the difference
    of the second model, in alphabetical order, from the first one with that of the same people.
    """
    rows = [row.values for row in read_rows(source)]
    if len({row["study"] for row in rows}) != 1:
        raise DataError(f"{source} must have answers to one study alone; rl4dialog ui --study writes them")
    models, raters = (sorted({row[key] for row in rows}) for key in ("system", "rater"))
    numbers = [_numbers(row) for row in rows]
    summary: dict[str, Any] = {"study": rows[0]["study"], "n_raters": len(raters), "n_conversations": len(rows)}
    summary["measures"] = {}
    for key in dict.fromkeys(itertools.chain.from_iterable(numbers)):
        sums, counts = np.zeros((len(raters), len(models))), np.zeros((len(raters), len(models)))
        for row, each in zip(rows, numbers, strict=True):
            if key in each:
                place = raters.index(row["rater"]), models.index(row["system"])
                sums[place] += each[key]
                counts[place] += 1

        def means(drawn: NDArray[np.int64]) -> NDArray[np.float64]:
            with np.errstate(invalid="ignore"):
                found = sums[drawn].sum(0) / counts[drawn].sum(0)  # noqa: B023 (called at once)
            return np.append(found, found[1:] - found[0])

        values = means(np.arange(len(raters)))
        found = bootstrap_intervals(means, len(raters), n_resamples=n_resamples) if len(raters) > 1 else ()
        intervals = [[each.low, each.high] for each in found]
        names = [*models, *(f"{other} - {models[0]}" for other in models[1:])]
        rows_of_key = itertools.zip_longest(names, values.tolist(), intervals)
        summary["measures"][key] = {name: {"value": value, "interval": ends} for name, value, ends in rows_of_key}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "summary.json", summary)
    keys = [*summary["measures"]]
    lines = [[r["rater"], r["system"], r["meta_data"]["goal"], *(each.get(key, "") for key in keys)]
             for r, each in zip(rows, numbers, strict=True)]  # fmt: skip
    write_csv(folder / "answers.csv", [["rater", "model", "goal", *keys], *lines])
    return summary


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    messages = sum(each["role"] == "user" for each in row["messages"])
    return {"rating": row["ratings"]["rating"], "messages": messages, **row["outcome"]}


def answer_of(given: Feedback) -> int:
    """The rating, or which of the two texts is preferred: 1 or 2 in an arbitrary fixed order, 0 for no difference.

    An order that had to do with the replies would change what agreement is expected by chance.
    """
    if given.rating is not None:
        return given.rating
    return 0 if given.chosen is None else texts_of(given).index(given.replies[given.chosen].text) + 1


def majority(votes: Sequence[Feedback]) -> Feedback | None:
    """A vote for the reply that most raters preferred; ``None`` if there is a tie, or most saw no difference."""
    counts = Counter(map(answer_of, votes)).most_common(2)
    if counts[0][0] == 0 or (len(counts) == 2 and counts[0][1] == counts[1][1]):
        return None
    return next(vote for vote in votes if answer_of(vote) == counts[0][0])


def _mean_by_model(answers: Iterable[Feedback]) -> Mapping[str, float]:
    """The mean rating of each model's replies; of pairs, the share of votes, no difference counting half for each."""
    given: dict[str, list[float]] = defaultdict(list)
    for each in answers:
        for number, reply in enumerate(each.replies):
            share = 0.5 if each.chosen is None else float(number == each.chosen)
            given[reply.model].append(share if each.rating is None else each.rating)
    return {model: sum(values) / len(values) for model, values in sorted(given.items())}


def _rated(votes: Sequence[Feedback]) -> dict[str, Any]:
    """A line of a ratings file."""
    first = votes[0]
    (reply,) = first.replies
    ratings = {FEEDBACK_RATING: sum(vote.rating or 0 for vote in votes) / len(votes)}
    whole = first.rates_conversation
    messages: list[dict[str, Any]] = [*chat_messages(first.turns, first.persona)]
    messages.append({"role": "assistant", "content": reply.text, **({} if whole else {"ratings": ratings})})
    if first.answer is not None:
        messages.append({"role": "user", "content": first.answer})
    row = {"id": conversation_of(first), "system": reply.model, "messages": messages, "n_raters": len(votes)}
    return {**row, "ratings": ratings} if whole else row
