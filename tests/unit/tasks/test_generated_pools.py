"""What holds for every datapool that generates its samples; other processes are in `tests/invariants`."""

import pickle
import random

import pytest
from feature_rows import rows_of_features
from generated_pools import SIZES, UNTESTED

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import ConfigError, DataError

POOLS = sorted(SIZES.keys() - UNTESTED)


def pool(id, split="train", n=30, **args):
    sizes = {} if n is None else {"n_train": n, "n_val": n, "n_test": n}
    return DataPoolRegistry.resolve(id).prepare(split, **sizes, **args)


def samples(id, split="train", n=30, **args):
    return [sample for sample, _ in pool(id, split, n, **args)]


@pytest.mark.parametrize("id", POOLS)
def test_sizes_are_those_promised(id):
    found = [len({str(sample.id) for sample, _ in pool(id, split, None)}) for split in ("train", "val", "test")]
    if id == "small_talk":  # several samples of each dialogue
        assert [len(pool(id, split, None, samples="dialogues")) for split in ("train", "val", "test")] == SIZES[id]
    else:
        assert found == SIZES[id]


@pytest.mark.parametrize("id", POOLS)
def test_same_seed_same_samples_and_other_seeds_and_splits_differ(id):
    found = {(split, seed): samples(id, split, seed=seed) for split in ("train", "val", "test") for seed in (0, 1)}
    assert found["train", 0] == samples(id)
    texts = {
        tuple((str(each.prompt_or_input_text), *each.references, *(each.meta_data or {}).get("continuation", ()))
              for each in split)
        for split in found.values()
    }  # fmt: skip
    assert len(texts) == 6


@pytest.mark.parametrize("id", POOLS)
def test_a_larger_number_keeps_the_first_samples(id):
    few = samples(id, n=10)
    assert samples(id, n=300)[: len(few)] == few


@pytest.mark.parametrize("id", POOLS)
def test_global_random_state_is_untouched(id):
    before = random.getstate()
    list(pool(id, n=5).conversations())
    assert random.getstate() == before


@pytest.mark.parametrize("id", POOLS)
def test_formats_have_their_markup(id):
    def render(messages):
        return "".join(f"[{message['role']}]{message['content']}" for message in messages) + "[assistant]"

    chat, plain = pool(id, format="chat_template", render_chat=render), pool(id)
    said = (chat[0][0].meta_data or {})["history"][-1]
    assert chat[0][0].prompt_or_input_text.endswith(f"[user]{said}[assistant]")
    assert plain[0][0].prompt_or_input_text.endswith(f"{said} <EOU>")
    assert (chat.end_of_turn, plain.end_of_turn) == (None, "<EOU>")
    assert (chat.frame().to_partner, chat.frame().to_agent) == ("[user]", "[assistant]")
    assert [sample.references for sample, _ in chat] == [sample.references for sample, _ in plain]
    with pytest.raises(DataError, match="format 'chat_template' needs a tokenizer"):
        pool(id, format="chat_template")


@pytest.mark.parametrize("id", POOLS)
def test_players_follow_their_seed_and_can_be_sent_to_workers(id):
    found = pool(id, "test")
    meta_data = found[0][0].meta_data
    n_random = 0
    for new_player in pickle.loads(pickle.dumps(found.players)).values():
        said = []
        for seed in (3, 3, *range(4, 12)):
            player = new_player()
            player.reset(meta_data, seed)
            said.append([player.say(meta_data["history"]) for _ in range(6)])
        assert said[0] == said[1]
        n_random += any(each != said[0] for each in said)
    assert n_random >= len(found.players) - 1, "but for one that always begins alike"


@pytest.mark.parametrize("id", POOLS)
def test_unknown_split_is_an_error(id):
    with pytest.raises(DataError, match="unknown split 'dev'"):
        pool(id, "dev", None)


@pytest.mark.parametrize(
    ("id", "args"),
    [
        *((id, {name: value}) for id in POOLS for name, value in (("n_train", -1), ("n_val", 2.5), ("n_test", True))),
        *((id, {"n_trains": 3}) for id in POOLS),
        *((id, {"n_train": 0}) for id in POOLS if id != "small_talk"),
        ("get_acquainted", {"n_turns": 0}),
        ("guess_what", {"consistent_share": float("nan")}),
        *rows_of_features("WRONG_POOL_ARGUMENTS"),
    ],
)
def test_arguments_of_a_config_have_names_types_and_bounds(id, args):
    with pytest.raises(ConfigError, match=next(iter(args))):
        DataPoolRegistry.check(id, args)
