"""Tests of the message socket: its place, its permissions and the removal of its file."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from permissions import NOBODY, unprivileged
from target_process import environment

from splunk_profiler.host_profilers.message_socket import MessageSocket, MessageSocketError

MAX_BYTES = 89


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield a readable directory with a short path."""
    with TemporaryDirectory(prefix="s") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@contextmanager
def inbox(directory: Path) -> Iterator[MessageSocket]:
    made = MessageSocket(str(directory))
    try:
        yield made
    finally:
        made.close()


@contextmanager
def mounted(directory: Path, options: str) -> Iterator[None]:
    """Mount a file system in memory."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def sent_to(path: str | Path, message: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(message, str(path))


def received(made: MessageSocket) -> bytes:
    with socket.socket(fileno=os.dup(made.fileno())) as copy:
        return copy.recv(100)


def test_a_directory_that_is_missing_is_made_with_its_parents(directory: Path) -> None:
    with inbox(directory / "run" / "profiler") as made:
        assert Path(made.path).parent == directory / "run" / "profiler"
        assert Path(made.path).is_socket()
        sent_to(made.path, b"message")
        assert received(made) == b"message"


@pytest.mark.parametrize("end", ["", "/", "//"])
def test_its_path_is_absolute_plain_and_names_the_process(directory: Path, end: str) -> None:
    made = MessageSocket(f"{directory}{end}")
    made.close()
    assert made.path.startswith(f"{directory}/splunk-profiler-{os.getpid()}-")
    assert made.address == made.path.encode()


def test_each_has_a_path_of_its_own_in_a_directory_that_many_share(directory: Path) -> None:
    made = [MessageSocket(str(directory)) for _ in range(20)]
    assert len({one.path for one in made}) == 20
    assert {Path(one.path) for one in made} == set(directory.iterdir())
    for one in made:
        one.close()


def test_the_directory_may_have_any_name_that_a_file_can_have(directory: Path) -> None:
    for name in (b"with space", "ü-東".encode(), b"no\xfftext", b"quote'\"$\n"):
        with inbox(Path(os.fsdecode(os.path.join(os.fsencode(directory), name)))) as made:  # noqa: PTH118  # bytes
            assert name in made.address
            sent_to(made.path, b"message")
            assert received(made) == b"message"


def test_longest_path_that_readers_take_works_and_one_byte_more_fails(directory: Path) -> None:
    with inbox(directory) as short:
        spare = MAX_BYTES - len(short.address) - 1
    with inbox(directory / ("d" * spare)) as longest:
        assert len(longest.address) == MAX_BYTES
        sent_to(longest.path, b"message")
        assert received(longest) == b"message"
    long = directory / ("e" * (spare + 1))
    with pytest.raises(MessageSocketError, match=rf"^{long}/splunk-profiler-.* has 90 bytes; .* 89$"):
        MessageSocket(str(long))
    assert not long.exists()


def test_the_length_is_counted_in_bytes(directory: Path) -> None:
    with inbox(directory) as short:
        spare = MAX_BYTES - len(short.address) - 1
    with pytest.raises(MessageSocketError, match="bytes"):
        MessageSocket(str(directory / ("ü" * (spare // 2 + 1))))
    assert not list(directory.iterdir())


def test_a_directory_that_cannot_be_written_to_is_named_with_the_reason(directory: Path) -> None:
    closed = directory / "closed"
    closed.mkdir(0o555)
    with unprivileged():
        for path in (closed, closed / "missing"):
            with pytest.raises(MessageSocketError, match=rf"^{path}: Permission denied$"):
                MessageSocket(str(path))
    assert not list(closed.iterdir())


def test_a_file_in_the_place_of_the_directory_is_named_with_the_reason(directory: Path) -> None:
    (directory / "file").touch()
    for path, reason in ((directory / "file", "File exists"), (directory / "file" / "inner", "Not a directory")):
        with pytest.raises(MessageSocketError, match=rf"^{path}: {reason}$"):
            MessageSocket(str(path))


def test_a_file_system_that_is_mounted_read_only_is_named_with_the_reason(directory: Path) -> None:
    with mounted(directory, "ro"):
        for path in (directory, directory / "missing"):
            with pytest.raises(MessageSocketError, match=rf"^{path}: Read-only file system$"):
                MessageSocket(str(path))


def test_full_mounted_file_system_is_named_and_works_once_there_is_room(
    directory: Path,
) -> None:
    with mounted(directory, "nr_inodes=2"):
        (directory / "last").touch()
        with pytest.raises(MessageSocketError, match=rf"^{directory}: No space left on device$"):
            MessageSocket(str(directory))
        (directory / "last").unlink()
        with inbox(directory) as made:
            assert Path(made.path).is_socket()


def test_what_failed_leaves_no_descriptor_behind(directory: Path) -> None:
    (directory / "file").touch()
    before = sorted(Path("/proc/self/fd").iterdir())
    for path in (directory / "file", directory / ("x" * 80)):
        with pytest.raises(MessageSocketError):
            MessageSocket(str(path))
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_it_does_not_block_and_is_not_inherited_by_programs(directory: Path) -> None:
    with inbox(directory) as made:
        assert not os.get_blocking(made.fileno())
        assert not os.get_inheritable(made.fileno())
        with pytest.raises(BlockingIOError):
            received(made)


_MODES = """
import os, sys
from splunk_profiler.host_profilers.message_socket import MessageSocket
os.umask(int(sys.argv[2], 8))
modes = []
def seen(event, args):
    if event == 'socket.bind':  # the file gets the mode that the socket has now
        modes.append(os.fstat(args[0].fileno()).st_mode & 0o777)
