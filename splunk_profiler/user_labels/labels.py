"""The user's labels: `splunk_profiler.labels`, and the form that host profilers read.

`user_labels/sample_labels` has the form that samples carry. The labels in force are in a
`contextvars` variable, which tasks, copied contexts and executors that copy them inherit. While
publishing is on, a second variable holds their published form, which the C extension reads at every
switch. Runs on the application's threads. Imports nothing of ours until the first warning or error;
must not import OpenTelemetry.

Specification: Custom Label ABI v1; the limits are those of its readers (docs/host-profilers/abi.md).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol, TypeVar

MAX_LABELS = 7  # readers take ten; three are the profiler's own
MAX_KEY_BYTES = 25
MAX_VALUE_BYTES = 53
RESERVED_NAMES = frozenset({"trace_id", "span_id", "local_root_span_id"})

Pairs = tuple[tuple[bytes, bytes], ...]
LabelEncoder = Callable[[Pairs], Any]
Warn = Callable[[str, str], None]  # called with (kind, sentence)
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class ActiveLabels:
    """All labels in force at one point of the program; `outer` is in force again after the block that added `added`.

    `has_ended` says that this block has. `sample_form` is the form that samples carry, set by the first sample.
    """

    __slots__ = ("_encoded_by", "_published_form", "added", "has_ended", "outer", "pairs", "sample_form")

    def __init__(self, pairs: dict[str, str], added: dict[str, str], outer: ActiveLabels | None = None) -> None:
        self.pairs = pairs
        self.added = added  # by whose identity its block knows it
        self.outer = outer
        self.has_ended = False
        self._encoded_by: LabelEncoder | None = None
        self._published_form: Any = None
        self.sample_form: tuple[tuple[str, str], ...] | None = None

    def encode_for_publishing(self, encoder: LabelEncoder, warn: Warn) -> Any:
        """Return the published form, made once by `encoder`; `warn` gets (kind, sentence) of what is lost."""
        if self._encoded_by is not encoder:
            self._published_form = encoder(encode(self.pairs, warn))
            self._encoded_by = encoder
        return self._published_form


CURRENT_LABELS: ContextVar[ActiveLabels | None] = ContextVar("splunk_profiler_labels", default=None)
PUBLISHED_LABELS: ContextVar[Any] = ContextVar("splunk_profiler_published_labels", default=None)


class LabelListener(Protocol):
    """A listener to the labels of all threads, called on each of them; must not raise."""

    def enter(self, entered: ActiveLabels) -> None:
        """Note the labels of a block that begins."""

    def leave(self, ended: ActiveLabels, outer: ActiveLabels | None) -> None:
        """Note that the block of `ended` ends, and `outer` is in force."""


class LabelPublisher:
    """The destination of labels while publishing is on, one in a process.

    Attributes:
        listener: hears of each change, also while nothing is published.
    """

    def __init__(self) -> None:
        self._target: tuple[LabelEncoder, Callable[[ContextVar[Any], Any], None]] | None = None
        self._warned: dict[str, object] = {}
        self.listener: LabelListener | None = None

    def open(self, encoder: LabelEncoder, set_variable: Callable[[ContextVar[Any], Any], None]) -> None:
        """Publish labels from the next change on; `set_variable` sets a variable and publishes the calling thread."""
        self._target = encoder, set_variable
        self.publish(CURRENT_LABELS.get())

    def close(self) -> None:
        """Stop publishing labels."""
        self._target = None

    def publish(self, labels: ActiveLabels | None) -> None:
        """Publish the labels that are now in force on the calling thread."""
        if (target := self._target) is not None:
            encoder, set_variable = target
            published = None if labels is None else labels.encode_for_publishing(encoder, self.warn_once)
            set_variable(PUBLISHED_LABELS, published)
        elif PUBLISHED_LABELS.get() is not None:
            PUBLISHED_LABELS.set(None)  # a stale value would be published when publishing starts again

    def warn_once(self, kind: str, text: str) -> None:
        """Log the first warning of each kind."""
        marker = object()
        if self._warned.setdefault(kind, marker) is marker:
            from splunk_profiler.system.guard import logger  # noqa: PLC0415  # `logging` is not loaded for labels alone

            logger.warning("%s (logged once)", text)


LABEL_PUBLISHER = LabelPublisher()


class labels:  # noqa: N801  # used like a function
    """Label the work of this thread, task or call: ``with labels(route="/checkout"):``.

    The labels are on the samples of profiles, and host profilers see them.

    Labels of an inner block are added to those of the outer one and override equal names. They are
    inherited as `contextvars` are: by asyncio tasks, `asyncio.to_thread` and
    `contextvars.copy_context`. One object may be used many times, also at the same time. It also
    decorates functions, including async ones. It does not decorate generators, whose body
    alternates with code of their callers; use the block inside them. If an async generator is left
    early and not closed (`contextlib.aclosing`), its labels stay until the block around it ends.

    Samples carry 10 labels, with names of up to 64 characters and values of up to 128. Host
    profilers show 7, with names of up to 25 bytes and values of up to 53. Excess is cut off, with
    one warning in the log. Values of other types are converted to text. Without publishing this
    only sets a variable.
    """

    def __init__(self, /, **pairs: object) -> None:
        self._pairs = {name: value if type(value) is str else _to_text(value) for name, value in pairs.items()}
        self._standalone_set: ActiveLabels | None = None  # made once, for use without an outer block

    def __enter__(self) -> None:
        outer = CURRENT_LABELS.get()
        if outer is not None:
            entered = ActiveLabels({**outer.pairs, **self._pairs}, self._pairs, outer)
        else:
            entered = self._standalone_set = self._standalone_set or ActiveLabels(self._pairs, self._pairs)
        CURRENT_LABELS.set(entered)
        if (listener := LABEL_PUBLISHER.listener) is not None:
            listener.enter(entered)
        LABEL_PUBLISHER.publish(entered)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ended = self._innermost_set()
        if ended is None:  # the block began in another context
            return
        outer = ended.outer
        CURRENT_LABELS.set(outer)
        if outer is not None:  # else the set is in force wherever this object is in use without an outer block
            ended.has_ended = True
            # Contexts copied inside the block keep `ended`, and a job that reschedules itself would keep all its turns.
            # Blocks that have not ended stay: this one may have ended in a copy of the context in which they will.
            while ended.outer is not None and ended.outer.has_ended:
                ended.outer = ended.outer.outer
        if (listener := LABEL_PUBLISHER.listener) is not None:
            listener.leave(ended, outer)
        LABEL_PUBLISHER.publish(outer)

    def _innermost_set(self) -> ActiveLabels | None:
        """Return the innermost set in force that this object added, one whose block has not ended if there is any."""
        ended = None
        current = CURRENT_LABELS.get()
        while current is not None:  # the first may be of a generator that was left inside the block
            if current.added is self._pairs:
                if not current.has_ended:
                    return current
                ended = ended or current  # elsewhere, in a copy of this context
            current = current.outer
        return ended

    def __call__(self, function: Decorated) -> Decorated:
        """Return `function` wrapped so that it runs with these labels."""
        import functools  # noqa: PLC0415  # for decorators only
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


def encode(pairs: dict[str, str], warn: Warn) -> Pairs:
    """Return the labels as readers take them, the last of equal names; `warn` gets (kind, sentence) of each change."""
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


def _truncate(text: str, max_bytes: int, what: str, warn: Warn) -> bytes:
    """Return the UTF-8 of `text` up to a NUL, cut at a character boundary."""
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
        return str.__str__(str(value))  # a subclass could override what is read of it
    except Exception as error:  # in the application's class: a label must not raise
        from splunk_profiler.system.guard import is_interrupt  # noqa: PLC0415  # loads `logging`

        if is_interrupt(error):
            raise
        return f"<{type(value).__name__}>"
