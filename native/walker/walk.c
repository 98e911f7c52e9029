/* The first phase of a capture: walks the thread states into scratch memory. The caller holds the GIL.
 *
 * Under the runtime's head lock nothing is allocated, and no reference count changes. Nothing is called that
 * could take a lock or run Python. If there is no room, the lock is released, the memory grows, and the walk
 * starts again.
 */
#include "py_compat.h"

#include "ticker_state.h"

#include <stdlib.h>

#define MIN_FRAMES 4096

typedef enum { WALKED, NO_ROOM_THREADS, NO_ROOM_FRAMES } walk_result;

/* Write the frames to ticker_state.frames from `first` on, and compare them with the thread's last stack.
 * Return false if there is no room. */
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

/* `known`: the thread's entry of the previous capture, or NULL. */
static void read_identity(scratch_thread *thread, const PyThreadState *state, const last_stack *known)
{
    const fork_survivor *survivor = forks_survivor();
    thread->key = state->id;
    thread->ident = state->thread_id;
    /* Without Python's fork hook the thread state keeps the id that the thread had in the parent. */
    thread->native_id = state->id <= survivor->newest_inherited ? survivor->native_id : compat_native_id(state);
    if (thread->native_id == 0 && known != NULL) {
        thread->native_id = known->native_id;
    }
    thread->context = state->context;
}

/* Needs the head lock. Lists threads with their contexts, newest first, and does not read their stacks. */
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

/* Needs the head lock. The threads come newest first, as do the last stacks and the selected keys, so one
 * pass finds each thread's own. `selected` NULL: walk all threads. */
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
            /* C code forked and ran no Python hook, so the parent's threads are still listed. Part of their
             * frame chain lies on C stacks, whose memory may be reused by now. */
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
        return false; /* scratch_threads is larger than needed, which is harmless */
    }
    capacity = ticker->threads_capacity;
    if (!grow((void **)&ticker->selected_keys, &capacity, sizeof(uint64_t), 64)) {
        return false;
    }
    ticker->threads_capacity = capacity;
    return true;
}

static bool grow_frames(ticker_state *ticker)
{
    return grow((void **)&ticker->frames, &ticker->frames_capacity, sizeof(raw_frame), MIN_FRAMES);
}

/* Select threads by their contexts. Reading contexts needs the GIL, and must not happen under the head lock. */
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

bool walk_stacks(ticker_state *ticker, bool is_focused, const PyThreadState *gil_holder, size_t *count)
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
        bool grown = result == NO_ROOM_THREADS ? grow_threads(ticker) : grow_frames(ticker);
        if (!grown) {
            return false;
        }
    }
}

/* The calling thread's own state and frames cannot change meanwhile, so this needs no head lock. */
bool walk_calling_thread(ticker_state *ticker, scratch_thread *scratch)
{
    PyThreadState *self = PyThreadState_Get();
    compat_frame *frame = compat_top_frame(self);
    if (frame == NULL) {
        return false;
    }
    read_identity(scratch, self, NULL);
    scratch->is_gil_holder = true;
    while (!walk_stack(ticker, frame, NULL, scratch)) {
        if (!grow_frames(ticker)) {
            return false;
        }
    }
    return true;
}
