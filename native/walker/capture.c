/* Takes a snapshot: who calls holds the GIL, and holds it from the first line to the last.
 *
 * Two phases. Under the runtime's head lock the thread states are walked into scratch memory: nothing is allocated,
 * nothing gets or loses a reference, nothing is called that could take a lock or run Python. Then, still holding the
 * GIL (so that no frame, code object or context can go away), what changed is copied into stacks that own their code.
 * No reference is given up here: that can run finalisers and belongs to drain.
 */
#include "py_compat.h"

#include "ticker_state.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum { WALKED, LOCK_BUSY, NO_ROOM_THREADS, NO_ROOM_FRAMES } walk_result;

static int64_t clock_ns(clockid_t clock)
{
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

int64_t monotonic_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

int64_t time_of_day_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}

/* Writes the frames to ticker_state.frames from `first` on and compares them with the thread's last stack on the way. False if
 * the room did not suffice. */
static bool walk_stack(ticker_state *ticker, compat_frame *frame, raw_stack *last, scratch_thread *thread)
{
    raw_frame *out = ticker->frames + thread->first;
    size_t capacity = ticker->frames_capacity - thread->first;
    size_t depth = 0;
    size_t comparable = last == NULL ? 0 : last->depth;
    bool same = last != NULL;

    for (; frame != NULL && depth < ticker->max_depth; frame = compat_caller_frame(frame)) {
        if (depth == capacity) {
            return false;
        }
        raw_frame seen = {(PyObject *)compat_frame_code(frame), compat_frame_globals(frame),
                          compat_frame_offset(frame)};
        same = same && depth < comparable && last->frames[depth].code == seen.code
               && last->frames[depth].offset == seen.offset && last->frames[depth].globals == seen.globals;
        out[depth++] = seen;
    }
    thread->depth = depth;
    thread->truncated = frame != NULL;
    thread->unchanged_stack = same && depth == comparable && last->truncated == thread->truncated ? last : NULL;
    return true;
}

/* `known`: what was kept of it, or NULL. */
static void read_identity(scratch_thread *thread, const PyThreadState *state, const last_stack *known)
{
    const fork_survivor *survivor = forks_survivor();
    thread->key = state->id;
    thread->ident = state->thread_id;
    /* Without Python's hook the thread state keeps the id that the thread had in the parent. */
    thread->native_id = state->id <= survivor->newest_inherited ? survivor->native_id : compat_native_id(state);
    if (thread->native_id == 0 && known != NULL) {
        thread->native_id = known->native_id;
    }
    thread->context = state->context;
}

/* Needs the head lock. Lists threads with their contexts, newest first, and reads nothing of their stacks. */
static walk_result list_threads(ticker_state *ticker, size_t *count)
{
    size_t threads = 0;
    for (PyThreadState *state = compat_first_thread(ticker->interp); state != NULL; state = state->next) {
        if (state->context == NULL) {
            continue;
        }
        if (threads == ticker->threads_capacity) {
            return NO_ROOM_THREADS;
        }
        ticker->scratch_threads[threads++] = (scratch_thread){.key = state->id, .context = state->context};
    }
    *count = threads;
    return WALKED;
}

/* Needs the head lock. Threads come newest first, as do the last stacks, so one pass finds each thread's own; and as do
 * those in the focus, which are the only ones if there is a count of them. */
