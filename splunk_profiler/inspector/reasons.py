"""Explanations of problems in words. Every code has its line in docs/host-profilers/inspect.md."""

from __future__ import annotations

from collections.abc import Iterable

from splunk_profiler.inspector.model import Interface, Level, Problem, Reason, ThreadReading

_USE_TLSDESC = "build it with -ftls-model=global-dynamic -mtls-dialect=gnu2 (x86-64) or =desc (aarch64), with GCC"
_RESTART = "restart the process after an upgrade or removal of its packages"
_DEFAULT_VISIBILITY = "export it with default visibility, so that .dynsym has it"

# Code of a problem: level, text and remedy of its reason.
CATALOGUE: dict[str, tuple[Level, str, str]] = {
    "library-not-loaded": (
        Level.BLOCKS,
        "no library that publishes it is loaded",
        "start the process with `splunk-profiler run` and set OTEL_SERVICE_NAME; "
        "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED and "
        "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED switch the two on by themselves",
    ),
    "library-name": (
        Level.BLOCKS,
        "the symbols are there, but in a file whose name host profilers do not look for",
        "name the file elastic-jvmti-linux-<arch>.so or libcustomlabels.so",
    ),
    "several-libraries": (
        Level.LOSES,
        "several files with the name are loaded; a host profiler reads one of them",
        "load only one",
    ),
    "both-interfaces": (
        Level.LOSES,
        "one file publishes both interfaces; a host profiler takes it for one of them and loses the other",
        "build one library for each interface",
    ),
    "file-gone": (Level.BLOCKS, "the library's file was removed or replaced since it was loaded", _RESTART),
    "file-unreadable": (
        Level.BLOCKS,
        "the library's file cannot be opened from outside",
        "see that the file is readable below /proc/PID/root",
    ),
    "file-malformed": (Level.BLOCKS, "the library's file cannot be understood", _RESTART),
    "no-section-headers": (
        Level.BLOCKS,
        "the library has no section headers, in which the relocations are looked up",
        "do not strip section headers (sstrip, UPX)",
    ),
    "symbol-missing": (Level.BLOCKS, "the library does not define the symbol", _DEFAULT_VISIBILITY),
    "symbol-hidden": (Level.BLOCKS, "the symbol is hidden: other programs cannot find it by name", _DEFAULT_VISIBILITY),
    "symbol-size": (Level.BLOCKS, "the symbol has another size than the specification says", "declare it as specified"),
    "abi-version": (
        Level.BLOCKS,
        "custom_labels_abi_version is not 1, so nothing of the interface applies",
        "use a library of version 1 of the interface",
    ),
    "tls-dialect": (Level.BLOCKS, "the thread-local variable is not reached through a TLS descriptor", _USE_TLSDESC),
    "tls-dynamic": (
        Level.BLOCKS,
        "the variable got no static place in thread-local storage, and host profilers follow no other",
        "raise GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096, or load the library with LD_PRELOAD",
    ),
    "tls-unresolved": (Level.BLOCKS, "the TLS descriptor was not filled in", "link the library with -z now"),
    "storage-null": (
        Level.BLOCKS,
        "the pointer to the process storage is null; host profilers look once and never again",
        "wait until the profiler has started; if it has, look for a warning in the service's log",
    ),
    "storage-unreadable": (
        Level.BLOCKS,
        "the process storage cannot be read or understood",
        "publish the pointer only when the storage is complete, and keep its memory",
    ),
    "service-name-too-long": (Level.BLOCKS, "the service name is longer than host profilers accept", "shorten it"),
    "service-name-empty": (Level.NOTE, "the service has no name", "set OTEL_SERVICE_NAME"),
    "environment-too-long": (Level.BLOCKS, "the environment is longer than host profilers accept", "shorten it"),
    "storage-path-too-long": (
        Level.BLOCKS,
        "the socket's path is longer than host profilers read",
        "choose a socket directory with a short path",
    ),
    "socket-path-empty": (Level.BLOCKS, "the process storage names no socket", "bind the socket before publishing"),
    "socket-path-not-text": (Level.BLOCKS, "the socket's path has a NUL in it", "publish the path without its end"),
    "socket-path-relative": (Level.BLOCKS, "the socket's path is not absolute", "publish an absolute path"),
    "socket-path-dots": (Level.BLOCKS, "the socket's path goes upwards (..)", "publish the path without .."),
    "socket-path-too-long": (
        Level.LOSES,
        "the socket's path is too long once /proc/PID/root stands before it: every message fails",
        "choose a socket directory with a short path",
    ),
    "socket-absent": (
        Level.BLOCKS,
        "the socket's file is not there",
        "keep temporary-file cleaners away from it and the directory in the service's own mount namespace",
    ),
    "socket-not-socket": (Level.BLOCKS, "there is a file at the socket's path, but no socket", "remove that file"),
    "socket-not-datagram": (Level.LOSES, "the socket takes no datagrams: every message fails", "bind a DGRAM socket"),
    "socket-refused": (
        Level.LOSES,
        "no process receives at the socket: it is left over from one that has ended",
        "restart the profiler in the process",
    ),
    "socket-unknown": (Level.NOTE, "the socket could not be tried from here", "inspect as root"),
    "record-not-valid": (
        Level.LOSES,
        "the valid byte was 0: the sample would be discarded",
        "none if it is seen rarely: the record was being written; otherwise the publisher never validates it",
    ),
    "trace-id-zero": (Level.LOSES, "a trace is present, but its id is zero", "clear trace-present outside of traces"),
    "transaction-id-zero": (
        Level.LOSES,
        "the transaction id is zero beside a trace: host profilers drop such a sample",
        "publish the id of the local root span",
    ),
    "record-unreadable": (
        Level.LOSES,
        "the pointer leads to memory that is not there",
        "set the pointer to null before the memory is freed",
    ),
    "labels-unreadable": (
        Level.LOSES,
        "the label set cannot be read or understood",
        "set the pointer to null before the memory is freed",
    ),
    "labels-too-many": (Level.LOSES, "only the first 10 places of the label set are read", "publish fewer labels"),
    "labels-duplicate": (
        Level.LOSES,
        "a key is there twice; the specification takes the first, host profilers the last",
        "publish each key once",
    ),
    "label-key-cut": (Level.LOSES, "the key is cut at 25 bytes, or at a NUL", "shorten the key"),
    "label-value-cut": (Level.LOSES, "the value is cut at 53 bytes, or at a NUL", "shorten the value"),
    "label-key-not-text": (Level.LOSES, "the key, as far as it is read, is not UTF-8 and is dropped", "use UTF-8"),
    "label-without-value": (Level.LOSES, "a label has a key and no value", "give it an empty value"),
    "no-thread-publishes": (
        Level.NOTE,
        "no thread publishes anything now",
        "none if no request is under way; otherwise see that spans are started in this process",
    ),
}

