"""Mean return of Wordle's scripted players, for example: python docs/examples/wordle_players.py --path words.txt."""

import argparse
import statistics

from rl4dialog.features.games.wordle.datapool import Wordle
from rl4dialog.features.games.wordle.players import NAMES

parser = argparse.ArgumentParser()
parser.add_argument("--path", help="file with one word per line (default: the packaged 240 words)")
parser.add_argument("--word_list", type=int, help="packaged list instead: 40 or 240")
parser.add_argument("--players", nargs="+", default=[name for name in NAMES if name != "monte_carlo"])
parser.add_argument("--n", type=int, default=20_000, help="number of games (default: 20000)")
args = parser.parse_args()

for player in args.players:
    pool = Wordle.prepare("train", n_train=args.n, path=args.path, word_list=args.word_list, player=player)
    returns = [sum(turn.reward for turn in game.turns) for game in pool.conversations()]
    error = statistics.stdev(returns) / len(returns) ** 0.5
    won = statistics.mean(game.outcome["success"] for game in pool.conversations())
    print(f"{player:12} return {statistics.mean(returns):.3f}, standard error {error:.3f}, success {won:.3f}")
