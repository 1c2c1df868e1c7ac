import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rl4dialog.cli import main
from rl4dialog.core.config import load_config
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.yaml_loader import flatten
from rl4dialog.data.guessed_columns import read_table
from rl4dialog.training.building.components import import_and_check
from rl4dialog.training.new_config import RECIPES, TINY_MODEL, config_text, partner_text


def write_csv(folder, header, *rows):
    path = folder / "table.csv"
    path.write_text("\n".join([header, *(rows or ["how are you today ?,fine,x"])]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("header", "prompt", "reply"),
    [
        ("question,answer,topic", "question", "answer"),
        ("Instruction,output,x", "Instruction", "output"),
        ("prompt,n,m", "prompt", None),
        ("what,reference", "what", "reference"),
        ("id,Customer,Agent", "Customer", "Agent"),
        ("agent,question,answer", "question", "answer"),
        ("n,user,bot", "user", "bot"),
        ("instruction,input,response", "instruction", "response"),
        ("prompt,agent", "prompt", None),
        ("conversation,user,bot", "user", "bot"),  # words, and no list of messages
        ("Customer message,Agent reply,CSAT", "Customer message", "Agent reply"),
        ("agentText,visitorText", "visitorText", "agentText"),
        ("Frage,Antwort", "Frage", "Antwort"),
        ("message,our answer,x", "message", "our answer"),
    ],
)
def test_columns_are_guessed_from_usual_names(tmp_path, header, prompt, reply):
    row = ",".join(["some words"] * len(header.split(",")))
    table = read_table(write_csv(tmp_path, header, row))
    assert table.columns == {"prompt": prompt, "references": reply} and table.guessed


def test_dialogues_are_found(tmp_path):
    path = tmp_path / "talk.jsonl"
    talk = [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "hi"}]
    path.write_text(json.dumps({"messages": talk}) + "\n", encoding="utf-8")
    assert read_table(path).columns == {"dialogue": "messages"}
    config = yaml.safe_load(config_text(read_table(path), "config.yml"))
    assert config["datapool"]["id"] == "jsonl" and config["datapool"]["args"]["columns"] == {"dialogue": "messages"}


def test_dialogues_in_cells_of_a_csv_are_found(tmp_path):
    talk = [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "hi"}]
    cell = json.dumps(talk, indent=1).replace('"', '""')
    table = read_table(write_csv(tmp_path, "id,conversation", f'1,"\n {cell}"'))
    assert table.columns == {"dialogue": "conversation"} and table.n_prompt_words > 1
    args = yaml.safe_load(config_text(table, "config.yml"))["datapool"]["args"]
    assert args["columns"] == {"dialogue": "conversation"}


@pytest.mark.parametrize(("n_rows", "share"), [(1000, 0.1), (450, 0.12), (250, 0.2), (210, 0.24), (20, 0.25)])
def test_enough_rows_are_held_out_for_an_interval(tmp_path, n_rows, share):
    table = read_table(write_csv(tmp_path, "prompt,reply", *["how are you ?,fine"] * n_rows))
    assert yaml.safe_load(config_text(table, "config.yml"))["datapool"]["args"]["held_out_share"] == share


def test_a_model_without_chat_template_first_learns_the_replies(tmp_path):
    table = read_table(write_csv(tmp_path, "prompt,reply", "how are you ?,fine"))
    (tmp_path / "model").mkdir()
    for tokenizer, kind in ({}, "eou"), ({"chat_template": "..."}, "chat_template"):
        (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        config = yaml.safe_load(config_text(table, "config.yml", str(tmp_path / "model")))
        assert config["datapool"]["args"]["format"] == kind and "lora" in config
        assert config["warm_start"]["keep_best"] and config["warm_start"]["n_epochs"] == (100 if kind == "eou" else 3)
        rewarded = yaml.safe_load(config_text(table, "config.yml", str(tmp_path / "model"), "length_penalty"))
        assert ("warm_start" in rewarded) is (kind == "eou"), "replies are imitated first if they are all there is"
    with pytest.raises(ConfigError, match=r"--model \./none: there is no such folder"):
        config_text(table, "config.yml", "./none")


def test_what_is_not_used_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    talk = [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "hi", "reward": 1.0}]
    Path("talk.jsonl").write_text(json.dumps({"id": 1, "messages": talk}) + "\n", encoding="utf-8")
    assert main(["init", "--data", "talk.jsonl"]) == 0
    said = capsys.readouterr().out
    assert "Columns that it does not use: id.\n" in said and "It does not use the rewards of the log; docs/" in said


