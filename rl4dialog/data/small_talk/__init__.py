"""Small generated dialogues from a seeded grammar over many everyday topics, with DailyDialog's acts and emotions."""
