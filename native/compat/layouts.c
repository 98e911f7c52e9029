/* Compares what py_compat.h reads of the interpreter with CPython's public functions.
 *
 * A patch release may change the insides of CPython, and one wheel serves all of them. Each extension calls
 * this once at its import, and refuses to load on a mismatch. Values are compared before they are followed.
 * Memory at an unverified address is read only if it is readable.
 */
#include "py_compat.h"

#include "module_setup.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel reads 8 bytes of mask before it checks the operation, which is invalid here: nothing changes. */
bool layouts_is_readable(const void *memory, size_t size)
{
    return memory != NULL && !(syscall(SYS_rt_sigprocmask, ~0, memory, NULL, 8) != 0 && errno == EFAULT)
           && !(syscall(SYS_rt_sigprocmask, ~0, (const char *)memory + size - 8, NULL, 8) != 0 && errno == EFAULT);
}

/* Threads that start and end without the GIL change the list between two reads. */
static bool list_layout_matches(PyInterpreterState *interp, PyThreadState *self)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        if (PyInterpreterState_ThreadHead(interp) == compat_first_thread(interp)
            && PyThreadState_Next(self) == self->next) {
            return true;
        }
    }
    return false;
}

/* If C code has forked this process and not called CPython's hook, a thread state keeps the id that its thread had
 * in the parent. A new thread state has the right one. */
static bool native_id_matches(PyInterpreterState *interp, PyThreadState *self)
{
#ifdef PY_HAVE_THREAD_NATIVE_ID
    unsigned long native_id = PyThread_get_thread_native_id();
    if (compat_native_id(self) != 0 && compat_native_id(self) != native_id) {
        PyThreadState *made = (pid_t)native_id == getpid() ? PyThreadState_New(interp) : NULL;
        bool result = made != NULL && compat_native_id(made) == native_id;
        if (made != NULL) {
            PyThreadState_Clear(made);
            PyThreadState_Delete(made);
        }
        return result;
    }
#endif
    return true;
}

static bool thread_layout_matches(PyInterpreterState *interp, PyThreadState *self)
{
    return native_id_matches(interp, self) && self->interp == interp && self->id == PyThreadState_GetID(self)
           && self->thread_id == PyThread_get_thread_ident() && !compat_is_ending(self)
           && compat_newest_thread_id(interp) >= self->id;
}

static bool gil_layout_matches(PyInterpreterState *interp, PyThreadState *self)
{
    const struct _gil_runtime_state *gil = compat_gil(interp);
    return layouts_is_readable(gil, sizeof(*gil)) && compat_gil_holder(interp) == self
           && compat_is_only_interpreter(PyInterpreterState_Head());
}

/* A search for `wanted` among the references that the collector finds in an object. */
typedef struct {
    PyObject *wanted;
    bool found;
} reference_search;

static int visit(PyObject *object, void *argument)
{
    reference_search *search = argument;
    search->found |= object == search->wanted;
    return 0;
}

static bool refers_to(PyObject *object, PyObject *wanted)
{
    reference_search search = {wanted, false};
    traverseproc traverse = Py_TYPE(object)->tp_traverse;
    return traverse != NULL && traverse(object, visit, &search) == 0 && search.found;
}

/* `context` is empty and entered; `outer` was current before it. */
static bool context_layout_matches(PyThreadState *self, PyObject *context, PyObject *outer)
{
    if (self->context != context || compat_outer_context(context) != outer) {
        return false;
    }
    PyObject *variables = (PyObject *)compat_variables_of(context);
    if (!refers_to(context, variables)
        || Py_TYPE(variables)->tp_weaklistoffset != offsetof(PyHamtObject, h_weakreflist)) {
        return false;
    }
    return compat_context_size(context) == 0 && PyObject_Size(variables) == 0;
}

/* Return 1 if the layouts of contexts match, 0 if not, -1 with an exception. */
static int context_layouts_match(PyThreadState *self)
{
    PyObject *variable = NULL, *token = NULL;
    PyObject *context = PyContext_New();
    PyObject *outer = self->context;
    if (context == NULL || PyContext_Enter(context) != 0) {
        Py_XDECREF(context);
        return -1;
    }
    int result = context_layout_matches(self, context, outer);
    if (result) {
        variable = PyContextVar_New("splunk_profiler", NULL);
        token = variable == NULL ? NULL : PyContextVar_Set(variable, Py_None);
        result = token == NULL ? -1 : compat_context_size(context) == 1;
    }
    Py_XDECREF(token);
    Py_XDECREF(variable);
    if (PyContext_Exit(context) != 0) {
        result = -1;
    }
    Py_DECREF(context);
    return result;
}

/* Compare a frame with the object that CPython makes of it. */
static bool frame_layout_matches(compat_frame *frame, PyFrameObject *object)
{
    PyCodeObject *code = PyFrame_GetCode(object);
    PyObject *globals = PyObject_GetAttrString((PyObject *)object, "f_globals");
    PyObject *lasti = PyObject_GetAttrString((PyObject *)object, "f_lasti");
    bool result = lasti != NULL && layouts_is_readable(frame, sizeof(*frame)) && code == compat_frame_code(frame)
                  && globals == compat_frame_globals(frame) && PyLong_AsLong(lasti) == compat_frame_offset(frame);
    Py_XDECREF(lasti);
    Py_XDECREF(globals);
    Py_DECREF(code);
    return result;
}

static bool frame_layouts_match(PyThreadState *self)
{
    PyFrameObject *top = PyThreadState_GetFrame(self);
    PyFrameObject *caller = top == NULL ? NULL : PyFrame_GetBack(top);
    compat_frame *const *slot = compat_frame_slot(self);
    compat_frame *frame = layouts_is_readable(slot, sizeof(*slot)) ? *slot : NULL;
    bool result = top == NULL || frame_layout_matches(frame, top);
    if (result && caller != NULL) {
        compat_frame *previous = compat_frame_previous(frame);
        result = layouts_is_readable(previous, sizeof(*previous))
                 && frame_layout_matches(compat_caller_frame(frame), caller);
    }
    Py_XDECREF(caller);
    Py_XDECREF(top);
    return result;
}

static bool code_layout_matches(void)
{
#if PY_VERSION_HEX >= 0x030B0000
    return PyCode_Type.tp_basicsize == offsetof(PyCodeObject, co_code_adaptive);
#else
    return PyCode_Type.tp_basicsize == sizeof(PyCodeObject);
#endif
}

int layouts_check(void)
{
    PyThreadState *self = PyThreadState_Get();
    PyInterpreterState *interp = PyThreadState_GetInterpreter(self);
    const char *mismatch = NULL;
    int contexts = 1;
    if (!list_layout_matches(interp, self) || !thread_layout_matches(interp, self)) {
        mismatch = "thread states";
    }
    else if (!gil_layout_matches(interp, self)) {
        mismatch = "the GIL";
    }
    else if (!code_layout_matches() || !frame_layouts_match(self)) {
        mismatch = "frames";
    }
    else if ((contexts = context_layouts_match(self)) == 0) {
        mismatch = "contexts";
    }
    if (mismatch == NULL) {
        return contexts < 0 ? -1 : 0;
    }
    PyErr_Clear();
    char running_version[32]; /* without the date and the compiler */
    PyOS_snprintf(running_version, sizeof(running_version), "%.*s", (int)strcspn(Py_GetVersion(), " "),
                  Py_GetVersion());
    PyErr_Format(PyExc_ImportError, "it was built for CPython " PY_VERSION ", and %s are laid out differently in %s",
                 mismatch, running_version);
    return -1;
}
