"""The code of ILQL's authors (Snell et al. 2022), out of a checkout of their repository, on the same log and model.

Their GPT-2 is a copy of that of transformers 4.16, which current versions cannot load. It is replaced by transformers'
own, with the attention (``eager``) that returns the weights that their loss logs.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2LMHeadModel, GPT2Model

from benchmarks.contestants import LEARNING_RATE, Setting
from benchmarks.offline import GAMMA, POLYAK_RATE, TAU, LogLoop, Row
from benchmarks.workloads import Workload
from rl4dialog.core.errors import DataError

SOURCE = "ILQL_SOURCE"
"""Environment variable with the folder of https://github.com/Sea-Snell/Implicit-Language-Q-Learning."""

SETTINGS: dict[str, Any] = {
    "alpha": POLYAK_RATE,
    "gamma": GAMMA,
    "tau": TAU,
    "double_q": True,
    # Imitation with equal weights, exp(beta A).
    "beta": 0.0,
    "exp_weights": True,
}


class OriginalILQL(LogLoop):
    """``PerTokenIQL`` with two Q heads, trained as in its authors' script: AdamW, then a soft update."""

    def __init__(self, setting: Setting, workload: Workload) -> None:
        super().__init__(setting, workload)
        self.model = self._build(setting).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)

    def _build(self, setting: Setting) -> Any:
        """The language model with heads, targets, ``get_loss`` and ``soft_update``."""
        self.language_model.set_attn_implementation("eager")
        separate = setting.critic == "separate"
        return _per_token_iql()(
            self.language_model,
            dataset_of(self.language_model.config.vocab_size),
            setting.device,
            **SETTINGS,
            seperate_policy=separate,
            seperate_target=separate,
        )

    def _step(self, rows: list[Row]) -> None:
        self.loss(rows)[0].backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.model.soft_update()

    def loss(self, rows: list[Row]) -> tuple[torch.Tensor, dict[str, Any]]:
        """Loss of a minibatch, and what is logged of it: pairs of a mean and the number of its tokens."""
        weights = {"awac_weight": 1.0, "v_loss_weight": 1.0, "q_loss_weight": 1.0}
        loss, logged, _ = self.model.get_loss(_batch(rows), **weights)
        return loss, logged


def dataset_of(n_tokens: int) -> Any:
    """What the model reads of a dataset: the size of the vocabulary."""
    return types.SimpleNamespace(tokenizer=types.SimpleNamespace(num_tokens=lambda: n_tokens), max_len=None)


def _batch(rows: list[Row]) -> dict[str, torch.Tensor]:
    """Minibatch as their ``collate`` makes it: states are positions, and the last one is the end."""
    actions = [flags.nonzero().flatten() - 1 for _, flags, _ in rows]
    ends = [torch.tensor([len(ids) - 1]) for ids, _, _ in rows]
    terminals = [torch.zeros(len(each) + 1, dtype=torch.long) for each in actions]
    for each in terminals:
        each[-1] = 1
    return {
        "tokens": pad_sequence([ids for ids, _, _ in rows], batch_first=True),
        "attn_mask": pad_sequence([torch.ones(len(ids)) for ids, _, _ in rows], batch_first=True),
        "state_idxs": pad_sequence([torch.cat(pair) for pair in zip(actions, ends, strict=True)], batch_first=True),
        "action_idxs": pad_sequence(actions, batch_first=True),
        "rewards": pad_sequence([rewards for _, _, rewards in rows], batch_first=True),
        "terminals": pad_sequence(terminals, batch_first=True, padding_value=1),
    }


def _per_token_iql() -> Any:
    source = Path(os.environ[SOURCE], "src")
    if not (source / "models/iql_model.py").is_file():
        raise DataError(f"{source} has no models/iql_model.py: name a checkout of Implicit-Language-Q-Learning")
    sys.path.insert(0, str(source))
    stand_in = types.ModuleType("models.gpt2_optional_final_ln")
    stand_in.GPT2LMHeadModel, stand_in.GPT2Model = GPT2LMHeadModel, GPT2Model  # type: ignore[attr-defined]
    sys.modules[stand_in.__name__] = stand_in
    from models.iql_model import PerTokenIQL  # type: ignore[import-not-found]

    return PerTokenIQL
