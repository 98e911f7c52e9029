/* Takes a snapshot. The caller holds the GIL during the whole call.
 *
 * Two phases. First walk.c walks the thread states into scratch memory, without references. Then changed
 * stacks are copied into stacks that own their code. The GIL is still held, so that no frame, code object or
 * context can go away. No reference is released here: that can run finalisers, and belongs to drain.
 */
#include "py_compat.h"

#include "loop_watch.h"

#include <stdlib.h>
#include <string.h>

#define MAX_EVENT_NS 50000 /* longer captures were interrupted: this is not CPU time */

raw_stack *stack_new(ticker_state *ticker, const raw_frame *frames, size_t depth, bool truncated)
{
    raw_stack *stack = malloc(sizeof(raw_stack) + depth * sizeof(raw_frame));
    if (stack == NULL) {
        return NULL;
    }
    *stack = (raw_stack){.depth = depth, .truncated = truncated, .next = ticker->ring.stacks};
    memcpy(stack->frames, frames, depth * sizeof(raw_frame));
    for (size_t i = 0; i < depth; i++) {
        Py_INCREF(stack->frames[i].code);
        Py_INCREF(stack->frames[i].globals);
    }
    if (stack->next != NULL) {
        stack->next->previous = stack;
    }
    ticker->ring.stacks = stack;
    return stack;
}

static raw_stack *scratch_stack_new(ticker_state *ticker, const scratch_thread *thread)
{
    return stack_new(ticker, ticker->scratch.frames + thread->first, thread->depth, thread->truncated);
}

raw_stack *scratch_stack(ticker_state *ticker, const scratch_thread *thread)
{
    return thread->unchanged_stack != NULL ? thread->unchanged_stack : scratch_stack_new(ticker, thread);
}

void stack_unref(ticker_state *ticker, raw_stack *stack)
{
    if (--stack->refcount == 0) {
        stack->next_unreferenced = ticker->ring.unreferenced_stacks;
        ticker->ring.unreferenced_stacks = stack;
    }
}

/* Runs after a focused capture, between two of all threads. Other threads keep their last stacks. New threads
 * wait for the next capture of all. */
static void save_previous_focused(ticker_state *ticker, const raw_snapshot *snapshot)
{
    size_t left = ticker->previous.count;
    for (size_t i = 0; i < snapshot->count; i++) {
        const raw_thread *thread = &snapshot->threads[i];
        while (left > 0 && ticker->previous.stacks[left - 1].key < thread->key) {
            left--;
        }
        if (left > 0 && ticker->previous.stacks[left - 1].key == thread->key) {
            thread->stack->refcount++;
            stack_unref(ticker, ticker->previous.stacks[left - 1].stack);
            ticker->previous.stacks[left - 1].stack = thread->stack;
        }
    }
}

/* Keep the stacks of this capture for the next one to compare with. */
static void save_previous(ticker_state *ticker, raw_snapshot *snapshot, int64_t deadline_ns)
{
    bool is_last = !snapshot->is_focused || !atomic_load(&ticker->loop.has_full_captures);
    clocks_fill(ticker, snapshot, deadline_ns, is_last);
    if (!is_last) {
        save_previous_focused(ticker, snapshot);
        return;
    }
    /* Before the old ones are released: many are the same. */
    for (size_t i = 0; i < snapshot->count; i++) {
        snapshot->threads[i].stack->refcount++;
    }
    for (size_t i = 0; i < ticker->previous.count; i++) {
        stack_unref(ticker, ticker->previous.stacks[i].stack);
    }
    ticker->previous.count = snapshot->count;
    for (size_t i = 0; i < snapshot->count; i++) {
        const raw_thread *thread = &snapshot->threads[snapshot->count - 1 - i];
        ticker->previous.stacks[i] = (last_stack){thread->key, thread->native_id, thread->stack};
    }
}

/* Return the threading.Thread, a new reference, or NULL. It is looked up at the instant of the capture: later
 * the ident may belong to another thread. */
static PyObject *find_python_thread(const ticker_state *ticker, unsigned long ident)
{
    PyObject *key = ticker->arguments.threads == NULL ? NULL : PyLong_FromUnsignedLong(ident);
    PyObject *found = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(ticker->arguments.threads, key));
    Py_XDECREF(key);
    if (found == NULL) {
        PyErr_Clear();
    }
    return found;
}

/* The same for the calling thread. This makes no object: the thread may be about to allocate one. */
static PyObject *find_own_python_thread(const ticker_state *ticker, unsigned long ident)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (ticker->arguments.threads != NULL && PyDict_Next(ticker->arguments.threads, &position, &key, &value)) {
        if (PyLong_CheckExact(key) && PyLong_AsUnsignedLongMask(key) == ident) {
            return Py_NewRef(value);
        }
    }
    return NULL;
}

/* Return the kernel's id that a threading.Thread stores; 0: unknown. */
static unsigned long find_native_id(const ticker_state *ticker, PyObject *python_thread)
{
    pid_t native_id = 0;
    PyObject *found = python_thread == NULL ? NULL : read_attribute(python_thread, ticker->names[NAME_NATIVE_ID]);
    if (found != NULL && PyLong_CheckExact(found)) {
        (void)native_id_parse(&native_id, found); /* cannot fail for an int */
    }
    Py_XDECREF(found); /* not the last reference: the thread has one */
    return (unsigned long)native_id;
}

