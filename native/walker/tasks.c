/* Captures the stacks of asyncio tasks that are suspended: the coroutines that await each other.
 *
 * Two phases, as in capture.c. In the first no Python code runs, so no task can run on. It reads only objects of
 * exact types of CPython: coroutines, generators, asynchronous generators, and the built-in awaitables that wrap
 * them. A class of the application ends the chain. In the second phase the stacks become Python values.
 *
 * CPython does not publish the layout of a task. So its parts are found as the collector finds them: its base type
 * visits its context, its coroutine, its name and what it awaits; then the event loop, callbacks and, from 3.14 on,
 * the task that awaits it.
 */
#include "task_compat.h"

#include "tasks.h"

#include <stdlib.h>
#include <string.h>

#define MAX_FRAMES   512
#define MAX_PARENTS  8
#define MAX_WRAPPERS 4

/* The parts of a task, borrowed from it. */
typedef struct {
    const running_loop *loops;
    size_t loop_count;
    PyTypeObject *task_type;
    PyObject *context;
    PyObject *coroutine;
    const running_loop *loop; /* NULL: it does not run */
    PyObject *parent;         /* the task that awaits this one; NULL: none, several, or not known */
} task_parts;

typedef struct {
    raw_frame frames[MAX_FRAMES]; /* borrowed, leaf first */
    size_t depth;
    bool truncated;
} task_stack;

typedef struct {
    raw_thread thread; /* its stack is NULL: not captured */
    PyObject *name;    /* owned; NULL: not captured, or not known */
    bool is_waiting;
} seen_task;

static bool is_generator(PyObject *object)
{
    return PyCoro_CheckExact(object) || PyGen_CheckExact(object) || PyAsyncGen_CheckExact(object);
}

/* Return true for the built-in awaitables that have a generator inside. */
static bool is_wrapper(PyObject *object)
{
    static const char *const names[] = {"coroutine_wrapper", "async_generator_asend", "async_generator_athrow",
                                        "anext_awaitable"};
    const PyTypeObject *type = Py_TYPE(object);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(type->tp_name, names[i]) == 0) {
            return !PyType_HasFeature((PyTypeObject *)type, Py_TPFLAGS_HEAPTYPE);
        }
    }
    return false;
}

/* All of them visit first what they await. What else they hold, such as the default of `anext`, may be any generator, even
 * the one that awaits them. */
static int visit_first(PyObject *object, void *found)
{
    *(PyObject **)found = object;
    return 1;
}

/* Return the generator that is, or is inside, an awaitable; borrowed from it, or NULL. */
static PyObject *find_generator(PyObject *awaitable)
{
    for (int i = 0; awaitable != NULL && i < MAX_WRAPPERS; i++) {
        if (is_generator(awaitable)) {
            return awaitable;
        }
        PyObject *inner = NULL;
        if (is_wrapper(awaitable)) {
            (void)Py_TYPE(awaitable)->tp_traverse(awaitable, visit_first, &inner);
        }
        awaitable = inner;
    }
    return NULL;
}

/* Return the generator that a suspended one awaits; borrowed from its frame, or NULL. */
static PyObject *next_generator(const ticker_state *ticker, PyObject *generator)
{
    int name = PyCoro_CheckExact(generator)  ? NAME_CR_AWAIT
               : PyGen_CheckExact(generator) ? NAME_GI_YIELDFROM
                                             : NAME_AG_AWAIT;
    PyObject *awaited = PyObject_GetAttr(generator, ticker->names[name]);
    if (awaited == NULL) {
        PyErr_Clear();
        return NULL;
    }
    PyObject *found = find_generator(awaited);
    Py_DECREF(awaited); /* not the last reference: the frame has one */
    return found;
}

/* Append the frames of a coroutine and of all that it awaits. */
static void append_frames(const ticker_state *ticker, PyObject *coroutine, task_stack *stack)
{
    compat_frame *chain[MAX_FRAMES]; /* from the root; the last ones */
    size_t count = 0, max_depth = (size_t)ticker->arguments.max_depth;
    max_depth = max_depth < MAX_FRAMES ? max_depth : MAX_FRAMES;
    for (PyObject *each = coroutine; each != NULL; each = next_generator(ticker, each)) {
        compat_frame *frame = compat_suspended_frame(each);
        if (frame == NULL || compat_frame_globals(frame) == NULL) { /* as in compat_first_complete */
            break;
        }
        chain[count++ % MAX_FRAMES] = frame;
    }
    stack->truncated = count > max_depth - stack->depth;
    for (size_t i = 0; i < count && stack->depth < max_depth; i++) {
        compat_frame *frame = chain[(count - 1 - i) % MAX_FRAMES];
        stack->frames[stack->depth++] =
            (raw_frame){(PyObject *)compat_frame_code(frame), compat_frame_globals(frame), compat_frame_offset(frame)};
    }
}

