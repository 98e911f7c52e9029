"""Tests of the host agent's messages, byte by byte by the specification (little-endian)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler.inspector.followed_process import Settings
from splunk_profiler.inspector.messages import (
    DatagramSender,
    LossReason,
    Registration,
    encode_correlation,
    encode_registration,
    split_count,
)


@pytest.fixture
def datagram_sender() -> Iterator[DatagramSender]:
    datagram_sender = DatagramSender()
    yield datagram_sender
    datagram_sender.close()


def test_a_correlation_has_type_1_minor_version_1_three_ids_and_a_count() -> None:
    data = encode_correlation(
        "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "60b420bb3851d9d47acb933dbe70399b", 2
    )
    assert data == bytes.fromhex(
        "0100"  # message-type
        "0100"  # minor-version
        "0af7651916cd43dd8448eb211c80319c"  # trace-id
        "b7ad6b7169203331"  # transaction-id
        "60b420bb3851d9d47acb933dbe70399b"  # stack-trace-id
        "0200"  # count
    )
    assert len(data) == 46


def test_registration_has_type_2_the_delay_and_the_host_id_with_its_length() -> None:
    data = encode_registration(Registration(1000, "hôst", minor_version=2))
    assert data == bytes.fromhex("02000200e803000005000000") + "hôst".encode()


def test_registration_has_a_host_id_of_any_bytes() -> None:
    data = encode_registration(Registration(100, b"host-\xff".decode(errors="surrogateescape")))
    assert data.endswith(b"host-\xff")


def test_registration_omits_a_missing_host_id_and_encodes_an_empty_one() -> None:
    assert encode_registration(Registration(100)) == bytes.fromhex("0200010064000000")
    assert encode_registration(Registration(100, "")) == bytes.fromhex("020001006400000000000000")


@pytest.mark.parametrize(
    ("samples", "counts"),
    [(0, []), (1, [1]), (65_535, [65_535]), (65_536, [65_535, 1]), (200_000, [65_535, 65_535, 65_535, 3395])],
)
def test_more_samples_than_a_count_holds_are_split(samples: int, counts: list[int]) -> None:
    assert list(split_count(samples)) == counts


@given(st.integers(0, 1_000_000))
def test_no_sample_is_lost_or_made_by_the_split(samples: int) -> None:
    counts = list(split_count(samples))
    assert sum(counts) == samples
    assert all(struct.unpack("<H", encode_correlation("00" * 16, "00" * 8, "00" * 16, one)[-2:]) for one in counts)


@pytest.mark.parametrize(
    ("settings", "delay_ms"),
    [
        (Settings(0.05), 100),
        (Settings(0.05, report_period_s=2.5), 2600),
        (Settings(0.05, report_period_s=2.5, samples_delay_ms=7), 7),
    ],
)
def test_the_delay_that_is_promised_is_the_one_that_is_kept(settings: Settings, delay_ms: int) -> None:
    registration = settings.registration()
    assert registration is not None
    assert registration.samples_delay_ms == delay_ms


def test_no_registration_is_sent_where_it_is_switched_off() -> None:
    assert Settings(0.05, send_registrations=False).registration() is None


def test_a_message_arrives_or_gives_a_reason_without_waiting(datagram_sender: DatagramSender, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert datagram_sender.send(path, b"x") is LossReason.SOCKET_GONE
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        sent = 0
        while (loss := datagram_sender.send(path, str(sent).encode())) is None:
            sent += 1
        assert loss is LossReason.QUEUE_FULL
        assert [receiver.recv(9) for _ in range(sent)] == [str(number).encode() for number in range(sent)]
        assert datagram_sender.send(path, b"again") is None
    assert datagram_sender.send(path, b"x") is LossReason.SOCKET_GONE, "its file is there without a receiver"
    assert datagram_sender.send(f"{path}/below", b"x") is LossReason.SOCKET_GONE
    assert datagram_sender.send("/" + "s" * 107, b"x") is LossReason.PATH_TOO_LONG
    assert datagram_sender.send("/" + "s" * 106, b"x") is LossReason.SOCKET_GONE


def test_a_socket_of_another_kind_refuses(datagram_sender: DatagramSender, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        assert datagram_sender.send(str(tmp_path / "s"), b"x") is LossReason.REFUSED
