/* The hook for calls of PyContext_Enter and PyContext_Exit by C code before 3.14: uvloop, eager tasks, Cython
 * extensions.
 *
 * A module calls them through a slot that the dynamic linker filled in. This file points those slots at our
 * functions, in every module but our own, and back again on removal. No slot is remembered: removal searches
 * for them again, so it never writes to a module that was unloaded meanwhile.
 *
 * A module that another thread is loading is listed before it is relocated. It shows in a slot that is not
 * filled in, or one that should be write-protected and is not. Such a module is left for the next pass, since
 * the linker still writes there.
 */
#include "py_compat.h"

#include "hooks.h"

#include "loaded_modules.h"

#include <stdatomic.h>

static HOT int enter_and_report(PyObject *context)
{
    int result = PyContext_Enter(context);
    if (result == 0) {
        hooks_report_switch(context);
    }
    return result;
}

static HOT int exit_and_report(PyObject *context)
{
    PyObject *outer = PyContext_CheckExact(context) ? compat_outer_context(context) : NULL;
    int result = PyContext_Exit(context);
    if (result == 0) {
        hooks_report_switch(outer);
    }
    return result;
}

typedef struct {
    const char *name;
    uintptr_t original, replacement;
} call;

#define CALL(function, replacement) {#function, (uintptr_t)(function), (uintptr_t)(replacement)}

/* The linker lists modules in the order in which they were loaded. So the first ones stay the same until it unloads
 * one. */
typedef struct {
    size_t count;
    unsigned long long unloads; /* number of unloads so far */
} listed_modules;

/* State of one pass over the modules that are not settled. */
typedef struct {
    call calls[2];
    listed_modules settled; /* need not be read again */
    listed_modules seen;    /* by this pass */
    bool found_in_cpython;  /* a slot exists in the module that defines the functions */
    bool unsettled;         /* some module was being loaded */
    bool failed;            /* some slot could not be written */
} relocation_pass;

/* Limit of passes over a module that seems half loaded. The linker needs milliseconds, but a tool that left
 * write-protected pages writable leaves them so. */
enum { MAX_UNSETTLED_PASSES = 100 };

static atomic_bool is_installed; /* false: passes restore the slots */

static struct {
    listed_modules settled;
    int unsettled_passes; /* since all modules were settled */
} state;                  /* GIL */

static void write_slot(relocation_pass *p, const struct dl_phdr_info *info, uintptr_t *slot, uintptr_t value)
{
    bool is_loading;
    const int protection = loaded_module_slot_protection(info, slot, &is_loading);
    if (is_loading && is_installed) {
        p->unsettled = true;
        return;
    }
    p->failed |= !loaded_module_write_slot(slot, value, protection);
}

static void visit_slot(relocation_pass *p, const loaded_module *m, const elf_relocation *relocation, const call *c)
{
    uintptr_t *slot = (uintptr_t *)(m->info->dlpi_addr + relocation->r_offset);
    if ((uintptr_t)slot % sizeof(*slot) != 0
        || loaded_module_bytes_left(m->info, (uintptr_t)slot, PF_W) < sizeof(*slot)) {
        return;
    }
    uintptr_t value = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    p->found_in_cpython |= loaded_module_bytes_left(m->info, c->original, PF_X) != 0;
    if (!is_installed) {
        if (value == c->replacement) {
            write_slot(p, m->info, slot, c->original);
        }
        return;
    }
    bool bound_lazily =
        ELF64_R_TYPE(relocation->r_info) == JUMP_SLOT && loaded_module_bytes_left(m->info, value, PF_X) != 0;
    if (value == c->original || bound_lazily) {
        write_slot(p, m->info, slot, c->replacement);
    }
    else if (value == 0 || loaded_module_bytes_left(m->info, m->info->dlpi_addr + value, PF_X) != 0) {
        p->unsettled = true; /* not relocated yet */
    } /* otherwise ours already, or another tool's, which stays */
}

static void visit_table(relocation_pass *p, const loaded_module *m, const elf_relocation *table, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t type = ELF64_R_TYPE(table[i].r_info);
        for (size_t k = 0; k < 2 && (type == JUMP_SLOT || type == GLOB_DAT); k++) {
            if (relocation_is_of(m, &table[i], p->calls[k].name)) {
                visit_slot(p, m, &table[i], &p->calls[k]);
            }
        }
    }
}

static int visit_module(struct dl_phdr_info *info, size_t size, void *argument)
{
    relocation_pass *p = argument;
    p->seen.unloads = info->dlpi_subs;
    p->seen.count++;
    if (p->seen.unloads == p->settled.unloads && p->seen.count <= p->settled.count) {
        return 0;
    }
    loaded_module m;
    if (loaded_module_bytes_left(info, p->calls[0].replacement, PF_X) == 0 && loaded_module_read(&m, info)) {
        visit_table(p, &m, m.tables[0], m.counts[0]);
        visit_table(p, &m, m.tables[1], m.counts[1]);
    }
    return 0;
}

/* Releases the GIL. Passes run one after the other. */
static relocation_pass run_pass(listed_modules settled)
{
    relocation_pass p = {
        .calls = {CALL(PyContext_Enter, enter_and_report), CALL(PyContext_Exit, exit_and_report)},
        .settled = settled,
    };
    Py_BEGIN_ALLOW_THREADS
    loaded_modules_visit(visit_module, &p);
    Py_END_ALLOW_THREADS
    return p;
}

static relocation_pass redirect(listed_modules settled)
{
    relocation_pass p = run_pass(settled);
    if (!p.unsettled || ++state.unsettled_passes == MAX_UNSETTLED_PASSES) {
        state.settled = p.seen;
        state.unsettled_passes = 0;
    }
    return p;
}

/* _asyncio enters eager tasks. If it is part of the interpreter, the linker has no slot for its calls. */
static bool misses_eager_tasks(const relocation_pass *p)
{
    bool misses = false;
    PyObject *builtin = PySys_GetObject("builtin_module_names"); /* borrowed */
    if (COMPAT_HAS_EAGER_TASKS && !p->found_in_cpython && builtin != NULL) {
        PyObject *name = PyUnicode_FromString("_asyncio");
        misses = name != NULL && PySequence_Contains(builtin, name) == 1;
        Py_XDECREF(name);
    }
    PyErr_Clear();
    return misses;
}

const char *relocations_install(void)
{
    is_installed = true;
    relocation_pass p = redirect((listed_modules){0});
    if (p.failed) {
        return "the system does not let call sites be changed: tasks run by uvloop and eager tasks are published with "
               "the span of whatever ran before them on their thread";
    }
    if (misses_eager_tasks(&p)) {
        return "asyncio is built into this interpreter: eager tasks are published with the span of their creator until "
               "they first wait";
    }
    return NULL;
}

void relocations_refresh(void)
{
    if (is_installed) {
        (void)redirect(state.settled);
    }
}

void relocations_remove(void)
{
    if (is_installed) {
        is_installed = false;
        (void)run_pass((listed_modules){0});
    }
}