static walk_result walk_threads(ticker_state *ticker, const size_t *selected, const PyThreadState *gil_holder,
                                size_t *count)
{
    size_t selected_index = 0;
    const fork_survivor *survivor = forks_survivor();
    size_t threads = 0, frames = 0, last = 0;
    for (PyThreadState *state = compat_first_thread(ticker->interp); state != NULL; state = state->next) {
        while (selected != NULL && selected_index < *selected && ticker->selected_keys[selected_index] > state->id) {
            selected_index++;
        }
        if (selected != NULL && (selected_index == *selected || ticker->selected_keys[selected_index] != state->id)) {
            continue;
        }
        if (state->id <= survivor->newest_inherited && state->thread_id != survivor->ident) {
            /* C code forked and ran no Python hook, so the parent's threads are still listed. Part of their chain of
             * frames lies on C stacks, and the memory of those may have other users by now. */
            continue;
        }
        compat_frame *frame = compat_top_frame(state);
        if (frame == NULL) {
            continue;
        }
        if (threads == ticker->threads_capacity) {
            return NO_ROOM_THREADS;
        }
        while (last < ticker->last_count && ticker->last_stacks[last].key > state->id) {
            last++;
        }
        const last_stack *known =
            last < ticker->last_count && ticker->last_stacks[last].key == state->id ? &ticker->last_stacks[last] : NULL;
        scratch_thread *thread = &ticker->scratch_threads[threads];
        read_identity(thread, state, known);
        thread->is_gil_holder = state == gil_holder;
        thread->first = frames;
        if (!walk_stack(ticker, frame, known != NULL ? known->stack : NULL, thread)) {
            return NO_ROOM_FRAMES;
        }
        if (thread->unchanged_stack == NULL) {
            frames += thread->depth;
        }
        threads++;
    }
    *count = threads;
    return WALKED;
}

static bool grow(void **memory, size_t *capacity, size_t item_size, size_t at_least)
{
    size_t wanted = *capacity * 2 > at_least ? *capacity * 2 : at_least;
    if (wanted > SIZE_MAX / item_size) {
        return false;
    }
    void *grown = realloc(*memory, wanted * item_size);
    if (grown == NULL) {
        return false;
    }
    *memory = grown;
    *capacity = wanted;
    return true;
}

static bool grow_threads(ticker_state *ticker)
{
    size_t capacity = ticker->threads_capacity;
    if (!grow((void **)&ticker->scratch_threads, &capacity, sizeof(scratch_thread), 64)) {
        return false;
    }
    capacity = ticker->threads_capacity;
    if (!grow((void **)&ticker->last_stacks, &capacity, sizeof(last_stack), 64)) {
        return false; /* walked is larger than it must be, which harms nobody */
    }
    capacity = ticker->threads_capacity;
    if (!grow((void **)&ticker->selected_keys, &capacity, sizeof(uint64_t), 64)) {
        return false;
    }
    ticker->threads_capacity = capacity;
    return true;
}

/* What a focused walk has to leave to the GIL alone, without the head lock: to look into contexts. */
static bool select_threads(ticker_state *ticker, size_t *selected)
{
    for (;;) {
        size_t listed;
        if (!compat_lock_head()) {
            return false;
        }
        walk_result result = list_threads(ticker, &listed);
        compat_unlock_head();
        if (result == WALKED) {
            *selected = filter_threads(ticker, listed);
            return true;
        }
        if (!grow_threads(ticker)) {
            return false;
        }
    }
}

static bool walk(ticker_state *ticker, bool is_focused, const PyThreadState *gil_holder, size_t *count)
{
    size_t selected = 0;
    *count = 0;
    if (is_focused && !filter_is_empty(ticker) && !select_threads(ticker, &selected)) {
        return false;
    }
    if (is_focused && selected == 0) {
        return true;
    }
    for (;;) {
        if (!compat_lock_head()) {
            return false;
        }
        walk_result result = walk_threads(ticker, is_focused ? &selected : NULL, gil_holder, count);
        compat_unlock_head();
        if (result == WALKED) {
            return true;
        }
        bool grown = result == NO_ROOM_THREADS
                         ? grow_threads(ticker)
                         : grow((void **)&ticker->frames, &ticker->frames_capacity, sizeof(raw_frame), 4096);
        if (!grown) {
            return false;
        }
    }
}

static raw_stack *stack_new(ticker_state *ticker, const scratch_thread *thread)
{
    raw_stack *stack = malloc(sizeof(raw_stack) + thread->depth * sizeof(raw_frame));
    if (stack == NULL) {
        return NULL;
    }
    memcpy(stack->frames, ticker->frames + thread->first, thread->depth * sizeof(raw_frame));
    for (size_t i = 0; i < thread->depth; i++) {
        Py_INCREF(stack->frames[i].code);
        Py_INCREF(stack->frames[i].globals);
    }
    stack->depth = thread->depth;
    stack->truncated = thread->truncated;
    stack->stack = NULL;
    stack->refcount = 0;
    stack->next_unreferenced = NULL;
    stack->previous = NULL;
    stack->next = ticker->stacks;
    if (ticker->stacks != NULL) {
        ticker->stacks->previous = stack;
    }
    ticker->stacks = stack;
    return stack;
}

