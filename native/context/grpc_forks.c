/* Keeps gRPC's handlers of forks away from a process whose descriptors of gRPC were closed by the application.
 *
 * They write to a descriptor of gRPC's and wait for its threads. Once it is closed, they abort the process, or write into the
 * file that has its number by then and wait for ever. The C library cannot unregister them. So the slot by which gRPC calls
 * the C library's function is pointed at ours, before gRPC registers any: with its first channel.
 */
#include "py_compat.h"

#include "publisher.h"

#include "loaded_modules.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define LIBRARY  "cygrpc"
#define FUNCTION "__register_atfork" /* of glibc, behind pthread_atfork; musl has none, and its slots stay */

enum { MAX_HANDLERS = 8 }; /* gRPC 1.85 registers two */

typedef void (*handler)(void);
typedef int (*registration)(handler prepare, handler in_parent, handler in_child, void *module);

/* Written by threads of gRPC, and read by any that forks. */
static struct {
    struct {
        handler prepare, in_parent, in_child;
        atomic_bool is_complete;
    } kept[MAX_HANDLERS];
    atomic_int reserved;
    atomic_bool are_dropped; /* for good: the child has what the parent had */
    atomic_bool is_left_out; /* likewise */
    registration original;
} grpc;

static _Thread_local unsigned prepared; /* bits: handlers whose `prepare` this thread has called */

/* gRPC aborts a process in which two threads are in its handlers. The second one forks without them: to wait could be for
 * ever, since gRPC waits for the GIL there, which `os.fork` has. */
static atomic_flag is_forking = ATOMIC_FLAG_INIT;
static _Thread_local bool has_turn;
static _Thread_local unsigned depth; /* more than 1: a signal handler forks in the middle of a fork */

static void prepare(void)
{
    if (depth++ > 0) {
        return;
    }
    prepared = 0;
    has_turn = !atomic_flag_test_and_set(&is_forking);
    for (int i = MAX_HANDLERS - 1; i >= 0 && has_turn && !atomic_load(&grpc.are_dropped); i--) {
        if (atomic_load(&grpc.kept[i].is_complete)) {
            prepared |= 1u << i;
            if (grpc.kept[i].prepare != NULL) {
                grpc.kept[i].prepare();
            }
        }
    }
}

static void finish(bool is_child)
{
    if (!is_child && depth > 1) {
        depth--;
        return;
    }
    depth = 0;
    for (int i = 0; i < MAX_HANDLERS; i++) {
        handler after = is_child ? grpc.kept[i].in_child : grpc.kept[i].in_parent;
        if ((prepared >> i & 1) != 0 && after != NULL) {
            after();
        }
    }
    if (is_child && !has_turn && atomic_load(&grpc.reserved) > 0) {
        atomic_store(&grpc.is_left_out, true);
        atomic_store(&grpc.are_dropped, true);
    }
    if (has_turn || is_child) { /* a child has no other thread */
        has_turn = false;
        atomic_flag_clear(&is_forking);
    }
    prepared = 0;
}

static void in_parent(void)
{
    finish(false);
}

static void in_child(void)
{
    finish(true);
}

static int keep(handler before, handler after_in_parent, handler after_in_child, void *module)
{
    int place = atomic_fetch_add(&grpc.reserved, 1);
    if (place >= MAX_HANDLERS) {
        return grpc.original(before, after_in_parent, after_in_child, module);
    }
    grpc.kept[place].prepare = before;
    grpc.kept[place].in_parent = after_in_parent;
    grpc.kept[place].in_child = after_in_child;
    atomic_store(&grpc.kept[place].is_complete, true);
    return 0;
}

/* Point a slot at `keep`; return false if it has another value than it should, or cannot be written. */
static bool redirect(const struct dl_phdr_info *info, uintptr_t *slot)
{
    if ((uintptr_t)slot % sizeof(*slot) != 0 || loaded_module_bytes_left(info, (uintptr_t)slot, PF_W) < sizeof(*slot)) {
        return false;
    }
    const uintptr_t value = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (value == (uintptr_t)keep) {
        return true;
    }
    const bool is_bound_lazily = loaded_module_bytes_left(info, value, PF_X) != 0;
    if (value != (uintptr_t)grpc.original && !is_bound_lazily) {
        return false;
    }
    bool is_loading; /* the linker still writes there */
    const int protection = loaded_module_slot_protection(info, slot, &is_loading);
    return !is_loading && loaded_module_write_slot(slot, (uintptr_t)keep, protection);
}

static int visit_module(struct dl_phdr_info *info, size_t Py_UNUSED(size), void *argument)
{
    loaded_module module;
    if (strstr(info->dlpi_name, LIBRARY) == NULL || !loaded_module_read(&module, info)) {
        return 0;
    }
    for (size_t t = 0; t < 2; t++) {
        for (size_t i = 0; i < module.counts[t]; i++) {
            const elf_relocation *relocation = &module.tables[t][i];
            const unsigned type = ELF64_R_TYPE(relocation->r_info);
            if ((type == JUMP_SLOT || type == GLOB_DAT) && relocation_is_of(&module, relocation, FUNCTION)) {
                *(bool *)argument |= redirect(info, (uintptr_t *)(info->dlpi_addr + relocation->r_offset));
            }
        }
    }
    return 0;
}

PyObject *grpc_forks_keep_handlers(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    bool is_redirected = false;
    if (grpc.original == NULL) {
        registration original = (registration)(uintptr_t)dlsym(RTLD_DEFAULT, FUNCTION);
        if (original == NULL || pthread_atfork(prepare, in_parent, in_child) != 0) {
            Py_RETURN_FALSE;
        }
        grpc.original = original;
    }
    Py_BEGIN_ALLOW_THREADS
    loaded_modules_visit(visit_module, &is_redirected);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(is_redirected);
}

PyObject *grpc_forks_drop_handlers(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    atomic_store(&grpc.are_dropped, true);
    Py_RETURN_NONE;
}

PyObject *grpc_forks_is_left_out(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(atomic_load(&grpc.is_left_out));
}
