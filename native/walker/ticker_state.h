/* The state of a ticker, shared by the C files of the walker.
 *
 * Each field belongs to one of three kinds. *GIL*: read and written only with the GIL held. *mutex*: only
 * with ticker_state.mutex held. *atomic*: by any thread.
 *
 * Lock order: the GIL, the fork registry's mutex, ticker_state.mutex, CPython's own locks. No thread waits
 * for the GIL while it holds any of the others. No thread waits with the GIL for the first two mutexes, which
 * a forking thread holds for longer (`forks_lock`).
 */
#ifndef SPLUNK_PROFILER_WALKER_TICKER_STATE_H
#define SPLUNK_PROFILER_WALKER_TICKER_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define HIDDEN __attribute__((visibility("hidden")))

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
    size_t refcount;                     /* snapshots and the table of last stacks */
    PyObject *stack;                     /* owned; made by make_stack at the first drain */
    size_t depth;
    bool truncated;
    raw_frame frames[]; /* owned */
} raw_stack;

/* RUNNING: the thread had a processor at the deadline. READY: it waited for one, or held the GIL at the
 * capture without a processor at the deadline. UNKNOWN: not measured. */
typedef enum { THREAD_UNKNOWN = -1, THREAD_WAITING = 0, THREAD_READY = 1, THREAD_RUNNING = 2 } thread_state;

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
} raw_thread;

/* All threads at one instant, oldest first. GIL. */
typedef struct raw_snapshot {
    struct raw_snapshot *next;
    int64_t time_ns;
    int64_t latency_ns;
    /* Distance of its deadline from the previous one of its kind; 0: it had no deadline. */
    int64_t period_ns;
    int64_t since_previous_ns; /* from the previous capture of either kind; 0: this is the first */
    int64_t process_cpu_ns;    /* read before the clocks of the threads */
    bool is_focused;           /* has only threads of traces in the filter */
    size_t count;
    raw_thread threads[];
} raw_snapshot;

/* A garbage collection, its thread, and the collections that it stands for. GIL. */
typedef struct {
    int64_t time_ns; /* end of the collection */
    int generation;
    uint64_t count;      /* this one and those of its generation since the previous kept one */
    int64_t duration_ns; /* sum over all of them */
    raw_thread thread;
} raw_collection;

/* Collections of one generation that no raw_collection stands for yet. GIL. */
typedef struct {
    uint64_t count;
    int64_t duration_ns;
    int64_t last_recorded_ns; /* when the last one was kept; monotonic */
} pending_collections;

#define GENERATION_COUNT 3

/* A thread during the walk; owns nothing. */
typedef struct {
    uint64_t key;
    unsigned long ident;
    unsigned long native_id;
    PyObject *context;
    bool is_gil_holder;         /* it holds the GIL, or held it until this capture preempted it */
    raw_stack *unchanged_stack; /* its previous stack, if it has not moved */
    size_t first;               /* otherwise: index of its frames in ticker_state.frames */
    size_t depth;
    bool truncated;
} scratch_thread;

typedef struct {
    uint64_t key;
    unsigned long native_id;
    raw_stack *stack; /* one reference */
} last_stack;

/* The CPU clock of one thread of the last snapshot. */
typedef struct {
    uint64_t key;
    pid_t native_id;
    int64_t cpu_ns;        /* 0: the thread has ended, or its clock cannot be read */
    int64_t read_ns;       /* time of the reading, monotonic */
    int64_t reader_cpu_ns; /* CPU time of the reading thread at that time */
    bool has_run, is_busy; /* it used CPU time, or much of it, since the previous deadline */
    thread_state state;
} clock_entry;

/* The clocks at one deadline. A thread that takes the table out of ticker_state.clocks has it alone, and
 * returns it. */
typedef struct {
    int64_t deadline_ns; /* deadline of the capture that they are for; 0: it has none */
    int64_t process_ns;  /* CPU time of the process, read first */
    size_t count, capacity;
    clock_entry entries[]; /* oldest thread first */
} clock_table;

