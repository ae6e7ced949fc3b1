import pytest

from outlast.config import RECONCILERS, Config
from outlast.errors import InvalidConfig
from outlast.reconcilers import ROWS, rows_for


def test_defaults_need_nothing():
    config = Config.load({})
    assert (config.url, config.namespace, config.lease_ttl_ms) == ("sqlite:///outlast.db", "default", 10_000)


def test_variables_set_options_and_arguments_win():
    env = {"OUTLAST_URL": "sqlite:///a.db", "OUTLAST_LEASE_TTL": "30s", "OUTLAST_NAMESPACE": "shop"}
    config = Config.load(env, lease_ttl="1m", url=None)
    assert (config.url, config.namespace, config.lease_ttl_ms) == ("sqlite:///a.db", "shop", 60_000)


def test_pickle_is_off_unless_asked_for():
    assert not Config.load({}).allow_pickle
    assert Config.load({"OUTLAST_ALLOW_PICKLE": "yes"}).allow_pickle
    assert not Config.load({"OUTLAST_ALLOW_PICKLE": "yes"}, allow_pickle=False).allow_pickle


@pytest.mark.parametrize("value, ms", [("15", 15_000), ("0.5", 500), ("250ms", 250), (2, 2_000)])
def test_a_plain_number_means_seconds_in_variables_too(value, ms):
    assert Config.load({"OUTLAST_LEASE_TTL": str(value)}).lease_ttl_ms == ms
    assert Config.load({}, lease_ttl=value).lease_ttl_ms == ms


@pytest.mark.parametrize(
    "option, value, complaint",
    [
        ("lease_ttl", "soon", "not a duration"),
        ("lease_ttl", "-1s", "not a duration"),
        ("lease_ttl", "50ms", "between 100ms and 1d"),
        ("lease_ttl", "2d", "between 100ms and 1d"),
        ("token_ttl", "0s", "longer than nothing"),
        ("namespace", "", "must not be empty"),
        ("url", "", "store's URL"),
        ("reconcile_tag", "blue", "instance=blue"),
        ("reconcile_shared", "maybe", "yes or no"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_option_and_by_variable(option, value, complaint):
    with pytest.raises(InvalidConfig, match=complaint):
        Config.load({}, **{option: value})
    with pytest.raises(InvalidConfig, match=complaint):
        Config.load({f"OUTLAST_{option.upper()}": value})


@pytest.mark.parametrize("option", ["reconcile_shared", "fast_path", "doorbell", "collect_seldom", "allow_pickle"])
def test_what_is_neither_yes_nor_no_is_named(option):
    variable = f"OUTLAST_{option.upper()}"
    complaint = rf"^{option} \({variable}\): must be yes or no, not 'maybe'$"
    with pytest.raises(InvalidConfig, match=complaint):
        Config.load({}, **{option: "maybe"})
    with pytest.raises(InvalidConfig, match=complaint):
        Config.load({variable: "maybe"})
    with pytest.raises(InvalidConfig, match=r"^OUTLAST_RECONCILER_TIMER_ENABLED: must be yes or no, not 'maybe'$"):
        Config.load({"OUTLAST_RECONCILER_TIMER_ENABLED": "maybe"})


def test_an_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(InvalidConfig, match=r"lease_tll.*lease_ttl"):
        Config.load({}, lease_tll="1s")


def test_an_unknown_variable_is_told_once_with_the_nearest_known_one(caplog):
    env = {"OUTLAST_LEASE_TLL": "30s", "OUTLAST_NAMSPACE": "blue", "OUTLAST_TOKENKEYS": "a:b", "PATH": "/bin"}
    env |= {"OUTLAST_CONCURRENCY": "5", "OUTLAST_LANES": "gpu"}  # like none: no guess is better than a wrong one
    assert Config.load(env) == Config.load({}), "it sets nothing"
    Config.load(env)
    assert [record.getMessage() for record in caplog.records] == [
        "the variable OUTLAST_CONCURRENCY sets nothing",
        "the variable OUTLAST_LANES sets nothing",
        "the variable OUTLAST_LEASE_TLL sets nothing; did you mean OUTLAST_LEASE_TTL?",
        "the variable OUTLAST_NAMSPACE sets nothing; did you mean OUTLAST_NAMESPACE?",
        "the variable OUTLAST_TOKENKEYS sets nothing; did you mean OUTLAST_TOKEN_KEYS?",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_nothing_is_said_of_variables_that_are_known_or_those_of_tests(caplog):
    Config.load({"OUTLAST_LEASE_TTL": "30s", "OUTLAST_TEST_ANYTHING": "1", "OUTLAST_RECONCILER_TIMER_BATCH": "7"})
    assert not caplog.records


def test_every_reconciler_can_be_set_by_variables():
    for name in RECONCILERS:
        prefix = f"OUTLAST_RECONCILER_{name.upper()}"
        env = {f"{prefix}_INTERVAL": "7s", f"{prefix}_BATCH": "9", f"{prefix}_ENABLED": "off"}
        [row] = [row for row in rows_for(Config.load(env)) if row.name == name]
        assert (row.interval_ms, row.batch, row.enabled) == (7_000, 9, False)


def test_rows_are_as_in_the_table_when_nothing_is_set():
    assert rows_for(Config.load({})) == ROWS


@pytest.mark.parametrize(
    "variable, value",
    [
        ("OUTLAST_RECONCILER_TIMR_INTERVAL", "1s"),
        ("OUTLAST_RECONCILER_TIMER_SPEED", "9"),
        ("OUTLAST_RECONCILER_TIMER_INTERVAL", "1ms"),
        ("OUTLAST_RECONCILER_TIMER_INTERVAL", "later"),
        ("OUTLAST_RECONCILER_TIMER_BATCH", "0"),
        ("OUTLAST_RECONCILER_TIMER_BATCH", "many"),
        ("OUTLAST_RECONCILER_TIMER_ENABLED", "perhaps"),
    ],
)
def test_a_reconciler_variable_that_sets_nothing_or_nonsense_is_refused(variable, value):
    with pytest.raises(InvalidConfig, match=variable):
        Config.load({variable: value})
