"""Judging a queue of pairs, also over HTTP as a browser would."""

from __future__ import annotations

from pathlib import Path

import pytest
from http_servers import free_port

from rl4dialog.cli import main
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.feedback import JudgedReply, append_feedback, read_feedback
from rl4dialog.core.feedback_queue import QueuedPair, write_queue
from rl4dialog.serving.page_server import serve
from rl4dialog.serving.pair_judging import PairJudging
from rl4dialog.serving.queue_page import QueuePage

PAIRS = [QueuedPair(str(i), [f"hello {i}"], [JudgedReply("m", "<a>"), JudgedReply("n", f"b {i}")]) for i in range(3)]


def test_every_judgement_is_written_before_the_next_pair(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    judging = PairJudging(PAIRS, file)
    judging.correct("0", 1, " c ")
    assert judging.n_done == 0 and read_feedback(file)[0].correction == "c"
    judging.choose("0", 1)
    assert read_feedback(file)[1].chosen == 1
    judging.choose("1", None)
    assert len(read_feedback(file)) == 2 and judging.current is PAIRS[2] and judging.n_done == 2
    again = PairJudging(PAIRS, file)
    assert again.n_done == 1 and again.current is PAIRS[1]


def test_outdated_page_and_empty_correction_record_nothing(tmp_path: Path) -> None:
    judging = PairJudging(PAIRS, tmp_path / "feedback.jsonl")
    for id in ("1", ""):
        with pytest.raises(ConfigError, match="out of date, so nothing was recorded"):
            judging.choose(id, 0)
    for text in (" ", "<a>"):
        with pytest.raises(ConfigError, match="must not be empty, and must differ"):
            judging.correct("0", 0, text)
    assert not (tmp_path / "feedback.jsonl").exists() and judging.current is PAIRS[0]


def test_page_shows_pairs_until_all_are_judged(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="needs gradio: pip install 'rl4dialog[ui]'")
    from gradio_client import Client

    file = tmp_path / "feedback.jsonl"
    append_feedback(file, PAIRS[0].chosen(0))
    page, port = QueuePage(PairJudging(PAIRS[:2], file)), free_port()
    serve(page, "127.0.0.1", port, lambda text: None, block=False)
    client = Client(f"http://127.0.0.1:{port}", verbose=False)
    progress, _, first, second, *_ = client.predict(api_name="/open")
    assert "1 of 2 pairs." in progress and "hello 1" in first and "&lt;a&gt;" in first and "b 1" in second
    progress, status, *_ = client.predict(api_name="/choose_1")
    assert "All pairs are judged" in progress and "The choice was appended" in status
    _, status, *_ = client.predict(api_name="/choose_0")
    assert "error: this page was out of date" in status
    page.blocks.close(verbose=False)
    assert [each.chosen for each in read_feedback(file)] == [0, 1]


def test_queue_needs_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_queue(tmp_path / "q.jsonl", PAIRS)
    assert main(["ui", "--queue", str(tmp_path / "q.jsonl"), "--run", "x"]) == 2
    assert "--queue shows replies that are already written; remove --run" in capsys.readouterr().err
