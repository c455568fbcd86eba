"""The names of what the doctor looks at in a registry: known without what it is asked by."""

from typing import Final

REGISTRY: Final = "schema registry"
SUBJECT: Final = "subject"
HIDDEN_NULLS: Final = "hidden NULL"
COPIES: Final = "schema copies"
OUTPUT: Final = "output subject"
"""Of topics that are written: it is looked at apart."""
CHECKS: Final = (REGISTRY, SUBJECT, HIDDEN_NULLS, COPIES)
