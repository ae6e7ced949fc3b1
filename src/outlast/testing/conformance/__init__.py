"""The conformance suite: what every store must do, as tests that read as sentences.

A store's tests give a fixture `harness` (see `StoreHarness`) and one class per part of the suite:

    @pytest.fixture
    def harness(tmp_path):
        return MyHarness(tmp_path)

    class TestCommit(CommitConformance): ...

Stores differ only by what `store.capabilities` declares: no part of the suite knows which store it judges.
"""

import pkgutil

import pytest

# So that a failing assertion shows its values, as in any test module.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
