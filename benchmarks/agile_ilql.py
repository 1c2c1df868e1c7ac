"""AgileRL's port of the code of ILQL's authors, from a folder with its packages, on the same log and model.

AgileRL has its own GPT-2, with an additional activation in each layer, heads with two hidden layers, and such a head in
place of the language model's. The contestant has the model and the heads of the others in AgileRL's modules, so that
all compute the same.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.contestants import Setting
from benchmarks.offline import head
from benchmarks.original_ilql import SETTINGS, OriginalILQL, dataset_of
from rl4dialog.core.errors import DataError

FOLDER = "AGILERL_FOLDER"
"""Environment variable with a folder made by ``pip install --no-deps --target FOLDER`` and :data:`PACKAGES`."""
PACKAGES = ("agilerl", "agilerl-arena", "tensordict", "pyvers", "lazy-loader")


class AgileILQL(OriginalILQL):
    """``ILQL`` with two Q heads. It always has a policy, a critic and a target of their own."""

    def _build(self, setting: Setting) -> Any:
        model = self.language_model
        width, n_tokens = model.config.n_embd, model.config.vocab_size
        theirs = _ilql()(
            dataset_of(n_tokens),
            {
                "vocab_size": n_tokens,
                "n_layer": model.config.n_layer,
                "n_embd": width,
                "n_head": model.config.n_head,
                "dim_feedfwd": 4 * width,
                "block_size": model.config.n_positions,
                "activation": "GELU",
                "dropout": 0.0,
                "layer_norm_eps": model.config.layer_norm_epsilon,
                "min_layers": 1,
                "max_layers": model.config.n_layer,
                "bias": True,
            },
            **SETTINGS,
            device=setting.device,
        )
        for gpt in (theirs.model, theirs.actor):
            _make_equal(gpt, model)
        theirs.q, theirs.target_q, theirs.q2, theirs.target_q2 = (head(width, n_tokens) for _ in range(4))
        theirs.v, theirs.pi = head(width, 1), theirs.actor.lm_head
        theirs.hard_update()
        self.language_model = theirs.actor
        return theirs.to(setting.device)


@torch.no_grad()
def _make_equal(gpt: Any, model: Any) -> None:
    """Turn AgileRL's GPT-2 into that of transformers, with the same weights."""
    for block in gpt.transformer["h"]:
        block.mlp.model.mlp_activation_1 = nn.GELU(approximate="tanh")
        block.mlp.model.mlp_activation_output = nn.Identity()
    for own, (name, given) in zip(gpt.parameters(), model.named_parameters(), strict=True):
        is_product = given.ndim == 2 and ".h." in name  # transformers keeps these transposed
        own.copy_(given.T if is_product else given)


def _ilql() -> Any:
    folder = Path(os.environ.get(FOLDER, ""))
    if not (folder / "agilerl/algorithms/ilql.py").is_file():
        raise DataError(
            f"{folder} has no agilerl/algorithms/ilql.py: name a folder that was made by "
            f"`pip install --no-deps --target FOLDER {' '.join(PACKAGES)}`"
        )
    sys.path.append(str(folder))
    # All algorithms are imported with the package, and need packages for games.
    package = types.ModuleType("agilerl.algorithms")
    package.__path__ = [str(folder / "agilerl/algorithms")]
    sys.modules[package.__name__] = package
    return importlib.import_module("agilerl.algorithms.ilql").ILQL
