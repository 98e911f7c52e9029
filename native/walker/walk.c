/* The first phase of a capture: walks the thread states into scratch memory. The caller holds the GIL.
 *
 * Under the runtime's head lock nothing is allocated, and no reference count changes. Nothing is called that
 * could take a lock or run Python. If there is no room, the lock is released, the memory grows, and the walk
 * starts again.
 */
#include "task_compat.h"

#include "forks.h"
#include "lock_holders.h"
#include "tasks.h"

#include <stdlib.h>
#include <string.h>

#define MIN_THREADS 64
#define MIN_FRAMES  4096
#define CACHE_LINE  64 /* bytes */

typedef enum { WALKED, NO_ROOM_THREADS, NO_ROOM_FRAMES } walk_result;

/* Write the frames to scratch.frames from `first` on, and compare them with the thread's last stack. Return
 * false if there is no room. */
static bool walk_stack(ticker_state *ticker, compat_frame *frame, raw_stack *last, scratch_thread *thread)
{
    raw_frame *out = ticker->scratch.frames + thread->first;
    size_t capacity = ticker->scratch.frames_capacity - thread->first;
    size_t depth = 0, max_depth = (size_t)ticker->arguments.max_depth;
    size_t comparable = last == NULL ? 0 : last->depth;
    bool same = last != NULL;

    for (; frame != NULL && depth < max_depth; frame = compat_caller_frame(frame)) {
        if (depth == capacity) {
            return false;
        }
        compat_prefetch_caller(frame);
        raw_frame seen = {(PyObject *)compat_frame_code(frame), compat_frame_globals(frame),
                          compat_frame_offset(frame)};
        same = same && depth < comparable && is_same_frame(&last->frames[depth], &seen);
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
    thread->context_switches = state->context_ver;
}

/* Needs the head lock. Lists threads with their contexts, newest first, and does not read their stacks. */
static walk_result list_threads(ticker_state *ticker)
{
    walk_scratch *scratch = &ticker->scratch;
    scratch->count = 0;
    for (PyThreadState *state = compat_first_thread(ticker->interp); state != NULL; state = state->next) {
        if (state->context == NULL) {
            continue;
        }
        if (scratch->count == scratch->threads_capacity) {
            return NO_ROOM_THREADS;
        }
        scratch->threads[scratch->count++] = (scratch_thread){.key = state->id, .context = state->context};
    }
    return WALKED;
}

/* C code may fork and run no Python hook. Then the parent's threads are still listed. Part of their frame
 * chain lies on C stacks, whose memory may be reused by now. */
static bool is_lost_in_fork(const PyThreadState *state)
{
    const fork_survivor *survivor = forks_survivor();
    return state->id <= survivor->newest_inherited && state->thread_id != survivor->ident;
}

/* The next two find a key in a list that descends, as the keys of the calls do. `index` is where to go on. */
static bool is_selected(const walk_scratch *scratch, size_t *index, uint64_t key)
{
    while (*index < scratch->selected_count && scratch->selected_keys[*index] > key) {
        (*index)++;
    }
    return *index < scratch->selected_count && scratch->selected_keys[*index] == key;
}

static const last_stack *find_last_stack(const previous_capture *previous, size_t *index, uint64_t key)
{
    while (*index < previous->count && previous->stacks[*index].key > key) {
        (*index)++;
    }
    return *index < previous->count && previous->stacks[*index].key == key ? &previous->stacks[*index] : NULL;
}

/* Needs the head lock. Since the last capture the application has replaced the caches' content: waiting for one
 * line of memory after the other is most of a capture's time then, so ask for those of all threads at once. */
static void prefetch_frames(const ticker_state *ticker)
{
    for (PyThreadState *state = compat_first_thread(ticker->interp); state != NULL; state = state->next) {
        __builtin_prefetch(compat_frame_slot(state));
    }
    for (PyThreadState *state = compat_first_thread(ticker->interp); state != NULL; state = state->next) {
        compat_frame *const *slot = is_lost_in_fork(state) ? NULL : compat_frame_slot(state);
        if (slot != NULL) {
            __builtin_prefetch(*slot);
            __builtin_prefetch((const char *)*slot + CACHE_LINE);
        }
    }
    for (size_t i = 0; i < ticker->previous.count; i++) {
        __builtin_prefetch(ticker->previous.stacks[i].stack);
        __builtin_prefetch((const char *)ticker->previous.stacks[i].stack + CACHE_LINE);
    }
}

/* Needs the head lock. The threads come newest first. */
static walk_result walk_threads(ticker_state *ticker, bool is_focused, const PyThreadState *gil_holder)
{
    walk_scratch *scratch = &ticker->scratch;
    size_t frames = 0, selected_index = 0, last_index = 0;
    scratch->count = 0;
    if (!is_focused) {
        prefetch_frames(ticker);
    }
    for (PyThreadState *state = compat_first_thread(ticker->interp); state != NULL; state = state->next) {
        if ((is_focused && !is_selected(scratch, &selected_index, state->id)) || is_lost_in_fork(state)) {
            continue;
        }
        compat_frame *frame = compat_top_frame(state);
        if (frame == NULL) {
            continue;
        }
        if (scratch->count == scratch->threads_capacity) {
            return NO_ROOM_THREADS;
        }
        const last_stack *known = find_last_stack(&ticker->previous, &last_index, state->id);
        scratch_thread *thread = &scratch->threads[scratch->count];
        read_identity(thread, state, known);
        thread->is_gil_holder = state == gil_holder;
        thread->wants_gil = !thread->is_gil_holder && compat_wants_gil(state);
        thread->first = frames;
        if (!walk_stack(ticker, frame, known != NULL ? known->stack : NULL, thread)) {
            return NO_ROOM_FRAMES;
        }
        if (thread->unchanged_stack == NULL) {
            frames += thread->depth;
        }
        scratch->count++;
    }
    return WALKED;
}

bool walk_loops(ticker_state *ticker, running_loop loops[MAX_LOOPS], const PyThreadState *gil_holder, size_t *count)
{
    *count = 0;
    if (atomic_load(&ticker->loop.is_closed) || !compat_lock_head()) {
        return false;
    }
    for (PyThreadState *state = compat_first_thread(ticker->interp); state != NULL; state = state->next) {
        PyObject *loop = is_lost_in_fork(state) ? NULL : compat_running_loop(state, ticker->names[NAME_RUNNING_LOOP]);
        if (loop != NULL && loop != Py_None) {
            *count += *count < MAX_LOOPS; /* the last place is for the oldest thread */
            running_loop *found = &loops[*count - 1];
            *found = (running_loop){.loop = loop, .task = compat_running_task(state)};
            read_identity(&found->thread, state, NULL);
            found->thread.is_gil_holder = state == gil_holder;
        }
    }
    compat_unlock_head();
    return true;
}

static thread_switches *find_switches(thread_switches *threads, size_t count, uint64_t key)
{
    for (size_t i = 0; i < count; i++) {
        if (threads[i].key == key) {
            return &threads[i];
        }
    }
    return NULL;
}

size_t walk_switches(ticker_state *ticker, thread_switches *threads, size_t count, uint64_t *others)
{
    if (!compat_lock_head()) {
        return SIZE_MAX;
    }
    size_t switched = 0;
    int64_t now_ns = clock_ns(CLOCK_BOOTTIME);
    *others = 0;
    for (PyThreadState *state = compat_first_thread(ticker->interp); state != NULL; state = state->next) {
        uint64_t context_switches = __atomic_load_n(&state->context_ver, __ATOMIC_RELAXED);
        thread_switches *found = find_switches(threads, count, state->id);
        if (found == NULL) {
            *others += (state->id << 32) + context_switches;
        }
        else if (found->context_switches != context_switches) {
            *found = (thread_switches){state->id, context_switches, now_ns};
            switched++;
        }
    }
    compat_unlock_head();
    return switched;
}

size_t walk_tops(ticker_state *ticker, thread_top *tops, size_t capacity)
{
    size_t count = 0;
    if (atomic_load(&ticker->loop.is_closed) || !compat_lock_head()) {
        return 0;
    }
    const PyThreadState *self = PyThreadState_Get();
    for (PyThreadState *state = compat_first_thread(ticker->interp); state != NULL && count < capacity;
         state = state->next) {
        compat_frame *frame = state == self || is_lost_in_fork(state) ? NULL : compat_top_frame(state);
        if (frame != NULL) {
            tops[count++] = (thread_top){state->id, state->thread_id, frame};
        }
    }
    compat_unlock_head();
    return count;
}

static bool resize(void **memory, size_t count, size_t item_size)
{
    void *resized = count > SIZE_MAX / item_size ? NULL : realloc(*memory, count * item_size);
    if (resized == NULL) {
        return false; /* the memory is as before */
    }
    *memory = resized;
    return true;
}

static bool grow_threads(ticker_state *ticker)
{
    walk_scratch *scratch = &ticker->scratch;
    size_t capacity = scratch->threads_capacity == 0 ? MIN_THREADS : scratch->threads_capacity * 2;
    if (!resize((void **)&scratch->threads, capacity, sizeof(scratch_thread))
        || !resize((void **)&scratch->selected_keys, capacity, sizeof(uint64_t))
        || !resize((void **)&ticker->previous.stacks, capacity, sizeof(last_stack))) {
        return false; /* some are larger than needed, which is harmless */
    }
    scratch->threads_capacity = capacity;
    return true;
}

static bool grow_frames(walk_scratch *scratch)
{
    size_t capacity = scratch->frames_capacity == 0 ? MIN_FRAMES : scratch->frames_capacity * 2;
    if (!resize((void **)&scratch->frames, capacity, sizeof(raw_frame))) {
        return false;
    }
    scratch->frames_capacity = capacity;
    return true;
}

/* Select threads by their contexts. Reading contexts needs the GIL, and must not happen under the head lock. */
static bool select_threads(ticker_state *ticker)
{
    for (;;) {
        if (!compat_lock_head()) {
            return false;
        }
        walk_result result = list_threads(ticker);
        compat_unlock_head();
        if (result == WALKED) {
            filter_threads(ticker);
            return true;
        }
        if (!grow_threads(ticker)) {
            return false;
        }
    }
}

/* `is_focused`: only the selected threads. */
static bool walk_with_room(ticker_state *ticker, bool is_focused, const PyThreadState *gil_holder)
{
    for (;;) {
        if (!compat_lock_head()) {
            return false;
        }
        walk_result result = walk_threads(ticker, is_focused, gil_holder);
        compat_unlock_head();
        if (result == WALKED) {
            return true;
        }
        if (!(result == NO_ROOM_THREADS ? grow_threads(ticker) : grow_frames(&ticker->scratch))) {
            return false;
        }
    }
}

bool walk_stacks(ticker_state *ticker, bool is_focused, const PyThreadState *gil_holder)
{
    if (is_focused) {
        ticker->scratch.selected_count = 0;
        if (!filter_is_empty(ticker) && !select_threads(ticker)) {
            return false;
        }
        if (ticker->scratch.selected_count == 0) {
            ticker->scratch.count = 0;
            return true;
        }
    }
    return walk_with_room(ticker, is_focused, gil_holder);
}

bool walk_selected(ticker_state *ticker, const uint64_t *keys, size_t count)
{
    while (ticker->scratch.threads_capacity < count) {
        if (!grow_threads(ticker)) {
            return false;
        }
    }
    memcpy(ticker->scratch.selected_keys, keys, count * sizeof(uint64_t));
    ticker->scratch.selected_count = count;
    return walk_with_room(ticker, true, NULL);
}

/* The calling thread's own state and frames cannot change meanwhile, so this needs no head lock. */
bool walk_calling_thread(ticker_state *ticker, scratch_thread *thread)
{
    PyThreadState *self = PyThreadState_Get();
    compat_frame *frame = compat_top_frame(self);
    if (frame == NULL) {
        return false;
    }
    read_identity(thread, self, NULL);
    thread->is_gil_holder = true;
    while (!walk_stack(ticker, frame, NULL, thread)) {
        if (!grow_frames(&ticker->scratch)) {
            return false;
        }
    }
    return true;
}