_LEVEL_ORDER = list(Level)


def reasons_for(problems: Iterable[Problem], threads: Iterable[ThreadReading]) -> tuple[Reason, ...]:
    """Return the reasons of all problems, worst first; threads with the same problem share one."""
    reasons = [_to_reason(problem, ()) for problem in problems]
    grouped: dict[tuple[Interface, str], tuple[Problem, list[int]]] = {}
    for thread in threads:
        for problem in thread.problems:
            _, tids = grouped.setdefault((problem.interface, problem.code), (problem, []))
            tids.append(thread.tid)
    reasons += [_to_reason(problem, tuple(dict.fromkeys(tids))) for problem, tids in grouped.values()]
    return tuple(sorted(reasons, key=lambda reason: (_LEVEL_ORDER.index(reason.level), reason.interface.value)))


def _to_reason(problem: Problem, tids: tuple[int, ...]) -> Reason:
    level, text, remedy = CATALOGUE[problem.code]
    detail = f" ({problem.detail})" if problem.detail else ""
    return Reason(problem.code, level, problem.interface, text + detail, remedy, tids)


def blocked_interfaces(problems: Iterable[Problem]) -> set[Interface]:
    """Return the interfaces through which a host profiler sees nothing because of `problems`."""
    return {problem.interface for problem in problems if CATALOGUE[problem.code][0] is Level.BLOCKS}