static int visit_part(PyObject *object, void *argument)
{
    task_parts *parts = argument;
    if (parts->loop != NULL) {
        if (parts->parent == NULL && PyObject_TypeCheck(object, parts->task_type)) {
            parts->parent = object;
        }
        return 0;
    }
    if (parts->context == NULL && PyContext_CheckExact(object)) {
        parts->context = object;
    }
    else if (parts->coroutine == NULL && is_generator(object)) {
        parts->coroutine = object;
    }
    for (size_t i = 0; i < parts->loop_count; i++) {
        if (parts->loops[i].loop == object) {
            parts->loop = &parts->loops[i];
        }
    }
    return 0;
}

/* Read the parts of a task. Return false if it is not a task, or lacks one. */
static bool read_parts(PyObject *task, const running_loop *loops, size_t loop_count, PyTypeObject *task_type,
                       task_parts *parts)
{
    *parts = (task_parts){.loops = loops, .loop_count = loop_count, .task_type = task_type};
    /* The base type's function: a class of the application visits its own attributes first. */
    return task_type->tp_traverse != NULL && PyObject_TypeCheck(task, task_type)
           && task_type->tp_traverse(task, visit_part, parts) == 0 && parts->context != NULL && parts->coroutine != NULL
           && parts->loop != NULL;
}

typedef struct {
    PyObject *context, *coroutine, *name; /* in the order in which they are visited */
} named_parts;

static int visit_name(PyObject *object, void *argument)
{
    named_parts *parts = argument;
    if (parts->context == NULL) {
        parts->context = PyContext_CheckExact(object) ? object : NULL;
    }
    else if (parts->coroutine == NULL) {
        parts->coroutine = object;
    }
    else if (parts->name == NULL) {
        parts->name = object;
    }
    return 0;
}

static PyObject *exact_str(PyObject *object)
{
    return object != NULL && PyUnicode_CheckExact(object) ? object : NULL;
}

task_names tasks_read_names(PyObject *task, PyTypeObject *task_type)
{
    named_parts parts = {NULL, NULL, NULL};
    if (task_type->tp_traverse == NULL || !PyObject_TypeCheck(task, task_type)
        || task_type->tp_traverse(task, visit_name, &parts) != 0 || parts.coroutine == NULL) {
        return (task_names){NULL, NULL};
    }
    PyObject *qualname = is_generator(parts.coroutine) ? ((PyGenObject *)parts.coroutine)->gi_qualname : NULL;
    return (task_names){exact_str(parts.name), exact_str(qualname)};
}

static bool is_waiting(PyObject *task, const running_loop *loops, size_t loop_count, PyTypeObject *task_type)
{
    task_parts parts;
    return read_parts(task, loops, loop_count, task_type, &parts) && compat_suspended_frame(parts.coroutine) != NULL;
}

/* Fill `seen` with the stack and the name of a task that waits; leave it as it is without memory. */
static void capture_task(ticker_state *ticker, const running_loop *loops, size_t loop_count, PyTypeObject *task_type,
                         PyObject *task, seen_task *seen)
{
    task_parts parts, above;
    task_stack stack;
    stack.depth = 0;
    (void)read_parts(task, loops, loop_count, task_type, &parts);
    append_frames(ticker, parts.coroutine, &stack);
    above = parts;
    for (int i = 0; i < MAX_PARENTS && !stack.truncated && above.parent != NULL; i++) {
        if (!read_parts(above.parent, loops, loop_count, task_type, &above)) {
            break;
        }
        append_frames(ticker, above.coroutine, &stack);
    }
    raw_stack *made = stack_new(ticker, stack.frames, stack.depth, stack.truncated);
    if (made != NULL) {
        scratch_thread scratch = parts.loop->thread;
        scratch.context = parts.context;
        thread_materialize(ticker, &scratch, made, &seen->thread);
        seen->name = Py_XNewRef(tasks_read_names(task, task_type).given);
    }
}

