/* The state of a ticker, shared by the C files of the walker.
 *
 * Each part belongs to one file, and each field to one of three kinds. *GIL*: read and written only with the
 * GIL held. *mutex*: only with ticker_state.loop.mutex held. *atomic*: by any thread.
 *
 * Lock order: the GIL, the fork registry's mutex, the ticker's mutex, CPython's own locks. No thread waits for
 * the GIL while it holds any of the others. No thread waits with the GIL for the first two mutexes, which a
 * forking thread holds for longer (`forks_lock`).
 */
#ifndef SPLUNK_PROFILER_WALKER_TICKER_STATE_H
#define SPLUNK_PROFILER_WALKER_TICKER_STATE_H

#include "clocks.h"
#include "module_state.h"
#include "schedule.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* One captured frame. The place that stores it says if code and globals are owned. */
typedef struct {
    PyObject *code;
    PyObject *globals;
    int offset; /* bytes, as frame.f_lasti */
} raw_frame;

/* The frames of a thread, leaf first, shared by all snapshots between which the thread did not move. GIL. */
typedef struct raw_stack {
    /* All stacks of the ticker are linked, so that the collector visits each once. */
    struct raw_stack *previous, *next;
    struct raw_stack *next_unreferenced; /* list for the next drain to free */
    size_t refcount;                     /* threads of snapshots and events, and the table of recent stacks */
    PyObject *stack;                     /* owned; made by make_stack at the first drain; NULL before */
    size_t depth;
    bool truncated;
    raw_frame frames[]; /* code is owned, and globals until `stack` is made; then only their address is compared */
} raw_stack;

#define RECENT_STACKS 64

typedef struct {
    raw_stack *stacks[RECENT_STACKS]; /* one reference each, or NULL; by hash */
} recent_stacks;

static inline bool is_same_frame(const raw_frame *one, const raw_frame *other)
{
    return one->code == other->code && one->offset == other->offset && one->globals == other->globals;
}

typedef struct {
    uint64_t key;
    unsigned long ident;
    unsigned long native_id;
    raw_stack *stack;  /* one reference */
    PyObject *context; /* owned, or NULL */
    PyObject *labels;  /* owned, or NULL */
    /* Owned: the threading.Thread; NULL: there is none, or the stack is unchanged since the previous capture. */
    PyObject *python_thread;
    int64_t cpu_ns; /* 0: unknown */
    thread_state state;
    bool wants_gil; /* at the capture, as far as CPython tells */
} raw_thread;

/* All threads at one instant, oldest first. GIL. */
typedef struct raw_snapshot {
    struct raw_snapshot *next;
    int64_t time_ns;
    int64_t instant_ns; /* the same on the boot-time clock */
    int64_t latency_ns;
    /* Distance of its deadline from the previous one of its kind; 0: it had no deadline. */
    int64_t period_ns;
    int64_t since_previous_ns; /* from the previous capture of either kind; 0: this is the first */
    int64_t process_cpu_ns;    /* read before the clocks of the threads */
    int64_t gil_wait_ns;       /* from the ticker's request to the capture */
    bool is_focused;           /* has only threads of traces in the filter */
    int64_t quiet_count;       /* not 0: of so many quiet deadlines, without threads */
    size_t count, lost_count;  /* lost_count: snapshots before it that the ring has lost */
    raw_thread threads[];
} raw_snapshot;

/* The arguments of the constructor. GIL; NULL: not given, or cleared. The objects are borrowed from `owner`. */
typedef struct {
    PyObject *owner; /* owned: a tuple of all arguments; the collector never empties a tuple */
    PyObject *context_var;
    PyObject *labels_var;
    PyObject *make_frame;
    PyObject *make_stack;
    PyObject *threads;  /* dict: ident → threading.Thread */
    PyObject *traces;   /* the trace filter: a dict whose keys are trace ids */
    PyObject *span_key; /* key of the span in OpenTelemetry's context; NULL with `traces` */
    Py_ssize_t max_depth;
    Py_ssize_t ring_size;
    long long min_collection_interval_ns; /* between two kept ones of a generation */
    long long exception_interval;         /* mean number of exceptions for a kept one */
    int skips_quiet;                      /* deadlines are only counted while no thread runs */
} ticker_arguments;

/* Interned strings. Owned, GIL; NULL once cleared. */
enum {
    NAME_MODULE,
    NAME_NATIVE_ID,
    NAME_GENERATION,
    NAME_SPAN_CONTEXT,
    NAME_CR_AWAIT,
    NAME_GI_YIELDFROM,
    NAME_AG_AWAIT,
    NAME_RUNNING_LOOP,
    NAME_LOCK,
    NAME_COUNT
};