/* Steals the reference to `python_thread`. */
static void materialize_thread(ticker_state *ticker, const scratch_thread *scratch, raw_stack *stack,
                               PyObject *python_thread, raw_thread *thread)
{
    PyThreadState *self = PyThreadState_Get();
    /* A thread in a span without labels has one variable: then no labels are looked up. */
    Py_ssize_t variables = compat_context_size(scratch->context);
    PyObject *context =
        variables > 0 ? compat_context_value(self, scratch->context, ticker->arguments.context_var) : NULL;
    bool has_more = variables > (context != NULL);
    stack->refcount++;
    *thread = (raw_thread){
        .key = scratch->key,
        .ident = scratch->ident,
        .native_id = scratch->native_id != 0 ? scratch->native_id : find_native_id(ticker, python_thread),
        .stack = stack,
        .context = context,
        .labels = has_more ? compat_context_value(self, scratch->context, ticker->arguments.labels_var) : NULL,
        .python_thread = python_thread,
        .state = scratch->is_gil_holder ? THREAD_RUNNING : THREAD_UNKNOWN,
        .wants_gil = scratch->wants_gil,
    };
}

void thread_materialize(ticker_state *ticker, const scratch_thread *scratch, raw_stack *stack, raw_thread *thread)
{
    /* Look up only threads that are new or have moved: idle threads cost nothing. */
    PyObject *python_thread = scratch->unchanged_stack != NULL ? NULL : find_python_thread(ticker, scratch->ident);
    materialize_thread(ticker, scratch, stack, python_thread, thread);
}

/* Leave the references of a snapshot to the next drain. */
static void discard_snapshot(snapshot_ring *ring, raw_snapshot *snapshot)
{
    snapshot->next = ring->discarded;
    ring->discarded = snapshot;
    ring->discarded_count++;
}

static raw_snapshot *materialize_snapshot(ticker_state *ticker)
{
    size_t count = ticker->scratch.count;
    raw_snapshot *snapshot = malloc(sizeof(raw_snapshot) + count * sizeof(raw_thread));
    if (snapshot == NULL) {
        return NULL;
    }
    *snapshot = (raw_snapshot){.count = 0};
    for (size_t i = 0; i < count; i++) {
        const scratch_thread *scratch = &ticker->scratch.threads[count - 1 - i];
        raw_stack *stack = scratch_stack(ticker, scratch);
        if (stack == NULL) {
            discard_snapshot(&ticker->ring, snapshot);
            return NULL;
        }
        thread_materialize(ticker, scratch, stack, &snapshot->threads[snapshot->count++]);
    }
    return snapshot;
}

static size_t find_recent(const raw_frame *frames, size_t depth)
{
    uint64_t hash = depth;
    for (size_t i = 0; i < depth; i++) {
        hash = (hash ^ (uintptr_t)frames[i].code >> 4 ^ (unsigned)frames[i].offset) * 0x9E3779B97F4A7C15u;
    }
    return (size_t)(hash >> 32) % RECENT_STACKS;
}

/* Return the recent stack that is equal, or a new one, which is recent now. NULL: no memory. */
static raw_stack *share_stack(ticker_state *ticker, const scratch_thread *thread, recent_stacks *recent)
{
    const raw_frame *frames = ticker->scratch.frames + thread->first;
    raw_stack **slot = &recent->stacks[find_recent(frames, thread->depth)];
    size_t same = 0;
    if (*slot != NULL && (*slot)->depth == thread->depth && (*slot)->truncated == thread->truncated) {
        while (same < thread->depth && is_same_frame(&(*slot)->frames[same], &frames[same])) {
            same++;
        }
        if (same == thread->depth) {
            return *slot;
        }
    }
    raw_stack *made = scratch_stack_new(ticker, thread);
    if (made != NULL) {
        if (*slot != NULL) {
            stack_unref(ticker, *slot);
        }
        made->refcount++;
        *slot = made;
    }
    return made;
}

void recent_stacks_clear(ticker_state *ticker, recent_stacks *recent)
{
    for (size_t i = 0; i < RECENT_STACKS; i++) {
        if (recent->stacks[i] != NULL) {
            stack_unref(ticker, recent->stacks[i]);
            recent->stacks[i] = NULL;
        }
    }
}

bool capture_calling_thread(ticker_state *ticker, raw_thread *thread, recent_stacks *recent)
{
    int64_t start_ns = monotonic_ns();
    scratch_thread scratch = {.first = 0};
    raw_stack *stack = NULL;
    if (walk_calling_thread(ticker, &scratch)) {
        stack = recent == NULL ? scratch_stack_new(ticker, &scratch) : share_stack(ticker, &scratch, recent);
    }
    if (stack == NULL) {
        return false;
    }
    materialize_thread(ticker, &scratch, stack, find_own_python_thread(ticker, scratch.ident), thread);
    int64_t spent_ns = monotonic_ns() - start_ns;
    ticker_state_count(ticker, COUNTERS_event_ns_sum, spent_ns < MAX_EVENT_NS ? spent_ns : MAX_EVENT_NS);
    return true;
}

