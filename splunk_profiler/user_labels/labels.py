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

MAX_LABELS = 7  # readers take ten; three are the profiler's own
MAX_KEY_BYTES = 25
MAX_VALUE_BYTES = 53
RESERVED_NAMES = frozenset({"trace_id", "span_id", "local_root_span_id"})

Pairs = tuple[tuple[bytes, bytes], ...]
LabelEncoder = Callable[[Pairs], Any]
Made = TypeVar("Made")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class LabelSet:
    """All labels in force at one place of the program.

    Args:
        pairs: the labels.
        outer: the set that comes back in force after this one.
    """

    __slots__ = ("_encoded_by", "_published_form", "_sample_form", "outer", "pairs")

    def __init__(self, pairs: dict[str, str], outer: LabelSet | None) -> None:
        self.pairs = pairs
        self.outer = outer
        self._encoded_by: LabelEncoder | None = None
        self._published_form: Any = None
        self._sample_form: Any = None

    def encode_for_publishing(self, encoder: LabelEncoder, warn: Callable[[str, str], None]) -> Any:
        """What is published of it, made once by `encoder`; `warn` is told what the limits cost."""
        if self._encoded_by is not encoder:
            self._published_form = encoder(encode(self.pairs, warn))
            self._encoded_by = encoder
        return self._published_form

    def encode_for_samples(self, encoder: Callable[[dict[str, str]], Made]) -> Made:
        """What samples carry of it, made once by `encoder`, which is always the same."""
        if self._sample_form is None:
            self._sample_form = encoder(self.pairs)
        form: Made = self._sample_form
        return form


CURRENT_LABELS: ContextVar[LabelSet | None] = ContextVar("splunk_profiler_labels", default=None)
PUBLISHED_LABELS: ContextVar[Any] = ContextVar("splunk_profiler_published_labels", default=None)


class LabelPublisher:
    """Where labels go while publishing is on. There is one in a process."""

    def __init__(self) -> None:
        self._encoder: LabelEncoder | None = None
        self._set_variable: Callable[[ContextVar[Any], Any], None] | None = None
        self._warned: dict[str, object] = {}
        self._listener: Callable[[LabelSet | None], None] | None = None

    def open(self, encoder: LabelEncoder, set_variable: Callable[[ContextVar[Any], Any], None]) -> None:
        """Publish labels from the next change on.

        Args:
            encoder: encodes a set.
            set_variable: gives the variable this value, and has the calling thread show it.
        """
        self._set_variable = set_variable
        self._encoder = encoder
        self.publish(CURRENT_LABELS.get())

    def close(self) -> None:
        """Publish no labels any more."""
        self._encoder = self._set_variable = None

    def set_listener(self, listener: Callable[[LabelSet | None], None] | None) -> None:
        """Have `listener`, which must not raise, called with the labels that come into force on the calling thread."""
        self._listener = listener

    def publish(self, labels: LabelSet | None) -> None:
        """Labels have changed on the calling thread, to these."""
        listener = self._listener
        if listener is not None:
            listener(labels)
        encoder, set_variable = self._encoder, self._set_variable
        if encoder is not None and set_variable is not None:
            set_variable(
                PUBLISHED_LABELS, None if labels is None else labels.encode_for_publishing(encoder, self.warn_once)
            )
        elif (
            PUBLISHED_LABELS.get() is not None
        ):  # from before publishing ended: it must not be there when it begins again
            PUBLISHED_LABELS.set(None)

    def warn_once(self, kind: str, text: str) -> None:
        """Log a warning, the first one of its kind only."""
        marker = object()
        if self._warned.setdefault(kind, marker) is marker:
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
        self._pairs = {name: value if type(value) is str else _to_text(value) for name, value in pairs.items()}
        self._standalone_set: LabelSet | None = None  # the set where no others are in force: made once

    def __enter__(self) -> None:
        outer = CURRENT_LABELS.get()
        if outer is not None:
            entered = LabelSet({**outer.pairs, **self._pairs}, outer)
        else:
            entered = self._standalone_set = self._standalone_set or LabelSet(self._pairs, None)
        CURRENT_LABELS.set(entered)
        LABEL_PUBLISHER.publish(entered)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        current = CURRENT_LABELS.get()
        outer = None if current is None else current.outer
        CURRENT_LABELS.set(outer)
        LABEL_PUBLISHER.publish(outer)

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


def encode(pairs: dict[str, str], warn: Callable[[str, str], None]) -> Pairs:
    """The labels as readers take them, never two of one name: the last one counts.

    Args:
        pairs: name → value.
        warn: told (kind, sentence) of each thing that is not as the user wrote it.
    """
    encoded: dict[bytes, bytes] = {}
    for name, value in pairs.items():
        key = _truncate(name, MAX_KEY_BYTES, f"the name of the label {name!r}", warn)
        if not key:
            warn("empty", f"a label without a name is not published (its value is {value[:MAX_VALUE_BYTES]!r})")
        elif key.decode() in RESERVED_NAMES:
            warn("reserved", f"the label {name!r} is not published: the profiler publishes the span's own {name}")
        elif key not in encoded and len(encoded) == MAX_LABELS:
            warn("many", f"the label {name!r} is not published: readers show {MAX_LABELS} of the user's labels")
        else:
            if key in encoded:
                warn("twice", f"the label {name!r} is the same as another one for readers, and replaces it")
            encoded[key] = _truncate(value, MAX_VALUE_BYTES, f"the value of the label {name!r}", warn)
    return tuple(encoded.items())


def _truncate(text: str, max_bytes: int, what: str, warn: Callable[[str, str], None]) -> bytes:
    """The UTF-8 of `text` up to a NUL, cut before the character that does not fit."""
    whole = text.encode("utf-8", "replace")
    shown = whole.partition(b"\0")[0]
    if shown != whole:
        warn("nul", f"{what} is cut at its NUL character, as readers do")
    if len(shown) > max_bytes:
        warn("long", f"{what} is cut: it has {len(shown)} bytes, and readers show {max_bytes}")
        shown = shown[:max_bytes].decode("utf-8", "ignore").encode()
    return shown


def _to_text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # of the application's class: a label is not worth an error
        return f"<{type(value).__name__}>"
