"""Samples and prompts are a function of files, config and the start of the run, and of nothing else."""

import functools

import pytest
from data_files import POOLS
from feature_rows import rows_of_features
from feedback_files import mixed_feedback, write_feedback
from generated_pools import NUMBERS, SIZES, UNTESTED
from other_processes import assert_other_processes_make_the_same
from tiny import make_tokenizer

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.text.chat_template import ChatTemplate, parse_time
from rl4dialog.training.building.texts import build_pool

CLOCK = (
    "{{ strftime_now('%A %d %b %Y %H:%M') }} {% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MIXED = [{"id": "openers", "share": 0.5}, {"id": "small_talk", "args": {"n_train": 5}, "share": 0.5}]
WITHOUT_FILES = {
    "dummy_pool": {"prompt": "hello"},
    "random_numbers": {},
    "openers": {},
    "mixture": {"pools": MIXED},
    "rated_dialogues": {"dataset": "small_talk", "unit": "reply"},
    **rows_of_features("POOLS_WITHOUT_FILES"),
    **{name: dict.fromkeys(NUMBERS, 20) for name in SIZES if name not in UNTESTED},
}


def everything(folder):
    """All samples of all datapools; where prompts are chats, the template writes the time at which the run began."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CLOCK
    offered = {"render_chat": ChatTemplate(tokenizer, parse_time("2026-03-09T23:30:00+00:00"))}
    offered |= rows_of_features("OFFERED_TO_POOLS")
    pools = [*WITHOUT_FILES.items(), ("feedback", {"path": str(folder / "feedback")})]
    pools += rows_of_features("OTHER_POOLS_WITHOUT_FILES")
    pools += [(id, {**args, "path": str(folder / name)}) for name, (id, args, _) in POOLS.items()]
    assert {id for id, _ in pools} | {"hf_dataset", *UNTESTED} == {*DataPoolRegistry.ids()}
    for id, args in pools:
        if "format" in DataPoolRegistry.defaults(id) and id != "conversations":  # in which nothing comes before a reply
            args = {"format": "chat_template", **args}
        for split in ("train", "val", "test"):
            yield id, split
            for sample, weight in build_pool(id, {**args, "split": split}, **offered):
                prompt = str(sample.prompt_or_input_text)
                assert args.get("format") != "chat_template" or prompt.startswith("Monday 09 Mar 2026 23:30"), id
                yield sample, prompt, weight


@pytest.mark.long
def test_every_datapool_is_the_same_elsewhere(tmp_path):
    write_feedback(tmp_path / "feedback", mixed_feedback(20))
    for name, (_, _, write) in POOLS.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    assert_other_processes_make_the_same(functools.partial(everything, tmp_path))
