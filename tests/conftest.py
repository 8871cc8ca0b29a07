"""What every test shares: how Hypothesis runs."""

from hypothesis import settings

# First calls compile, so no deadline; a failure prints the code that repeats it.
settings.register_profile("maskplan", deadline=None, print_blob=True)
settings.load_profile("maskplan")
