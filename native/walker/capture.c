/* Takes a snapshot: who calls holds the GIL, and holds it from the first line to the last.
 *
 * Two phases. Under the runtime's head lock the thread states are walked into scratch memory: nothing is allocated,
 * nothing gets or loses a reference, nothing is called that could take a lock or run Python. Then, still holding the
 * GIL (so that no frame, code object or context can go away), what changed is copied into stacks that own their code.
 * No reference is given up here: that can run finalisers and belongs to drain.
 */
#include "py_compat.h"

#include "state.h"

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

/* Writes the frames to core.frames from `first` on and compares them with the thread's last stack on the way. False if
 * the room did not suffice. */
static bool walk_stack(core *c, compat_frame *frame, raw_stack *last, walked_thread *thread)
{
    raw_frame *out = c->frames + thread->first;
    size_t room = c->frames_room - thread->first;
    size_t depth = 0;
    size_t comparable = last == NULL ? 0 : last->depth;
    bool same = last != NULL;

    for (; frame != NULL && depth < c->max_depth; frame = compat_calling_frame(frame)) {
        if (depth == room) {
            return false;
        }
        raw_frame seen = {(PyObject *)compat_code(frame), compat_globals(frame), compat_offset(frame)};
        same = same && depth < comparable && last->frames[depth].code == seen.code
               && last->frames[depth].offset == seen.offset && last->frames[depth].globals == seen.globals;
        out[depth++] = seen;
    }
    thread->depth = depth;
    thread->truncated = frame != NULL;
    thread->same = same && depth == comparable && last->truncated == thread->truncated ? last : NULL;
    return true;
}

/* `known`: what was kept of it, or NULL. */
static void identify(walked_thread *thread, const PyThreadState *state, const last_stack *known)
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
static walk_result list_threads(core *c, size_t *count)
{
    size_t threads = 0;
    for (PyThreadState *state = compat_first_thread(c->interp); state != NULL; state = state->next) {
        if (state->context == NULL) {
            continue;
        }
        if (threads == c->threads_room) {
            return NO_ROOM_THREADS;
        }
        c->walked[threads++] = (walked_thread){.key = state->id, .context = state->context};
    }
    *count = threads;
    return WALKED;
}

/* Needs the head lock. Threads come newest first, as do the last stacks, so one pass finds each thread's own; and as do
 * those in the focus, which are the only ones if there is a count of them. */
