"""Settings must fit each other and the host; each slip is one line that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from gaoler.config.checks import check_placement, check_uid_range, is_loopback
from gaoler.config.settings import Settings, SettingsError, load

KEY = "k" * 16


def refused(environ: dict[str, str]) -> str:
    """The one line that these settings are refused with."""
    with pytest.raises(SettingsError) as caught:
        load(environ)
    text = str(caught.value)
    assert text.isprintable(), "more than one line"
    return text


# --- settings that must fit each other ----------------------------------------------------


def test_the_grading_allowance_must_outlast_aging_and_one_interactive_request() -> None:
    assert load({"QUEUE_ALLOWANCE_GRADING_MS": "42000"}).queue_allowance_grading_ms == 42_000
    text = refused({"QUEUE_ALLOWANCE_GRADING_MS": "41999"})
    assert text.startswith("QUEUE_ALLOWANCE_GRADING_MS=41999: allowed is at least 42000")
    assert "RUNNER_TIMEOUT_MS (30000)" in text


def test_without_keys_only_loopback_is_bound() -> None:
    for name in ("BIND", "INTERNAL_BIND"):
        for value in ("0.0.0.0:9000", "[::]:9000", "192.0.2.1:9000", "example.org:9000"):
            assert refused({name: value}).startswith(f"{name}={value}: allowed is a loopback")
            assert load({name: value, "API_KEYS": KEY})
        for value in ("127.0.0.2:9000", "[::1]:9000", "localhost:9000", "127.0.0.1:0"):
            assert load({name: value})


def test_a_stub_is_bound_to_loopback_alone_whatever_the_keys() -> None:
    for name in ("BIND", "INTERNAL_BIND"):
        text = refused({name: "0.0.0.0:9000", "API_KEYS": KEY, "RUNNER_MODE": "stub"})
        assert text.startswith(f"{name}=0.0.0.0:9000: allowed is a loopback address with RUNNER_M")
    assert load({"RUNNER_MODE": "stub"})


def test_an_address_counts_as_loopback_only_where_it_surely_is() -> None:
    assert is_loopback("LOCALHOST")
    assert not is_loopback("localhost.example.org")
    assert not is_loopback("::ffff:192.0.2.1")


def test_both_addresses_may_not_share_a_port() -> None:
    assert refused({"INTERNAL_BIND": "127.0.0.2:8300"}).startswith("INTERNAL_BIND=127.0.0.2:8300")
    assert load({"BIND": "127.0.0.1:0", "INTERNAL_BIND": "127.0.0.1:0"})


def test_the_default_profile_must_be_an_allowed_one() -> None:
    text = refused({"ALLOWED_SANDBOX_PROFILES": "native_v1"})
    assert text.startswith("DEFAULT_SANDBOX_PROFILE=standard_v1: allowed is one of")
    assert load({"ALLOWED_SANDBOX_PROFILES": "native_v1", "DEFAULT_SANDBOX_PROFILE": "native_v1"})


def test_the_uid_range_must_be_wide_enough_and_without_nobody() -> None:
    assert load({"UID_RANGE": "200000-200015", "MAX_CONCURRENCY": "4"})
    assert "at least 16" in refused({"UID_RANGE": "200000-200014", "MAX_CONCURRENCY": "4"})
    assert "65534" in refused({"UID_RANGE": "60000-70000"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MEMORY_LIMIT_BYTES", str(2**31 + 1)),
        ("PIDS_LIMIT", "1025"),
        ("OUTPUT_LIMIT_BYTES", str(2**24 + 1)),
    ],
)
def test_what_a_task_gets_unasked_is_no_more_than_it_may_ask_for(name: str, value: str) -> None:
    assert refused({name: value}).startswith(f"{name}={value}: allowed is at most ")


def test_the_grace_of_a_step_leaves_an_interactive_request_some_time() -> None:
    assert load({"BUDGET_GRACE_MS": "29999"})
    text = refused({"BUDGET_GRACE_MS": "30000"})
    assert text == "BUDGET_GRACE_MS=30000: allowed is less than RUNNER_TIMEOUT_MS (30000)"


def test_a_body_of_the_largest_size_must_fit_in_what_is_admitted() -> None:
    assert load({"ADMITTED_BYTES": str(2**25)})
    text = refused({"ADMITTED_BYTES": str(2**25 - 1)})
    assert text == (
        "ADMITTED_BYTES=33554431: allowed is at least EXECUTE_BODY_LIMIT_BYTES (33554432)"
    )


def test_a_share_of_a_processor_that_no_kernel_takes_is_refused() -> None:
    for value in ("0", "0.0", "0.01", "1024"):
        assert load({"CPUS_PER_SLOT": value})
    for value in ("0.009", "1e-30"):
        text = refused({"CPUS_PER_SLOT": value})
        assert text.endswith(": allowed is 0 or at least 0.01")


def test_values_scaled_down_for_a_test_are_allowed() -> None:
    small = load(
        {
            "MAX_CONCURRENCY": "1",
            "AGING_MS": "50",
            "QUEUE_ALLOWANCE_INTERACTIVE_MS": "100",
            "QUEUE_LIMIT_INTERACTIVE": "1",
            "RUNNER_TTL_SLACK_MS": "100",
            "OVERALL_TIMEOUT_MS": "1000",
            "RUNNER_PROJECT_TIMEOUT_MS": "1000",
            "TASKS_MEMORY_BYTES": str(64 * 2**20),
            "UID_RANGE": "300000-300003",
            "EXECUTE_BODY_LIMIT_BYTES": "1000",
            "REQUEST_BODY_TIMEOUT_MS": "50",
        }
    )
    assert small.aging_ms == 50


# --- the host -----------------------------------------------------------------------------


def test_readonly_paths_are_added_to_the_usual_ones_that_exist(tmp_path: Path) -> None:
    usual = load({}).sandbox_readonly_paths
    assert Path("/usr") in usual
    assert all(folder.is_dir() for folder in usual)
    for value in ("/opt", "/usr /bin /sbin /lib /lib32 /lib64 /opt", "/usr,/opt", "/usr:/opt"):
        assert load({"SANDBOX_READONLY_PATHS": value}).sandbox_readonly_paths == (
            *usual,
            Path("/opt"),
        )


def placed(shown: Path, **paths: Path) -> None:
    settings = Settings(
        sandbox_readonly_paths=(shown,),
        state_dir=paths.get("state_dir", Path("/var/lib/gaoler")),
        api_keys_file=paths.get("api_keys_file"),
        gaoler_config=paths.get("gaoler_config"),
        runtime_dir=paths.get("runtime_dir", Path("/run/gaoler")),
    )
    check_placement(settings, paths.get("checkout", Path("/srv/gaoler")))


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        ("checkout", "the checkout"),
        ("state_dir", "STATE_DIR"),
        ("runtime_dir", "RUNTIME_DIR"),
        ("api_keys_file", "API_KEYS_FILE"),
        ("gaoler_config", "GAOLER_CONFIG"),
    ],
)
def test_nothing_of_ours_may_lie_where_tasks_can_read(tmp_path: Path, ours: str, name: str) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    placed(shown)
    placed(shown, **{ours: tmp_path / "shown-not" / "x"})
    link = tmp_path / "link"
    link.symlink_to(shown)
    for inside in (shown, shown / "deep" / "x", link / "x"):
        with pytest.raises(SettingsError, match=f"^{name}=.*: allowed is a place outside"):
            placed(shown, **{ours: inside})
    with pytest.raises(SettingsError):
        placed(link, **{ours: shown / "x"})


def test_the_uid_range_may_not_have_a_user_of_somebody_else() -> None:
    passwd = "root:x:0:0:root:/root:/bin/bash\n+::::::\nbob:x:1000:1000::/home/bob:/bin/sh\n"
    subuid = "bob:100000:65536\n# odd\n\n"
    check_uid_range((200_000, 265_535), passwd, subuid)
    check_uid_range((165_536, 165_600), passwd, subuid)
    for uids, owner in (
        ((1_000, 2_000), "bob has 1000 in /etc/passwd"),
        ((165_535, 165_600), "bob has 100000-165535 in /etc/subuid"),
        ((99_000, 100_000), "/etc/subuid"),
        ((110_000, 110_001), "/etc/subuid"),
    ):
        with pytest.raises(SettingsError, match=f"^UID_RANGE={uids[0]}-{uids[1]}: .*{owner}"):
            check_uid_range(uids, passwd, subuid)
