"""SPICE (Anderson et al. 2016, arXiv 1607.08822): agreement in objects, attributes and relations, found by a parser.

It is a Java program; its jar and libraries are part of the package pycocoevalcap.
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.metrics.sentence_metric import SentenceMetric
from rl4dialog.text.words import split_words

_JAR = "spice-1.0.jar"
_CORENLP = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
_CORENLP_URL = "https://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip"


class SpiceMetric(SentenceMetric):
    """SPICE F-score from 0 to 1; 0 for a blank text.

    Args:
        spice_path: Folder of ``spice-1.0.jar`` and its ``lib``; by default that of the installed pycocoevalcap.
        java: Name or path of the Java program.
        memory: Maximum memory, in Java's notation.
        cache_path: Folder for parsed sentences, so that references are parsed only once.

    Raises:
        ModelError: If Java, the jar or its parser is missing.
    """

    def __init__(
        self, spice_path: str | None = None, java: str = "java", memory: str = "8G", cache_path: str | None = None
    ) -> None:
        self._folder = _find_folder(spice_path)
        program = shutil.which(java)
        if program is None:
            raise ModelError(
                f"metric 'spice' needs Java, and the program {java!r} was not found; run `apt-get install "
                f"default-jre-headless`, or set java: <path of the program>"
            )
        self._command = [program, f"-Xmx{memory}", "-jar", str(self._folder / _JAR)]
        self._options = ["-subset", "-silent"]
        if cache_path is not None:
            cache = Path(cache_path).expanduser().resolve()
            try:
                cache.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"metric 'spice': cache_path {cache_path!r} cannot be used: {error}") from error
            self._options += ["-cache", str(cache)]

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        tasks = []
        for row, (text, references) in enumerate(zip(generated_texts, reference_texts, strict=True)):
            words = [" ".join(split_words(each)) for each in (text, *references)]
            if words[0] and any(words[1:]):
                tasks.append({"image_id": row, "test": words[0], "refs": [each for each in words[1:] if each]})
        scores = [0.0] * len(generated_texts)
        for found in self._run(tasks) if tasks else []:
            score = float(found["scores"]["All"]["f"])
            # SPICE reports NaN if neither text contains anything to compare.
            scores[found["image_id"]] = 0.0 if math.isnan(score) else score
        return {"lexical/spice": scores}

    def _run(self, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as scratch:
            source, target = Path(scratch) / "texts.json", Path(scratch) / "scores.json"
            source.write_text(json.dumps(tasks), encoding="utf-8")
            command = [*self._command, str(source), "-out", str(target), *self._options]
            done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=False)
            try:
                scores: list[dict[str, Any]] = json.loads(target.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                # The indented lines of a stack trace are omitted.
                said = " ".join(line for line in (done.stderr or done.stdout).splitlines() if line[:1].strip())
                raise ModelError(
                    f"metric 'spice': Java ended with status {done.returncode} and without scores; its output: "
                    f"{said[:500] or 'none'}. SPICE was written for Java 8"
                ) from error
        return scores


def _find_folder(spice_path: str | None) -> Path:
    """Return the folder of the jar and its libraries, after checking that it is complete."""
    if spice_path is not None:
        folder = Path(spice_path).expanduser().resolve()
    else:
        package = importlib.util.find_spec("pycocoevalcap")
        if package is None or not package.submodule_search_locations:
            raise ModelError(
                "metric 'spice' needs its Java program; run `pip install pycocoevalcap`, or set spice_path: <folder "
                f"of {_JAR} and lib>"
            )
        folder = Path(next(iter(package.submodule_search_locations))) / "spice"
    if not (folder / _JAR).is_file():
        raise ModelError(f"metric 'spice': there is no {_JAR} in {folder}; run `pip install pycocoevalcap`")
    missing = [name for name in _CORENLP if not (folder / "lib" / name).is_file()]
    if missing:
        raise ModelError(
            f"metric 'spice' needs the parser {' and '.join(missing)} in {folder / 'lib'}; download {_CORENLP_URL} and "
            f"copy the files from it"
        )
    return folder