void stack_unref(ticker_state *ticker, raw_stack *stack)
{
    if (--stack->refcount == 0) {
        stack->next_unreferenced = ticker->unreferenced_stacks;
        ticker->unreferenced_stacks = stack;
    }
}

/* The same for a capture between two of all threads: the others keep theirs, and new ones wait for the next of all. */
static void save_previous_focused(ticker_state *ticker, const raw_snapshot *snapshot)
{
    size_t left = ticker->last_count;
    for (size_t i = 0; i < snapshot->count; i++) {
        const raw_thread *thread = &snapshot->threads[i];
        while (left > 0 && ticker->last_stacks[left - 1].key < thread->key) {
            left--;
        }
        if (left > 0 && ticker->last_stacks[left - 1].key == thread->key) {
            thread->stack->refcount++;
            stack_unref(ticker, ticker->last_stacks[left - 1].stack);
            ticker->last_stacks[left - 1].stack = thread->stack;
        }
    }
}

/* Keeps what this capture saw for the next one to compare with. */
static void save_previous(ticker_state *ticker, raw_snapshot *snapshot, int64_t deadline_ns)
{
    bool is_last = !snapshot->is_focused || !atomic_load(&ticker->has_full_captures);
    clocks_fill(ticker, snapshot, deadline_ns, is_last);
    if (!is_last) {
        save_previous_focused(ticker, snapshot);
        return;
    }
    for (size_t i = 0; i < snapshot->count; i++) {
        snapshot->threads[i].stack->refcount++;
    }
    for (size_t i = 0; i < ticker->last_count; i++) {
        stack_unref(ticker, ticker->last_stacks[i].stack);
    }
    ticker->last_count = snapshot->count;
    for (size_t i = 0; i < snapshot->count; i++) {
        const raw_thread *thread = &snapshot->threads[snapshot->count - 1 - i];
        ticker->last_stacks[i] = (last_stack){thread->key, thread->native_id, thread->stack};
    }
}

static void materialize_thread(ticker_state *ticker, PyThreadState *self, const scratch_thread *scratch,
                               raw_stack *stack, raw_thread *thread)
{
    /* Who has moved, or is new, is looked up: threads that rest cost nothing. */
    PyObject *python_thread = scratch->unchanged_stack != NULL ? NULL : thread_objects_find(ticker, scratch->ident);
    /* A thread in a span and nothing else has one variable: then there are no labels to look for. */
    Py_ssize_t variables = compat_context_size(scratch->context);
    PyObject *context = variables > 0 ? compat_context_value(self, scratch->context, ticker->context_var) : NULL;
    bool has_more = variables > (context != NULL);
    stack->refcount++;
    *thread = (raw_thread){
        .key = scratch->key,
        .ident = scratch->ident,
        .native_id = scratch->native_id != 0 ? scratch->native_id : thread_objects_native_id(ticker, python_thread),
        .stack = stack,
        .context = context,
        .labels = has_more ? compat_context_value(self, scratch->context, ticker->labels_var) : NULL,
        .python_thread = python_thread,
        .state = scratch->is_gil_holder ? THREAD_RUNNING : THREAD_UNKNOWN,
    };
}

static raw_snapshot *materialize_snapshot(ticker_state *ticker, size_t count)
{
    raw_snapshot *snapshot = malloc(sizeof(raw_snapshot) + count * sizeof(raw_thread));
    if (snapshot == NULL) {
        return NULL;
    }
    PyThreadState *self = PyThreadState_Get();
    snapshot->next = NULL;
    snapshot->count = 0;
    for (size_t i = 0; i < count; i++) {
        const scratch_thread *scratch = &ticker->scratch_threads[count - 1 - i];
        raw_stack *stack = scratch->unchanged_stack != NULL ? scratch->unchanged_stack : stack_new(ticker, scratch);
        if (stack == NULL) {
            /* The references are given up by drain, like those of a snapshot that nobody took. */
            snapshot->next = ticker->discarded;
            ticker->discarded = snapshot;
            ticker->discarded_count++;
            return NULL;
        }
        materialize_thread(ticker, self, scratch, stack, &snapshot->threads[snapshot->count++]);
    }
    return snapshot;
}