def test_lengths_come_from_the_data(tmp_path):
    rows = ["w " * 10 + ",x"] * 99 + ["w " * 400 + ",x"]
    config = yaml.safe_load(config_text(read_table(write_csv(tmp_path, "prompt,reply", *rows)), "config.yml"))
    assert config["env"]["args"] == {"max_prompt_length": 80, "max_episode_length": 32}
    long = read_table(write_csv(tmp_path, "prompt,reply", *["w " * 100 + ",x"] * 3))
    assert yaml.safe_load(config_text(long, "config.yml"))["env"]["args"]["max_prompt_length"] == 256
    tiny = yaml.safe_load(config_text(long, "config.yml", TINY_MODEL))
    assert tiny["env"]["args"]["max_prompt_length"] == 320


def test_chat_template_has_room_in_the_prompt_limit(tmp_path):
    """The default model opens with a system message of 25 tokens, and marks both sides of every message."""
    opening = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    talk = [{"role": role, "content": "ok then"} for role in ("user", "assistant") * 8]
    path = tmp_path / "talk.jsonl"
    for said, n_words in (talk[:2], 2), (talk, 30):
        path.write_text((json.dumps({"messages": said}) + "\n") * 3, encoding="utf-8")
        table = read_table(path)
        limit = yaml.safe_load(config_text(table, "config.yml"))["env"]["args"]["max_prompt_length"]
        n_markup = len(re.findall(r"\w+|[^\w\s]|\n", opening)) + 7 * len(said)
        assert table.n_messages == len(said) - 1 and limit >= n_words + n_markup


