"""Language models that values guide."""
