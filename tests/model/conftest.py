"""Model tests run the same histories every time; `HYPOTHESIS_PROFILE=nightly` draws new ones."""

import os

from hypothesis import settings

settings.register_profile("default", derandomize=True)
settings.register_profile("nightly", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
