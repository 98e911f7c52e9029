/* What a ticker is made of, shared by the C files of the walker.
 *
 * Three kinds of state, each field says which: *GIL* is read and written only with the GIL held, *mutex* only with
 * ticker_state.mutex held, *atomic* by anyone. Lock order: GIL, then the fork registry's mutex, then ticker_state.mutex, then CPython's
 * own locks. Nobody waits for the GIL while holding any of the others, and nobody waits with the GIL for the first two,
 * which a thread that forks holds for longer (`forks_lock`).
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

/* One frame as captured. Whether code and globals are owned is said where it is stored. */
typedef struct {
    PyObject *code;
    PyObject *globals;
    int offset; /* bytes, as frame.f_lasti */
} raw_frame;

/* The frames of a thread, leaf first, shared by all snapshots in which the thread did not move. GIL. */
typedef struct raw_stack {
    struct raw_stack *previous, *next;   /* all stacks of the ticker, so that the collector can visit each once */
    struct raw_stack *next_unreferenced; /* those to be freed by the next drain */
    size_t refcount;                     /* snapshots and the table of last stacks */
    PyObject *stack;                     /* owned, made by make_stack when first drained */
    size_t depth;
    bool truncated;
    raw_frame frames[]; /* owned */
} raw_stack;

/* What a thread was doing. RUNS: it had a processor at the deadline. READY: it waited for one, or held the GIL at the
 * capture without having had one at the deadline. UNKNOWN: nobody has looked. */
typedef enum { THREAD_UNKNOWN = -1, THREAD_WAITING = 0, THREAD_READY = 1, THREAD_RUNNING = 2 } thread_state;

typedef struct {
    uint64_t key;
    unsigned long ident;
    unsigned long native_id;
    raw_stack *stack;  /* one of its holders */
    PyObject *context; /* owned, or NULL */
    PyObject *labels;  /* owned, or NULL */
    PyObject *
        python_thread; /* owned: the threading.Thread; NULL: there is none, or the stack is the one of the capture before */
    int64_t cpu_ns; /* 0: not known */
    thread_state state;
} raw_thread;

/* All threads at one instant, oldest first. GIL. */
typedef struct raw_snapshot {
    struct raw_snapshot *next;
    int64_t time_ns;
    int64_t latency_ns;
    int64_t period_ns;         /* distance of its deadline from the one of its kind before; 0: not taken at one */
    int64_t since_previous_ns; /* from the capture before, of whichever kind; 0: this is the first */
    int64_t process_cpu_ns;    /* as of before the clocks of the threads were read */
    bool is_focused;           /* only threads of traces in the focus */
    size_t count;
    raw_thread threads[];
} raw_snapshot;

/* A collection of garbage, the thread that it ran on, and what else it stands for. GIL. */
typedef struct {
    int64_t time_ns; /* its end */
    int generation;
    uint64_t count;      /* it, and those of its generation since the one that was kept before */
    int64_t duration_ns; /* of all of them */
    raw_thread thread;
} raw_collection;

/* Collections of one generation that no raw_collection stands for yet. GIL. */
typedef struct {
    uint64_t count;
    int64_t duration_ns;
    int64_t last_recorded_ns; /* when the last one was kept; monotonic */
} pending_collections;

#define GENERATION_COUNT 3

/* A thread while it is being walked; nothing here is owned. */
typedef struct {
    uint64_t key;
    unsigned long ident;
    unsigned long native_id;
    PyObject *context;
    bool is_gil_holder;         /* it holds the GIL, or held it until it was asked to give it up for this capture */
    raw_stack *unchanged_stack; /* the stack it had before, if it has not moved */
    size_t first;               /* else: its frames in ticker_state.frames */
    size_t depth;
    bool truncated;
} scratch_thread;

typedef struct {
    uint64_t key;
    unsigned long native_id;
    raw_stack *stack; /* one of its holders */
} last_stack;