typedef struct {
    PyObject *code;   /* owned, so that its address is not reused while it is a key */
    PyObject *module; /* owned: __name__ of the globals, or NULL */
    int offset;
    PyObject *frame; /* owned; NULL: the slot is free */
} cached_frame;

typedef struct ticker_state {
    atomic_int refcount; /* the Ticker object and a posted pending call */
    PyInterpreterState *interp;

    /* Arguments from Python. Owned, GIL; NULL once cleared. */
    PyObject *context_var;
    PyObject *labels_var;
    PyObject *threads; /* dict: ident → threading.Thread; or NULL */
    PyObject *make_frame;
    PyObject *make_stack;
    PyObject *name_key;       /* "__name__" */
    PyObject *native_id_key;  /* "_native_id" */
    PyObject *generation_key; /* "generation" */
    PyObject *traces;         /* the trace filter: a dict whose keys are trace ids; NULL: none */
    PyObject *span_key;       /* key of the span in OpenTelemetry's context; NULL with `traces` */
    PyObject *context_name;   /* "_context"; NULL with `traces` */
    size_t max_depth;

    /* Snapshots. GIL; `ready` is atomic so that drain can read it without the GIL. */
    raw_snapshot **ring;
    size_t ring_size;
    size_t ring_first;
    atomic_size_t ready;
    raw_snapshot *discarded; /* the next drain releases their references */
    size_t discarded_count;
    raw_stack *stacks;
    raw_stack *unreferenced_stacks;

    /* The previous capture, newest thread first, and memory for the next. GIL. */
    last_stack *last_stacks;
    size_t last_count;
    scratch_thread *scratch_threads;
    int64_t previous_capture_ns; /* monotonic; 0: there was none */
    uint64_t *selected_keys;     /* keys of the matching threads, newest first */
    size_t threads_capacity;
    raw_frame *frames;
    size_t frames_capacity;

    /* Collections. GIL. */
    raw_collection *collections; /* a ring; NULL until the first is kept */
    size_t collections_first, collections_ready;
    pending_collections pending[GENERATION_COUNT];
    int64_t min_collection_interval_ns; /* between two kept ones of a generation */
    int64_t collection_start_ns;        /* of the running collection; 0: none */

    _Atomic(clock_table *) clocks; /* NULL: none yet, or a thread works on them */
    uint32_t probe_phase;          /* share of the probe, in 2^-32; belongs to the holder of the table */

    cached_frame *frame_cache; /* open addressing; GIL */
    size_t frame_cache_size;
    size_t frame_cache_count;

    /* Schedule. */
    pthread_mutex_t mutex;
    pthread_cond_t wake_cond;  /* mutex: stop, or changed periods */
    pthread_cond_t ready_cond; /* mutex: a snapshot is ready, or the end */
    bool is_running;           /* mutex */
    atomic_bool is_stopped;    /* set under mutex */
    /* Set under mutex: the interpreter must not be used again (it ends, or this is a forked child). */
    atomic_bool is_closed;
    atomic_bool is_call_posted;           /* a pending call is in the queue */
    int64_t period_ns, focused_period_ns; /* mutex: periods from now on; 0: no such captures */
    /* Deadline of the due capture, negative if it is a focused one; 0: none. The thread that takes it out
     * captures. */
    atomic_llong pending_deadline_ns;
    /* Distance of that deadline from the previous one of its kind; set before pending_deadline_ns. */
    atomic_llong pending_period_ns;
    /* The filter may have traces. Set under mutex, unset by a capture that finds none. */
    atomic_bool is_focus_active;
    atomic_bool has_full_captures; /* captures of all threads are scheduled; set under mutex */

    /* Counters. */
    atomic_ullong due, missed;
    atomic_ullong captured, by_pending_call, overwrites;
    atomic_llong latency_ns_max, latency_ns_sum, gil_held_ns_sum;

    struct ticker_state *next_ticker; /* fork registry */
    struct ticker_state **link;
} ticker_state;

static inline bool ticker_state_is_ended(ticker_state *ticker)
{
    return atomic_load(&ticker->is_stopped) || atomic_load(&ticker->is_closed);
}

