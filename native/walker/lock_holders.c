/* Captures the threads that hold a lock for which other threads wait.
 *
 * A waiting thread enters a `with` block: its frame has the lock. The thread that holds it is inside of such a block: its
 * frame has the lock's `__exit__` or, from CPython 3.14 on, the lock. An RLock knows its owner. Everything is read in one
 * hold of the GIL, and no Python code runs before the result is made. Only values that the frame keeps are followed, and
 * only objects of exact types of CPython. What a frame enters may have been freed: it is compared only.
 */
#include "lock_compat.h"

#include "exception_table.h"
#include "lock_holders.h"
#include "module_setup.h"

#include <stdlib.h>

#define MAX_TOPS   1024
#define MAX_LOCKS  64
#define MAX_PLACES 256
#define UNIT       ((int)sizeof(_Py_CODEUNIT))

/* Types and code by which locks and waits for them are recognized; borrowed. */
typedef struct {
    PyTypeObject *lock;      /* of threading.Lock() */
    PyTypeObject *rlock;     /* of threading.RLock() */
    PyTypeObject *condition; /* threading.Condition */
    PyObject *wait_code;     /* of Condition.wait */
} lock_kinds;

typedef struct {
    const PyObject *lock; /* only an address */
    unsigned long owner;  /* of an RLock; 0: none, or another lock */
    size_t waiting;       /* number of threads that wait for it */
    uint64_t holder;      /* key */
    size_t holders;       /* number of threads that seem to hold it: only one can */
} wanted_lock;

typedef struct {
    ticker_state *ticker;
    const lock_kinds *kinds;
    thread_top tops[MAX_TOPS];
    size_t top_count;
    wanted_lock locks[MAX_LOCKS];
    size_t lock_count;
} lock_search;

/* Return true and set `range` if the instruction at `unit` has a handler. */
static bool find_range(const PyCodeObject *code, int unit, handled_range *range)
{
    PyObject *table = compat_exception_table(code);
    return table != NULL && PyBytes_CheckExact(table)
           && exception_table_find((const uint8_t *)PyBytes_AS_STRING(table), (size_t)PyBytes_GET_SIZE(table), unit,
                                   range);
}

/* Return the number of values that stay on the frame's stack. */
static int kept_values(compat_frame *frame)
{
    handled_range range;
    int offset = compat_frame_offset(frame);
    return offset >= 0 && find_range(compat_frame_code(frame), offset / UNIT, &range) ? range.depth : 0;
}

/* Return the position on the stack of what a frame enters, if its instruction is one that enters a `with` block; -1: it is
 * not. Others before the beginning of a handled range look the same, so the bytecode has to be asked. */
static int entered_position(const PyCodeObject *code, int offset)
{
    handled_range range;
    int next = offset / UNIT + COMPAT_ENTER_UNITS;
    return offset >= 0 && find_range(code, next, &range) && range.start == next ? range.depth - 1 : -1;
}

/* Return the object that a value belongs to, if that is a bound `__exit__`, else the value. Borrowed. */
static PyObject *owner_of(PyObject *value)
{
    if (PyCFunction_CheckExact(value)) {
        PyObject *self = PyCFunction_GET_SELF(value); /* NULL for some */
        return self != NULL ? self : value;
    }
    return PyMethod_Check(value) ? PyMethod_GET_SELF(value) : value;
}

/* Return the lock of something that a frame has entered, borrowed; NULL: it has none. Its type is exact. */
static PyObject *lock_of(const lock_search *search, PyObject *value)
{
    const lock_kinds *kinds = search->kinds;
    PyObject *lock = value == NULL ? NULL : owner_of(value);
    if (lock != NULL && Py_TYPE(lock) == kinds->condition) {
        lock = read_attribute(lock, search->ticker->names[NAME_LOCK]);
        Py_XDECREF(lock); /* not the last reference: the condition has one */
    }
    return lock != NULL && (Py_TYPE(lock) == kinds->lock || Py_TYPE(lock) == kinds->rlock) ? lock : NULL;
}

