/* What a ticker is made of, shared by the C files of the walker.
 *
 * Three kinds of state, each field says which: *GIL* is read and written only with the GIL held, *mutex* only with
 * core.mutex held, *atomic* by anyone. Lock order: GIL, then the fork registry's mutex, then core.mutex, then CPython's
 * own locks. Nobody waits for the GIL while holding any of the others, and nobody waits with the GIL for the first two,
 * which a thread that forks holds for longer (`forks_lock`).
 */
#ifndef SPLUNK_PROFILER_CORE_H
#define SPLUNK_PROFILER_CORE_H

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
    struct raw_stack *previous, *next; /* all stacks of the core, so that the collector can visit each once */
    struct raw_stack *next_dead;       /* those to be freed by the next drain */
    size_t holders;                    /* snapshots and the table of last stacks */
    PyObject *stack;                   /* owned, made by make_stack when first drained */
    size_t depth;
    bool truncated;
    raw_frame frames[]; /* owned */
} raw_stack;

/* What a thread was doing. RUNS: it had a processor at the deadline. READY: it waited for one, or held the GIL at the
 * capture without having had one at the deadline. UNKNOWN: nobody has looked. */
typedef enum { THREAD_UNKNOWN = -1, THREAD_WAITS = 0, THREAD_READY = 1, THREAD_RUNS = 2 } thread_state;

typedef struct {
    uint64_t key;
    unsigned long ident;
    unsigned long native_id;
    raw_stack *stack;  /* one of its holders */
    PyObject *context; /* owned, or NULL */
    PyObject *labels;  /* owned, or NULL */
    PyObject
        *object; /* owned: the threading.Thread; NULL: there is none, or the stack is the one of the capture before */
    int64_t cpu_ns; /* 0: not known */
    thread_state state;
} raw_thread;

/* All threads at one instant, oldest first. GIL. */
typedef struct raw_snapshot {
    struct raw_snapshot *next;
    int64_t time_ns;
    int64_t latency_ns;
    int64_t period_ns;      /* distance of its deadline from the one of its kind before; 0: not taken at one */
    int64_t since_ns;       /* from the capture before, of whichever kind; 0: this is the first */
    int64_t process_cpu_ns; /* as of before the clocks of the threads were read */
    bool focused;           /* only threads of traces in the focus */
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
    int64_t kept_ns; /* when the last one was kept; monotonic */
} uncounted_collections;

#define GENERATIONS 3

/* A thread while it is being walked; nothing here is owned. */
typedef struct {
    uint64_t key;
    unsigned long ident;
    unsigned long native_id;
    PyObject *context;
    bool runs;       /* it holds the GIL, or held it until it was asked to give it up for this capture */
    raw_stack *same; /* the stack it had before, if it has not moved */
    size_t first;    /* else: its frames in core.frames */
    size_t depth;
    bool truncated;
} walked_thread;

typedef struct {
    uint64_t key;
    unsigned long native_id;
    raw_stack *stack; /* one of its holders */
} last_stack;

/* The CPU clock of a thread of the last snapshot. */
typedef struct {
    uint64_t key;
    pid_t native_id;
    int64_t cpu_ns;     /* 0: it has ended, or cannot be read */
    int64_t read_ns;    /* when, monotonic */
    int64_t readers_ns; /* CPU time of the thread that reads, then */
    bool moved, busy;   /* since the deadline before it has used CPU time, or much of it */
    thread_state state;
} clock_entry;

/* Their clocks at a deadline. Who takes the table out of core.clocks has it alone, and puts it back. */
typedef struct {
    int64_t deadline_ns; /* of the capture that they were read for; 0: it was taken at none */
    int64_t process_ns;  /* CPU time of the process, read before all others */
    size_t count, room;
    clock_entry entries[]; /* oldest thread first */
} clock_table;

typedef struct {
    PyObject *code;   /* owned, so that its address is not used again while it is a key */
    PyObject *module; /* owned: what __name__ was in the globals, or NULL */
    int offset;
    PyObject *frame; /* owned; NULL: the slot is free */
} known_frame;

