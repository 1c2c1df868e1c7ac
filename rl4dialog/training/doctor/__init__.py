"""Pre-run checks of texts, model, reward and machine."""
