"""Collectors that are absent, die, hang, refuse or misunderstand: what becomes of the records and what the log says."""

from __future__ import annotations

import socket

import pytest
from exporting_process import ExportingProcess
from free_ports import find_free_ports
from receiver_process import Receiver

UNDELIVERED = "are not delivered"


@pytest.fixture
def free_port() -> int:
    return find_free_ports(1)[0]


def endpoint(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def test_a_collector_that_appears_later_gets_what_was_recorded_before(free_port: int) -> None:
    with ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=endpoint(free_port)) as exporter:
        exporter.ask("record 5")
        line = exporter.log(lambda text: UNDELIVERED in text)
        assert f"no collector can be reached at http://127.0.0.1:{free_port}" in line
        assert "Connection refused" in line
        assert "SPLUNK_PROFILER_LOGS_ENDPOINT" in line
        with Receiver(port=free_port) as receiver:
            assert len(receiver.records(5)) == 5
            exporter.log(lambda text: text == "profiling records are delivered again; 0 were dropped meanwhile")


def test_a_collector_that_dies_and_comes_back_loses_nothing(free_port: int) -> None:
    with (
        Receiver(port=free_port) as first,
        ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=endpoint(free_port)) as exporter,
    ):
        exporter.ask("record 3")
        first.records(3)
        assert exporter.ask("flush 10")  # answered, so not sent again
        first.kill()
        exporter.ask("record 4")
        exporter.log(lambda text: UNDELIVERED in text)
        with Receiver(port=free_port) as second:
            assert [record["time_ns"] for record in second.records(4)] == [4, 5, 6, 7]
            assert exporter.ask("flush 10")
        assert exporter.ask("counters")["delivered"] == 7


