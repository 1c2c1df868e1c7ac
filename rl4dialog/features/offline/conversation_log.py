"""Logged conversations as token ids: encoded once, stored in the cache, and read from disk as they are needed."""

from __future__ import annotations

import itertools
import json
import mmap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from datasets.table import InMemoryTable

from rl4dialog.core.cache import cached_folder
from rl4dialog.core.errors import DataError
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, Dialogue, Frame, Turn
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.functional.replies import Replies, Row, joined_rows
from rl4dialog.rollouts.learned_turns import LearnedTurn, Limits, learned_turns
from rl4dialog.text.end_of_turn import EndOfTurn

_FILE, _COUNTS_FILE = "conversations.arrow", "counts.json"
_ROWS_AT_ONCE = 1000
REPLIES = "replies"
CUT_REPLIES = "replies without their end, which was cut"
_WITHOUT_REWARD = "conversations without a reward, which counts as 0"
CONVERSATIONS_WITH_DROPS = "conversations whose first utterances were dropped from prompts"
_SCHEMA = pa.schema(
    {
        "ids": pa.list_(pa.int32()),  # of all rows, one after the other
        "is_agents": pa.list_(pa.bool_()),
        "row_lengths": pa.list_(pa.int32()),
        "prompt_lengths": pa.list_(pa.int32()),
        "turns": pa.list_(pa.int32()),  # of the agent's tokens, like the next one
        "rewards": pa.list_(pa.float32()),
        "terminated": pa.bool_(),
        "n_tokens": pa.int32(),
        "return": pa.float32(),
    }
)


@dataclass(frozen=True)
class ConversationEncoder:
    """Turns conversations into rows of token ids.

    A conversation that is not terminated ends with one token more, which no loss counts: the state before it is the
    one after the last logged token, whose value continues the return.
    """

    end: EndOfTurn  # detects the end of a reply, and has the tokenizer
    limits: Limits  # maximum lengths
    frame: Frame  # markup around the utterances
    rules: ConversationRules  # how much the model reads
    tokenizer_hash: str  # hash of the tokenizer; logged ids are used if theirs is the same, and texts otherwise
    join_turns: bool = True  # whether the turns of a conversation are one row; otherwise each has its own
    in_encoder: bool = False  # whether an encoder reads the prompts
    # Numbers of conversations and replies, and of what was cut or left out, by name.
    counts: Counter[str] = field(default_factory=Counter)

    def encode(self, dialogue: Dialogue) -> dict[str, Any]:
        """Encode a conversation as a record of the store."""
        said = self._said(dialogue)
        assert dialogue.prompt is not None
        turns = learned_turns(
            dialogue.prompt, said, self.end, self.limits, self.frame, self.rules, in_encoder=self.in_encoder
        )
        own = said[::2]
        rewards = [r for turn, known in zip(turns, own, strict=False) for r in _token_rewards(known, turn.reply)]
        replies = [turn for turn in turns if turn.reply]
        n_logged, continues = len(rewards), not dialogue.terminated
        if continues and turns[-1].reply:  # the partner has not answered, so there is no further state
            continues = False
            self.counts["conversations that were cut before the partner's answer, and count as terminated"] += 1
        if continues:
            replies = [*replies, LearnedTurn(turns[-1].prompt, [0], False, turns[-1].n_dropped)]
            rewards.append(0.0)
        rows = [Row(turn.prompt, turn.reply) for turn in replies]
        if self.join_turns:
            rows = joined_rows(rows)
        self.counts["conversations"] += 1
        self.counts[_WITHOUT_REWARD] += not dialogue.has_reward
        self.counts[REPLIES] += len(own)
        self.counts[CUT_REPLIES] += sum(turn.is_cut for turn in turns)
        self.counts[CONVERSATIONS_WITH_DROPS] += turns[-1].n_dropped > 0
        self.counts["replies with logged token ids"] += sum(turn.ids is not None for turn in own)
        return {
            "ids": [id for row in rows for id in row.ids],
            "is_agents": [flag for row in rows for flag in [*[False] * len(row.prompt), *row.is_agents]],
            "row_lengths": [len(row.prompt) + len(row.response) for row in rows],
            "prompt_lengths": [len(row.prompt) for row in rows],
            "turns": [number for number, turn in enumerate(replies) for _ in turn.reply],
            "rewards": rewards,
            "terminated": not continues,
            "n_tokens": n_logged,
            "return": sum(rewards),
        }

    def _said(self, dialogue: Dialogue) -> list[Turn]:
        """What was said from the agent's first reply on, with the token ids that are those of this tokenizer."""
        said, n_known = dialogue.said, len(self.end.tokenizer)
        if not any(turn.speaker == AGENT for turn in said):
            raise DataError(f"conversation {dialogue.id!r} has no utterance of the agent, so there is nothing to learn")
        for number, turn in enumerate(said):
            if (turn.speaker == AGENT) != (number % 2 == 0):
                raise DataError(
                    f"conversation {dialogue.id!r}: utterance {dialogue.n_given + number} should be the "
                    f"{('agent', 'partner')[number % 2]}'s, because the sides take turns; join utterances of one side"
                )
        if dialogue.tokenizer != self.tokenizer_hash:
            return [replace(turn, ids=None) for turn in said]
        if any(not 0 <= id < n_known for turn in said for id in turn.ids or ()):
            raise DataError(f"conversation {dialogue.id!r} has token ids beyond the vocabulary of {n_known} tokens")
        return [*said]


