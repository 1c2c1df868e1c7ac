"""What every test of whole runs gets."""

from registered import nothing_stays_registered  # noqa: F401 (fixture)
