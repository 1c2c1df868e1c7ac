"""Runs that learn from replies of the policy itself."""