/* capture.c: snapshots for the next drain, and all stacks. GIL. */
typedef struct {
    raw_snapshot *oldest;
    raw_snapshot **end;      /* where the next one is linked in */
    atomic_size_t ready;     /* their number; atomic so that drain can read it without the GIL */
    atomic_bool is_awaited;  /* a thread waits for the next one */
    raw_snapshot *discarded; /* the next drain releases their references */
    size_t discarded_count;
    raw_stack *stacks;
    raw_stack *unreferenced_stacks;
} snapshot_ring;

typedef struct {
    uint64_t key;
    unsigned long native_id;
    raw_stack *stack; /* one reference */
} last_stack;

/* capture.c: the previous capture, to compare with. GIL. */
typedef struct {
    last_stack *stacks; /* newest thread first; as many places as scratch.threads */
    size_t count;
    int64_t time_ns; /* monotonic; 0: there was none */
} previous_capture;

/* A thread during the walk; owns nothing. */
typedef struct {
    uint64_t key;
    unsigned long ident;
    unsigned long native_id;
    PyObject *context;
    uint64_t context_switches;  /* how often it has entered or left a context; 0: never */
    bool wants_gil;             /* as far as CPython tells */
    bool is_gil_holder;         /* it holds the GIL, or held it until this capture preempted it */
    raw_stack *unchanged_stack; /* its previous stack, if it has not moved */
    size_t first;               /* otherwise: index of its frames in scratch.frames */
    size_t depth;
    bool truncated;
} scratch_thread;

/* walk.c: what a walk has read. The memory is kept for the next one. GIL. */
typedef struct {
    scratch_thread *threads; /* newest first */
    size_t count;
    uint64_t *selected_keys; /* keys of the threads that match the trace filter, newest first */
    size_t selected_count;
    size_t threads_capacity;
    raw_frame *frames;
    size_t frames_capacity;
    bool is_in_use; /* a capture is under way: what it allocates is not sampled */
} walk_scratch;

typedef enum { EVENT_COLLECTION, EVENT_EXCEPTION, EVENT_ALLOCATION, EVENT_LOOP_BLOCK, EVENT_KIND_COUNT } event_kind;

#define EVENT_DETAILS 2

/* What has happened on a thread, as RecordedEvent has it; the first member of what a kind keeps. GIL. */
typedef struct raw_event {
    struct raw_event *next;
    int64_t time_ns; /* since the epoch */
    raw_thread thread;
    uint64_t count, amount;
    uint64_t live_id;
    PyObject *details[EVENT_DETAILS]; /* owned, or NULL */
    bool is_dropped;                  /* it only waits for the release of its references */
} raw_event;

/* events.c: events for the next drain. GIL. */
typedef struct {
    raw_event *oldest;
    raw_event **end; /* where the next one is linked in; not set while there is none */
    size_t count;
} event_queue;

/* Collections of one generation that no event stands for yet. GIL. */
typedef struct {
    uint64_t count;
    int64_t duration_ns;
    int64_t last_recorded_ns; /* when the last one was kept; monotonic */
} pending_collections;

#define GENERATION_COUNT 3

/* collections.c. GIL. */
typedef struct {
    pending_collections pending[GENERATION_COUNT];
    int64_t start_ns; /* of the running collection; 0: none */
} collection_log;

typedef struct {
    PyObject *code;     /* not owned: code that runs once goes with all its constants */
    PyObject *code_ref; /* owned: a weak reference, dead once other code may have that address */
    PyObject *module;   /* owned: __name__ of the globals, or NULL */
    int offset;
    PyObject *frame; /* owned; NULL: the slot is free */
} cached_frame;

/* convert.c: frames that make_frame has returned; open addressing. GIL. */
typedef struct {
    cached_frame *slots;
    size_t size, count;
} frame_cache;

/* ticker_loop.c: the due capture, until a thread takes its deadline out. Atomic. */
typedef struct {
    atomic_llong deadline_ns;         /* negative if it is a focused one; LOOK_DUE; 0: none */
    atomic_llong period_ns[2];        /* by is_focused, as the next may come during a capture; set before deadline_ns */
    atomic_llong since_ns;            /* when the first of the deadlines that no thread has taken was stored; 0: none */
    _Atomic(const void *) gil_holder; /* at that time; only compared */
    atomic_bool is_posted;            /* a pending call is in the queue */
} pending_capture;