/* The CPU clock of a thread of the last snapshot. */
typedef struct {
    uint64_t key;
    pid_t native_id;
    int64_t cpu_ns;        /* 0: it has ended, or cannot be read */
    int64_t read_ns;       /* when, monotonic */
    int64_t reader_cpu_ns; /* CPU time of the thread that reads, then */
    bool has_run, is_busy; /* since the deadline before it has used CPU time, or much of it */
    thread_state state;
} clock_entry;

/* Their clocks at a deadline. Who takes the table out of ticker_state.clocks has it alone, and puts it back. */
typedef struct {
    int64_t deadline_ns; /* of the capture that they were read for; 0: it was taken at none */
    int64_t process_ns;  /* CPU time of the process, read before all others */
    size_t count, capacity;
    clock_entry entries[]; /* oldest thread first */
} clock_table;

typedef struct {
    PyObject *code;   /* owned, so that its address is not used again while it is a key */
    PyObject *module; /* owned: what __name__ was in the globals, or NULL */
    int offset;
    PyObject *frame; /* owned; NULL: the slot is free */
} cached_frame;

typedef struct ticker_state {
    atomic_int refcount; /* the Ticker object and a pending call under way */
    PyInterpreterState *interp;

    /* What Python gave. Owned, GIL; NULL once cleared. */
    PyObject *context_var;
    PyObject *labels_var;
    PyObject *threads; /* ident → threading.Thread, a dict; or NULL */
    PyObject *make_frame;
    PyObject *make_stack;
    PyObject *name_key;       /* "__name__" */
    PyObject *native_id_key;  /* "_native_id" */
    PyObject *generation_key; /* "generation" */
    PyObject *traces;         /* the focus: a dict whose keys are trace ids; NULL: there is none */
    PyObject *span_key;       /* under which OpenTelemetry's context has its span; NULL with `traces` */
    PyObject *context_name;   /* "_context"; NULL with `traces` */
    size_t max_depth;

    /* Snapshots. GIL; `ready` is atomic so that drain can look without the GIL. */
    raw_snapshot **ring;
    size_t ring_size;
    size_t ring_first;
    atomic_size_t ready;
    raw_snapshot *discarded; /* given up, their references released by the next drain */
    size_t discarded_count;
    raw_stack *stacks;
    raw_stack *unreferenced_stacks;

    /* The previous capture, newest thread first, and room for the next. GIL. */
    last_stack *last_stacks;
    size_t last_count;
    scratch_thread *scratch_threads;
    int64_t previous_capture_ns; /* when it was, monotonic; 0: there was none */
    uint64_t *selected_keys;     /* keys of the threads in the focus, newest first */
    size_t threads_capacity;
    raw_frame *frames;
    size_t frames_capacity;

    /* Collections. GIL. */
    raw_collection *collections; /* a ring; NULL until the first is kept */
    size_t collections_first, collections_ready;
    pending_collections pending[GENERATION_COUNT];
    int64_t min_collection_interval_ns; /* between two of a generation that are kept */
    int64_t collection_start_ns;        /* of the one under way; 0: none */

    _Atomic(clock_table *) clocks; /* NULL: there are none, or somebody works on them */
    uint32_t probe_phase;          /* of the rest after a deadline, in parts of 2^32; who has the table */

    cached_frame *frame_cache; /* open addressing; GIL */
    size_t frame_cache_size;
    size_t frame_cache_count;

    /* Schedule. */
    pthread_mutex_t mutex;
    pthread_cond_t wake_cond;  /* mutex: stop or another period wanted */
    pthread_cond_t ready_cond; /* mutex: a snapshot is ready, or the end */
    bool is_running;           /* mutex */
    atomic_bool is_stopped;    /* set under mutex */
    atomic_bool is_closed; /* set under mutex: never touch the interpreter again (it ends, or this is a forked child) */
    atomic_bool is_call_posted;           /* a pending call is under way */
    int64_t period_ns, focused_period_ns; /* mutex: distances of the deadlines from now on; 0: there are none */
    atomic_llong
        pending_deadline_ns; /* deadline of the capture that is due, negative if it is one of the focus's; 0: none.
                             * Whoever takes it out captures */
    atomic_llong
        pending_period_ns; /* distance of that deadline from the one of its kind before; set before pending_deadline_ns */
    atomic_bool
        is_focus_active; /* there may be traces in the focus; set under mutex, unset by a capture that finds none */
    atomic_bool has_full_captures; /* there are captures of all threads, too; set under mutex */

    /* Counters. */
    atomic_ullong due, missed;
    atomic_ullong captured, by_pending_call, overwrites;
    atomic_llong latency_ns_max, latency_ns_sum, gil_held_ns_sum;

    struct ticker_state *next_ticker; /* fork registry */
    struct ticker_state **link;
} ticker_state;

