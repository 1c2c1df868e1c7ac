"""The notebooks run from top to bottom in an empty folder, and are stored with their outputs."""

import re

import pytest
from pages import ROOT

nbformat = pytest.importorskip("nbformat", reason="needs nbformat, a part of rl4dialog[dev]")
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_as_it_ran(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs and not any(output.output_type == "error" for output in outputs)
    kinds = {kind for output in outputs for kind in output.get("data", ())}
    assert {"image/png", "text/html"} <= kinds, "curves and conversations are drawn"
    assert not any(line.startswith(("!", "%pip")) for cell in cells for line in cell.source.splitlines())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_formulas_have_single_backslashes(path):
    texts = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    assert not [text for text in texts if re.search(r"\\\\[a-zA-Z]", text)], "two of them are a new line in a formula"


def test_page_about_ppo_pays_for_whole_questions():
    cells = nbformat.read(ROOT / "docs/notebooks/ppo_on_one_page.ipynb", as_version=4).cells
    [table] = [
        output.data["text/html"] for cell in cells for output in cell.get("outputs", []) if "text/html" in output.data
    ]
    said = re.findall("<td>(.*?)</td>", table)
    assert not [reply for reply in said[1::3] + said[2::3] if "/" in reply], "a reply is read without its end token"
    assert all(reply.endswith("?") for reply in said[2::3])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient, a part of rl4dialog[dev]")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without that of the environment
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    kinds = {kind for cell in notebook.cells for output in cell.get("outputs", ()) for kind in output.get("data", ())}
    assert {"image/png", "text/html"} <= kinds