def test_html_and_the_order_of_utterances_are_said(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ask = ["init", "--data", "table.csv", "--overwrite"]
    for reply, said in ("<p>fine</p>", "HTML in 9 of 9 samples, such as </p>: "), ("1 < 2 & 3 > 2", ""):
        write_csv(tmp_path, "prompt,reply", *[f"how are you ?,{reply}"] * 9)
        assert main(ask) == 0
        out = capsys.readouterr().out
        assert said in out and ("HTML" in out) is bool(said)
    for time, is_known in ("2025-03-0{}", True), ("{}. März", False):
        rows = [f"{i // 2},{time.format(1 + i % 2)},{('user', 'bot')[i % 2]},some words" for i in range(8)]
        write_csv(tmp_path, "chat,sent,from,text", *rows)
        assert main(ask) == 0
        assert ("Utterances are in the order of the file: " in capsys.readouterr().out) is not is_known


def made_table(kind, folder):
    """A table as a shop exports it: with copies, an empty cell and a second language."""
    asked = [f"wo ist Paket {i % 39} ?" if i % 3 else f"Where is order {i % 39}, please?" for i in range(60)]
    said = ["es kommt morgen ." if i % 3 else "it comes\ntomorrow ." for i in range(60)]
    pairs = [*zip(asked, said, strict=True)]
    talks = [json.dumps([{"from": "customer", "text": q}, {"from": "agent", "text": a}]) for q, a in pairs]
    rows = {
        "two_languages": [
            ["id", "Customer message", "Agent reply", "CSAT"],
            *([i, *p, 1 + i % 5] for i, p in enumerate(pairs)),
        ],
        "dialogues": [["id", "dialogue"], *enumerate([*talks, ""])],
        "turns": [["customer_1", "helper_1", "customer_2", "helper_2"], *([*p, *p] for p in pairs)],
        "utterances": [
            ["chat", "time", "from", "text"],
            *([i, n, "ab"[n], p[n]] for i, p in enumerate(pairs) for n in (0, 1)),
        ],
        "long": [["question", "answer"], *([q, f"{a} " * 60] for q, a in pairs)],
        "ten": [["they said", "we said"], *pairs[:10]],
    }[kind]
    with open(folder / "table.csv", "w", newline="", encoding="cp1252") as file:
        csv.writer(file, delimiter=";").writerows(rows)


LEAKS = r"(\d+) different prompts, 0 of which are in train or val\."


@pytest.mark.parametrize("kind", ["two_languages", "dialogues", "turns", "utterances", "long", "ten"])
def test_tables_of_strangers_are_written_up_with_what_counts(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    made_table(kind, tmp_path)
    assert main(["init", "--data", "table.csv", "--model", TINY_MODEL]) == 0
    said = capsys.readouterr().out
    assert re.search(LEAKS, said) and "3 samples, as the model reads them:\n" in said and "<EOU>\n  -> " in said
    assert "The model first imitates the replies (warm_start). The reward is the similarity" in said and "weak" in said
    assert "This is too little data to judge whether a training helps: that takes 50 samples in val and in test" in said
    assert ("Ratings: CSAT (1 to 5, in 60 of 60 rows)." in said) is (kind == "two_languages")
    assert ("Rows without a dialogue in 'dialogue', left out: 1.\n" in said) is (kind == "dialogues")
    assert ("21 of 60 rows repeat another prompt or dialogue" in said) is (kind != "ten")
    assert ("Long replies: one in twenty has more than 240 words, but replies are cut after 128" in said) is (
        kind == "long"
    )
    config = load_config("config.yml")
    import_and_check(config, "config.yml")
    assert config.datapool.args["delimiter"] == ";"


def test_init_loads_nothing_heavy(tmp_path):
    write_csv(tmp_path, "question,answer", *(f"how much is {i} ?,it is {i} ." for i in range(60)))
    code = "import sys; from rl4dialog.cli import main; main(sys.argv[1:]); print([*sys.modules])"
    argv = [sys.executable, "-c", code, "init", "--data", "table.csv"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "config.yml is written" in done.stdout
    assert not any(f"'{name}'" in done.stdout for name in ("torch", "transformers", "scipy", "pandas", "datasets"))


def test_a_written_config_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path, "question,answer", *(f"how much is {i} and 1 ?,it is {i + 1} ." for i in range(60)))
    assert main(["init", "--data", "table.csv", "--model", TINY_MODEL]) == 0
    assert "prompt: question, references: answer (guessed)" in capsys.readouterr().out
    text = (tmp_path / "config.yml").read_text(encoding="utf-8")
    assert "--config_path config.yml" in text and "# guessed from their names" in text
    small = ("warm_start.n_epochs", "train_evaluation.n_iters", "train_evaluation.eval_every")
    overrides = [part for each in small for part in ("--set", f"{each}=1")] + ["--set", "alg.args.n_steps=16"]
    assert main(["train", "--config_path", "config.yml", "--experiment_name", "first", *overrides]) == 0
    assert (tmp_path / "rl4dialog_exps/first/report.html").is_file()
    assert main(["init", "--data", "table.csv", "--model", TINY_MODEL]) == 2
    assert "config.yml exists already" in capsys.readouterr().err
    assert (tmp_path / "config.yml").read_text(encoding="utf-8") == text
    assert main(["init", "--data", "table.csv", "--model", TINY_MODEL, "--overwrite"]) == 0


def test_tables_without_replies_get_a_reward_that_needs_none(tmp_path):
    table = read_table(write_csv(tmp_path, "prompt,n,m"))
    config = yaml.safe_load(config_text(table, "config.yml"))
    assert config["reward_fn"]["id"] == "length_penalty"
    with pytest.raises(ConfigError, match="has random weights, so it first has to learn replies"):
        config_text(table, "config.yml", TINY_MODEL)
    with pytest.raises(ConfigError, match="did you mean 'meteor'"):
        config_text(table, "config.yml", reward="meteo")


def test_bad_tables_are_explained(tmp_path):
    with pytest.raises(DataError, match=r"cannot be guessed: it has a, b, c.* --prompt COLUMN --reply COLUMN"):
        read_table(write_csv(tmp_path, "a,b,c"))
    with pytest.raises(DataError, match=r"which one the replies, if there are any: --prompt 'they said' --reply us$"):
        read_table(write_csv(tmp_path, "id,they said,us,mood", *["1,where is it ?,on its way .,all is fine"] * 3))
    two = read_table(write_csv(tmp_path, "id,they said,us,mood", *["1,where is it ?,on its way .,fine"] * 3))
    assert two.columns == {"prompt": "they said", "references": "us"}
    assert read_table(write_csv(tmp_path, "a,b,c"), "a", "b").columns == {"prompt": "a", "references": "b"}
    with pytest.raises(DataError, match=r"--reply d: .* has no such column; it has a, b, c"):
        read_table(write_csv(tmp_path, "a,b,c"), "a", "d")
    with pytest.raises(DataError, match="has no rows"):
        (tmp_path / "table.csv").write_text("prompt,reply\n")
        read_table(tmp_path / "table.csv")
    with pytest.raises(DataError, match="cannot be read"):
        read_table(tmp_path / "missing.csv")
    with pytest.raises(DataError, match=r"must be a \.csv"):
        read_table(tmp_path / "talk.txt")


def test_without_a_terminal_flags_are_needed(capsys):
    assert main(["init"]) == 2
    assert "needs --data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "table", "flags", "expected"),
    [
        ("qwen3_8gb", None, [], {"tokenizer.model_name": "Qwen/Qwen3-0.6B", "datapool.id": "daily_dialog"}),
        ("qwen3-24gb", "prompt,reply", [], {"datapool.id": "csv", "reward_fn.args.synonyms": False}),
        ("Qwen3-1.7B-24GB", None, [], {"tokenizer.model_name": "Qwen/Qwen3-1.7B", "alg.args.micro_batch_size": 8}),
        ("qwen3-8b-24gb", None, [], {"tokenizer.model_name": "Qwen/Qwen3-8B", "env.n_envs": 32}),
        (
            "qwen3_80gb",
            "prompt,n",
            ["--model", "a/b"],
            {"reward_fn.id": "length_penalty", "tokenizer.model_name": "a/b"},
        ),
        ("qwen3_8gb", "prompt,reply", ["--reward", "chrf"], {"reward_fn.id": "chrf", "reward_fn.normalize": "batch"}),
    ],
)
def test_recipe_gets_own_data_model_and_reward(tmp_path, monkeypatch, capsys, recipe, table, flags, expected):
    monkeypatch.chdir(tmp_path)
    data = [] if table is None else ["--data", str(write_csv(tmp_path, table, "some words,other words"))]
    assert main(["init", "--recipe", recipe, *data, *flags]) == 0
    config = load_config("config.yml")
    found = flatten(config.model_dump(mode="json"))
    assert {key: found[key] for key in expected} == expected
    assert found["alg.policy.args.model_name"] == found["tokenizer.model_name"]
    assert ("meteor" in str(config.train_evaluation.metrics)) == (table is None)
    text = Path("config.yml").read_text(encoding="utf-8")
    assert "rl4dialog train --config_path config.yml" in text and "scripts/" not in text
    assert found["tokenizer.model_name"].partition("/")[2] in text.splitlines()[0]
    assert "config.yml is written, with the " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("recipe", "fit"),
    [
        ("qwen3-4b-8gb", "qwen3-0.6b-8gb, llama-3.2-1b-8gb, qwen3-1.7b-8gb, qwen3-4b-24gb, qwen3-4b-80gb"),
        ("gpt9-12gb", ", ".join(RECIPES)),
    ],
)
def test_recipes_that_do_not_fit_list_those_that_do(capsys, recipe, fit):
    assert main(["init", "--recipe", recipe]) == 2
    assert f"no recipe '{recipe}'; these fit: {fit}\n" in capsys.readouterr().err
    assert main(["init", "--recipe", "qwen3_8gb", "--reply", "x"]) == 2


