"""A streamed reply is the generated one, and what is shown of it on the way is never taken back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import make_env, make_policy, maskable_class_of
from transformers import PreTrainedTokenizerFast

from rl4dialog.policies.answering import PartialReply, stream_reply
from rl4dialog.policies.generation import SampledTokens
from rl4dialog.text.end_of_turn import EndOfTurn

PROMPT = [3, 4, 5]


@pytest.mark.parametrize(
    ("settings", "masked"),
    [({"temperature": 2.0}, False), ({"top_k": 5}, False), ({"do_sample": False}, False), ({"top_k": 5}, True)],
)
def test_streamed_reply_is_the_generated_one(
    model: Any, tokenizer: PreTrainedTokenizerFast, settings: dict[str, Any], masked: bool
) -> None:
    env = make_env(tokenizer, max_episode_length=12)
    policy = make_policy(env, model, critic="none", **({"policy_class": maskable_class_of(model)} if masked else {}))
    ids = torch.tensor([PROMPT])
    for seed in range(2):
        torch.manual_seed(seed)
        whole = policy.generate({"prompt_ids": ids, "prompt_mask": torch.ones_like(ids).bool()}, **settings)
        before = torch.get_rng_state()
        parts = list(stream_reply(policy, PROMPT, seed, **settings))
        assert torch.equal(torch.get_rng_state(), before)
        assert list(parts[-1].token_ids) == whole.response_ids[0].tolist()
        assert parts[-1].text == policy.end_of_turn.reply_text(whole.response_ids[0].tolist())
        assert [len(part.token_ids) for part in parts[:-1]] == list(range(1, whole.response_ids.shape[1] + 1))


def test_two_streams_do_not_disturb_each_other(model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    policy = make_policy(make_env(tokenizer, max_episode_length=12), model, critic="none")
    alone = [list(stream_reply(policy, PROMPT, seed, temperature=2.0))[-1] for seed in (0, 1)]
    streams = [stream_reply(policy, PROMPT, seed, temperature=2.0) for seed in (0, 1)]
    last: list[PartialReply | None] = [None, None]
    going = [0, 1]
    while going:
        for i in list(going):
            part = next(streams[i], None)
            if part is None:
                going.remove(i)
            else:
                last[i] = part
                assert torch.is_grad_enabled()
    assert last == alone


class Pieces:
    """A tokenizer whose tokens are given texts; a broken character is one that lacks its second half."""

    def __init__(self, *pieces: str) -> None:
        self._pieces = pieces

    def __len__(self) -> int:
        return len(self._pieces)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces[id] for id in ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        del skip_special_tokens
        return "".join(self._pieces[id] for id in ids)


def streamed(*pieces: str) -> list[str]:
    """What is shown while a policy says these tokens one after another."""

    class Scripted:
        device = torch.device("cpu")
        end_of_turn = EndOfTurn(Pieces(*pieces), [], "<EOU>")  # type: ignore[arg-type]

        def stream(self, obs: Any, random: Any, **kwargs: Any) -> Iterator[SampledTokens]:
            del obs, random, kwargs
            for id in range(len(pieces)):
                yield SampledTokens(torch.tensor([0]), torch.tensor([id]), torch.tensor([0.0]))

    policy: Any = Scripted()
    return [part.text for part in stream_reply(policy, PROMPT)]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (("yes", " <", "E", "OU>"), ["yes", "yes", "yes", "yes", "yes"]),
        (("1 <", " 2"), ["1", "1 < 2", "1 < 2"]),
        (("1 <",), ["1", "1"]),
        (("so ", "\ufffd"), ["so", "so", "so \ufffd"]),
        (("a", "<EOU>"), ["a", "a", "a"]),
    ],
)
def test_beginning_of_a_marker_or_a_character_is_held_back(pieces: tuple[str, ...], expected: list[str]) -> None:
    assert streamed(*pieces) == expected


def test_end_is_told_once() -> None:
    parts = list(
        stream_reply(
            SimpleNamespace(  # type: ignore[arg-type]
                device=torch.device("cpu"),
                end_of_turn=EndOfTurn(Pieces("a"), []),  # type: ignore[arg-type]
                stream=lambda obs, random, **kwargs: iter([SampledTokens(*[torch.tensor([0])] * 3)]),
            ),
            PROMPT,
        )
    )
    assert [part.finished for part in parts] == [False, True]