class ConversationLog:
    """Tokenized conversations on disk."""

    def __init__(self, folder: Path) -> None:
        self.hash = folder.name.rpartition("-")[2]  # of the conversations and the encoder's settings
        with (folder / _FILE).open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._table = pa.ipc.open_stream(pa.py_buffer(self._mapped)).read_all()
        # Without a fingerprint, datasets would hash a copy of the whole table.
        self._dataset = Dataset(InMemoryTable(self._table), fingerprint=self.hash).with_format("numpy")
        self.counts: dict[str, int] = json.loads((folder / _COUNTS_FILE).read_text(encoding="utf-8"))
        # Logged tokens of the agent in each conversation, and the sum of its rewards. Shape (n,).
        self.n_tokens = self._of_all(lambda batch: batch["n_tokens"].to_numpy())
        self.returns = self._of_all(lambda batch: batch["return"].to_numpy())

    @classmethod
    def build(
        cls, conversations: Callable[[], Iterable[Dialogue]], encoder: ConversationEncoder, key: Mapping[str, Any]
    ) -> ConversationLog:
        """Encode conversations, or find them in the cache under a key, as `cached_folder` does."""
        return cls(cached_folder("conversations", key, lambda folder: _write(folder, conversations(), encoder)))

    def __len__(self) -> int:
        return len(self.n_tokens)

    @property
    def n_without_reward(self) -> int:
        """Number of conversations for which no reward is known, so their return is 0."""
        return self.counts.get(_WITHOUT_REWARD, 0)

    @cached_property
    def n_replies(self) -> np.ndarray:
        """Number of logged replies of each conversation. Shape (n,)."""

        def of_batch(batch: pa.RecordBatch) -> np.ndarray:
            turns = batch["turns"]
            last = turns.flatten().to_numpy()[turns.offsets.to_numpy()[1:] - turns.offsets[0].as_py() - 1]
            # The state after a conversation that was cut counts as a turn.
            return last + batch["terminated"].to_numpy(zero_copy_only=False).astype(np.int64)

        return self._of_all(of_batch)

    def replies(self, numbers: np.ndarray) -> Replies:
        """Conversations as one or more rows each, in order, with ``episode``, ``turn`` and ``rewards``.

        ``episode`` is the index of the conversation. ``loss_weights`` is 1 at logged tokens, and 0 at the token after
        the end of a conversation that is not terminated.
        """
        records = self._dataset[numbers.tolist()]
        self._release()
        rows, episodes, weights = [], [], []
        for number, (index, ids) in enumerate(zip(numbers.tolist(), records["ids"], strict=True)):
            ends = np.cumsum(records["row_lengths"][number])[:-1]
            flags = np.split(records["is_agents"][number], ends)
            for row, flag, n in zip(np.split(ids, ends), flags, records["prompt_lengths"][number], strict=True):
                rows.append(Row(row[:n].tolist(), row[n:].tolist(), flag[n:].tolist()))
                episodes.append(index)
            of_tokens = np.ones(len(records["rewards"][number]), dtype=np.float32)
            if not records["terminated"][number]:
                of_tokens[-1] = 0
            weights.append(of_tokens)
        replies = Replies.from_rows(rows)
        replies.episode = torch.tensor(episodes)
        replies.turn = replies.scattered(np.concatenate(records["turns"]).astype(np.int64))
        replies.rewards = replies.scattered(np.concatenate(records["rewards"]))
        replies.loss_weights = replies.scattered(np.concatenate(weights))
        return replies

    def _of_all(self, numbers_of: Callable[[pa.RecordBatch], np.ndarray]) -> np.ndarray:
        """Numbers of all conversations, read batch by batch. Shape (n,)."""
        parts = []
        for batch in self._table.to_batches():
            parts.append(numbers_of(batch).copy())
            self._release()
        return np.concatenate(parts)

    def _release(self) -> None:
        """Let the operating system count the pages that were read as its own cache, not as memory of the process."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)


def _token_rewards(turn: Turn, reply: Sequence[int]) -> list[float]:
    """Rewards of a reply's tokens; what was paid for tokens that were cut is paid on the last one."""
    rewards = [0.0] * len(reply)
    for i, reward in enumerate(turn.token_rewards or ()):
        rewards[min(i, len(reply) - 1)] += reward
    rewards[-1] += turn.reward
    return rewards