typedef struct core {
    atomic_int references; /* the Ticker object and a pending call under way */
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
    raw_snapshot *overwritten; /* given up, their references released by the next drain */
    size_t overwritten_count;
    raw_stack *stacks;
    raw_stack *dead_stacks;

    /* The previous capture, newest thread first, and room for the next. GIL. */
    last_stack *last;
    size_t last_count;
    walked_thread *walked;
    int64_t before_ns; /* when it was, monotonic; 0: there was none */
    uint64_t *chosen;  /* keys of the threads in the focus, newest first */
    size_t threads_room;
    raw_frame *frames;
    size_t frames_room;

    /* Collections. GIL. */
    raw_collection *collections; /* a ring; NULL until the first is kept */
    size_t collections_first, collections_ready;
    uncounted_collections uncounted[GENERATIONS];
    int64_t collection_distance_ns; /* between two of a generation that are kept */
    int64_t collection_began_ns;    /* of the one under way; 0: none */

    _Atomic(clock_table *) clocks; /* NULL: there are none, or somebody works on them */
    uint32_t instant;              /* of the rest after a deadline, in parts of 2^32; who has the table */

    known_frame *known; /* open addressing; GIL */
    size_t known_size;
    size_t known_count;

    /* Schedule. */
    pthread_mutex_t mutex;
    pthread_cond_t tick;   /* mutex: stop or another period wanted */
    pthread_cond_t filled; /* mutex: a snapshot is ready, or the end */
    bool running;          /* mutex */
    atomic_bool stopped;   /* set under mutex */
    atomic_bool closed;    /* set under mutex: never touch the interpreter again (it ends, or this is a forked child) */
    atomic_bool posted;    /* a pending call is under way */
    int64_t period_ns, focused_period_ns; /* mutex: distances of the deadlines from now on; 0: there are none */
    atomic_llong wanted_ns; /* deadline of the capture that is due, negative if it is one of the focus's; 0: none.
                             * Whoever takes it out captures */
    atomic_llong waited_ns; /* distance of that deadline from the one of its kind before; set before wanted_ns */
    atomic_bool focused;    /* there may be traces in the focus; set under mutex, unset by a capture that finds none */
    atomic_bool keeps_all;  /* there are captures of all threads, too; set under mutex */

    /* Counters. */
    atomic_ullong due, missed;
    atomic_ullong captured, by_pending_call, overwrites;
    atomic_llong late_max, late_sum, held_sum;

    struct core *next_core; /* fork registry */
    struct core **link;
} core;

/* capture.c: takes snapshots. GIL held. Deadline 0: now. `runner` runs, and is only compared. False: none was taken. */
HIDDEN bool capture_snapshot(core *c, int64_t deadline_ns, bool focused, const PyThreadState *runner);
HIDDEN bool capture_calling_thread(core *c, raw_thread *thread); /* false: nothing is in `thread` */
HIDDEN void stack_release(core *c, raw_stack *stack);            /* one holder less; runs no Python code */
HIDDEN int64_t monotonic_ns(void);
HIDDEN int64_t time_of_day_ns(void);

/* gc.c: collections of garbage. GIL held. */
HIDDEN PyObject *collections_note(core *c, PyObject *phase, PyObject *info); /* a str and a dict, of the collector */
HIDDEN bool collections_take(core *c, raw_collection *taken); /* the oldest, with what it owns; false: there is none */
HIDDEN int collections_traverse(core *c, visitproc visit, void *arg);

/* filter.c: which of the threads that are listed in core.walked to walk. GIL held. */
HIDDEN size_t focus_choose(core *c, size_t count); /* writes core.chosen, and says how many there are */
HIDDEN bool focus_is_empty(const core *c);
HIDDEN bool focus_take(core *c, PyObject *focus); /* None, or (traces, span_key); false and an exception */

/* thread_objects.c: the threading.Thread of a listed thread. GIL held. */
HIDDEN PyObject *thread_object_of(const core *c, unsigned long ident);         /* new reference, or NULL */
HIDDEN unsigned long thread_object_native_id(const core *c, PyObject *object); /* `object` may be NULL; 0: not known */

/* release.c: gives references up, may run Python code. GIL held. */
HIDDEN void thread_release(core *c, raw_thread *thread);
HIDDEN void snapshot_free(core *c, raw_snapshot *snapshot);
HIDDEN void core_release_dead(core *c);
HIDDEN void core_release_all(core *c);
HIDDEN int core_traverse(core *c, visitproc visit, void *arg);

/* convert.c and, for collections, gc.c: make Python values of snapshots on the worker thread. GIL held. */
typedef struct {
    PyTypeObject *raw_thread;   /* borrowed from the module */
    PyTypeObject *raw_snapshot; /* borrowed from the module */
    PyTypeObject *collection;   /* borrowed from the module */
} value_types;
HIDDEN PyObject *convert_snapshot(core *c, const value_types *types, raw_snapshot *snapshot);
HIDDEN PyObject *convert_thread(core *c, const value_types *types, const raw_thread *thread); /* new reference */
HIDDEN PyObject *collections_drain(core *c, const value_types *types);
HIDDEN void known_frames_clear(core *c);