static PyObject *value_at(compat_frame *frame, int position)
{
    int index = compat_stack_index(compat_frame_code(frame), position);
    return index < 0 ? NULL : compat_frame_value(frame, index);
}

/* Return the lock of the first argument of a Python function, which its frame keeps. Borrowed, or NULL. */
static PyObject *lock_of_self(const lock_search *search, compat_frame *frame)
{
    return compat_frame_code(frame)->co_argcount > 0 ? lock_of(search, compat_frame_value(frame, 0)) : NULL;
}

/* Return the lock that the newest frame of a thread enters; NULL: it enters something else. The frame may have released
 * the value: CPython 3.12 and 3.13 do so before they call `__enter__`, and all do after its exception. A lock's method
 * keeps the lock. One of the application may keep nothing, and this may be freed memory: read only what is readable. */
static const PyObject *entered_lock(const lock_kinds *kinds, const PyObject *value)
{
    if (layouts_is_readable(value, sizeof(PyCFunctionObject)) && PyCFunction_CheckExact(value)) {
        value = ((const PyCFunctionObject *)value)->m_self; /* of the lock's `__exit__`, in CPython 3.11 */
    }
    bool is_lock = layouts_is_readable(value, sizeof(compat_rlock))
                   && (Py_TYPE(value) == kinds->lock || Py_TYPE(value) == kinds->rlock);
    return is_lock ? value : NULL;
}

typedef bool (*frame_visitor)(lock_search *, const thread_top *, compat_frame *, compat_frame *, void *);

/* Call `visit` with the two newest frames of each thread, the leaf first, until it returns true for one: the second is that
 * of a `with` whose `__enter__` is in Python, as that of `threading.Condition`. `callee`: what it calls, or NULL. */
static void visit_tops(lock_search *search, frame_visitor visit, void *argument)
{
    for (size_t i = 0; i < search->top_count; i++) {
        const thread_top *top = &search->tops[i];
        compat_frame *frame = top->frame, *callee = NULL;
        for (int depth = 0; depth < 2 && frame != NULL && !visit(search, top, frame, callee, argument); depth++) {
            callee = frame;
            frame = compat_caller_frame(frame);
        }
    }
}

/* Return the entry of a lock, a new one if it is not known; NULL: there is no room. */
static wanted_lock *find_lock(lock_search *search, const PyObject *lock)
{
    for (size_t i = 0; i < search->lock_count; i++) {
        if (search->locks[i].lock == lock) {
            return &search->locks[i];
        }
    }
    if (search->lock_count == MAX_LOCKS) {
        return NULL;
    }
    wanted_lock *added = &search->locks[search->lock_count++];
    *added = (wanted_lock){.lock = lock, .owner = Py_TYPE(lock) == search->kinds->rlock ? compat_rlock_owner(lock) : 0};
    return added;
}

static bool is_listed(PyObject *places, compat_frame *frame)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(places); i++) {
        PyObject *place = PyList_GET_ITEM(places, i);
        if (PyTuple_CheckExact(place) && PyTuple_GET_SIZE(place) == 2
            && PyTuple_GET_ITEM(place, 0) == (PyObject *)compat_frame_code(frame)
            && PyLong_CheckExact(PyTuple_GET_ITEM(place, 1))
            && PyLong_AsUnsignedLongMask(PyTuple_GET_ITEM(place, 1)) == (unsigned long)compat_frame_offset(frame)) {
            return true;
        }
    }
    return false;
}

/* CPython switches threads at the end of a call. A thread that has got its RLock may still be in the one that did it. */
static bool count_waiter(lock_search *search, const thread_top *top, compat_frame *frame, compat_frame *callee,
                         void *places)
{
    int position = entered_position(compat_frame_code(frame), compat_frame_offset(frame));
    if (position < 0 || !is_listed(places, frame)) {
        return false;
    }
    const PyObject *lock =
        callee == NULL ? entered_lock(search->kinds, value_at(frame, position)) : lock_of_self(search, callee);
    wanted_lock *wanted = lock == NULL ? NULL : find_lock(search, lock);
    if (wanted != NULL && wanted->owner != top->ident) {
        wanted->waiting++;
    }
    return true;
}

