"""States of hand-made values, and a critic that knows its returns in guess_what."""

import copy
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from exact_guess_what import value
from runs import make_config

from rl4dialog.core.config import parse_config
from rl4dialog.core.types import Sample
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.rollouts.conversing import Begun
from rl4dialog.tasks.guess_what import QUESTIONS, THINGS, ConsistentPlayer
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.prompts import encode_reply
from rl4dialog.training.critic_measure import State

SAMPLE = Sample("a", "w1 <EOU>", ["w2"], {})


def states_of(values, turns=None):
    turns = [0] * len(values) if turns is None else turns
    return [State(SAMPLE, 0, Begun(), turn, v) for v, turn in zip(values, turns, strict=True)]


TINY_GAME = {
    "tokenizer__vocab_size": 400,
    "datapool": {"id": "guess_what", "args": {"n_train": 32, "n_val": 40, "n_test": 4}},
    "reward_fn": {"id": "outcome", "args": {"weights": {"success": 1.0}, "per_turn": -0.05}},
    "env__args": {"max_prompt_length": 160, "max_episode_length": 16, "max_turns": 8, "partner": {"id": "guess_what"}},
    "alg__args": {"n_steps": 16, "batch_size": 16, "gamma": 1.0, "credit": "turn"},
    "train_evaluation__eval_batch_size": 200,
}


def game_config(tmp_path, **changes):
    config = make_config(tmp_path, **copy.deepcopy({**TINY_GAME, **changes}))
    return parse_config(config, "test")


class Consistent:
    """In the place of a policy: `ConsistentPlayer`, who reads prompts, with a critic that knows its mean returns."""

    device, joins_turns, lockstep, settings = torch.device("cpu"), True, False, GenerationSettings()
    remembering_prompts = staticmethod(nullcontext)

    def __init__(self, parts):
        self.tokenizer = parts.tokenizer
        self.end_of_turn = EndOfTurn(parts.tokenizer, [parts.tokenizer.eos_token_id], parts.turn_marker)
        rows = SimpleNamespace(weight=torch.zeros(len(parts.tokenizer), 1))
        self.language_model = SimpleNamespace(get_input_embeddings=lambda: rows)

    def reply_limit(self):
        return 16

    def histories(self, ids, mask):
        texts = [self.tokenizer.decode(row[is_real.bool()]) for row, is_real in zip(ids, mask, strict=True)]
        return [[said.strip() for said in text.split(self.end_of_turn.marker)[:-1]] for text in texts]

    def generate(self, obs):
        found = []
        for history in self.histories(obs["prompt_ids"], obs["prompt_mask"]):
            player = ConsistentPlayer()
            player.reset({}, int(torch.randint(2**31, ())))
            found.append(encode_reply(self.tokenizer, player.say(history), None, 16))
        return Replies(obs["prompt_ids"], obs["prompt_mask"].bool(), *columns_of(found))

    def predict_sequence_values(self, replies):
        histories = self.histories(replies.prompt_ids, replies.prompt_mask)
        values = [value(asked_in(history), thing_after(history)) for history in histories]
        return torch.tensor(values)[:, None].expand(replies.response_ids.shape)


def columns_of(rows):
    batch = Replies.from_ids([[0]] * len(rows), rows)
    return batch.response_ids, batch.response_mask


def asked_in(history):
    texts = [question.text for question in QUESTIONS]
    return frozenset(texts.index(said) for said in history[1::2])


def thing_after(history):
    """Any thing that agrees with the answers."""
    answers = list(zip(history[1::2], history[2::2], strict=True))
    known = {question.text: question.things for question in QUESTIONS}
    return next(t for t in THINGS if all((t in known[said]) == (answer == "yes") for said, answer in answers))
