/* Exceptions that were raised where none may leave: in our code, on the application's threads. GIL held. */
#include "py_compat.h"

#include "context_compat.h"
#include "publisher.h"

static int raise_again(void *taken)
{
    compat_exception exception = *(compat_exception *)taken;
    PyMem_RawFree(taken);
    compat_give_back_exception(exception);
    return -1;
}

/* A signal handler may have raised while our Python code ran (KeyboardInterrupt, SystemExit), or another thread may have
 * sent an exception. Such belong to the application: they are raised as soon as it runs again. */
void publisher_swallow(void)
{
    publisher_counters()->failed++;
    if (PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        return;
    }
    if (!compat_is_main_thread()) { /* sent ones are classes, so nothing is lost */
        compat_exception exception = compat_take_exception();
        PyObject *type = exception.type != NULL ? exception.type : (PyObject *)Py_TYPE(exception.value);
        PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), type);
        Py_XDECREF(exception.type);
        Py_XDECREF(exception.value);
        Py_XDECREF(exception.traceback);
        return;
    }
    compat_exception *taken = PyMem_RawMalloc(sizeof(compat_exception));
    if (taken != NULL) {
        *taken = compat_take_exception();
        if (Py_AddPendingCall(raise_again, taken) == 0) {
            return;
        }
        raise_again(taken);
    }
    PyErr_WriteUnraisable(NULL);
}