static void store_snapshot(ticker_state *ticker, raw_snapshot *snapshot)
{
    snapshot_ring *ring = &ticker->ring;
    *ring->end = snapshot;
    ring->end = &snapshot->next;
    if (atomic_load(&ring->ready) < (size_t)ticker->arguments.ring_size) {
        atomic_fetch_add(&ring->ready, 1);
        return;
    }
    raw_snapshot *oldest = ring->oldest;
    ring->oldest = oldest->next;
    ring->oldest->lost_count += oldest->lost_count + (oldest->quiet_count > 0 ? (size_t)oldest->quiet_count : 1);
    discard_snapshot(ring, oldest);
}

/* A sampler that never drains leaves at most two rings of snapshots; then no more are taken. */
static bool may_take(const ticker_state *ticker)
{
    return !atomic_load(&ticker->loop.is_closed) && ticker->ring.discarded_count < (size_t)ticker->arguments.ring_size;
}

/* Say how late a snapshot of the timer is. `since_ns` is since when the GIL was waited for; 0: it was not. */
static void note_lateness(ticker_state *ticker, raw_snapshot *snapshot, int64_t start_ns, int64_t deadline_ns,
                          int64_t since_ns)
{
    snapshot->latency_ns = start_ns - deadline_ns;
    snapshot->period_ns = atomic_load(&ticker->pending.period_ns[snapshot->is_focused]);
    snapshot->gil_wait_ns = since_ns > 0 && since_ns < start_ns ? start_ns - since_ns : 0;
}

/* Without memory they are lost. */
void capture_quiet(ticker_state *ticker)
{
    int64_t count = atomic_exchange(&ticker->quiet.count, 0);
    raw_snapshot *quiet = count == 0 ? NULL : malloc(sizeof(raw_snapshot));
    if (quiet != NULL) {
        *quiet = (raw_snapshot){
            .time_ns = atomic_load(&ticker->quiet.time_ns),
            .instant_ns = atomic_load(&ticker->quiet.instant_ns),
            .period_ns = atomic_load(&ticker->quiet.period_ns),
            .process_cpu_ns = atomic_load(&ticker->quiet.process_cpu_ns),
            .quiet_count = count,
        };
        store_snapshot(ticker, quiet);
    }
}

/* A focused snapshot without threads is not stored, so it wakes no thread. */
static bool take_snapshot(ticker_state *ticker, int64_t deadline_ns, bool is_focused, const PyThreadState *gil_holder)
{
    int64_t start_ns = monotonic_ns(), time_ns = clock_ns(CLOCK_REALTIME), instant_ns = clock_ns(CLOCK_BOOTTIME);
    int64_t previous_ns = ticker->previous.time_ns;
    int64_t since_ns = deadline_ns == 0 ? 0 : atomic_exchange(&ticker->pending.since_ns, 0);
    if (!may_take(ticker) || !walk_stacks(ticker, is_focused, gil_holder)) {
        return false;
    }
    ticker->previous.time_ns = start_ns;
    capture_quiet(ticker);
    if (!is_focused || ticker->scratch.count > 0) {
        raw_snapshot *snapshot = materialize_snapshot(ticker);
        if (snapshot == NULL) {
            return false;
        }
        snapshot->time_ns = time_ns;
        snapshot->instant_ns = instant_ns;
        snapshot->is_focused = is_focused;
        snapshot->since_previous_ns = previous_ns == 0 ? 0 : start_ns - previous_ns;
        if (deadline_ns != 0) {
            note_lateness(ticker, snapshot, start_ns, deadline_ns, since_ns);
        }
        save_previous(ticker, snapshot, deadline_ns);
        store_snapshot(ticker, snapshot);
    }
    else if (filter_is_empty(ticker)) {
        /* A trace is added first and notified after that, with the GIL. So no notification is lost between
         * these two lines. */
        atomic_store(&ticker->loop.may_have_traces, false);
    }
    ticker_state_count(ticker, COUNTERS_captured, 1);
    ticker_state_count(ticker, COUNTERS_gil_held_ns_sum, monotonic_ns() - start_ns);
    return true;
}

bool capture_snapshot(ticker_state *ticker, int64_t deadline_ns, bool is_focused, const PyThreadState *gil_holder)
{
    ticker->scratch.is_in_use = true;
    int64_t since_ns = deadline_ns == 0 ? 0 : atomic_load(&ticker->pending.since_ns);
    bool is_taken = take_snapshot(ticker, deadline_ns, is_focused, gil_holder);
    loops_look(ticker, gil_holder, since_ns);
    ticker->scratch.is_in_use = false;
    return is_taken;
}

void capture_look(ticker_state *ticker, const PyThreadState *gil_holder)
{
    ticker->scratch.is_in_use = true;
    loops_look(ticker, gil_holder, atomic_exchange(&ticker->pending.since_ns, 0));
    ticker->scratch.is_in_use = false;
}