def _write(folder: Path, conversations: Iterable[Dialogue], encoder: ConversationEncoder) -> None:
    n_written = 0
    with pa.OSFile(str(folder / _FILE), "wb") as file, pa.ipc.new_stream(file, _SCHEMA) as writer:
        records = map(encoder.encode, conversations)
        while chunk := list(itertools.islice(records, _ROWS_AT_ONCE)):
            writer.write_batch(pa.RecordBatch.from_pylist(chunk, schema=_SCHEMA))
            n_written += len(chunk)
    if not n_written:
        raise DataError("the datapool has no conversations in split 'train'")
    counts = {name: n for name, n in encoder.counts.items() if n}
    (folder / _COUNTS_FILE).write_text(json.dumps(counts), encoding="utf-8")


class OfflineSampler:
    """Minibatches of whole conversations in random order, each conversation once per epoch.

    They have about ``batch_size`` agent tokens; ``n_tokens`` are those of each conversation. Shape (n,).

    Conversations of similar length are not grouped: where length goes with reward, as in games that a good player ends
    early, such minibatches differ from each other so much that Adam learns another mean. Padding is saved by splitting
    a minibatch by length. The state is two integers.
    """

    def __init__(self, n_tokens: np.ndarray, batch_size: int, seed: int) -> None:
        self._n_tokens, self._batch_size, self._seed = n_tokens, batch_size, seed
        self._epoch = self._position = 0
        self._begin_epoch()

    @property
    def epoch(self) -> float:
        """Passes over the log so far."""
        return self._epoch + self._position / len(self._batches)

    def next(self) -> np.ndarray:
        """Indices of the next minibatch's conversations. Shape (n,)."""
        if self._position == len(self._batches):
            self._epoch, self._position = self._epoch + 1, 0
            self._begin_epoch()
        start, end = self._batches[self._position]
        self._position += 1
        return self._order[start:end]

    def first_minibatches(self) -> np.ndarray:
        """Number of the minibatch of the first epoch that each conversation is in. Shape (n,)."""
        first = OfflineSampler(self._n_tokens, self._batch_size, self._seed)
        found = np.empty(len(self._n_tokens), dtype=np.int64)
        for number, (start, end) in enumerate(first._batches):
            found[first._order[start:end]] = number
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state, as JSON values."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch = int(state["epoch"])
        self._begin_epoch()
        self._position = int(state["position"])

    def _begin_epoch(self) -> None:
        random = np.random.default_rng(derive_seed(self._seed, "offline", str(self._epoch)))
        self._order = random.permutation(len(self._n_tokens)).astype(np.int32)
        tokens = np.cumsum(self._n_tokens[self._order], dtype=np.int64)
        n_batches = max(1, round(int(tokens[-1]) / self._batch_size))
        wanted = np.arange(1, n_batches) * tokens[-1] / n_batches
        cuts = np.unique([0, *np.searchsorted(tokens, wanted), len(tokens)])
        self._batches = [(int(a), int(b)) for a, b in itertools.pairwise(cuts)]
