"""How near estimators of advantages are to the true advantages of a policy's utterances, in guess_what.

python scripts/measure_advantages.py --output_path runs/advantages
python scripts/measure_advantages.py --output_path runs/advantages --small    # one policy and fewer games

The true advantage of an utterance u after the history h is Q(h, u) - V(h), both of the policy that spoke. Each is the
mean return of games that go on from there, against partners that think of any thing that agrees with the answers in h;
the variance of these means is subtracted from all statistics. Policies are those of a run of PPO at several iterations,
and critics are trained on games of the frozen policy. Of a scripted player, whose questions are any with probability
0.5 and else the best ones, truth and values are exact. Everything that is complete in the output folder is kept.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import script
import torch
from measure_regret import TURN, left_after, utterance_value
from rich.table import Table

from rl4dialog.core.console import Console
from rl4dialog.core.errors import DataError
from rl4dialog.core.files import write_json
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample
from rl4dialog.functional.advantages import GAE, Episodes, TurnGAE, group_advantages, leave_one_out_advantages
from rl4dialog.functional.replies import Replies
from rl4dialog.functional.statistics import bootstrap_intervals
from rl4dialog.inference.loading import LoadedPolicy, find_checkpoint, load_policy
from rl4dialog.rollouts.conversing import Begun
from rl4dialog.rollouts.talk import Talk
from rl4dialog.runs.plots import plain_figure, read_iterations, save_figure
from rl4dialog.runs.run_folder import is_complete
from rl4dialog.runs.summary import format_number, table_style
from rl4dialog.tasks.guess_what import (
    GUESSES,
    MAX_TURNS,
    OPENING,
    QUESTIONS,
    THINGS,
    GuessWhatPartner,
    consistent_things,
)
from rl4dialog.tasks.playing import SeededPlayer, play
from rl4dialog.training.critic_measure import CriticMeasure, State
from rl4dialog.training.own_process import RESUMED, run_command, train_arguments

CONFIG = Path(__file__).parents[1] / "task_configs" / "guess_what" / "llama_ppo.yml"
GROUP = 4  # games about the same thing
LAMBDAS = (0.0, 0.5, 0.8, 0.9, 1.0)
PART = 16  # games whose gradients are added up before their variance is taken
# What differs between the critics of a policy, beside the number of their iterations.
KINDS = {
    "critic": (),
    "secret critic": ("alg.policy.args.critic_reads=secret", "env.args.max_secret_length=8"),
}


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    stages: tuple[int, ...] = (0, 20, 60)  # iterations of the policies
    critics: tuple[int, ...] = (5, 20, 60)  # iterations of the critics
    kinds: tuple[str, ...] = tuple(KINDS)
    n_games: int = 1024
    n_states: int = 500
    n_continuations: int = 32
    overrides: tuple[str, ...] = ()


# For as many continuations, many states tell more than many continuations of each.
SMALL = Size((0,), (2, 6), ("critic",), 512, 800, 4, ("warm_start.n_epochs=3",))


@dataclass(frozen=True)
class Games:
    """Games of a player in groups about the same thing, as T turns."""

    game: np.ndarray  # number of each turn's game. Shape (T,)
    turn: np.ndarray  # its own number in it. Shape (T,)
    rewards: np.ndarray  # Shape (T,)
    values: np.ndarray  # of the state before each turn. Shape (T,)
    talks: Sequence[Talk] = ()  # of a language model
    samples: Sequence[Sample] = ()

    def per_game(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of turns, one row per game, and where there are any. Shapes (T,) -> (E, L), (E, L)."""
        mask = np.zeros((self.game.max() + 1, self.turn.max() + 1), dtype=bool)
        mask[self.game, self.turn] = True
        rows = np.zeros(mask.shape)
        rows[mask] = numbers
        return rows, mask


