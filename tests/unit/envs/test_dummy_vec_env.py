"""Partners that wait for a server are asked by all environments of a process at once, however they are vectorized."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
from http_servers import Handler, Server
from tiny import make_env_kwargs

from rl4dialog.core.types import Prompt, PromptTurn, Sample
from rl4dialog.envs.vectorize import make_vec_env
from rl4dialog.partners.openai import OpenAIPartner

N_ENVS, N_TURNS = 4, 2
DIALOGUES = [Sample(i, Prompt([PromptTurn("w0", "\n")]), ["w1"], {"history": ["w0"]}) for i in range(N_ENVS)]


@pytest.mark.parametrize("first_speaker", ["sample", "partner"])
@pytest.mark.parametrize("vec_env", ["dummy", "blocks"])
def test_requests_of_all_environments_are_under_way_together(vec_env: str, first_speaker: str) -> None:
    together = threading.Barrier(N_ENVS, timeout=30)

    def answer(handler: Handler) -> None:
        is_reset = '"w2"' not in handler.body.decode()
        if not (vec_env == "dummy" and is_reset and episodes):  # openings in the middle of a step wait in line there
            together.wait()
        handler.send(json.dumps({"choices": [{"message": {"content": "w3"}}]}))

    with Server(answer) as server:
        partner = OpenAIPartner(server.url.replace("/reply", "/v1"), "m", retries=0)
        kwargs: dict[str, Any] = {"partner": partner, "first_speaker": first_speaker, "max_turns": N_TURNS}
        env = make_vec_env(
            make_env_kwargs(samples=DIALOGUES, max_prompt_length=20, **kwargs), N_ENVS, vec_env, n_workers=1
        )
        episodes: list[int] = []
        env.seed(0)
        env.reset()
        w2 = np.full((N_ENVS, 5), -1)
        w2[:, :2] = 5, 0
        for turn in range(2 * N_TURNS):
            if turn == N_TURNS - 1:
                episodes.append(1)
            _, _, dones, infos = env.step(w2)
            assert not any("error" in info for info in infos), infos
            assert dones.all() == (turn % N_TURNS == N_TURNS - 1)
        env.close()
    n_openings = 3 * N_ENVS if first_speaker == "partner" else 0
    assert len(server.requests) == 2 * N_TURNS * N_ENVS + n_openings
