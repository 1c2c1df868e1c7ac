"""What is shown of a reply while it is generated."""

from typing import ClassVar

import pytest
import torch

from rl4dialog.features.serving.replies import stream_reply
from rl4dialog.policies.generation import SampledTokens
from rl4dialog.text.end_of_turn import EndOfTurn


class Pieces:
    """A tokenizer whose tokens are given texts; a broken character is one that lacks its second half."""

    added_tokens_decoder: ClassVar[dict] = {}

    def __init__(self, *pieces):
        self._pieces = pieces

    def __len__(self):
        return len(self._pieces)

    def convert_ids_to_tokens(self, ids):
        return [self._pieces[id] for id in ids]

    def decode(self, ids, skip_special_tokens=False):
        del skip_special_tokens
        return "".join(self._pieces[id] for id in ids)


def streamed(*pieces):
    """What is shown while a policy says these tokens one after another."""

    class Scripted:
        device = torch.device("cpu")
        end_of_turn = EndOfTurn(Pieces(*pieces), [], "<EOU>")

        def stream(self, obs, random, **kwargs):
            del obs, random, kwargs
            for id in range(len(pieces)):
                yield SampledTokens(torch.tensor([0]), torch.tensor([id]), torch.tensor([0.0]))

    policy = Scripted()
    *parts, last = stream_reply(policy, [3, 4, 5])
    assert last.finished and last.token_ids == parts[-1].token_ids == tuple(range(len(pieces)))
    assert [len(part.token_ids) for part in parts] == list(range(1, len(pieces) + 1))
    return [part.text for part in (*parts, last)]


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
def test_beginning_of_a_marker_or_a_character_is_held_back(pieces, expected):
    assert streamed(*pieces) == expected