sys.addaudithook(seen)
inbox = MessageSocket(sys.argv[1])
modes.append(os.stat(inbox.path).st_mode & 0o777)
inbox.close()
print(*map(oct, modes))
"""


@pytest.mark.parametrize("umask", ["000", "022", "077"])
def test_other_users_may_not_write_to_it_from_its_first_moment_on(directory: Path, umask: str) -> None:
    command = [sys.executable, "-c", _MODES, str(directory), umask]
    assert subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout.split() == [
        "0o600",
        "0o600",
    ]


_STREAMS = """
import os, sys
from splunk_profiler.host_profilers.message_socket import MessageSocket
os.close(0)
inbox = MessageSocket(sys.argv[1])
opened = os.open('/dev/null', os.O_RDONLY)
print(opened, inbox.fileno() > 2, os.get_inheritable(inbox.fileno()), os.get_blocking(inbox.fileno()))
inbox.close()
"""


def test_socket_takes_no_number_of_a_closed_standard_stream(directory: Path) -> None:
    command = [sys.executable, "-c", _STREAMS, str(directory)]
    done = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["0", "True", "False", "False"]


def test_its_file_goes_when_it_is_closed_and_closing_it_again_does_nothing(directory: Path) -> None:
    made = MessageSocket(str(directory))
    made.close()
    made.close()
    assert not list(directory.iterdir())


def test_close_works_with_file_or_directory_missing_or_read_only(directory: Path) -> None:
    for_file, for_directory = MessageSocket(str(directory)), MessageSocket(str(directory / "inner"))
    Path(for_file.path).unlink()
    for_file.close()
    Path(for_directory.path).unlink()
    (directory / "inner").rmdir()
    for_directory.close()
    owned = MessageSocket(str(directory))
    directory.chmod(0o555)
    with unprivileged():
        owned.close()
    directory.chmod(0o755)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer versions warn about forks beside threads
def test_close_in_a_forked_child_leaves_socket_and_file_to_the_parent(directory: Path) -> None:
    with inbox(directory) as made:
        child = os.fork()
        if child == 0:
            try:
                made.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        sent_to(made.path, b"message")
        assert received(made) == b"message"
    assert not list(directory.iterdir())


def test_only_sockets_of_ended_processes_are_removed(directory: Path) -> None:
    names = [f"splunk-profiler-{number}-0123abcd.sock" for number in range(1, 7)]
    stale, living, file, folder, link, strangers = (directory / name for name in names)
    other = directory / "splunk-profiler-1-0123abcd.sock.old"
    for path in (stale, other, strangers):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as gone:
            gone.bind(str(path))
    if os.geteuid() == 0:
        os.chown(strangers, NOBODY, NOBODY)
    else:
        strangers.unlink()
    file.touch()
    folder.mkdir()
    link.symlink_to(other)
    kept = set(directory.iterdir()) - {stale}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(living))
        with inbox(directory) as made:
            made.remove_stale_sockets()
            assert set(directory.iterdir()) == kept | {living, Path(made.path)}
        assert stat.S_ISSOCK(living.stat().st_mode)


def test_a_directory_that_cannot_be_listed_is_no_obstacle(directory: Path) -> None:
    hidden = directory / "hidden"
    hidden.mkdir()
    hidden.chmod(0o733)
    with unprivileged(), inbox(hidden) as made:
        sent_to(made.path, b"message")
        assert received(made) == b"message"


def test_a_socket_that_was_closed_is_made_anew_under_the_same_path(directory: Path) -> None:
    with inbox(directory) as made:
        path = made.path
        os.close(made.fileno())
        with pytest.raises(ConnectionRefusedError):
            sent_to(path, b"lost")
        made.reopen()
        assert made.path == path
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
        sent_to(path, b"message")
        assert received(made) == b"message"
        assert list(directory.iterdir()) == [Path(path)]
    assert not list(directory.iterdir())


def test_reopen_leaves_the_new_owner_of_its_descriptor_number_alone(directory: Path) -> None:
    with inbox(directory) as made, (directory / "log").open("w") as file:
        number = made.fileno()
        os.dup2(file.fileno(), number)
        made.reopen()
        assert made.fileno() != number
        os.write(number, b"still here")
        os.close(number)
    assert (directory / "log").read_text() == "still here"


def test_a_socket_that_cannot_be_made_anew_says_why_and_can_be_closed(directory: Path) -> None:
    made = MessageSocket(str(directory / "inner"))
    os.close(made.fileno())
    Path(made.path).unlink()
    (directory / "inner").rmdir()
    (directory / "inner").touch()
    with pytest.raises(MessageSocketError, match="File exists"):
        made.reopen()
    made.close()
    assert [path.name for path in directory.iterdir()] == ["inner"]


def test_stale_removal_keeps_its_own_file_while_its_descriptor_is_closed(directory: Path) -> None:
    inbox = MessageSocket(str(directory))
    os.close(inbox.fileno())  # as daemons do
    inbox.remove_stale_sockets()
    assert Path(inbox.path).is_socket()
    assert not inbox.is_open
    inbox.reopen()
    assert inbox.is_open
    inbox.close()
    assert not list(directory.iterdir())
