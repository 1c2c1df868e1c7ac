"""CNN/DailyMail: news articles, with their highlights as the summary.

Reads the original release (``cnn/stories`` and ``dailymail/stories``, with the URL lists ``all_train.txt``,
``all_val.txt`` and ``all_test.txt``, which assign stories to splits), the tokenized JSON files of PreSumm
(``cnndm.train.0.json``, with ``src`` and ``tgt``), table files or a hub dataset with the columns ``article`` and
``highlights``. License: Apache-2.0 on the hub; publishers hold the rights to the articles. Sources: Hermann et al.
2015, "Teaching Machines to Read and Comprehend"; See et al. 2017, "Get To The Point"; prompts as in RL4LMs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data.hub import table_rows
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import Row
from rl4dialog.data.splits import SplitPath
from rl4dialog.data.text_files import decode_lines, expand_path, read_lines

HUB_ID = "abisee/cnn_dailymail"
HUB_NAME = "3.0.0"

_HIGHLIGHT = "@highlight"
_LINE_ENDS = (".", "!", "?", "'", "`", '"', "\u2019", "\u201d", ")")


class CNNDailyMail(TextGenPool):
    """News articles to summarize (CNN/DailyMail)."""

    @classmethod
    def prepare(
        cls,
        split: str,
        prompt_suffix: str = "",
        prompt_prefix: str = "",
        truncate_article: Count | None = None,
        max_size: Count | None = None,
        path: SplitPath | None = None,
        dataset_id: str = HUB_ID,
    ) -> CNNDailyMail:
        """Load one split.

        Args:
            split: ``train``, ``val`` or ``test``.
            prompt_suffix: Text after the article.
            prompt_prefix: Text before the article.
            truncate_article: Keep this many words and punctuation marks of an article, joined by spaces.
            max_size: Keep only the first samples.
            path: Folder of the original release, or table files; by default the hub dataset is loaded.
            dataset_id: Hub dataset to use without ``path``.

        Returns:
            A pool with the highlights as the only reference, one per line.

        Raises:
            DataError: If an argument is invalid, or the data is missing, malformed or empty.
        """
        check_split(split)

        def samples() -> Iterator[Sample]:
            for index, (article, highlights) in enumerate(_load_articles(split, path, dataset_id)):
                if truncate_article is not None:
                    article = " ".join(_tokenize(article)[:truncate_article])
                yield Sample(f"{split}_{index}", prompt_prefix + article + prompt_suffix, [highlights], {})

        return cls(limit_samples(samples(), max_size, "cnn_daily_mail", split, str(path or dataset_id)))


def _load_articles(split: str, path: SplitPath | None, dataset_id: str) -> Iterator[tuple[str, str]]:
    """Yield articles and their highlights."""
    if isinstance(path, str | Path) and expand_path(path).is_dir():
        folder = expand_path(path)
        url_list = next(
            (f for f in (folder / f"all_{split}.txt", *sorted(folder.glob(f"*/all_{split}.txt"))) if f.is_file()), None
        )
        if url_list is not None:
            yield from _read_stories(folder, url_list)
            return
    for row in table_rows(split, path, dataset_id, "the folder with CNN/DailyMail's stories and URL lists", HUB_NAME):
        if "src" in row and "tgt" in row:
            yield " ".join(_sentences(row, "src")), "\n".join(_sentences(row, "tgt"))
        else:
            yield row.text("article"), row.text("highlights")


def _read_stories(folder: Path, url_list: Path) -> Iterator[tuple[str, str]]:
    stories = {file.stem: file for file in sorted(folder.rglob("*.story"))}
    if not stories:
        raise DataError(f"{folder} contains the URL list {url_list.name} but no .story files")
    names = [hashlib.sha1(url.strip().encode()).hexdigest() for url in read_lines(url_list)]
    for name in names:
        # A few URLs have no story in the release.
        if name in stories:
            article, highlights = parse_story(decode_lines(stories[name].read_bytes(), str(stories[name])))
            if article and highlights:
                yield article, highlights


def parse_story(lines: Iterable[str]) -> tuple[str, str]:
    """Extract article and highlights from a story file, as in version 3.0.0 of the hub dataset.

    Args:
        lines: Paragraphs; a highlight follows each line ``@highlight``.

    Returns:
        The article in one line, and the highlights with one per line. `` .`` is added to paragraphs without an end.
    """
    article: list[str] = []
    highlights: list[str] = []
    is_highlight = False
    for line in map(str.strip, lines):
        if line.startswith(_HIGHLIGHT):
            is_highlight = True
        elif line:
            (highlights if is_highlight else article).append(line if line.endswith(_LINE_ENDS) else f"{line} .")
    return " ".join(article), "\n".join(highlights)


def _sentences(row: Row, column: str) -> list[str]:
    """Join the words of each sentence in a column with a list of words per sentence."""
    try:
        return [" ".join(sentence) for sentence in row[column]]
    except TypeError as error:
        raise row.error(f"column {column!r} must be a list of sentences, each a list of words") from error


def _tokenize(text: str) -> list[str]:
    """Split into words and punctuation marks like nltk's ``word_tokenize``, with a sentence splitter without data."""
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    words = NLTKWordTokenizer()
    return [word for sentence in PunktSentenceTokenizer().tokenize(text) for word in words.tokenize(sentence)]