static walk_result walk_threads(core *c, const size_t *chosen, const PyThreadState *runner, size_t *count)
{
    size_t choice = 0;
    const fork_survivor *survivor = forks_survivor();
    size_t threads = 0, frames = 0, last = 0;
    for (PyThreadState *state = compat_first_thread(c->interp); state != NULL; state = state->next) {
        while (chosen != NULL && choice < *chosen && c->chosen[choice] > state->id) {
            choice++;
        }
        if (chosen != NULL && (choice == *chosen || c->chosen[choice] != state->id)) {
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
        if (threads == c->threads_room) {
            return NO_ROOM_THREADS;
        }
        while (last < c->last_count && c->last[last].key > state->id) {
            last++;
        }
        const last_stack *known = last < c->last_count && c->last[last].key == state->id ? &c->last[last] : NULL;
        walked_thread *thread = &c->walked[threads];
        identify(thread, state, known);
        thread->runs = state == runner;
        thread->first = frames;
        if (!walk_stack(c, frame, known != NULL ? known->stack : NULL, thread)) {
            return NO_ROOM_FRAMES;
        }
        if (thread->same == NULL) {
            frames += thread->depth;
        }
        threads++;
    }
    *count = threads;
    return WALKED;
}

static bool grow(void **memory, size_t *room, size_t item_size, size_t at_least)
{
    size_t wanted = *room * 2 > at_least ? *room * 2 : at_least;
    if (wanted > SIZE_MAX / item_size) {
        return false;
    }
    void *grown = realloc(*memory, wanted * item_size);
    if (grown == NULL) {
        return false;
    }
    *memory = grown;
    *room = wanted;
    return true;
}

static bool grow_threads(core *c)
{
    size_t room = c->threads_room;
    if (!grow((void **)&c->walked, &room, sizeof(walked_thread), 64)) {
        return false;
    }
    room = c->threads_room;
    if (!grow((void **)&c->last, &room, sizeof(last_stack), 64)) {
        return false; /* walked is larger than it must be, which harms nobody */
    }
    room = c->threads_room;
    if (!grow((void **)&c->chosen, &room, sizeof(uint64_t), 64)) {
        return false;
    }
    c->threads_room = room;
    return true;
}

/* What a focused walk has to leave to the GIL alone, without the head lock: to look into contexts. */
static bool choose(core *c, size_t *chosen)
{
    for (;;) {
        size_t listed;
        if (!compat_lock_head()) {
            return false;
        }
        walk_result result = list_threads(c, &listed);
        compat_unlock_head();
        if (result == WALKED) {
            *chosen = focus_choose(c, listed);
            return true;
        }
        if (!grow_threads(c)) {
            return false;
        }
    }
}

static bool walk(core *c, bool focused, const PyThreadState *runner, size_t *count)
{
    size_t chosen = 0;
    *count = 0;
    if (focused && !focus_is_empty(c) && !choose(c, &chosen)) {
        return false;
    }
    if (focused && chosen == 0) {
        return true;
    }
    for (;;) {
        if (!compat_lock_head()) {
            return false;
        }
        walk_result result = walk_threads(c, focused ? &chosen : NULL, runner, count);
        compat_unlock_head();
        if (result == WALKED) {
            return true;
        }
        bool grown = result == NO_ROOM_THREADS ? grow_threads(c)
                                               : grow((void **)&c->frames, &c->frames_room, sizeof(raw_frame), 4096);
        if (!grown) {
            return false;
        }
    }
}

static raw_stack *stack_new(core *c, const walked_thread *thread)
{
    raw_stack *stack = malloc(sizeof(raw_stack) + thread->depth * sizeof(raw_frame));
    if (stack == NULL) {
        return NULL;
    }
    memcpy(stack->frames, c->frames + thread->first, thread->depth * sizeof(raw_frame));
    for (size_t i = 0; i < thread->depth; i++) {
        Py_INCREF(stack->frames[i].code);
        Py_INCREF(stack->frames[i].globals);
    }
    stack->depth = thread->depth;
    stack->truncated = thread->truncated;
    stack->stack = NULL;
    stack->holders = 0;
    stack->next_dead = NULL;
    stack->previous = NULL;
    stack->next = c->stacks;
    if (c->stacks != NULL) {
        c->stacks->previous = stack;
    }
    c->stacks = stack;
    return stack;
}

void stack_release(core *c, raw_stack *stack)
{
    if (--stack->holders == 0) {
        stack->next_dead = c->dead_stacks;
        c->dead_stacks = stack;
    }
}

/* The same for a capture between two of all threads: the others keep theirs, and new ones wait for the next of all. */
static void remember_some(core *c, const raw_snapshot *snapshot)
{
    size_t left = c->last_count;
    for (size_t i = 0; i < snapshot->count; i++) {
        const raw_thread *thread = &snapshot->threads[i];
        while (left > 0 && c->last[left - 1].key < thread->key) {
            left--;
        }
        if (left > 0 && c->last[left - 1].key == thread->key) {
            thread->stack->holders++;
            stack_release(c, c->last[left - 1].stack);
            c->last[left - 1].stack = thread->stack;
        }
    }
}

/* Keeps what this capture saw for the next one to compare with. */
static void remember(core *c, raw_snapshot *snapshot, int64_t deadline_ns)
{
    bool is_last = !snapshot->focused || !atomic_load(&c->keeps_all);
    clocks_fill(c, snapshot, deadline_ns, is_last);
    if (!is_last) {
        remember_some(c, snapshot);
        return;
    }
    for (size_t i = 0; i < snapshot->count; i++) {
        snapshot->threads[i].stack->holders++;
    }
    for (size_t i = 0; i < c->last_count; i++) {
        stack_release(c, c->last[i].stack);
    }
    c->last_count = snapshot->count;
    for (size_t i = 0; i < snapshot->count; i++) {
        const raw_thread *thread = &snapshot->threads[snapshot->count - 1 - i];
        c->last[i] = (last_stack){thread->key, thread->native_id, thread->stack};
    }
}

static void own_thread(core *c, PyThreadState *self, const walked_thread *walked, raw_stack *stack, raw_thread *thread)
{
    /* Who has moved, or is new, is looked up: threads that rest cost nothing. */
    PyObject *object = walked->same != NULL ? NULL : thread_object_of(c, walked->ident);
    /* A thread in a span and nothing else has one variable: then there are no labels to look for. */
    Py_ssize_t variables = compat_variable_count(walked->context);
    PyObject *context = variables > 0 ? compat_context_value(self, walked->context, c->context_var) : NULL;
    bool has_more = variables > (context != NULL);
    stack->holders++;
    *thread = (raw_thread){
        .key = walked->key,
        .ident = walked->ident,
        .native_id = walked->native_id != 0 ? walked->native_id : thread_object_native_id(c, object),
        .stack = stack,
        .context = context,
        .labels = has_more ? compat_context_value(self, walked->context, c->labels_var) : NULL,
        .object = object,
        .state = walked->runs ? THREAD_RUNS : THREAD_UNKNOWN,
    };
}

static raw_snapshot *own_walked(core *c, size_t count)
{
    raw_snapshot *snapshot = malloc(sizeof(raw_snapshot) + count * sizeof(raw_thread));
    if (snapshot == NULL) {
        return NULL;
    }
    PyThreadState *self = PyThreadState_Get();
    snapshot->next = NULL;
    snapshot->count = 0;
    for (size_t i = 0; i < count; i++) {
        const walked_thread *walked = &c->walked[count - 1 - i];
        raw_stack *stack = walked->same != NULL ? walked->same : stack_new(c, walked);
        if (stack == NULL) {
            /* The references are given up by drain, like those of a snapshot that nobody took. */
            snapshot->next = c->overwritten;
            c->overwritten = snapshot;
            c->overwritten_count++;
            return NULL;
        }
        own_thread(c, self, walked, stack, &snapshot->threads[snapshot->count++]);
    }
    return snapshot;
}

/* Its own thread state and frames hold still while it is here, so this needs no head lock. */
bool capture_calling_thread(core *c, raw_thread *thread)
{
    PyThreadState *self = PyThreadState_Get();
    compat_frame *frame = compat_top_frame(self);
    walked_thread walked = {.first = 0};
    if (frame == NULL) {
        return false;
    }
    identify(&walked, self, NULL);
    walked.runs = true;
    while (!walk_stack(c, frame, NULL, &walked)) {
        if (!grow((void **)&c->frames, &c->frames_room, sizeof(raw_frame), 4096)) {
            return false;
        }
    }
    raw_stack *stack = stack_new(c, &walked);
    if (stack == NULL) {
        return false;
    }
    own_thread(c, self, &walked, stack, thread);
    return true;
}

static void ring_put(core *c, raw_snapshot *snapshot)
{
    size_t ready = atomic_load(&c->ready);
    if (ready == c->ring_size) {
        raw_snapshot *oldest = c->ring[c->ring_first];
        c->ring[c->ring_first] = snapshot;
        c->ring_first = (c->ring_first + 1) % c->ring_size;
        oldest->next = c->overwritten;
        c->overwritten = oldest;
        c->overwritten_count++;
        atomic_fetch_add(&c->overwrites, 1);
        return;
    }
    c->ring[(c->ring_first + ready) % c->ring_size] = snapshot;
    atomic_store(&c->ready, ready + 1);
}

/* Nobody is woken for a focused snapshot without threads. */
bool capture_snapshot(core *c, int64_t deadline_ns, bool focused, const PyThreadState *runner)
{
    size_t count;
    int64_t begin = monotonic_ns();
    int64_t time_ns = time_of_day_ns(), since_ns = c->before_ns == 0 ? 0 : begin - c->before_ns;
    /* A worker that never drains leaves at most two rings of snapshots behind: then there are no more. */
    if (atomic_load(&c->closed) || c->overwritten_count >= c->ring_size || !walk(c, focused, runner, &count)) {
        return false;
    }
    c->before_ns = begin;
    if (focused && count == 0) {
        if (focus_is_empty(c)) {
            /* Who adds a trace says so after that, and with the GIL: it cannot get lost between these two lines. */
            atomic_store(&c->focused, false);
        }
        atomic_fetch_add(&c->captured, 1);
        atomic_fetch_add(&c->held_sum, monotonic_ns() - begin);
        return true;
    }
    raw_snapshot *snapshot = own_walked(c, count);
    if (snapshot == NULL) {
        return false;
    }
    snapshot->time_ns = time_ns;
    snapshot->focused = focused;
    snapshot->since_ns = since_ns;
    snapshot->latency_ns = deadline_ns == 0 ? 0 : begin - deadline_ns;
    snapshot->period_ns = deadline_ns == 0 ? 0 : atomic_load(&c->waited_ns);
    remember(c, snapshot, deadline_ns);
    ring_put(c, snapshot);
    atomic_fetch_add(&c->captured, 1);
    if (deadline_ns != 0) {
        atomic_fetch_add(&c->late_sum, snapshot->latency_ns);
        if (snapshot->latency_ns > atomic_load(&c->late_max)) {
            atomic_store(&c->late_max, snapshot->latency_ns);
        }
    }
    atomic_fetch_add(&c->held_sum, monotonic_ns() - begin);
    return true;
}
