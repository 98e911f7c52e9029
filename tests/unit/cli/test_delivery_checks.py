"""The doctor's words for what became of records."""

from __future__ import annotations

from splunk_profiler.cli.checks import Finding, Verdict
from splunk_profiler.cli.delivery_checks import check_records, is_delivering
from splunk_profiler.exporter_process.loop_blockers import LoopBlocker
from splunk_profiler.exporter_process.status import HostStatus
from splunk_profiler.model import RecordCounters

_WELL = HostStatus(
    age_s=7300,
    has_profiles=False,
    counters=RecordCounters(recorded=12_000, delivered=11_990, waiting=10),
    lost_snapshots=0,
    destination="https://collector:4317",
    delivered_age_s=0.25,
    failed_age_s=None,
    failure="",
    period_ms=10,
    configured_period_ms=10,
    loop_blockers=[],
)


def _facts(status: HostStatus, subject: str) -> list[tuple[Verdict, str]]:
    return [(found.verdict, found.fact) for found in check_records(status) if found.subject == subject]


def test_delivery_without_a_fault_is_two_good_lines() -> None:
    assert [*check_records(_WELL)] == [
        Finding(Verdict.GOOD, "records", "12,000 records made in 2 h, 11,990 sent, 10 waiting"),
        Finding(Verdict.GOOD, "delivery", "last delivered 0.2 s ago, to https://collector:4317"),
    ]


def test_failure_after_the_last_delivery_keeps_samples_from_flowing() -> None:
    failing = _WELL._replace(delivered_age_s=300, failed_age_s=15, failure="no collector")
    fact = "last delivered 5 min ago, to https://collector:4317; failed 15 s ago: no collector"
    assert _facts(failing, "delivery") == [(Verdict.FAILURE, fact)]
    assert _facts(failing._replace(delivered_age_s=None), "delivery")[0][0] is Verdict.FAILURE
    recovered = failing._replace(delivered_age_s=1)
    assert _facts(recovered, "delivery")[0][0] is Verdict.WARNING


def test_process_that_has_made_nothing_yet_is_no_fault() -> None:
    new = _WELL._replace(age_s=1, counters=RecordCounters(), delivered_age_s=None)
    assert {found.verdict for found in check_records(new)} == {Verdict.NOTE}


def test_each_reason_for_a_loss_is_said() -> None:
    counters = RecordCounters(recorded=9, queue_full=1_000, rejected=2)
    assert _facts(_WELL._replace(counters=counters, lost_snapshots=3), "lost") == [
        (
            Verdict.WARNING,
            "1,000 because the queue was full, oldest first; 2 because the receiver refused them;"
            " 3 snapshots before they reached the exporter process, which was busy or not there",
        )
    ]


def test_stretched_interval_is_said_with_the_configured_one() -> None:
    fact = "a snapshot each 1,200 ms, not 10 ms, to keep its own limit"
    assert _facts(_WELL._replace(period_ms=1200), "interval") == [(Verdict.WARNING, fact)]
    assert not _facts(_WELL._replace(configured_period_ms=0), "interval")


def test_block_that_began_in_another_function_is_said_to() -> None:
    later = LoopBlocker("shop.render", "", "", 0, 2_000_000_000)
    fact = "shop.render blocked it in blocks that began elsewhere, for 2.0 s in total"
    assert _facts(_WELL._replace(loop_blockers=[later]), "event loop") == [(Verdict.WARNING, fact)]


def test_failure_long_ago_with_nothing_to_send_since_is_no_failure() -> None:
    refused = _WELL._replace(counters=RecordCounters(recorded=9, rejected=9), failed_age_s=3 * 3600, failure="no")
    assert _facts(refused._replace(delivered_age_s=None), "delivery")[0][0] is Verdict.WARNING
    assert _facts(refused._replace(delivered_age_s=4 * 3600), "delivery")[0][0] is Verdict.WARNING
    assert _facts(refused._replace(delivered_age_s=None, failed_age_s=60), "delivery")[0][0] is Verdict.FAILURE
    waiting = refused._replace(counters=RecordCounters(recorded=9, waiting=9), delivered_age_s=None)
    assert _facts(waiting, "delivery")[0][0] is Verdict.FAILURE


def test_only_a_delivery_of_late_shows_that_records_arrive() -> None:
    assert is_delivering(_WELL)
    assert not is_delivering(_WELL._replace(delivered_age_s=3 * 3600))
    assert not is_delivering(_WELL._replace(delivered_age_s=None))
    failing = _WELL._replace(delivered_age_s=300, failed_age_s=15, failure="no collector")
    assert not is_delivering(failing)
    assert is_delivering(failing._replace(delivered_age_s=1))


def test_the_worst_blockers_of_the_loop_are_listed() -> None:
    worst = [LoopBlocker(f"shop.f{number}", "", "", 1, 150_000_000) for number in range(10)]
    worst[0] = LoopBlocker("shop.render", "invoice", "GET /invoice", 1_200, 700_000_000_000)
    facts = [fact for _, fact in _facts(_WELL._replace(loop_blockers=worst), "event loop")]
    assert facts == [
        "shop.render blocked it 1,200 times, for 12 min in total (task invoice, endpoint GET /invoice)",
        *(f"shop.f{number} blocked it once, for 0.1 s in total" for number in range(1, 5)),
    ]