#define LOOK_DUE INT64_MIN /* no capture, only a look at event loops */

/* ticker_loop.c and forks.c: the thread in run(). */
typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* mutex: periods have changed, a fork wants the GIL, or the end */
    bool is_running;        /* mutex */
    atomic_bool is_stopped; /* set under mutex */
    /* Set under mutex: the interpreter must not be used again (it ends, or this is a forked child). */
    atomic_bool is_closed;
    /* The filter may have traces. Set under mutex, unset by a capture that finds none. */
    atomic_bool may_have_traces;
    atomic_bool has_full_captures; /* captures of all threads are scheduled; set under mutex */
    atomic_bool has_loops;         /* looks have found event loops that run, not long ago */
    atomic_bool needs_look;        /* it has seen a block of a loop for the first time */
    atomic_llong quiet_until_ns;   /* up to this instant, on the boot-time clock, no thread has run since that look */
    int64_t others_cpu_ns; /* CPU time of all other threads when a look was last asked for; of the loop's thread */
} ticker_loop;

/* Deadlines since the last capture at which no thread had run since then, and the last of them. Atomic. */
typedef struct {
    atomic_llong count, period_ns, time_ns, instant_ns, process_cpu_ns;
    int64_t others_cpu_ns; /* as in ticker_loop, when a capture was last asked for; of the loop's thread */
} quiet_deadlines;

typedef struct loop_watch loop_watch;

typedef struct ticker_state {
    atomic_int refcount; /* the Ticker object and a posted pending call */
    PyInterpreterState *interp;
    struct ticker_state *next_ticker; /* forks.c: the registry */
    ticker_arguments arguments;
    PyObject *names[NAME_COUNT];
    ticker_loop loop;
    capture_schedule schedule;
    pending_capture pending;
    quiet_deadlines quiet;
    walk_scratch scratch;
    previous_capture previous;
    snapshot_ring ring;
    event_queue events[EVENT_KIND_COUNT];
    collection_log collections;
    struct exception_log *exceptions;   /* exceptions.c; owned. GIL */
    struct allocation_log *allocations; /* allocations.c; NULL: never started. GIL */
    loop_watch *loop_watch;             /* loop_watch.c; NULL: no loop is watched. GIL */
    cpu_clocks clocks;
    frame_cache frame_cache;
    atomic_llong counters[COUNTERS_FIELD_COUNT];
} ticker_state;

#pragma GCC visibility push(hidden)

/* ticker_state.c: lifetime, settings and counters; ticker_loop.c: the loop. */
/* GIL held; NULL with an exception. `keywords`: dict that has the objects of `given`. */
ticker_state *ticker_state_new(const ticker_arguments *given, PyObject *keywords);
void ticker_state_unref(ticker_state *ticker);
/* GIL held, released during waits; false with an exception. A period of 0: no such captures; at most a day. */
#define MAX_PERIOD_NS (86400LL * SECOND_NS)
bool ticker_state_run(ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns, int64_t phase_ns);
void ticker_state_set_periods(ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns);
void ticker_state_set_look_period(ticker_state *ticker, int64_t look_ns); /* GIL held, as for the next three */
void ticker_state_notify_trace_added(ticker_state *ticker);
void ticker_state_stop(ticker_state *ticker);
void ticker_state_capture_now(ticker_state *ticker, bool is_focused);
void ticker_state_announce_snapshots(ticker_state *ticker); /* to the thread that waits for them */
/* Wait for the end of the ticker or SIGTERM, and if `wants_snapshot` for a snapshot. GIL not held. */
void ticker_state_wait(ticker_state *ticker, int64_t timeout_ns, bool wants_snapshot);
void ticker_state_take_gil(ticker_state *ticker, PyThreadState *self); /* soon, unless others wait for it, too */

static inline bool ticker_state_is_ended(ticker_state *ticker)
{
    return atomic_load(&ticker->loop.is_stopped) || atomic_load(&ticker->loop.is_closed);
}

/* `counter`: COUNTERS_due and so on. */
static inline void ticker_state_count(ticker_state *ticker, int counter, int64_t amount)
{
    atomic_fetch_add(&ticker->counters[counter], amount);
}

/* walk.c: fills ticker_state.scratch. GIL held. False: it failed. */
bool walk_stacks(ticker_state *ticker, bool is_focused, const PyThreadState *gil_holder);
bool walk_calling_thread(ticker_state *ticker, scratch_thread *thread); /* fills `thread` instead */