def test_partners_side_of_a_table_of_dialogues_has_a_config_of_its_own(tmp_path, capsys):
    talk = [{"role": role, "content": "some words"} for role in ("user", "assistant") * 2]
    rows = [{"messages": talk, "user_id": f"u{i % 9}", "wish": f"ride {i}"} for i in range(90)]
    data, output = tmp_path / "talk.jsonl", tmp_path / "config.yml"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    arguments = ["init", "--data", str(data), "--model", TINY_MODEL, "--output", str(output), "--overwrite"]
    assert main(arguments) == 0
    assert "--learn partner" in capsys.readouterr().out
    assert main([*arguments, "--learn", "partner"]) == 0
    said = capsys.readouterr().out
    assert "ride 1 <EOU> | some words | some words" in said and "--experiment_name partner" in said
    config = load_config(output)
    import_and_check(config, output)
    args = config.datapool.args
    assert (args["learn"], args["goal"], args["people"]) == ("partner", "wish", {"by": "user_id"})
    assert main([*arguments, "--goal", "wish"]) == 2
    assert main([*arguments, "--learn", "partner", "--reward", "meteor"]) == 2


def test_partner_of_prompts_and_replies_cannot_be_learned(tmp_path):
    with pytest.raises(ConfigError, match="--learn partner needs dialogues"):
        partner_text(read_table(write_csv(tmp_path, "question,answer,x")), "config.yml")


@pytest.mark.parametrize("model", [TINY_MODEL, "builtin/smollm2-135m-instruct"])
def test_messages_that_stop_a_training_are_named_before_it(tmp_path, capsys, model):
    talk = [{"role": role, "content": "some words"} for role in ("user", "user", "assistant")]
    rows = [{"messages": talk[1:]}] * 9 + [{"messages": talk}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    paths = ["--data", str(tmp_path / "t.jsonl"), "--output", str(tmp_path / "config.yml")]
    assert main(["init", *paths, "--model", model]) == 0
    assert "A training would stop: " in (said := capsys.readouterr().out) and "t.jsonl:10: messages 0 and 1 are" in said


def test_large_file_is_not_counted(tmp_path, capsys):
    path = write_csv(tmp_path, "prompt,reply", *(f"how are you on day {i} ?,{'fine ' * 40}" for i in range(3000)))
    assert main(["init", "--data", str(path), "--output", str(tmp_path / "config.yml")]) == 0
    assert "Only the first 2,000 rows were read: train --dry_run counts the samples" in capsys.readouterr().out


def test_rows_of_a_conversation_stay_in_one_split(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for n_turns, is_group in (3, True), (1, False), (20, False):
        rows = [f"how is day {i} ?,fine {i},{i // n_turns}" for i in range(60)]
        write_csv(tmp_path, "prompt,reply,chat id", *rows)
        assert main(["init", "--data", "table.csv", "--overwrite"]) == 0
        assert ("Rows with the same chat id are in the same split" in capsys.readouterr().out) is is_group
        assert load_config("config.yml").datapool.args.get("split_by") == ("chat id" if is_group else None)
