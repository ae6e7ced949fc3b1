"""The conformance suite: what every store must do, as tests that read as sentences.

A store's test module gives a fixture `harness` (see `StoreHarness`), and takes the whole suite:

    from outlast.testing.conformance.harness import suite

    @pytest.fixture
    def harness(tmp_path):
        return MyHarness(tmp_path)

    globals().update(suite())

Stores differ only by what `store.capabilities` declares: no part of the suite knows which store it judges.
"""

import pkgutil

import pytest

# So that a failing assertion shows its values, as in any test module.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