/* What a thread that runs an event loop did at an instant: how often it had entered and left contexts. */
typedef struct {
    uint64_t key, context_switches;
    int64_t since_ns; /* on the boot-time clock */
} thread_switches;

/* Update these threads, and return how many have switched since; SIZE_MAX: it failed. Set `others` to a sum over all other
 * threads, which differs once one of them has switched, begun or ended. Needs the ticker's mutex or the GIL. */
size_t walk_switches(ticker_state *ticker, thread_switches *threads, size_t count, uint64_t *others);

/* filter.c: selects the listed threads of scratch.threads to walk. GIL held. */
void filter_threads(ticker_state *ticker); /* sets scratch.selected_keys */
bool filter_is_empty(const ticker_state *ticker);
/* Return an attribute of the instance itself, a new reference; NULL: there is none, or reading it could run
 * Python code. */
PyObject *read_attribute(PyObject *object, PyObject *name);

/* capture.c: takes snapshots, and looks at event loops. GIL held. Deadline 0: now. `gil_holder` counts as running, and
 * is only compared. False: no snapshot was taken. */
bool capture_snapshot(ticker_state *ticker, int64_t deadline_ns, bool is_focused, const PyThreadState *gil_holder);
void capture_look(ticker_state *ticker, const PyThreadState *gil_holder); /* only look */
void capture_quiet(ticker_state *ticker); /* store what stands for quiet deadlines, if there were any */
/* False: `thread` is not set. A stack that is one of `recent` is shared. */
bool capture_calling_thread(ticker_state *ticker, raw_thread *thread, recent_stacks *recent);
raw_stack *stack_new(ticker_state *ticker, const raw_frame *frames, size_t depth, bool truncated); /* NULL: no memory */
raw_stack *scratch_stack(ticker_state *ticker, const scratch_thread *thread); /* the unchanged one, or as stack_new */
/* Fill `thread` from a scratch thread, with one more reference to `stack`. */
void thread_materialize(ticker_state *ticker, const scratch_thread *scratch, raw_stack *stack, raw_thread *thread);
void recent_stacks_clear(ticker_state *ticker, recent_stacks *recent); /* runs no Python code */
void stack_unref(ticker_state *ticker, raw_stack *stack);              /* drop one reference; runs no Python code */

/* collections.c: collections of garbage. GIL held. */
/* A str and a dict, from the collector; false with an exception. */
bool collections_handle_event(ticker_state *ticker, PyObject *phase, PyObject *info);

/* release.c: releases references, which may run Python code. GIL held. */
void thread_release(ticker_state *ticker, raw_thread *thread);
raw_snapshot *snapshots_take(ticker_state *ticker); /* take all, oldest first */
void snapshot_free(ticker_state *ticker, raw_snapshot *snapshot);
void ticker_state_free_unreferenced(ticker_state *ticker);
void ticker_state_release_all(ticker_state *ticker);
int ticker_state_traverse(ticker_state *ticker, visitproc visit, void *arg);
int thread_traverse(const raw_thread *thread, visitproc visit, void *arg);
int snapshot_traverse(const raw_snapshot *snapshot, visitproc visit, void *arg);

/* convert.c: makes Python values, on the sampler thread. GIL held. New references. A snapshot is stolen. */
PyObject *convert_snapshot(PyObject *owner, ticker_state *ticker, const module_state *module, raw_snapshot *raw);
PyObject *convert_stack(ticker_state *ticker, raw_stack *raw); /* a reference borrowed from `raw` */
PyObject *convert_thread(ticker_state *ticker, const module_state *module, const raw_thread *raw);
PyObject *new_ref_or_none(PyObject *object); /* of None for NULL */
void frame_cache_clear(frame_cache *cache);

/* raw_threads.c: the threads of a snapshot as a Python sequence. GIL held. `owner`: the Ticker; steals the snapshot. */
PyObject *raw_threads_new(PyTypeObject *type, PyObject *owner, ticker_state *ticker, raw_snapshot *snapshot);
/* Borrowed from a RawThreads; NULL: the collector has cleared it. */
const raw_snapshot *raw_threads_snapshot(PyObject *threads);
ticker_state *raw_threads_ticker(PyObject *threads);

/* clocks.c. False with an exception if it is no int. */
bool native_id_parse(pid_t *native_id, PyObject *given);

#pragma GCC visibility pop

#endif