/* Note a thread that seems to hold a lock; it may have entered several blocks of one. */
static void note_holder(wanted_lock *wanted, const thread_top *top)
{
    if (wanted->holders == 0 || wanted->holder != top->key) {
        wanted->holder = top->key;
        wanted->holders++;
    }
}

/* Note the locks that a frame has entered. `released`: it waits in Condition.wait, which has released this one; or NULL. */
static void note_entered(lock_search *search, const thread_top *top, compat_frame *frame, PyObject *released)
{
    for (int position = kept_values(frame) - 1; position >= 0; position--) {
        PyObject *lock = lock_of(search, value_at(frame, position));
        for (size_t i = 0; lock != NULL && lock != released && i < search->lock_count; i++) {
            if (search->locks[i].lock == lock && Py_TYPE(lock) == search->kinds->lock) {
                note_holder(&search->locks[i], top);
            }
        }
    }
}

static void find_holders(lock_search *search)
{
    Py_ssize_t max_depth = search->ticker->arguments.max_depth;
    for (size_t i = 0; i < search->top_count; i++) {
        const thread_top *top = &search->tops[i];
        PyObject *released = NULL;
        Py_ssize_t depth = 0;
        for (compat_frame *frame = top->frame; frame != NULL && depth < max_depth; depth++) {
            if ((PyObject *)compat_frame_code(frame) == search->kinds->wait_code) {
                released = lock_of_self(search, frame);
            }
            note_entered(search, top, frame, released);
            frame = compat_caller_frame(frame);
        }
        for (size_t j = 0; j < search->lock_count; j++) {
            wanted_lock *wanted = &search->locks[j];
            if (wanted->owner == top->ident) {
                note_holder(wanted, top);
            }
        }
    }
}

/* Return the number of threads that wait for a thread. A lock that several seem to hold counts for none. */
static size_t count_waiting(const lock_search *search, uint64_t holder)
{
    size_t waiting = 0;
    for (size_t i = 0; i < search->lock_count; i++) {
        const wanted_lock *wanted = &search->locks[i];
        waiting += wanted->holders == 1 && wanted->holder == holder ? wanted->waiting : 0;
    }
    return waiting;
}

/* Capture the threads that are waited for; return their number. */
static size_t capture_threads(lock_search *search, raw_thread *threads)
{
    ticker_state *ticker = search->ticker;
    uint64_t keys[MAX_LOCKS];
    size_t count = 0, captured = 0;
    for (size_t i = 0; i < search->top_count; i++) {
        if (count_waiting(search, search->tops[i].key) > 0) {
            keys[count++] = search->tops[i].key; /* as many as there are locks at most */
        }
    }
    if (count == 0 || !walk_selected(ticker, keys, count)) {
        return 0;
    }
    for (size_t i = 0; i < ticker->scratch.count; i++) {
        const scratch_thread *scratch = &ticker->scratch.threads[i];
        raw_stack *stack = scratch_stack(ticker, scratch);
        if (stack != NULL) {
            thread_materialize(ticker, scratch, stack, &threads[captured++]);
        }
    }
    return captured;
}

/* False with an exception. */
static bool parse_kinds(PyObject *given, lock_kinds *kinds)
{
    return PyArg_ParseTuple(given, "O!O!O!O!:kinds", &PyType_Type, &kinds->lock, &PyType_Type, &kinds->rlock,
                            &PyType_Type, &kinds->condition, &PyCode_Type, &kinds->wait_code);
}

/* Return a search that knows the threads; NULL: no memory. */
static lock_search *search_new(ticker_state *ticker, const lock_kinds *kinds)
{
    lock_search *search = malloc(sizeof(lock_search));
    if (search != NULL) {
        search->ticker = ticker;
        search->kinds = kinds;
        search->top_count = walk_tops(ticker, search->tops, MAX_TOPS);
        search->lock_count = 0;
    }
    return search;
}

