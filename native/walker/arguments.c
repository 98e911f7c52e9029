/* Checks the arguments of Ticker and of its methods. */
#include "arguments.h"

#include "allocations.h"

#define MAX_RING_SIZE                  65536
#define MAX_STACK_DEPTH                1000000
#define MAX_EXCEPTION_INTERVAL         1000000
#define DEFAULT_COLLECTION_INTERVAL_NS 10000000LL
#define MAX_SAMPLE_BYTES               (1LL << 40)

/* The next two are converters of arguments. They store borrowed references; NULL: None was given. */
static int convert_context_var(PyObject *given, void *context_var)
{
    if (given != Py_None && !PyContextVar_CheckExact(given)) {
        PyErr_Format(PyExc_TypeError, "a ContextVar or None is needed, not %.100s", Py_TYPE(given)->tp_name);
        return 0;
    }
    *(PyObject **)context_var = given == Py_None ? NULL : given;
    return 1;
}

static int convert_trace_filter(PyObject *given, void *arguments)
{
    ticker_arguments *filter = arguments;
    if (given == Py_None) {
        return 1;
    }
    if (!PyTuple_Check(given)) {
        PyErr_Format(PyExc_TypeError, "trace_filter must be a tuple or None, not %.100s", Py_TYPE(given)->tp_name);
        return 0;
    }
    return PyArg_ParseTuple(given, "O!U:trace_filter", &PyDict_Type, &filter->traces, &filter->span_key);
}

bool parse_arguments(PyObject *args, PyObject *kwargs, ticker_arguments *given)
{
    static char *names[] = {"context_var",
                            "labels_var",
                            "max_depth",
                            "make_frame",
                            "make_stack",
                            "ring_size",
                            "min_collection_interval_ns",
                            "trace_filter",
                            "threads",
                            "exception_interval",
                            "skips_quiet",
                            NULL};
    /* The zeros and NULLs of required arguments are invalid, which is checked below. */
    *given = (ticker_arguments){.min_collection_interval_ns = DEFAULT_COLLECTION_INTERVAL_NS, .exception_interval = 1};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$O&O&nOOnLO&O!Lp:Ticker", names, convert_context_var,
                                     &given->context_var, convert_context_var, &given->labels_var, &given->max_depth,
                                     &given->make_frame, &given->make_stack, &given->ring_size,
                                     &given->min_collection_interval_ns, convert_trace_filter, given, &PyDict_Type,
                                     &given->threads, &given->exception_interval, &given->skips_quiet)) {
        return false;
    }
    if (!PyCallable_Check(given->make_frame) || !PyCallable_Check(given->make_stack)) {
        PyErr_SetString(PyExc_TypeError, "make_frame and make_stack must be callable");
    }
    else if (given->max_depth < 1 || given->max_depth > MAX_STACK_DEPTH) {
        PyErr_Format(PyExc_ValueError, "max_depth must be 1 to %d, not %zd", MAX_STACK_DEPTH, given->max_depth);
    }
    else if (given->ring_size < 1 || given->ring_size > MAX_RING_SIZE) {
        PyErr_Format(PyExc_ValueError, "ring_size must be 1 to %d, not %zd", MAX_RING_SIZE, given->ring_size);
    }
    else if (given->exception_interval < 1 || given->exception_interval > MAX_EXCEPTION_INTERVAL) {
        PyErr_Format(PyExc_ValueError, "exception_interval must be 1 to %d, not %lld", MAX_EXCEPTION_INTERVAL,
                     given->exception_interval);
    }
    else {
        return true;
    }
    return false;
}

bool parse_periods(const ticker_state *ticker, PyObject *args, long long *period_ns, long long *focused_ns,
                   long long *phase_ns)
{
    *focused_ns = 0;
    if (!PyArg_ParseTuple(args, phase_ns == NULL ? "L|L" : "L|LL", period_ns, focused_ns, phase_ns)) {
        return false;
    }
    if (*period_ns < 0 || *period_ns > MAX_PERIOD_NS || (*period_ns == 0 && *focused_ns == 0)) {
        PyErr_Format(PyExc_ValueError, "period_ns must be 1 to a day, not %lld", *period_ns);
    }
    else if (*focused_ns < 0 || *focused_ns > MAX_PERIOD_NS) {
        PyErr_Format(PyExc_ValueError, "focused_period_ns must be 0 to a day, not %lld", *focused_ns);
    }
    else if (*focused_ns > 0 && ticker->arguments.traces == NULL) {
        PyErr_SetString(PyExc_ValueError, "a ticker without trace_filter has no focused_period_ns");
    }
    else if (phase_ns != NULL && (*phase_ns < 0 || *phase_ns > *period_ns)) {
        PyErr_Format(PyExc_ValueError, "phase_ns must be 0 to period_ns, not %lld", *phase_ns);
    }
    else {
        return true;
    }
    return false;
}

bool parse_sample_bytes(PyObject *given, int64_t *sample_bytes)
{
    *sample_bytes = PyLong_AsLongLong(given);
    if (*sample_bytes == -1 && PyErr_Occurred()) {
        return false;
    }
    if (*sample_bytes < 1 || *sample_bytes > MAX_SAMPLE_BYTES) {
        PyErr_Format(PyExc_ValueError, "sample_bytes must be 1 to %lld, not %lld", MAX_SAMPLE_BYTES,
                     (long long)*sample_bytes);
        return false;
    }
    return true;
}
