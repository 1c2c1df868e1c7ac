"""Stand-ins for what comes from outside."""

import feature_rows  # noqa: F401 (helpers of the features)
from stand_ins import (  # noqa: F401 (fixtures)
    bert_config,
    bert_folder,
    bert_tokenizer,
    classifier_model,
    fake_hub,
    save_classifier,
    save_t5,
    spice_folder,
    write,
)