def train(output: Path, name: str, overrides: Sequence[str]) -> Path:
    """Train a run, unless it is complete."""
    run = output / name
    fixed = [
        "train_evaluation.max_eval_samples=50",
        "train_evaluation.eval_every=1000",
        "train_evaluation.keep_last=99",
    ]
    code = run_command(train_arguments(CONFIG, run, *RESUMED, overrides=[*fixed, *overrides]))
    if code or not is_complete(run):
        raise DataError(f"{run} was not trained (exit code {code}); the same command continues")
    return run


def critic_overrides(size: Size, policy: Path | None, kind: str) -> list[str]:
    """What trains critics of a frozen policy, that of a checkpoint or of the warm start, at every iteration."""
    of_policy = [f"alg.policy.args.model_name={policy}", f"tokenizer={{model_name: {policy}}}"]
    return [
        *(size.overrides if policy is None else [*of_policy, "warm_start=null"]),
        *("alg.policy.args.critic=separate", f"train_evaluation.save_every={math.gcd(*size.critics)}", *KINDS[kind]),
        *(f"{key}={max(size.critics)}" for key in ("alg.args.critic_warmup_iters", "train_evaluation.n_iters")),
    ]


def begin(samples: Sequence[Sample], n_games: int, seed: int) -> list[State]:
    """Beginnings of games in groups; those of a group have the same thing, and partners with different seeds."""
    order = np.random.default_rng(seed).permutation(len(samples))
    chosen = [samples[order[i // GROUP % len(samples)]] for i in range(n_games)]
    return [State(sample, derive_seed(seed, "partner", i), Begun()) for i, sample in enumerate(chosen)]


def played(measure: CriticMeasure, starts: Sequence[State]) -> Games:
    """Games, which are the same at every call, with values of the measured critic."""
    talks = [talk for talk in measure.held("games", starts, with_values=True) if talk is not None]
    if len(talks) < len(starts):
        raise DataError(f"{len(starts) - len(talks)} of {len(starts)} games failed")
    lengths = [len(talk.replies) for talk in talks]
    rewards = np.array([reply.reward for talk in talks for reply in talk.replies])
    values = np.array([float(reply.of_tokens("values")[0]) for talk in talks for reply in talk.replies])  # type: ignore[index]
    return Games(*numbered(lengths), rewards, values, talks, [start.sample for start in starts])


def numbered(lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the game and in the game of each turn of games with these lengths. Shapes (T,), (T,)."""
    return np.repeat(np.arange(len(lengths)), lengths), np.concatenate([np.arange(n) for n in lengths])


def true_advantages(measure: CriticMeasure, games: Games, chosen: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Returns of k games from before, and of k from after, each chosen utterance. Shape (n, 2, k)."""
    rng, rows, turns = np.random.default_rng(seed), [], []
    for i in chosen:
        talk, turn, sample = games.talks[games.game[i]], int(games.turn[i]), games.samples[games.game[i]]
        said = [each.text for each in talk.dialogue.turns[: talk.dialogue.turn_bounds[turn]]]
        things = consistent_things(said)
        for n_said, j in itertools.product((turn, turn + 1), range(k)):
            other = replace(sample, meta_data={**(sample.meta_data or {}), "thing": str(rng.choice(things))})
            rows.append(State(other, derive_seed(seed, int(i), n_said, j), Begun(talk.steps[:n_said])))
            turns.append(turn)
    talks = measure.held("continuations", rows)
    found = [
        measure.returns(talk.replies)[turn][0] for talk, turn in zip(talks, turns, strict=True) if talk is not None
    ]
    return np.array(found).reshape(len(chosen), 2, k)


@functools.cache
def said_by_script(left: int, n_turns: int) -> dict[str, float]:
    """Probabilities of the scripted player's utterances: it guesses when it knows the thing, and in the last turn."""
    things = [thing for i, thing in enumerate(THINGS) if left >> i & 1]
    if len(things) == 1 or n_turns == 1:
        return {GUESSES[thing].text: 1 / len(things) for thing in things}
    n_yes = [sum(thing in question.things for thing in things) for question in QUESTIONS]
    smaller = np.minimum(n_yes, len(things) - np.array(n_yes))
    best = smaller == smaller.max()
    shares = 0.5 / len(QUESTIONS) + 0.5 * best / best.sum()
    return {question.text: float(share) for question, share in zip(QUESTIONS, shares, strict=True)}


@functools.cache
def value_of_script(left: int, n_turns: int) -> float:
    """V of the scripted player."""
    if n_turns == 0:
        return 0.0
    said = said_by_script(left, n_turns)
    return sum(share * utterance_value(left, text, n_turns, value_of_script) for text, share in said.items())


class Scripted(SeededPlayer):
    """The player of ``said_by_script``."""

    def say(self, history: list[str]) -> str:
        said = said_by_script(left_after(history), MAX_TURNS - len(history) // 2)
        return self._rng.choices([*said], [*said.values()])[0]


def measured_script(size: Size, seed: int) -> dict[str, Any]:
    """All statistics of the scripted player's estimators but those of gradients, which it has not."""
    rng, lengths, rows = np.random.default_rng(seed), list[int](), list[tuple[float, float, float]]()
    for group in range(size.n_games // GROUP):
        sample = Sample(str(group), "", [], {"history": [OPENING], "thing": str(rng.choice(THINGS))})
        for i in range(GROUP):
            game = play(Scripted(), GuessWhatPartner(), sample, MAX_TURNS, derive_seed(seed, "scripted", group, i))
            texts, places = [turn.text for turn in game.turns], game.agent_turns
            for n_said, place in enumerate(places):
                left, n_turns = left_after(texts[:place]), MAX_TURNS - n_said
                wins = game.outcome["success"] if n_said + 1 == len(places) else 0.0
                true = utterance_value(left, texts[place], n_turns, value_of_script)
                rows.append((TURN + wins, value_of_script(left, n_turns), true))
            lengths.append(len(places))
    rewards, values, of_utterances = np.array(rows).T
    games = Games(*numbered(lengths), rewards, values)
    returns = np.stack([values, of_utterances], axis=1)[:, :, None].repeat(2, axis=2)
    found = estimates(games, {"exact critic": values})
    return numbers_of(games, len(values), compared(found, returns))


def numbers_of(games: Games, n_states: int, estimators: dict[str, Any]) -> dict[str, Any]:
    """What is reported of a player."""
    alone = np.unique([*zip(games.game // GROUP, games.turn, strict=True)], axis=0, return_counts=True)[1]
    return {
        "return": float(np.bincount(games.game, weights=games.rewards).mean()),
        "states": n_states,
        "turns that only one of a group reached": float((alone == 1).sum() / len(games.turn)),
        "estimators": estimators,
    }


def estimates(games: Games, critics: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Estimated advantages of all turns, by estimator. Shapes (T,)."""
    rewards, mask = games.per_game(games.rewards)
    none, last, groups = np.zeros_like(rewards), np.zeros(len(rewards)), np.arange(len(rewards)) // GROUP
    turns = np.broadcast_to(np.arange(rewards.shape[1]), rewards.shape)

    def credited(values: np.ndarray, rule: GAE) -> np.ndarray:
        return rule(Episodes(rewards, none, np.abs(rewards), values, turns, mask, last)).advantages[mask]

    to_go = credited(none, TurnGAE())
    total = rewards.sum(axis=1)
    turn_of_group = groups[games.game] * rewards.shape[1] + games.turn
    found = {
        "total reward": total[games.game] - total.mean(),
        "total reward, group": leave_one_out_advantages(total, groups)[games.game],
        "to go": to_go - to_go.mean(),
        "to go, by turn": group_advantages(to_go, games.turn, scale=False),
        "to go, group by turn": leave_one_out_advantages(to_go, turn_of_group),
    }
    # A critic with lambda takes later rewards as less, too: what a discount does alone.
    for lambda_ in LAMBDAS[:-1]:
        discounted = credited(none, TurnGAE(turn_gamma=lambda_))
        found[f"to go, by turn, discount {lambda_:g}"] = group_advantages(discounted, games.turn, scale=False)
    for name, values in critics.items():
        of_game, _ = games.per_game(values)
        for lambda_ in LAMBDAS:
            found[f"{name}, lambda {lambda_:g}"] = credited(of_game, TurnGAE(turn_gae_lambda=lambda_))
    return found


def without_critic(name: str) -> str | None:
    """The estimator that takes later rewards as a critic's with its lambda does, without its values."""
    _, is_critics, lambda_ = name.partition(", lambda ")
    return ("to go, by turn" if lambda_ == "1" else f"to go, by turn, discount {lambda_}") if is_critics else None


def compared(found: Mapping[str, np.ndarray], returns: np.ndarray) -> dict[str, dict[str, float]]:
    """Statistics of all estimates, those with a critic beside the same without one."""
    return {name: statistics(each, returns, found.get(without_critic(name) or "")) for name, each in found.items()}


def statistics(estimated: np.ndarray, returns: np.ndarray, other: np.ndarray | None = None) -> dict[str, float]:
    """Correlation and mean squared error of estimates (n,) with true advantages from returns (n, 2, k).

    Correlations have a 95 % interval over states; they are NaN where the truth does not vary beyond its own noise. With
    estimates of another kind (n,), the gains over them in correlation and error have intervals, too, over the same
    states for both.
    """
    means, noises = returns.mean(axis=2), returns.var(axis=2, ddof=1).sum(axis=1) / returns.shape[2]
    true = means[:, 1] - means[:, 0]

    def correlation(estimates: np.ndarray, states: np.ndarray) -> float:
        (spread, both), (_, own) = np.cov(true[states], estimates[states])
        spread -= noises[states].mean()
        return float(both / (spread * own) ** 0.5) if spread > 0 and own > 0 else math.nan

    def error(estimates: np.ndarray, states: np.ndarray) -> float:
        return float(((estimates[states] - true[states]) ** 2).mean() - noises[states].mean())

    def numbers(states: np.ndarray) -> dict[str, float]:
        found = {"correlation": correlation(estimated, states)}
        if other is not None:
            found["correlation gained"] = found["correlation"] - correlation(other, states)
            found["error less"] = error(other, states) - error(estimated, states)
        return found

    every = np.arange(len(true))
    found = numbers(every)
    intervals = bootstrap_intervals(lambda states: [*numbers(states).values()], len(true), n_resamples=200)
    for name, interval in zip([*found], intervals, strict=True):
        found |= {f"{name}/low": interval.low, f"{name}/high": interval.high}
    return {**found, "error": error(estimated, every), "variance of the truth": float(true.var(ddof=1) - noises.mean())}


def gradients(loaded: LoadedPolicy, games: Games, found: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Variance of the policy's gradient over parts of the games, and the squared norm of its expected value."""
    policy: Any = loaded.policy
    parameters = [each for each in policy.actor_parameters() if each.requires_grad]
    sums = {name: [torch.zeros_like(each) for each in parameters] for name in found}
    squares, n_parts, first = dict.fromkeys(found, 0.0), 0, 0
    for start in range(0, len(games.talks), PART):
        replies = [reply for talk in games.talks[start : start + PART] for reply in talk.replies]
        prompts = [loaded.prompt_ids(reply.prompt) for reply in replies]
        said: list[Any] = [reply.of_tokens("response_ids") for reply in replies]
        rows = Replies.from_ids(prompts, said, policy.device)
        _, log_probs, _ = policy.evaluate_actions(rows.observations, rows.flat("response_ids"))
        turns = torch.segment_reduce(log_probs, "sum", lengths=rows.response_mask.sum(dim=1))
        for name, advantages in found.items():
            own = torch.as_tensor(advantages[first : first + len(replies)], dtype=turns.dtype, device=turns.device)
            of_part = torch.autograd.grad((own * turns).sum() / PART, parameters, retain_graph=True)
            squares[name] += sum(float(each.square().sum()) for each in of_part)
            for sum_, each in zip(sums[name], of_part, strict=True):
                sum_ += each
        first, n_parts = first + len(replies), n_parts + 1
    statistics = {}
    for name in found:
        of_mean = sum(float((each / n_parts).square().sum()) for each in sums[name])
        variance = (squares[name] / n_parts - of_mean) * n_parts / (n_parts - 1)
        statistics[name] = {"gradient variance": variance, "squared gradient": of_mean - variance / n_parts}
    return statistics


def measured(loaded: LoadedPolicy, critics: Mapping[str, Any], size: Size, seed: int) -> dict[str, Any]:
    """All statistics of a policy's estimators; `critics` are policies by name, whose critic is asked."""
    starts = begin(loaded.data.samples("train"), size.n_games, seed)
    values, games = dict[str, np.ndarray](), None
    for name, critic in critics.items():
        measure = CriticMeasure(loaded, loaded.policy, critic, seed)
        before, games = games, played(measure, starts)
        if before is not None and not np.array_equal(before.rewards, games.rewards):
            raise DataError("the same games were played in another way, so their estimates cannot be compared")
        values[name] = games.values
    assert games is not None
    n = min(size.n_states, len(games.turn))
    chosen = np.random.default_rng(seed).choice(len(games.turn), n, replace=False)
    returns = true_advantages(measure, games, chosen, size.n_continuations, seed)
    found = estimates(games, values)
    of_gradients = gradients(loaded, games, found)
    rows = compared({name: advantages[chosen] for name, advantages in found.items()}, returns)
    return numbers_of(games, n, {name: row | of_gradients[name] for name, row in rows.items()})


def stages(output: Path, size: Size, seed: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Train what is missing, and measure each stage of the policy."""
    policy: dict[int, Path | None] = {0: None}
    if later := [stage for stage in size.stages if stage]:
        save = [f"train_evaluation.{key}={value}" for key, value in (("n_iters", max(later)), ("save_every", 20))]
        # Its own critic reads the secret, so that its model has positions for one, which critics of it read.
        own = ["alg.policy.args.critic=separate", *KINDS["secret critic"]]
        run = train(output, "policy", [f"seed={seed}", *save, *own, *size.overrides])
        policy |= {stage: find_checkpoint(run, stage) / "model" for stage in later}
    for stage in size.stages:
        place, critics, n_games = output / f"stage_{stage}.json", dict[str, Any](), list[float]()
        if not place.is_file():
            for kind in size.kinds:
                overrides = [f"seed={seed}", *critic_overrides(size, policy[stage], kind)]
                run = train(output, f"{kind.replace(' ', '_')}_of_{stage}", overrides)
                loaded = {n: load_policy(run, n) for n in size.critics}
                critics |= {f"{kind} after {n}": each.policy_with_critic for n, each in loaded.items()}
                n_games = np.cumsum(read_iterations(run).column("rollout/n_episodes")).tolist()
            # Games that show secrets, if a critic reads them; others do not.
            best = "secret_critic" if "secret critic" in size.kinds else "critic"
            whose = load_policy(output / f"{best}_of_{stage}", max(size.critics))
            found = measured(whose, critics, size, seed)
            write_json(place, {**found, "games of critics": {n: n_games[n - 1] for n in size.critics}})
        yield stage, json.loads(place.read_text(encoding="utf-8"))


def show(name: str, found: Mapping[str, Any]) -> None:
    """Print the table of a player."""
    console, rows = Console(), found["estimators"]
    console.print(f"{name}, return {found['return']:.3f}, {found['states']} states")
    columns = {"correlation": "correlation", "error": "squared error"}
    if has_gradients := "gradient variance" in rows["to go, by turn"]:
        columns["gradient variance"] = "variance of the gradient (to go, by turn: 1)"
    columns["correlation gained"] = "more correlation than without the critic"
    table = Table("estimator", *columns.values(), box=table_style(console), pad_edge=False)
    for estimator, row in rows.items():
        cells = {key: format_number(row[key]) if key in row else "" for key in columns}
        for key in filter(row.__contains__, ("correlation", "correlation gained")):
            interval = (format_number(row[f"{key}/{end}"]) for end in ("low", "high"))
            cells[key] += f" [{', '.join(interval)}]"
        if has_gradients:
            relative = row["gradient variance"] / rows["to go, by turn"]["gradient variance"]
            cells["gradient variance"] = f"{relative:.3f}"
        table.add_row(estimator, *cells.values())
    console.print(table)


def plot(scripted: Mapping[str, Any], found: Mapping[int, Any], size: Size, output: Path) -> None:
    """Plot correlations with the truth, and errors, over lambda or the discount that does the same without a critic."""
    players = {"scripted player": scripted}
    players |= {f"policy after {stage} iterations": of_player for stage, of_player in found.items()}
    figure, all_axes = plain_figure(10, 3.5 * len(players), len(players), 2)
    for i, (title, of_player) in enumerate(players.items()):
        left, right = all_axes[2 * i : 2 * i + 2]
        _draw(left, of_player, size, "correlation")
        _draw(right, of_player, size, "error")
        left.set(title=title, ylabel="correlation with the true advantage")
        right.set(ylabel="mean squared error")
        right.legend(fontsize="xx-small", loc="center left")
    for axes in all_axes[-2:]:
        axes.set(xlabel="λ or discount")
    save_figure(figure, output)


def _draw(axes: Any, of_player: Mapping[str, Any], size: Size, key: str) -> None:
    """Draw a statistic of a player's estimators."""
    rows = of_player["estimators"]
    for i, name in enumerate(("total reward", "to go, by turn", "to go, group by turn")):
        axes.axhline(rows[name][key] or math.nan, color=f"C{i}", linestyle="--", label=name)
    discounts = [f"to go, by turn, discount {lambda_:g}" for lambda_ in LAMBDAS[:-1]]
    lines = {"to go, by turn, discounted": [*discounts, "to go, by turn"]}
    games = of_player.get("games of critics", {})
    for kind, n in itertools.product(size.kinds, size.critics) if games else ():
        lines[f"{kind}, {games[str(n)]:,.0f} games"] = [f"{kind} after {n}, lambda {lambda_:g}" for lambda_ in LAMBDAS]
    if not games:
        lines["exact critic"] = [f"exact critic, lambda {lambda_:g}" for lambda_ in LAMBDAS]
    for i, (label, names) in enumerate(lines.items()):
        of_kind = next((number for number, kind in enumerate(size.kinds) if label.startswith(f"{kind},")), 0)
        shade = {"color": "C1" if i == 0 else str(0.6 - 0.3 * ((i - 1) % max(len(size.critics), 1)))}
        marker = "so^d"[0 if i == 0 else 1 + of_kind]
        axes.plot(LAMBDAS, [rows[name][key] for name in names], marker=marker, label=label, **shade)
        if f"{key}/low" in rows[names[0]] and (i in (0, len(size.critics)) or not games):
            low, high = (
                np.array([rows[name][f"{key}/{end}"] for name in names], dtype=float) for end in ("low", "high")
            )
            axes.fill_between(LAMBDAS, low, high, alpha=0.12, **shade)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--output_path", type=Path, required=True, help="folder for runs, numbers and figure")
    parser.add_argument("--small", action="store_true", help="one policy, fewer games and states")
    parser.add_argument("--seed", type=int, default=0, help="seed of runs, games and continuations (default: 0)")
    args = parser.parse_args()
    size, output = SMALL if args.small else Size(), args.output_path.expanduser().absolute()
    output.mkdir(parents=True, exist_ok=True)
    scripted, found = measured_script(size, args.seed), dict[int, Any]()
    show("scripted player", scripted)
    write_json(output / "scripted.json", scripted)
    for stage, found[stage] in stages(output, size, args.seed):
        show(f"policy after {stage} iterations", found[stage])
    plot(scripted, found, size, output / "advantages.png")


if __name__ == "__main__":
    script.run(main)
