/* A method of a built-in type whose entry in CPython's own table is replaced.
 *
 * Every bound method, method descriptor and specialised instruction uses that entry at each call, so those made
 * earlier are hooked too. The entry belongs to the process: for interpreters without hooks, the replacement passes
 * through to the original.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_HOOKS_METHOD_ENTRY_H
#define SPLUNK_PROFILER_CONTEXT_HOOKS_METHOD_ENTRY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>
#include <stdbool.h>

#pragma GCC visibility push(hidden)

typedef void (*any_function)(void); /* one as its flags say */

typedef struct {
    PyTypeObject *type;
    const char *name;
    int flags; /* the calling convention of both functions */
    any_function replacement;
    PyMethodDef *entry; /* NULL before the first install */
    /* Set once, since another tool may have put its own above ours. */
    any_function _Atomic original;
} method_entry;

/* Return false if the type has no such method. */
bool method_entry_install(method_entry *method);
void method_entry_remove(method_entry *method);

static inline any_function method_entry_original(const method_entry *method)
{
    return atomic_load_explicit(&method->original, memory_order_relaxed);
}

#pragma GCC visibility pop

#endif
