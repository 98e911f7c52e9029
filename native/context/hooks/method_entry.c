/* Replaces entries in the tables of methods of built-in types. The GIL is held. */
#include "method_entry.h"

#include <string.h>

static void store(method_entry *method, any_function function)
{
    __atomic_store_n(&method->entry->ml_meth, (PyCFunction)function, __ATOMIC_RELEASE);
}

bool method_entry_install(method_entry *method)
{
    PyMethodDef *found = method->type->tp_methods;
    while (found != NULL && found->ml_name != NULL && strcmp(found->ml_name, method->name) != 0) {
        found++;
    }
    if (found == NULL || found->ml_name == NULL || found->ml_flags != method->flags) {
        return false;
    }
    if (method->entry == NULL) {
        atomic_store(&method->original, (any_function)found->ml_meth);
        method->entry = found;
    }
    /* Later the entry is restored, or still ours, or another tool's that calls ours. In the last case setting it
     * again would make a cycle. */
    if ((any_function)found->ml_meth == method_entry_original(method)) {
        store(method, method->replacement);
    }
    return true;
}

void method_entry_remove(method_entry *method)
{
    if (method->entry != NULL && (any_function)method->entry->ml_meth == method->replacement) {
        store(method, method_entry_original(method));
    }
}