/* capture.c: takes snapshots. GIL held. Deadline 0: now. `gil_holder` runs, and is only compared. False: none was taken. */
HIDDEN bool capture_snapshot(ticker_state *ticker, int64_t deadline_ns, bool is_focused,
                             const PyThreadState *gil_holder);
HIDDEN bool capture_calling_thread(ticker_state *ticker, raw_thread *thread); /* false: nothing is in `thread` */
HIDDEN void stack_unref(ticker_state *ticker, raw_stack *stack);              /* one holder less; runs no Python code */
HIDDEN int64_t monotonic_ns(void);
HIDDEN int64_t time_of_day_ns(void);

/* collections.c: collections of garbage. GIL held. */
HIDDEN PyObject *collections_handle_event(ticker_state *ticker, PyObject *phase,
                                          PyObject *info); /* a str and a dict, of the collector */
HIDDEN bool collections_pop(ticker_state *ticker,
                            raw_collection *taken); /* the oldest, with what it owns; false: there is none */
HIDDEN int collections_traverse(ticker_state *ticker, visitproc visit, void *arg);

/* filter.c: which of the threads that are listed in ticker_state.scratch_threads to walk. GIL held. */
HIDDEN size_t filter_threads(ticker_state *ticker,
                             size_t count); /* writes ticker_state.selected_keys, and says how many there are */
HIDDEN bool filter_is_empty(const ticker_state *ticker);
HIDDEN bool filter_set(ticker_state *ticker,
                       PyObject *trace_filter); /* None, or (traces, span_key); false and an exception */

/* thread_objects.c: the threading.Thread of a listed thread. GIL held. */
HIDDEN PyObject *thread_objects_find(const ticker_state *ticker, unsigned long ident); /* new reference, or NULL */
HIDDEN unsigned long thread_objects_native_id(const ticker_state *ticker,
                                              PyObject *python_thread); /* `python_thread` may be NULL; 0: not known */

/* release.c: gives references up, may run Python code. GIL held. */
HIDDEN void thread_release(ticker_state *ticker, raw_thread *thread);
HIDDEN void snapshot_free(ticker_state *ticker, raw_snapshot *snapshot);
HIDDEN void ticker_state_free_unreferenced(ticker_state *ticker);
HIDDEN void ticker_state_release_all(ticker_state *ticker);
HIDDEN int ticker_state_traverse(ticker_state *ticker, visitproc visit, void *arg);

/* convert.c and, for collections, collections.c: make Python values of snapshots on the worker thread. GIL held. */
typedef struct { /* named tuples of splunk_profiler/raw.py */
    PyTypeObject *raw_thread;
    PyTypeObject *raw_snapshot;
    PyTypeObject *raw_collection;
    PyTypeObject *ticker_counters;
    PyTypeObject *thread_change;
    PyTypeObject *idle_span;
} value_types;
/* Takes the references over, also if one is NULL: then there is an exception, and no tuple. */
HIDDEN PyObject *make_tuple(PyTypeObject *type, PyObject **items, Py_ssize_t count);
HIDDEN PyObject *convert_snapshot(ticker_state *ticker, const value_types *types, raw_snapshot *snapshot);
HIDDEN PyObject *convert_thread(ticker_state *ticker, const value_types *types,
                                const raw_thread *thread); /* new reference */
