"""Personas in the files of convogym, ConvAI2 and Synthetic-Persona-Chat, and pairs of them."""

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.features.personas.persona_chat import PersonaPair, PersonaPairs, distinct, read_personas

CONVOGYM = 'Fact 1,Fact 2,Fact 3\ni sail .,"i eat , a lot .",\ni knit .,i run .,i read .\n'
SELF = "1 your persona: i sail .\n2 your persona: i run .\n3 hi !\thello .\n1 your persona: i knit .\n2 hm\tho\n"
BOTH = "1 your persona: i sail .\n2 partner's persona: i knit .\n3 hi !\thello .\n4 and ?\tno .\n"
SYNTHETIC = (
    'user 1 personas,user 2 personas,Best Generated Conversation\n"I sail.\nI run.","I knit.","User 1: Hi!\n'
    'User 2: Hello!"\n"I read.","I sing.\n","User 1: Hi!"\n'
)


def write(folder, name, content):
    (folder / name).write_text(content, encoding="utf-8", newline="")
    return folder / name


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.csv", CONVOGYM, [(("i sail .", "i eat , a lot ."), None), (("i knit .", "i run .", "i read ."), None)]),
        ("x.txt", SELF, [(("i sail .", "i run ."), None), (("i knit .",), None)]),
        ("x.txt", BOTH, [(("i sail .",), ("i knit .",))]),
        ("x.csv", SYNTHETIC, [(("I sail.", "I run."), ("I knit.",)), (("I read.",), ("I sing.",))]),
    ],
)
def test_personas_are_read(tmp_path, name, content, expected):
    assert read_personas("train", write(tmp_path, name, content), None, 0) == expected


def test_splits_are_named_as_in_the_published_files(tmp_path):
    for name, fact in {"train_personas": "a", "test_personas": "b"}.items():
        write(tmp_path, f"{name}.csv", "Fact 1\n" + "".join(f"{fact}{i}\n" for i in range(10)))
    train, val, test = (read_personas(split, tmp_path, 0.2, 0) for split in ("train", "val", "test"))
    assert [len(each) for each in (train, val, test)] == [8, 2, 10]
    assert not {*train} & {*val} and {pair.first[0][0] for pair in [*train, *val]} == {"a"}
    with pytest.raises(DataError, match=r"has no split 'val' \(it has: train, test\).*held_out_share: 0.1"):
        read_personas("val", tmp_path, None, 0)


def test_text_files_of_a_folder_are_those_of_persona_chat(tmp_path):
    write(tmp_path, "valid_self_original.txt", SELF)
    write(tmp_path, "valid_both_original.txt", BOTH)
    assert len(read_personas("val", tmp_path, None, 0)) == 1
    with pytest.raises(DataError, match="has no CSV file, so held_out_share has no effect"):
        read_personas("val", tmp_path, 0.1, 0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "Fact 1,Fact 2\na,b\n , \n", r"x\.csv:3: the row has no facts"),
        ("x.csv", "Fact 1,Fact 2\na\n", r"x\.csv:2: 1 fields, but the first line has 2 columns"),
        ("x.csv", "persona\na\n", r"x\.csv:2: unknown columns \(persona\); expected Fact 1"),
        ("x.csv", SYNTHETIC.replace('"I read."', '""'), r"x\.csv:6: column 'user 1 personas' has no facts"),
        ("x.txt", "1 your persona: a\n2 hi\tho\n1 hi\tho\n", r"x\.txt:3: the dialogue has no 'your persona:' line"),
        ("x.txt", "1 your persona: a\n3 hi\tho\n", r"x\.txt:2: number 3 follows 1"),
    ],
)
def test_malformed_lines_are_named(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        read_personas("train", write(tmp_path, name, content), None, 0)


def test_facts_in_another_order_are_the_same_persona():
    pairs = [PersonaPair(("a", "b"), ("c",)), PersonaPair(("b", "a")), PersonaPair(("c", "a"))]
    assert distinct(pairs) == [("a", "b"), ("c",), ("c", "a")]


def prepare(folder, n_personas=5, split="train", **args):
    rows = "".join(f"p{i} a,p{i} b\n" for i in range(n_personas))
    (folder / "x.csv").write_text(f"Fact 1,Fact 2\n{rows}", encoding="utf-8")
    return [sample.meta_data or {} for sample, _ in PersonaPairs.prepare(split, folder / "x.csv", **args)]


def firsts(pool):
    return [(info["persona"][0][:2], info["partner_persona"][0][:2]) for info in pool]


def test_sample_has_both_personas_and_the_agents_in_its_prompt(tmp_path):
    prepare(tmp_path)
    (sample, _), *_ = PersonaPairs.prepare("train", tmp_path / "x.csv", "sequence", greeting="good day .")
    assert sample.meta_data == {
        "history": ["good day ."],
        "persona": ["p0 a", "p0 b"],
        "partner_persona": ["p1 a", "p1 b"],
    }
    assert sample.prompt_or_input_text == "p0 a p0 b<EOU>good day . <EOU>" and sample.references == []
    ((both, _),) = PersonaPairs.prepare("train", tmp_path / "x.csv", "sequence", max_size=1, persona_side="both")
    assert both.prompt_or_input_text.startswith("your persona: p0 a p0 b partner's persona: p1 a p1 b<EOU>")


def test_sequence_takes_each_persona_once_and_random_pairs_differ(tmp_path):
    assert firsts(prepare(tmp_path, order="sequence")) == [("p0", "p1"), ("p2", "p3")]
    assert firsts(prepare(tmp_path, order="sequence", max_size=1)) == [("p0", "p1")]
    rows = "".join(f'"p{i} a","p{i - 1} a"\n' for i in range(1, 4))
    (tmp_path / "x.csv").write_text(f"user 1 personas,user 2 personas\n{rows}", encoding="utf-8")
    pool = PersonaPairs.prepare("train", tmp_path / "x.csv", "sequence")
    assert firsts([sample.meta_data or {} for sample, _ in pool]) == [("p1", "p0"), ("p2", "p1"), ("p3", "p2")]
    pairs = firsts(prepare(tmp_path, max_size=400))
    assert len(pairs) == 400 and len(set(pairs)) == 20 and all(one != other for one, other in pairs)
    assert pairs == firsts(prepare(tmp_path, max_size=400)) != firsts(prepare(tmp_path, max_size=400, seed=1))
    assert len(prepare(tmp_path)) == 5


def test_too_few_personas_and_a_blank_greeting_are_refused(tmp_path):
    with pytest.raises(DataError, match="has 1 persona in this split; pairs need at least two different ones"):
        prepare(tmp_path, n_personas=1)
    with pytest.raises(DataError, match="no samples in split"):
        prepare(tmp_path, n_personas=1, order="sequence")
    with pytest.raises(DataError, match="greeting is blank"):
        prepare(tmp_path, greeting=" ")
