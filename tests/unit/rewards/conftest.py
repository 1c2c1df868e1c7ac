"""Stand-ins for what rewards need from outside."""

from __future__ import annotations

from stand_ins import bert_config, bert_folder, bert_tokenizer, save_classifier, save_t5, spice_folder  # noqa: F401 (fixtures)
