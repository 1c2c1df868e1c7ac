"""List where the clerks of STAR called otherwise than their user's goal wants, and count.

    python scripts/star_gold.py
    python scripts/star_gold.py --path STAR --tasks ride_book hotel_book --texts
    python scripts/star_gold.py --said > star.txt

`STAR` is the repository of the dataset, or a folder of the same form. Each line has the conversation, why it is left
out, and for each slot that differs the verdict, what the goal wants, and what the nearest query of the clerk has. With
`--said`, the lines are instead all goals, instructions and utterances up to the first call.
"""

from __future__ import annotations

import argparse
from collections import Counter

import script

from rl4dialog.features.star.gold import compare
from rl4dialog.features.star.reading import files_of, place_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", help="folder or archive of the dataset (default: that of rl4dialog prepare star)")
    parser.add_argument("--tasks", nargs="+", help="tasks to list (default: all)")
    parser.add_argument("--texts", action="store_true", help="print the conversations, too")
    parser.add_argument("--said", action="store_true", help="print goals and what is said up to the first call")
    args = parser.parse_args()
    conversations, schemas = files_of(place_of(args.path))
    if args.said:
        for each in conversations:
            instructions = (" ".join(text.split()) for _, text in each.instructions)
            print(each.goal, *instructions, *(event.text for event in each.until_call()), sep="\n")
        return
    counts, verdicts = Counter[str](), dict[str, Counter[str]]()
    for each in conversations:
        if not (each.is_happy and each.is_complete) or (args.tasks and not {*each.tasks} <= {*args.tasks}):
            continue
        if (found := compare(each, schemas)) is None:
            continue
        counts["conversations"] += 1
        verdicts.setdefault(found.api, Counter()).update(found.verdicts.values())
        counts["with values that the user chose"] += bool(found.chosen)
        why = found.why_left_out
        kind = f"left out: {why.partition(':')[0]}" if why else "right" if found.agrees else "not right"
        counts[kind if why or found.is_last or not found.agrees else "right in an earlier query"] += 1
        differs = [
            f"{slot} {verdict}: {'not ' * found.gold[slot].unwanted}{'/'.join(found.gold[slot].values)}"
            f" != {found.query.arguments.get(slot)}"
            for slot, verdict in found.verdicts.items()
            if verdict not in ("same", "spelled")
        ]
        if differs or why:
            print(found.api, each.id, f"({why or kind})", *differs, sep="  ")
            if args.texts:
                print(f"    goal: {found.goal}", *(f"    {who}: {text}" for who, text in each.events), sep="\n")
    for api, kinds in sorted(verdicts.items()):
        print(api, dict(kinds.most_common()))
    print(*(f"{n} {what}" for what, n in counts.most_common()), sep="\n")


if __name__ == "__main__":
    script.run(main)