/* clocks.c: CPU times, states and priorities. Needs no GIL, but for Python values. */
/* Reads those of the threads of the last snapshot, for the next one. True if some have run since the deadline before: the
 * caller rests for a moment, and reads them again to see which of them run now. */
HIDDEN bool clocks_read(core *c, int64_t deadline_ns);
HIDDEN void clocks_read_again(core *c);
#define CLOCKS_REST_NS 50000LL /* the moment: longer than most waits for a woken thread, shorter than most work */
/* Writes the clocks to a snapshot, and reads those that were not. `is_last`: the next snapshot's are of its threads. */
HIDDEN void clocks_fill(core *c, raw_snapshot *snapshot, int64_t deadline_ns, bool is_last);
HIDDEN bool thread_is_runnable(pid_t native_id);               /* it runs, or would if there was a processor for it */
HIDDEN int thread_nice(pid_t native_id);                       /* 0 as well if it has ended */
HIDDEN bool native_id_take(pid_t *native_id, PyObject *given); /* false and an exception if it is no int */

/* ticker.c: life, schedule and forks. */
HIDDEN core *core_new(PyInterpreterState *interp, size_t ring_size); /* NULL: no memory */
HIDDEN void core_drop(core *c);
/* GIL held, released while it waits; -1 and an exception. A period of 0: no such ticks. */
HIDDEN int core_run(core *c, int64_t period_ns, int64_t focused_period_ns);
/* From the next deadlines on, which it moves; GIL held; -1 and an exception. */
HIDDEN int core_pace(core *c, int64_t period_ns, int64_t focused_period_ns);
HIDDEN void core_focus(core *c); /* there is a trace in the focus */
HIDDEN void core_stop(core *c);
HIDDEN void core_capture(core *c, bool focused);           /* GIL held */
HIDDEN void core_wait_filled(core *c, int64_t timeout_ns); /* GIL not held */

/* forks.c: the process-wide part. */
HIDDEN int forks_prepare_process(void); /* registers the handlers once; -1 if the system refuses */
HIDDEN void forks_add(core *c);
HIDDEN void forks_remove(core *c);
HIDDEN void forks_close_all(void); /* the interpreter ends: no core may touch it any more */
HIDDEN void forks_watch(PyInterpreterState *interp, PyObject *in_child); /* GIL held; in_child may be NULL */
/* GIL held, and given up while it waits: a thread that forks keeps these mutexes until it has forked. */
HIDDEN void forks_lock(pthread_mutex_t *mutex);

/* gil_keeper.c: one of our threads keeps the GIL for a thread that forks without it. */
HIDDEN void gil_keeper_init(void);
HIDDEN void gil_keeper_own_thread(bool begins); /* the calling thread is one of ours; GIL held */
/* The thread that forks, without the GIL: */
HIDDEN bool gil_keeper_is_needed(PyInterpreterState *interp);
HIDDEN bool gil_keeper_ask(void); /* false: another thread has asked */
HIDDEN void gil_keeper_await(PyInterpreterState *interp, bool somebody_can);
HIDDEN void gil_keeper_release(void);
HIDDEN void gil_keeper_after_fork_in_child(PyInterpreterState *interp);
/* A ticker, without the GIL: */
HIDDEN bool gil_keeper_is_asked(void);
HIDDEN void gil_keeper_keep(PyThreadState *self);

/* In a forked child: the only thread that came along, and the newest thread state of the parent. Zeros elsewhere. */
typedef struct {
    unsigned long ident;
    unsigned long native_id;
    uint64_t newest_inherited;
} fork_survivor;
HIDDEN const fork_survivor *forks_survivor(void);
HIDDEN void core_init_locks(core *c);

/* sigterm.c: functions of the module; see _walker.pyi. */
HIDDEN PyObject *sigterm_open(PyObject *module, PyObject *none);
HIDDEN PyObject *sigterm_install(PyObject *module, PyObject *none);
HIDDEN PyObject *sigterm_wait(PyObject *module, PyObject *args);
HIDDEN PyObject *sigterm_close(PyObject *module, PyObject *none);
HIDDEN PyObject *sigterm_end(PyObject *module, PyObject *none);

#endif
