"""What every test of whole runs gets."""

from registered import nothing_stays_registered  # noqa: F401 (fixture)
from stand_ins import bert_config, bert_tokenizer, save_classifier  # noqa: F401 (fixtures)