/* Return the object that an item of `tasks` is, or refers to weakly; borrowed until Python code runs. */
static PyObject *task_at(PyObject *tasks, size_t index)
{
    PyObject *item = PyList_GET_ITEM(tasks, (Py_ssize_t)index);
    PyObject *task = PyWeakref_Check(item) ? compat_referent(item) : NULL;
    return task != NULL ? task : item;
}

/* Capture at most `limit` of the tasks that wait, evenly spread; return the number of those that wait. No Python code
 * runs. */
static size_t capture_waiting(ticker_state *ticker, PyObject *tasks, PyTypeObject *task_type, size_t limit,
                              seen_task *seen)
{
    running_loop loops[MAX_LOOPS];
    size_t loop_count;
    (void)walk_loops(ticker, loops, NULL, &loop_count);
    size_t count = (size_t)PyList_GET_SIZE(tasks), waiting = 0, rank = 0;
    for (size_t i = 0; i < count; i++) {
        seen[i].is_waiting = is_waiting(task_at(tasks, i), loops, loop_count, task_type);
        waiting += seen[i].is_waiting;
    }
    limit = limit < waiting ? limit : waiting;
    for (size_t i = 0; i < count; i++) {
        if (seen[i].is_waiting && (rank++ * limit) % waiting < limit) {
            capture_task(ticker, loops, loop_count, task_type, task_at(tasks, i), &seen[i]);
        }
    }
    return waiting;
}

/* Return a new reference to (RawThread, name or None). */
static PyObject *convert_task(ticker_state *ticker, const module_state *module, const seen_task *seen)
{
    PyObject *thread = convert_thread(ticker, module, &seen->thread);
    return thread == NULL ? NULL : Py_BuildValue("(NO)", thread, seen->name == NULL ? Py_None : seen->name);
}

/* Return a list of what was captured, and release it. Python code may run, and the tasks may end meanwhile: none is owned,
 * so that each is freed on its own thread. */
static PyObject *convert_tasks(ticker_state *ticker, const module_state *module, seen_task *seen, size_t count)
{
    PyObject *converted = PyList_New(0);
    for (size_t i = 0; i < count; i++) {
        if (seen[i].thread.stack == NULL) {
            continue;
        }
        if (converted != NULL) {
            (void)append_item(&converted, convert_task(ticker, module, &seen[i]));
        }
        thread_release(ticker, &seen[i].thread);
        Py_XDECREF(seen[i].name);
    }
    return converted;
}

PyObject *tasks_capture(ticker_state *ticker, const module_state *module, PyObject *tasks, PyTypeObject *task_type,
                        size_t limit)
{
    ticker_state_free_unreferenced(ticker);
    size_t count = (size_t)PyList_GET_SIZE(tasks);
    seen_task *seen = calloc(count + 1, sizeof(seen_task));
    if (seen == NULL) {
        return PyErr_NoMemory();
    }
    size_t waiting = capture_waiting(ticker, tasks, task_type, limit, seen);
    PyObject *captured = convert_tasks(ticker, module, seen, count);
    free(seen);
    ticker_state_free_unreferenced(ticker);
    return captured == NULL ? NULL : Py_BuildValue("(Nn)", captured, (Py_ssize_t)waiting);
}

bool tasks_layouts_match(ticker_state *ticker, PyObject *loop, PyObject *generator, PyObject *code, int offset)
{
    if (atomic_load(&ticker->loop.is_closed)
        || compat_running_loop(PyThreadState_Get(), ticker->names[NAME_RUNNING_LOOP]) != loop) {
        return false;
    }
    compat_frame *frame = compat_suspended_frame(generator);
    return frame != NULL && (PyObject *)compat_frame_code(frame) == code && compat_frame_offset(frame) == offset;
}

PyObject *tasks_running_loops(ticker_state *ticker)
{
    running_loop loops[MAX_LOOPS];
    PyObject *owned[MAX_LOOPS];
    unsigned long long keys[MAX_LOOPS];
    size_t count;
    (void)walk_loops(ticker, loops, NULL, &count);
    for (size_t i = 0; i < count; i++) {
        owned[i] = Py_NewRef(loops[i].loop); /* before an allocation, which may run Python code */
        keys[i] = loops[i].thread.key;
    }
    PyObject *listed = PyList_New(0);
    for (size_t i = 0; i < count; i++) {
        if (listed != NULL) {
            (void)append_item(&listed, Py_BuildValue("(OK)", owned[i], keys[i]));
        }
        Py_DECREF(owned[i]);
    }
    return listed;
}
