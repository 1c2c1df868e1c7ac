"""Which conversations filtered behaviour cloning keeps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl4dialog.algorithms.offline.bc import FilteredBC
from rl4dialog.core.errors import ConfigError
from tests.offline import make_learner, make_log, marked_tokenizer
from tests.tiny import make_gpt2


class Log:
    """A log, of which only the returns are read."""

    def __init__(self, returns: Any) -> None:
        self.returns = np.asarray(returns, dtype=np.float32)

    def __len__(self) -> int:
        return len(self.returns)


def kept(returns: Any, top_share: float | None = None, min_return: float | None = None) -> list[int]:
    settings: Any = SimpleNamespace(top_share=top_share, min_return=min_return)
    return FilteredBC.select(settings, Log(returns)).tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("returns", "share", "expected"),
    [
        ([3.0, -1.0, 2.0, 5.0], 0.5, [0, 3]),
        ([3.0, -1.0, 2.0, 5.0], 0.25, [3]),
        ([1.0, 2.0, 2.0, 2.0], 0.5, [1, 2]),  # of equal ones, the first
    ],
)
def test_share_with_the_highest_returns_is_kept_in_order(returns: Any, share: float, expected: list[int]) -> None:
    assert kept(returns, share) == expected


@pytest.mark.parametrize(("share", "n"), [(0.29, 29), (0.57, 57), (0.295, 29), (0.99, 99)])
def test_share_is_not_cut_by_rounding(share: float, n: int) -> None:
    assert kept(np.arange(100), share) == list(range(100 - n, 100))


def test_returns_from_the_lowest_one_on_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    assert kept([3.0, -1.0, 2.0, 5.0], min_return=2.0) == [0, 2, 3] and not caplog.text
    assert kept([3.0, -1.0], min_return=-1.0) == [0, 1]
    assert "alg.args.min_return: -1 leaves out no conversation" in caplog.text
    with pytest.raises(ConfigError, match="min_return is 6, but the highest return of the log is 5; lower it"):
        kept([3.0, 5.0], min_return=6.0)


def test_only_what_is_kept_is_learned(tmp_path: Path) -> None:
    model = make_gpt2(marked_tokenizer())
    learner = make_learner(FilteredBC, make_log(tmp_path, model), model, top_share=0.4)
    assert learner.kept.tolist() == [1, 2]  # with the returns 3.5 and 2
    learner._draw_batches()
    assert {int(number) for batch in learner._batches for number in batch} == {1, 2}
    assert learner.logger.name_to_value["rollout/logged_return"] == pytest.approx(2.75, abs=0.75)
