"""A child that never gets as far as its main function."""

import no_such_module_anywhere  # type: ignore[import-not-found] # noqa: F401
