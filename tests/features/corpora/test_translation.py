"""Translation pools from parallel files in every form, from tables and from a stand-in for the hub."""

import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.features.corpora.translation import (
    WMT16,
    IWSLT2017EnDe,
    WMT14ProcessedEnDe,
    WMT16NewsOnly,
    find_parallel_files,
)


def texts(pool):
    return [(sample.prompt_or_input_text, *sample.references) for sample, _ in pool]


def sgm(*sentences):
    segments = "".join(f'<seg id="{i}"> {text}\n</seg>\n' for i, text in enumerate(sentences, start=1))
    return f'<srcset setid="x" srclang="any">\n<doc docid="d">\n<hl>\n{segments}</hl>\n</doc>\n</srcset>\n'


def test_lines_of_two_files_belong_together(write):
    folder = write({"train.en": "Good day.\n\nTea?\n", "train.de": "Guten Tag.\nNur hier\nT\u00e9e?\n"})
    args = {
        "split": "train",
        "path": str(folder),
        "prompt_prefix": "translate English to German: ",
        "prompt_suffix": " =",
    }
    pool = DataPoolRegistry.get("iwslt2017en_de", args)
    assert texts(pool) == [
        ("translate English to German: Good day. =", "Guten Tag."),
        ("translate English to German: Tea? =", "T\u00e9e?"),
    ]
    assert [sample.id for sample, _ in pool] == ["train_0", "train_2"]
    assert texts(IWSLT2017EnDe.prepare("train", "", "", "de", "en", folder))[0] == ("Guten Tag.", "Good day.")


def test_wmt_test_sets_are_found_by_direction(write):
    folder = write(
        {
            "newstest2016-ende-src.en.sgm": sgm("Salt &amp; tea"),
            "newstest2016-ende-ref.de.sgm": sgm("Salz &amp; Tee"),
            "newstest2016-deen-src.de.sgm": sgm("Hallo"),
            "newstest2016-deen-ref.en.sgm": sgm("Hello"),
            "newstest2015-ende-src.en.sgm": sgm("Yes"),
            "newstest2015-ende-ref.de.sgm": sgm("Ja"),
            "news-commentary-v11.de-en.en": "No\n",
            "news-commentary-v11.de-en.de": "Nein\n",
        }
    )
    args = {"wmt_id": "wmt16", "source_language": "en", "target_language": "de", "path": str(folder)}
    assert texts(DataPoolRegistry.get("wmt16", {**args, "split": "test"})) == [("Salt & tea", "Salz & Tee")]
    assert texts(WMT16.prepare("test", "de", "en", path=folder)) == [("Hallo", "Hello")]
    assert texts(WMT16.prepare("val", "en", "de", path=folder)) == [("Yes", "Ja")]
    pools = {split: WMT16NewsOnly.prepare(split, path=folder) for split in ("train", "val", "test")}
    assert {split: texts(pool)[0] for split, pool in pools.items()} == {
        "train": ("No", "Nein"),
        "val": ("Yes", "Ja"),
        "test": ("Salt & tea", "Salz & Tee"),
    }


def test_iwslt_files_lose_their_tags(write):
    folder = write(
        {
            "train.tags.en-de.en": "<url>http://x</url>\n<title>A talk</title>\nThank you .\n",
            "train.tags.en-de.de": "<url>http://x</url>\n<title>Ein Vortrag</title>\n<speaker>X</speaker>\nDanke .\n",
            "IWSLT17.TED.tst2011.en-de.en.xml": sgm("third"),
            "IWSLT17.TED.tst2011.en-de.de.xml": sgm("drittens"),
            "IWSLT17.TED.tst2010.en-de.en.xml": sgm("first", "second"),
            "IWSLT17.TED.tst2010.en-de.de.xml": sgm("erstens", "zweitens"),
        }
    )
    assert texts(IWSLT2017EnDe.prepare("train", path=folder)) == [("Thank you .", "Danke .")]
    expected = [("first", "erstens"), ("second", "zweitens"), ("third", "drittens")]
    assert texts(IWSLT2017EnDe.prepare("test", path=folder)) == expected


def test_mapping_names_both_files(write):
    folder = write({"a.txt": "one\n", "b.txt": "eins\n"})
    path = {"train": [str(folder / "a.txt"), str(folder / "b.txt")]}
    assert texts(WMT14ProcessedEnDe.prepare("train", path=path)) == [("one", "eins")]
    with pytest.raises(DataError, match=r"path must contain two files for split 'val', \[source, target\], not None"):
        WMT14ProcessedEnDe.prepare("val", path=path)


def test_tables_like_the_hubs_are_read_from_a_folder(write):
    folder = write({"train.json": '{"translation": {"en": "one", "de": "eins"}}\n'})
    assert texts(WMT14ProcessedEnDe.prepare("train", path=folder)) == [("one", "eins")]


@pytest.mark.parametrize(
    "pool_id, args, sources",
    [
        ("wmt16", {"source_language": "en", "target_language": "de"}, {"train": ("wmt/wmt16", "de-en")}),
        (
            "wmt16",
            {"source_language": "de", "target_language": "en", "wmt_id": "wmt/wmt14"},
            {"train": ("wmt/wmt14", "de-en")},
        ),
        ("wmt14_processed_en_de", {}, {"train": ("stas/wmt14-en-de-pre-processed", None)}),
        (
            "wmt16newsonly",
            {},
            {"train": ("Helsinki-NLP/news_commentary", "de-en"), "validation": ("wmt/wmt16", "de-en")},
        ),
        ("iwslt2017en_de", {}, {"test": ("IWSLT/iwslt2017", "iwslt2017-de-en")}),
        ("iwslt2017en_de", {"dataset_id": "my/copy"}, {"test": ("my/copy", "iwslt2017-de-en")}),
    ],
)
def test_hub_datasets_are_those_of_rl4lms(pool_id, args, sources, fake_hub):
    for split, source in sources.items():
        fake_hub[source] = {split: [{"translation": {"en": "one", "de": "eins"}}]}
        pool = DataPoolRegistry.get(pool_id, {**args, "split": "val" if split == "validation" else split})
        assert sorted(texts(pool)[0]) == ["eins", "one"]


def test_missing_sides_and_unequal_numbers_of_sentences_are_named(write):
    folder = write({"dev.en": "a\n", "train.en": "a\n", "train.de": "b\n"})
    with pytest.raises(DataError) as caught:
        find_parallel_files("val", folder, ("en", "de"), ["newstest2015"])
    assert "split 'val' for each language, but has for 'en': dev.en and for 'de': none" in str(caught.value)
    assert "val or validation or valid or dev or newstest2015 as a part" in str(caught.value)
    folder = write({"train.en": "a\nb\n", "train.de": "a\n"})
    with pytest.raises(DataError, match=r"train\.en and .*train\.de must have the same number of sentences, not 2 and"):
        IWSLT2017EnDe.prepare("train", path=folder)
