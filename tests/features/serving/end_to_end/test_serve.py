"""``rl4dialog serve``: the model of a run, asked by OpenAI's client, and as the partner of another run."""

import signal
from contextlib import contextmanager

import pytest
from apart import Command
from http_servers import free_port
from runs import lines, make_config, run_folder, train

import rl4dialog
from rl4dialog import cli

openai = pytest.importorskip("openai", reason="needs openai, a part of rl4dialog[dev]")


@contextmanager
def served(run, folder, *flags):
    """The address of the API of a command, which is ended as Ctrl-C does."""
    url = f"http://127.0.0.1:{(port := free_port())}/v1"
    command = Command(["serve", "--run", str(run), "--port", str(port), *flags], folder)
    try:
        command.wait_for(lambda: f"e is at {url}; press Ctrl-C to stop.\n" in command.output)
        yield url
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 0
        assert "Traceback" not in command.errors
    finally:
        command.kill()


def test_client_gets_the_replies_of_a_chat_and_a_run_can_have_it_as_partner(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVE_KEY", "open sesame")
    folder = tmp_path / "served"  # a model that reads the conversations of the other run
    assert train(folder, make_config(folder, env__args__max_prompt_length=96, train_evaluation__n_iters=1)) == 0
    agent = rl4dialog.load_policy(run_folder(folder))
    with served(run_folder(folder), tmp_path, "--api_key_env", "SERVE_KEY") as url:
        client = openai.OpenAI(base_url=url, api_key="open sesame", max_retries=20)  # the server is about to listen
        for seed in range(3):
            messages = [{"role": "user", "content": "do you like tea ?"}]
            keys = {"model": "e", "messages": messages, "seed": seed}
            reply = client.chat.completions.create(**keys)
            assert reply.choices[0].message.content == agent.chat("do you like tea ?", seed=seed)
            chunks = client.chat.completions.create(**keys, stream=True)
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert streamed == reply.choices[0].message.content
        short = client.chat.completions.create(**keys, max_tokens=2)
        assert short.usage.completion_tokens == 2 and short.choices[0].finish_reason == "length"
        greedy = client.chat.completions.create(**keys, temperature=0)
        assert greedy.choices[0].message.content == agent.chat("do you like tea ?", do_sample=False)

        args = {"base_url": url, "model": "e", "api_key_env": "SERVE_KEY", "instructions": "i am tired ."}
        config = make_config(
            tmp_path,
            env__args__partner={"id": "openai", "args": args},
            env__args__max_turns=2,
            env__args__max_prompt_length=64,
            env__args__first_speaker="partner",
            env__args__partner_on_error="mask",
            env__vec_env="blocks",
            env__n_workers=1,
            datapool__args__samples="dialogues",
            reward_fn={"id": "length_penalty", "args": {"max_length": 3}},
            train_evaluation__n_iters=1,
            train_evaluation__metrics=[{"id": "conversation"}],
        )
        assert train(tmp_path, config) == 0
    (rollout,) = [line for line in lines(run_folder(tmp_path) / "rollout_info.jsonl") if "rollout/turns" in line]
    assert rollout["rollout/turns"] == 2
    texts = [path.read_text(errors="ignore") for path in run_folder(tmp_path).rglob("*") if path.is_file()]
    assert any("SERVE_KEY" in text for text in texts) and not any("open sesame" in text for text in texts)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "0"], "--port must be a number from 1 to 65535"),
        (["--api_key_env", "NO_SUCH_KEY"], "--api_key_env is 'NO_SUCH_KEY', but this environment variable is not set"),
        (["--allow_host", "a b"], "--allow_host must be a name"),
    ],
)
def test_wrong_option_is_an_error_before_the_model_is_loaded(flags, words, tmp_path, capsys):
    port = str(free_port())
    assert cli.main(["serve", "--run", str(tmp_path / "none"), "--port", port, *flags]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
