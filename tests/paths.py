"""The folders that tests read: the repository, its test data, and data beside the checkout."""

from pathlib import Path

REPO = Path(__file__).parents[1]
DATA = REPO / "tests" / "data"
SHARED = REPO.parent / "shared"  # recorded data; absent from a user's clone
