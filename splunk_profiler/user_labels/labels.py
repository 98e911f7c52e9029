"""The user's own labels: what `splunk_profiler.labels` sets, and the form in which host profilers get it. The form that
samples carry is in `user_labels/sample_labels`.

The labels in force are kept in a `contextvars` variable, so tasks, copied contexts and executors that copy them inherit
them. While publishing is on, their published form stands in a second variable, which the C extension reads at every
switch. Runs on the application's threads; imports nothing of ours until there is something to warn of, and must not
import OpenTelemetry.

Specification: Custom Label ABI v1; the limits are those of its readers (docs/abi.md).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

MOST_LABELS = 7  # readers take ten; three are the profiler's own
MOST_KEY_BYTES = 25
MOST_VALUE_BYTES = 53
RESERVED = frozenset({"trace_id", "span_id", "local_root_span_id"})

Pairs = tuple[tuple[bytes, bytes], ...]
Make = Callable[[Pairs], Any]
Made = TypeVar("Made")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class LabelSet:
    """All labels in force at one place of the program.

    Args:
        pairs: the labels.
        outer: the set that comes back in force after this one.
    """

    __slots__ = ("_form", "_made_by", "_on_samples", "outer", "pairs")

    def __init__(self, pairs: dict[str, str], outer: LabelSet | None) -> None:
        self.pairs = pairs
        self.outer = outer
        self._made_by: Make | None = None
        self._form: Any = None
        self._on_samples: Any = None

    def published_form(self, make: Make, say: Callable[[str, str], None]) -> Any:
        """What is published of it, made once by `make`; `say` is told what the limits cost."""
        if self._made_by is not make:
            self._form = make(encode(self.pairs, say))
            self._made_by = make
        return self._form

    def on_samples(self, make: Callable[[dict[str, str]], Made]) -> Made:
        """What samples carry of it, made once by `make`, which is always the same."""
        if self._on_samples is None:
            self._on_samples = make(self.pairs)
        made: Made = self._on_samples
        return made


CURRENT_LABELS: ContextVar[LabelSet | None] = ContextVar("splunk_profiler_labels", default=None)
PUBLISHED: ContextVar[Any] = ContextVar("splunk_profiler_published_labels", default=None)


class LabelPublisher:
    """Where labels go while publishing is on. There is one in a process."""

    def __init__(self) -> None:
        self._make: Make | None = None
        self._put: Callable[[ContextVar[Any], Any], None] | None = None
        self._said: dict[str, object] = {}
        self._watcher: Callable[[LabelSet | None], None] | None = None

    def open(self, make: Make, put: Callable[[ContextVar[Any], Any], None]) -> None:
        """Publish labels from the next change on: `make` encodes a set, `put` gives the variable this value and has the
        calling thread show it."""
        self._put = put
        self._make = make
        self.show(CURRENT_LABELS.get())

    def close(self) -> None:
        """Publish no labels any more."""
        self._make = self._put = None

    def watch(self, watcher: Callable[[LabelSet | None], None] | None) -> None:
        """Have `watcher`, which must not raise, called with the labels that come into force on the calling thread."""
        self._watcher = watcher

    def show(self, labels: LabelSet | None) -> None:
        """Labels have changed on the calling thread, to these."""
        watcher = self._watcher
        if watcher is not None:
            watcher(labels)
        make, put = self._make, self._put
        if make is not None and put is not None:
            put(PUBLISHED, None if labels is None else labels.published_form(make, self.say_once))
        elif PUBLISHED.get() is not None:  # from before publishing ended: it must not be there when it begins again
            PUBLISHED.set(None)

    def say_once(self, kind: str, text: str) -> None:
        """Log a warning, the first one of its kind only."""
        said = object()
        if self._said.setdefault(kind, said) is said:
            from splunk_profiler.system.guard import logger  # noqa: PLC0415  # `logging` is not loaded for labels alone

            logger.warning("%s; this is said once", text)


LABEL_PUBLISHER = LabelPublisher()


class labels:  # noqa: N801  # used like a function
    """Name what this thread, task or call is at work on: ``with labels(route="/checkout"):``.

    They are on the samples of profiles, and host profilers see them.

    Labels of an inner block are added to those of the outer one and override equal names. They are inherited as
    `contextvars` are: by asyncio tasks, `asyncio.to_thread` and `contextvars.copy_context`. One object may be used many
    times, at the same time too. It also decorates functions, async ones included; not generators, whose body runs
    in between the code of others: use the block inside them.

    Samples carry 10 labels, names of up to 64 characters and values of up to 128; host profilers show 7, names of up to
    25 bytes and values of up to 53. What is beyond is cut off, with one warning in the log. Values of other types are
    turned into text. While nothing is published this sets a variable and no more.

    Args:
        pairs: name=value.
    """

    def __init__(self, /, **pairs: object) -> None:
        self._pairs = {name: value if type(value) is str else _text(value) for name, value in pairs.items()}
        self._alone: LabelSet | None = None  # the set where no others are in force: made once

    def __enter__(self) -> None:
        outer = CURRENT_LABELS.get()
        if outer is not None:
            entered = LabelSet({**outer.pairs, **self._pairs}, outer)
        else:
            entered = self._alone = self._alone or LabelSet(self._pairs, None)
        CURRENT_LABELS.set(entered)
        LABEL_PUBLISHER.show(entered)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        left = CURRENT_LABELS.get()
        outer = None if left is None else left.outer
        CURRENT_LABELS.set(outer)
        LABEL_PUBLISHER.show(outer)

    def __call__(self, function: Decorated) -> Decorated:
        """`function`, run with these labels."""
        import functools  # noqa: PLC0415  # for who decorates only
        import inspect  # noqa: PLC0415

        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("labels() cannot decorate a generator: use `with labels(...)` inside it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def labelled(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def labelled(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return function(*args, **kwargs)

        return labelled  # type: ignore[return-value]


def encode(pairs: dict[str, str], say: Callable[[str, str], None]) -> Pairs:
    """The labels as readers take them, never two of one name: the last one counts.

    Args:
        pairs: name → value.
        say: told (kind, sentence) of each thing that is not as the user wrote it.
    """
    encoded: dict[bytes, bytes] = {}
    for name, value in pairs.items():
        key = _cut(name, MOST_KEY_BYTES, f"the name of the label {name!r}", say)
        if not key:
            say("empty", f"a label without a name is not published (its value is {value[:MOST_VALUE_BYTES]!r})")
        elif key.decode() in RESERVED:
            say("reserved", f"the label {name!r} is not published: the profiler publishes the span's own {name}")
        elif key not in encoded and len(encoded) == MOST_LABELS:
            say("many", f"the label {name!r} is not published: readers show {MOST_LABELS} of the user's labels")
        else:
            if key in encoded:
                say("twice", f"the label {name!r} is the same as another one for readers, and replaces it")
            encoded[key] = _cut(value, MOST_VALUE_BYTES, f"the value of the label {name!r}", say)
    return tuple(encoded.items())


def _cut(text: str, most_bytes: int, what: str, say: Callable[[str, str], None]) -> bytes:
    """The UTF-8 of `text` up to a NUL, cut before the character that does not fit."""
    whole = text.encode("utf-8", "replace")
    shown = whole.partition(b"\0")[0]
    if shown != whole:
        say("nul", f"{what} is cut at its NUL character, as readers do")
    if len(shown) > most_bytes:
        say("long", f"{what} is cut: it has {len(shown)} bytes, and readers show {most_bytes}")
        shown = shown[:most_bytes].decode("utf-8", "ignore").encode()
    return shown


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # of the application's class: a label is not worth an error
        return f"<{type(value).__name__}>"
