"""Write a log from VisDial's dialogues, as ILQL reads them: the agent asks about a picture that it does not see.

python docs/examples/visdial_log.py --data visdial_0.5_train.json --progress train_reward_cache2.json --output log.jsonl
"""

import argparse
import json
import sys
from pathlib import Path

from rl4dialog.core.files import write_records
from rl4dialog.features.games.guess_the_picture import is_penalized

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", required=True, help="list of objects with caption and dialog (question, answer)")
parser.add_argument("--progress", help="list with n + 1 numbers per dialogue of n rounds: the start, and the progress")
parser.add_argument("--mode", choices=("env_stops", "agent_stops", "10_stop"), default="env_stops")
parser.add_argument("--percentile", type=float, default=0.5, help="env_stops: share of the way that ends a dialogue")
parser.add_argument("--yes_no", choices=("none", "soft", "hard", "conservative"), default="none")
parser.add_argument("--yes_no_reward", type=float, default=-2.0, help="env_stops: added for such an answer")
parser.add_argument("--output", required=True, type=Path)
args = parser.parse_args()


def read(path):
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {path} cannot be read ({error}); if it is cut off, download it again")


def record(number, caption, rounds, rewards, start, stops=False):
    """A line of the log; an agent that stops says so for no reward."""
    said = [
        {"role": role, "content": content}
        for question, answer in rounds
        for role, content in (("assistant", question), ("user", answer))
    ]
    if stops:
        said, rewards = [*said, {"role": "assistant", "content": "<stop>"}], [*rewards, 0.0]
    meta_data = {"image": number, "start": start}
    return {"messages": [{"role": "user", "content": caption}, *said], "rewards": rewards, "meta_data": meta_data}


def records(number, scene, progress):
    rounds = [(f"{turn['question']}?", turn["answer"]) for turn in scene["dialog"]]
    start, steps = (progress[0], progress[1:]) if progress else (0.0, [0.0] * len(rounds))
    if len(steps) != len(rounds):
        n = len(rounds)
        sys.exit(f"error: --progress: dialogue {number} has {n} rounds, so {n + 1} numbers belong to it")
    if args.mode == "agent_stops":  # a dialogue for each place at which the agent could stop
        for n in range(len(rounds) + 1):
            yield record(number, scene["caption"], rounds[:n], steps[:n], start, stops=n < len(rounds))
    elif args.mode == "10_stop":
        yield record(number, scene["caption"], rounds, steps, start)
    else:
        share = args.percentile * (1.0 - start)  # of the way; in ILQL, the tenth round is paid like it, too
        ends = (n for n in range(1, len(rounds) + 1) if sum(steps[:n]) >= share or n == 10)
        n = next(ends, None)
        rewards = [-1.0] * len(rounds) if n is None else [-1.0] * (n - 1) + [0.0]
        for i, (_, answer) in enumerate(rounds[:n]):
            rewards[i] += args.yes_no_reward * is_penalized(answer, args.yes_no)
        yield record(number, scene["caption"], rounds[:n], rewards, start)


scenes, progress = read(args.data), None if args.progress is None else read(args.progress)
if args.mode == "env_stops" and progress is None:
    sys.exit("error: --mode env_stops needs --progress, which says when a dialogue ends")
if progress is not None and len(progress) != len(scenes):
    sys.exit(f"error: --progress has {len(progress)} dialogues, and --data {len(scenes)}; use the files of one split")
lines = [line for i, scene in enumerate(scenes) for line in records(i, scene, progress and progress[i])]
write_records(args.output, lines)
print(f"{len(lines)} conversations about {len(scenes)} pictures written to {args.output}")