/* Its own thread state and frames hold still while it is here, so this needs no head lock. */
bool capture_calling_thread(ticker_state *ticker, raw_thread *thread)
{
    PyThreadState *self = PyThreadState_Get();
    compat_frame *frame = compat_top_frame(self);
    scratch_thread scratch = {.first = 0};
    if (frame == NULL) {
        return false;
    }
    read_identity(&scratch, self, NULL);
    scratch.is_gil_holder = true;
    while (!walk_stack(ticker, frame, NULL, &scratch)) {
        if (!grow((void **)&ticker->frames, &ticker->frames_capacity, sizeof(raw_frame), 4096)) {
            return false;
        }
    }
    raw_stack *stack = stack_new(ticker, &scratch);
    if (stack == NULL) {
        return false;
    }
    materialize_thread(ticker, self, &scratch, stack, thread);
    return true;
}

static void ring_append(ticker_state *ticker, raw_snapshot *snapshot)
{
    size_t ready = atomic_load(&ticker->ready);
    if (ready == ticker->ring_size) {
        raw_snapshot *oldest = ticker->ring[ticker->ring_first];
        ticker->ring[ticker->ring_first] = snapshot;
        ticker->ring_first = (ticker->ring_first + 1) % ticker->ring_size;
        oldest->next = ticker->discarded;
        ticker->discarded = oldest;
        ticker->discarded_count++;
        atomic_fetch_add(&ticker->overwrites, 1);
        return;
    }
    ticker->ring[(ticker->ring_first + ready) % ticker->ring_size] = snapshot;
    atomic_store(&ticker->ready, ready + 1);
}

/* Nobody is woken for a focused snapshot without threads. */
bool capture_snapshot(ticker_state *ticker, int64_t deadline_ns, bool is_focused, const PyThreadState *gil_holder)
{
    size_t count;
    int64_t start_ns = monotonic_ns();
    int64_t time_ns = time_of_day_ns(),
            since_previous_ns = ticker->previous_capture_ns == 0 ? 0 : start_ns - ticker->previous_capture_ns;
    /* A worker that never drains leaves at most two rings of snapshots behind: then there are no more. */
    if (atomic_load(&ticker->is_closed) || ticker->discarded_count >= ticker->ring_size
        || !walk(ticker, is_focused, gil_holder, &count)) {
        return false;
    }
    ticker->previous_capture_ns = start_ns;
    if (is_focused && count == 0) {
        if (filter_is_empty(ticker)) {
            /* Who adds a trace says so after that, and with the GIL: it cannot get lost between these two lines. */
            atomic_store(&ticker->is_focus_active, false);
        }
        atomic_fetch_add(&ticker->captured, 1);
        atomic_fetch_add(&ticker->gil_held_ns_sum, monotonic_ns() - start_ns);
        return true;
    }
    raw_snapshot *snapshot = materialize_snapshot(ticker, count);
    if (snapshot == NULL) {
        return false;
    }
    snapshot->time_ns = time_ns;
    snapshot->is_focused = is_focused;
    snapshot->since_previous_ns = since_previous_ns;
    snapshot->latency_ns = deadline_ns == 0 ? 0 : start_ns - deadline_ns;
    snapshot->period_ns = deadline_ns == 0 ? 0 : atomic_load(&ticker->pending_period_ns);
    save_previous(ticker, snapshot, deadline_ns);
    ring_append(ticker, snapshot);
    atomic_fetch_add(&ticker->captured, 1);
    if (deadline_ns != 0) {
        atomic_fetch_add(&ticker->latency_ns_sum, snapshot->latency_ns);
        if (snapshot->latency_ns > atomic_load(&ticker->latency_ns_max)) {
            atomic_store(&ticker->latency_ns_max, snapshot->latency_ns);
        }
    }
    atomic_fetch_add(&ticker->gil_held_ns_sum, monotonic_ns() - start_ns);
    return true;
}