/* Return a list of (RawThread, number of threads that wait for it), and release the threads. Python code may run. */
static PyObject *convert_holders(lock_search *search, const module_state *module, raw_thread *threads, size_t count)
{
    PyObject *converted = PyList_New(0);
    for (size_t i = 0; i < count; i++) {
        if (converted != NULL) {
            PyObject *thread = convert_thread(search->ticker, module, &threads[i]);
            Py_ssize_t waiting = (Py_ssize_t)count_waiting(search, threads[i].key);
            (void)append_item(&converted, thread == NULL ? NULL : Py_BuildValue("(Nn)", thread, waiting));
        }
        thread_release(search->ticker, &threads[i]);
    }
    return converted;
}

PyObject *locks_capture_holders(ticker_state *ticker, const module_state *module, PyObject *args)
{
    PyObject *places, *given;
    lock_kinds kinds;
    if (!PyArg_ParseTuple(args, "O!O!:capture_lock_holders", &PyList_Type, &places, &PyTuple_Type, &given)
        || !parse_kinds(given, &kinds)) {
        return NULL;
    }
    raw_thread threads[MAX_LOCKS];
    size_t count = 0;
    ticker_state_free_unreferenced(ticker);
    lock_search *search = search_new(ticker, &kinds);
    if (search == NULL) {
        return PyErr_NoMemory();
    }
    visit_tops(search, count_waiter, places);
    if (search->lock_count > 0) {
        find_holders(search);
        count = capture_threads(search, threads);
    }
    PyObject *captured = convert_holders(search, module, threads, count);
    free(search);
    ticker_state_free_unreferenced(ticker);
    return captured;
}

typedef struct {
    PyObject *codes[MAX_PLACES]; /* owned */
    int offsets[MAX_PLACES];
    size_t count;
} place_list;

static bool list_place(lock_search *Py_UNUSED(search), const thread_top *Py_UNUSED(top), compat_frame *frame,
                       compat_frame *Py_UNUSED(callee), void *argument)
{
    place_list *places = argument;
    PyCodeObject *code = compat_frame_code(frame);
    int offset = compat_frame_offset(frame);
    if (places->count == MAX_PLACES || entered_position(code, offset) < 0) {
        return false;
    }
    for (size_t i = 0; i < places->count; i++) {
        if (places->codes[i] == (PyObject *)code && places->offsets[i] == offset) {
            return false;
        }
    }
    places->codes[places->count] = Py_NewRef(code); /* before an allocation, which may run Python code */
    places->offsets[places->count++] = offset;
    return false; /* this place may be no block's, and the next one may be */
}

PyObject *locks_entered_places(ticker_state *ticker)
{
    place_list places;
    places.count = 0;
    lock_search *search = search_new(ticker, NULL);
    if (search == NULL) {
        return PyErr_NoMemory();
    }
    visit_tops(search, list_place, &places);
    free(search);
    PyObject *listed = PyList_New(0);
    for (size_t i = 0; i < places.count; i++) {
        if (listed != NULL) {
            (void)append_item(&listed, Py_BuildValue("(Oi)", places.codes[i], places.offsets[i]));
        }
        Py_DECREF(places.codes[i]);
    }
    return listed;
}

static bool layouts_match(PyObject *entered, const lock_kinds *kinds)
{
    compat_frame *frame = compat_top_frame(PyThreadState_Get());
    if (frame == NULL) {
        return false;
    }
    PyCodeObject *code = compat_frame_code(frame);
    int position = entered_position(code, compat_frame_offset(frame));
    PyObject *value = value_at(frame, position >= 0 ? position : kept_values(frame) - 1);
    if (!layouts_is_readable(value, sizeof(PyCFunctionObject)) || owner_of(value) != entered) {
        return false;
    }
    return Py_TYPE(entered) != kinds->rlock
           || (kinds->rlock->tp_basicsize == sizeof(compat_rlock)
               && compat_rlock_owner(entered) == PyThread_get_thread_ident());
}

PyObject *locks_layouts_match(PyObject *args)
{
    PyObject *entered, *given;
    lock_kinds kinds;
    if (!PyArg_ParseTuple(args, "OO!:reads_locks", &entered, &PyTuple_Type, &given) || !parse_kinds(given, &kinds)) {
        return NULL;
    }
    return PyBool_FromLong(layouts_match(entered, &kinds));
}