/* walk.c: fills ticker_state.scratch_threads, newest first, and ticker_state.frames. GIL held. False: it failed. */
HIDDEN bool walk_stacks(ticker_state *ticker, bool is_focused, const PyThreadState *gil_holder, size_t *count);
HIDDEN bool walk_calling_thread(ticker_state *ticker, scratch_thread *scratch); /* fills `scratch` instead */

/* capture.c: takes snapshots. GIL held. Deadline 0: now. `gil_holder` counts as running, and is only
 * compared. False: no snapshot was taken. */
HIDDEN bool capture_snapshot(ticker_state *ticker, int64_t deadline_ns, bool is_focused,
                             const PyThreadState *gil_holder);
HIDDEN bool capture_calling_thread(ticker_state *ticker, raw_thread *thread); /* false: `thread` is not set */
HIDDEN void stack_unref(ticker_state *ticker, raw_stack *stack); /* drop one reference; runs no Python code */

/* collections.c: collections of garbage. GIL held. */
/* A str and a dict, from the collector. */
HIDDEN PyObject *collections_handle_event(ticker_state *ticker, PyObject *phase, PyObject *info);
/* Take the oldest one, with its references; false: there is none. */
HIDDEN bool collections_pop(ticker_state *ticker, raw_collection *taken);
HIDDEN int collections_traverse(ticker_state *ticker, visitproc visit, void *arg);

/* filter.c: selects listed threads of ticker_state.scratch_threads to walk. GIL held. */
/* Write ticker_state.selected_keys and return their number. */
HIDDEN size_t filter_threads(ticker_state *ticker, size_t count);
HIDDEN bool filter_is_empty(const ticker_state *ticker);
/* None, or (traces, span_key); false with an exception. */
HIDDEN bool filter_set(ticker_state *ticker, PyObject *trace_filter);

/* thread_objects.c: finds the threading.Thread of a listed thread. GIL held. */
HIDDEN PyObject *thread_objects_find(const ticker_state *ticker, unsigned long ident); /* new reference, or NULL */
/* `python_thread` may be NULL; 0: unknown. */
HIDDEN unsigned long thread_objects_native_id(const ticker_state *ticker, PyObject *python_thread);

/* release.c: releases references, which may run Python code. GIL held. */
HIDDEN void thread_release(ticker_state *ticker, raw_thread *thread);
HIDDEN void snapshot_free(ticker_state *ticker, raw_snapshot *snapshot);
HIDDEN void ticker_state_free_unreferenced(ticker_state *ticker);
HIDDEN void ticker_state_release_all(ticker_state *ticker);
HIDDEN int ticker_state_traverse(ticker_state *ticker, visitproc visit, void *arg);

/* convert.c, and collections.c for collections: make Python values on the worker thread. GIL held. */
typedef struct { /* named tuples of splunk_profiler/raw.py */
    PyTypeObject *raw_thread;
    PyTypeObject *raw_snapshot;
    PyTypeObject *raw_collection;
    PyTypeObject *ticker_counters;
    PyTypeObject *thread_change;
    PyTypeObject *idle_span;
} value_types;
/* Steals the references, even if one is NULL: then it returns NULL, with the exception that is set. */
HIDDEN PyObject *make_tuple(PyTypeObject *type, PyObject **items, Py_ssize_t count);
HIDDEN PyObject *convert_snapshot(ticker_state *ticker, const value_types *types, raw_snapshot *snapshot);
/* New reference. */
HIDDEN PyObject *convert_thread(ticker_state *ticker, const value_types *types, const raw_thread *thread);
HIDDEN PyObject *collections_drain(ticker_state *ticker, const value_types *types);
HIDDEN void frame_cache_clear(ticker_state *ticker);

/* clocks.c: reads CPU times, states and priorities. Needs the GIL only for Python values. */
HIDDEN int64_t monotonic_ns(void);
HIDDEN int64_t time_of_day_ns(void);
/* Read the clocks of the last snapshot's threads for the next one. True if some ran since the previous
 * deadline: the caller waits CLOCKS_PROBE_NS and reads them again, to find those that run now. */