HIDDEN PyObject *collections_drain(ticker_state *ticker, const value_types *types);
HIDDEN void frame_cache_clear(ticker_state *ticker);

/* clocks.c: CPU times, states and priorities. Needs no GIL, but for Python values. */
/* Reads those of the threads of the last snapshot, for the next one. True if some have run since the deadline before: the
 * caller rests for a moment, and reads them again to see which of them run now. */
HIDDEN bool clocks_read(ticker_state *ticker, int64_t deadline_ns);
HIDDEN void clocks_read_again(ticker_state *ticker);
#define CLOCKS_PROBE_NS 50000LL /* the moment: longer than most waits for a woken thread, shorter than most work */
/* Writes the clocks to a snapshot, and reads those that were not. `is_last`: the next snapshot's are of its threads. */
HIDDEN void clocks_fill(ticker_state *ticker, raw_snapshot *snapshot, int64_t deadline_ns, bool is_last);
HIDDEN bool thread_is_runnable(pid_t native_id);                /* it runs, or would if there was a processor for it */
HIDDEN int thread_nice(pid_t native_id);                        /* 0 as well if it has ended */
HIDDEN bool native_id_parse(pid_t *native_id, PyObject *given); /* false and an exception if it is no int */

/* ticker_state.c: life, schedule and forks. */
HIDDEN ticker_state *ticker_state_new(PyInterpreterState *interp, size_t ring_size); /* NULL: no memory */
HIDDEN void ticker_state_unref(ticker_state *ticker);
/* GIL held, released while it waits; -1 and an exception. A period of 0: no such ticks. */
HIDDEN int ticker_state_run(ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns);
/* From the next deadlines on, which it moves; GIL held; -1 and an exception. */
HIDDEN int ticker_state_set_periods(ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns);
HIDDEN void ticker_state_notify_trace_added(ticker_state *ticker); /* there is a trace in the focus */
HIDDEN void ticker_state_stop(ticker_state *ticker);
HIDDEN void ticker_state_capture_now(ticker_state *ticker, bool is_focused);   /* GIL held */
HIDDEN void ticker_state_wait_ready(ticker_state *ticker, int64_t timeout_ns); /* GIL not held */

/* forks.c: the process-wide part. */
HIDDEN int forks_register_handlers(void); /* registers the handlers once; -1 if the system refuses */
HIDDEN void forks_add(ticker_state *ticker);
HIDDEN void forks_remove(ticker_state *ticker);
HIDDEN void forks_close_all(void); /* the interpreter ends: no ticker may touch it any more */
HIDDEN void forks_set_child_callback(PyInterpreterState *interp,
                                     PyObject *in_child); /* GIL held; in_child may be NULL */
/* GIL held, and given up while it waits: a thread that forks keeps these mutexes until it has forked. */
HIDDEN void forks_lock(pthread_mutex_t *mutex);

/* gil_keeper.c: one of our threads keeps the GIL for a thread that forks without it. */
HIDDEN void gil_keeper_init(void);
HIDDEN void gil_keeper_mark_thread(bool is_starting); /* the calling thread is one of ours; GIL held */
/* The thread that forks, without the GIL: */
HIDDEN bool gil_keeper_is_needed(PyInterpreterState *interp);
HIDDEN bool gil_keeper_request(void); /* false: another thread has asked */
HIDDEN void gil_keeper_wait(PyInterpreterState *interp, bool has_running_ticker);
HIDDEN void gil_keeper_release(void);
HIDDEN void gil_keeper_after_fork_in_child(PyInterpreterState *interp);
/* A ticker, without the GIL: */
HIDDEN bool gil_keeper_is_requested(void);
HIDDEN void gil_keeper_hold_gil(PyThreadState *self);

/* In a forked child: the only thread that came along, and the newest thread state of the parent. Zeros elsewhere. */
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
