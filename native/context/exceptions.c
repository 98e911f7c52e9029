/* Handles exceptions of our code on the application's threads, where none may propagate. GIL held. */
#include "py_compat.h"

#include "publisher.h"

static int reraise_exception(void *saved)
{
    compat_exception exception = *(compat_exception *)saved;
    PyMem_RawFree(saved);
    compat_restore_exception(exception);
    return -1;
}

void discard_exception(void)
{
    publisher_counters[FAILED]++;
    if (PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
    }
    else {
        defer_exception();
    }
}

void defer_exception(void)
{
    if (!compat_is_main_thread()) { /* sent exceptions are classes, so nothing is lost */
        compat_exception exception = compat_save_exception();
        PyObject *type = exception.type != NULL ? exception.type : (PyObject *)Py_TYPE(exception.value);
        PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), type);
        Py_XDECREF(exception.type);
        Py_XDECREF(exception.value);
        Py_XDECREF(exception.traceback);
        return;
    }
    compat_exception *saved = PyMem_RawMalloc(sizeof(compat_exception));
    if (saved != NULL) {
        *saved = compat_save_exception();
        if (Py_AddPendingCall(reraise_exception, saved) == 0) {
            return;
        }
        reraise_exception(saved);
    }
    PyErr_WriteUnraisable(NULL);
}