def test_hanging_collector_is_logged_and_gets_the_records_once_it_answers() -> None:
    settings = {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.5"}
    with (
        Receiver(mode="hang") as receiver,
        ExportingProcess(settings, SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter,
    ):
        exporter.ask("record 3")
        line = exporter.log(lambda text: UNDELIVERED in text)
        assert "DEADLINE_EXCEEDED" in line
        assert "0.5 s (OTEL_EXPORTER_OTLP_TIMEOUT)" in line
        receiver.switch("ok")
        assert len(receiver.records(3)) == 3


def test_recording_goes_on_in_bounded_memory_while_a_collector_hangs() -> None:
    with Receiver(mode="hang") as receiver, ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter:
        exporter.ask("record 5")
        receiver.exports(1, answer="hang")
        exporter.ask("record 20000")
        counters = exporter.ask("counters")
        assert counters["waiting"] < 14_000  # 8 MiB of samples with three frames
        assert counters["waiting"] + counters["queue_full"] == 20_005
        receiver.switch("ok")
        newest = receiver.record(lambda record: record["time_ns"] == 20_005)
        assert newest["trace_id"] == f"{20_005:032x}"


def test_the_end_of_the_process_does_not_wait_for_a_collector_that_hangs() -> None:
    settings = {"OTEL_EXPORTER_OTLP_TIMEOUT": "600"}
    with (
        Receiver(mode="hang") as receiver,
        ExportingProcess(settings, SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter,
    ):
        exporter.ask("record 5")
        receiver.exports(1, answer="hang")
        counters = exporter.ask("stop 0.2")
        assert counters["lost_at_exit"] == 5
        exporter.log(lambda text: "5 profiling records were not delivered before the process ended" in text)


def test_collector_that_returns_at_shutdown_gets_the_waiting_records(free_port: int) -> None:
    with ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=endpoint(free_port)) as exporter:
        exporter.ask("record 5")
        exporter.log(lambda text: UNDELIVERED in text)
        exporter.ask("flush 4")  # the connection pauses for longer after each attempt
        with Receiver(port=free_port) as receiver:
            assert exporter.ask("stop 10")["delivered"] == 5
            assert len(receiver.records(5)) == 5


@pytest.mark.parametrize("code", ["UNAUTHENTICATED", "PERMISSION_DENIED"])
def test_collector_that_refuses_credentials_gets_the_records_once_content(code: str) -> None:
    with (
        Receiver(mode=f"refuse {code}") as receiver,
        ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter,
    ):
        exporter.ask("record 3")
        line = exporter.log(lambda text: UNDELIVERED in text)
        assert code in line
        assert "SPLUNK_PROFILER_LOGS_HEADERS" in line
        receiver.switch("ok")
        assert len(receiver.records(3)) == 3


def test_collector_without_room_that_asks_for_a_retry_gets_the_records() -> None:
    with (
        Receiver(mode="refuse RESOURCE_EXHAUSTED 0.05") as receiver,
        ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter,
    ):
        exporter.ask("record 3")
        receiver.exports(2, answer="refuse")
        assert "RESOURCE_EXHAUSTED" in exporter.log(lambda text: UNDELIVERED in text)
        receiver.switch("ok")
        assert len(receiver.records(3)) == 3
        assert exporter.ask("flush 10")
        assert exporter.ask("counters")["delivered"] == 3


@pytest.mark.parametrize(
    ("code", "hint"), [("UNIMPLEMENTED", "logs pipeline"), ("INVALID_ARGUMENT", "refused with INVALID_ARGUMENT")]
)
def test_records_refused_for_good_are_counted_and_later_ones_sent(code: str, hint: str) -> None:
    with (
        Receiver(mode=f"refuse {code}") as receiver,
        ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter,
    ):
        exporter.ask("record 3")
        assert hint in exporter.log(lambda text: UNDELIVERED in text)
        receiver.switch("ok")
        exporter.ask("record 2")
        assert [record["time_ns"] for record in receiver.records(2)] == [4, 5]
        assert exporter.ask("flush 10")
        counters = exporter.ask("counters")
        assert (counters["rejected"], counters["delivered"]) == (3, 2)


def test_a_partial_success_is_counted_and_its_message_logged() -> None:
    with (
        Receiver(mode="partial 2 too old for this collector") as receiver,
        ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter,
    ):
        exporter.ask("record 5")
        told = exporter.log(lambda text: "2 profiling records were dropped" in text)
        assert "too old for this collector" in told
        counters = exporter.ask("counters")
        assert (counters["rejected"], counters["delivered"]) == (2, 3)


def test_rejected_records_never_exceed_those_sent() -> None:
    with (
        Receiver(mode="partial 3 of which a profile has several") as receiver,
        ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter,
    ):
        exporter.ask("record 1")
        assert exporter.log(lambda text: "1 profiling records were dropped" in text)
        counters = exporter.ask("counters")
        assert (counters["rejected"], counters["delivered"]) == (1, 0)


def test_a_batch_larger_than_the_collector_takes_is_sent_in_parts() -> None:
    with Receiver() as receiver, ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter:
        exporter.ask("record 400 40 500")  # 8 MB, in batches of more than the 4 MiB that a server takes
        assert len(receiver.records(400)) == 400
        assert exporter.ask("flush 10")
        assert exporter.ask("counters")["delivered"] == 400
        assert exporter.profiler_log() == []


def test_record_larger_than_the_collector_takes_is_the_only_one_lost() -> None:
    with Receiver() as receiver, ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter:
        exporter.ask("record 1 100000 50")
        line = exporter.log(lambda text: UNDELIVERED in text)
        assert "SPLUNK_PROFILER_MAX_STACK_DEPTH" in line
        exporter.ask("record 3")
        assert [record["time_ns"] for record in receiver.records(3)] == [2, 3, 4]
        assert exporter.ask("flush 10")
        counters = exporter.ask("counters")
        assert (counters["rejected"], counters["delivered"]) == (1, 3)


def test_batches_are_smaller_than_collectors_accept_by_default() -> None:
    with Receiver() as receiver, ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter:
        exporter.ask("record 2000 40")
        receiver.records(2000)
        assert max(export["size"] for export in receiver.exports()) <= 1 << 20


def test_a_server_that_is_no_collector_is_named_as_such() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = endpoint(listener.getsockname()[1])
        with ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=url, OTEL_EXPORTER_OTLP_TIMEOUT="0.5") as exporter:
            exporter.ask("record 1")
            assert "no answer within 0.5 s" in exporter.log(lambda text: UNDELIVERED in text)
            exporter.ask("stop 0.2")


def test_parent_and_child_go_on_sending_after_a_fork_during_an_export() -> None:
    with Receiver() as receiver, ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter:
        exporter.ask("record 1")
        receiver.records(1)
        for _ in range(3):
            receiver.switch("hang")
            before = len(receiver.exports(answer="hang"))
            exporter.ask("record 1")
            receiver.exports(before + 1, answer="hang")
            exporter.tell("fork")
            receiver.exports(before + 2, answer="hang")  # the child's export, or the parent's second try
            receiver.switch("ok")
            assert exporter.answer() == 0
        assert exporter.ask("flush 10")
        children = receiver.records(3, lambda record: '"child"' in record["body"])
        parents = receiver.records(4, lambda record: '"worker"' in record["body"])
        assert {record["time_ns"] for record in parents} == {1, 2, 3, 4}
        assert len({record["resource"]["process.pid"] for record in children}) == 3
        assert len({record["resource"]["process.pid"] for record in parents}) == 1
        assert not any(UNDELIVERED in line for line in exporter.profiler_log())