HIDDEN bool clocks_read(ticker_state *ticker, int64_t deadline_ns);
HIDDEN void clocks_read_again(ticker_state *ticker);
#define CLOCKS_PROBE_NS 50000LL /* longer than most waits for a woken thread, shorter than most work */
/* Write the clocks to a snapshot; read those that are missing. `is_last`: the next snapshot continues from
 * this one. */
HIDDEN void clocks_fill(ticker_state *ticker, raw_snapshot *snapshot, int64_t deadline_ns, bool is_last);
HIDDEN bool thread_is_runnable(pid_t native_id);                /* it runs, or is ready to */
HIDDEN int thread_nice(pid_t native_id);                        /* 0 also if the thread has ended */
HIDDEN bool native_id_parse(pid_t *native_id, PyObject *given); /* false with an exception if it is no int */

/* ticker_state.c: lifetime and schedule. */
HIDDEN ticker_state *ticker_state_new(PyInterpreterState *interp, size_t ring_size); /* NULL: no memory */
HIDDEN void ticker_state_unref(ticker_state *ticker);
/* GIL held, released during waits; -1 with an exception. A period of 0: no such captures. */
HIDDEN int ticker_state_run(ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns);
/* GIL held; -1 with an exception. Moves the next deadlines. */
HIDDEN int ticker_state_set_periods(ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns);
HIDDEN void ticker_state_notify_trace_added(ticker_state *ticker); /* a trace has entered the filter */
HIDDEN void ticker_state_stop(ticker_state *ticker);
HIDDEN void ticker_state_capture_now(ticker_state *ticker, bool is_focused);   /* GIL held */
HIDDEN void ticker_state_wait_ready(ticker_state *ticker, int64_t timeout_ns); /* GIL not held */

/* forks.c: the process-wide part. */
HIDDEN int forks_register_handlers(void); /* registers once; -1 if the system refuses */
HIDDEN void forks_add(ticker_state *ticker);
HIDDEN void forks_remove(ticker_state *ticker);
HIDDEN void forks_close_all(void); /* the interpreter ends: no ticker may use it any more */
/* GIL held; in_child may be NULL. */
HIDDEN void forks_set_child_callback(PyInterpreterState *interp, PyObject *in_child);
/* GIL held, and released during the wait: a forking thread keeps these mutexes until its fork is over. */
HIDDEN void forks_lock(pthread_mutex_t *mutex);

/* gil_keeper.c: one of our threads holds the GIL for a thread that forks without it. */
HIDDEN void gil_keeper_init(void);
HIDDEN void gil_keeper_mark_thread(bool is_starting); /* start or end of a profiler thread, the calling one; GIL held */
/* Called by the forking thread, without the GIL: */
HIDDEN bool gil_keeper_is_needed(PyInterpreterState *interp);
HIDDEN bool gil_keeper_request(void); /* false: another thread has a request */
HIDDEN void gil_keeper_wait(PyInterpreterState *interp, bool has_running_ticker);
HIDDEN void gil_keeper_release(void);
HIDDEN void gil_keeper_after_fork_in_child(PyInterpreterState *interp);
/* Called by a ticker, without the GIL: */
HIDDEN bool gil_keeper_is_requested(void);
HIDDEN void gil_keeper_hold_gil(PyThreadState *self);

/* In a forked child: the surviving thread, and the newest thread state of the parent. Zeros elsewhere. */
typedef struct {
    unsigned long ident;
    unsigned long native_id;
    uint64_t newest_inherited;
} fork_survivor;
HIDDEN const fork_survivor *forks_survivor(void);
HIDDEN void ticker_state_init_locks(ticker_state *ticker);

/* sigterm.c: functions of the module; see _walker.pyi. */
HIDDEN PyObject *sigterm_open(PyObject *module, PyObject *none);
HIDDEN PyObject *sigterm_install(PyObject *module, PyObject *none);
HIDDEN PyObject *sigterm_wait(PyObject *module, PyObject *args);
HIDDEN PyObject *sigterm_close(PyObject *module, PyObject *none);
HIDDEN PyObject *sigterm_end_process(PyObject *module, PyObject *none);

#endif
