/* Loads the two libraries that readers look for, checks that readers can follow their TLS descriptors, and
 * owns the process storage.
 *
 * A reader looks once, when it first sees the mapping of the library, and reads the storage then. So the
 * storage is complete before the library is loaded, and its pointer is stored immediately after that. Then
 * readers are made to look again.
 */
#include "publisher.h"

#include "loaded_modules.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA           0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

/* A TLS descriptor in the global offset table. In a static one `argument` is an offset from the thread
 * pointer, which readers add. */
typedef struct {
    void *entry;
    intptr_t argument;
} tls_descriptor;

#define STORAGE_POINTER "elastic_apm_profiling_correlation_process_storage_v1"

static struct {
    /* GIL */
    void **pointer;          /* exported by the library; NULL: the library is not loaded */
    void *current, *retired; /* owned; a reader may still read the retired one */
} storage;

/* A library's function for the address of the calling thread's pointer, and the pointer's name. */
static const struct {
    const char *accessor, *pointer;
} symbols[LIBRARY_KINDS] = {
    [ELASTIC] = {"splunk_profiler_elastic_slot", "elastic_apm_profiling_correlation_tls_v1"},
    [CUSTOM_LABELS] = {"splunk_profiler_labels_slot", "custom_labels_current_set"},
};

/* A search for the descriptor of a library's thread-local pointer. */
typedef struct {
    const char *pointer;
    slot_accessor accessor; /* of the same library */
    const tls_descriptor *found;
} descriptor_search;

static int search_descriptor(struct dl_phdr_info *info, size_t size, void *argument)
{
    descriptor_search *search = argument;
    loaded_module m;
    if (loaded_module_bytes_left(info, (uintptr_t)search->accessor, PF_X) == 0 || !loaded_module_read(&m, info)) {
        return 0;
    }
    for (int table = 0; table < 2; table++) {
        for (size_t i = 0; search->found == NULL && i < m.counts[table]; i++) {
            const elf_relocation *relocation = &m.tables[table][i];
            if (ELF64_R_TYPE(relocation->r_info) == TLS_DESCRIPTOR
                && relocation_is_of(&m, relocation, search->pointer)) {
                search->found = (const tls_descriptor *)(info->dlpi_addr + relocation->r_offset);
            }
        }
    }
    return 1;
}

/* Return "static" if the address that a reader computes is the calling thread's pointer. */
static const char *tls_of(library_kind kind, slot_accessor accessor)
{
    descriptor_search search = {symbols[kind].pointer, accessor, NULL};
    Py_BEGIN_ALLOW_THREADS
    loaded_modules_visit(search_descriptor, &search);
    Py_END_ALLOW_THREADS
    if (search.found == NULL) {
        return "unknown";
    }
    return thread_records_thread_pointer() + search.found->argument == (intptr_t)accessor() ? "static" : "dynamic";
}

static void *find_symbol(void *handle, const char *file, const char *name)
{
    void *found = dlsym(handle, name);
    if (found == NULL) {
        PyErr_Format(PyExc_OSError, "%s is not the profiler's library: it has no %s", file, name);
    }
    return found;
}

/* Make readers look at the process's mappings again: they trace this call. The page and its name do not
 * matter to them. It is unmapped at once, since a lasting name would mislead readers of OpenTelemetry's
 * process context. */
static void notify_readers(void)
{
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED) {
        /* Older kernels refuse it, but readers see the call. */
        (void)prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, page, size, "OTEL_CTX");
        munmap(page, size);
    }
}

static void *copy_bytes(PyObject *bytes)
{
    size_t size = (size_t)PyBytes_GET_SIZE(bytes);
    void *copied = malloc(size + 1);
    if (copied == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(copied, PyBytes_AS_STRING(bytes), size);
    return copied;
}

/* Replace the pointer in one store. The previous storage stays until the next call: a reader may be reading
 * it. */
static void set_storage_pointer(void *wanted)
{
    __atomic_store_n(storage.pointer, wanted, __ATOMIC_RELEASE); /* complete before it is pointed to */
    free(storage.retired);
    storage.retired = storage.current;
    storage.current = wanted;
}

/* What is used of a library. `pointer` is that to the process storage; NULL: the library has none. */
typedef struct {
    slot_accessor accessor;
    void **pointer;
} opened_library;

/* Load a library for as long as the process lives. As an import of an extension module this waits for the linker with
 * the GIL: without it, a fork or a stop would find the library mapped and its storage not yet set. Return false with an
 * exception if it is none of ours. */
static bool open_library(const char *file, library_kind kind, bool has_storage, opened_library *opened)
{
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        PyErr_Format(PyExc_OSError, "%s cannot be loaded: %s", file, dlerror());
        return false;
    }
    opened->pointer = has_storage ? find_symbol(handle, file, STORAGE_POINTER) : NULL;
    opened->accessor = NULL;
    if (!has_storage || opened->pointer != NULL) {
        opened->accessor = (slot_accessor)find_symbol(handle, file, symbols[kind].accessor);
    }
    if (opened->accessor == NULL) {
        dlclose(handle);
        return false;
    }
    return true;
}

/* Point the library that was just loaded to its storage, which this owns from now on. */
static void publish_storage(void **pointer, void *content)
{
    if (storage.pointer != NULL && storage.pointer != pointer) {
        set_storage_pointer(NULL); /* another file than the previous one */
    }
    storage.pointer = pointer;
    set_storage_pointer(content);
}

/* `path` is bytes, and stolen. `content` of the process storage: bytes; NULL: the library has none. */
static PyObject *load_library(library_kind kind, PyObject *path, PyObject *content)
{
    const char *file = PyBytes_AS_STRING(path);
    PyObject *tls_name = NULL;
    void *copied = NULL;
    if (file[0] != '/') { /* the loader would search for it */
        PyErr_Format(PyExc_ValueError, "the path of a library must be absolute, not %.200s", file);
        goto error;
    }
    if (content != NULL && (copied = copy_bytes(content)) == NULL) {
        goto error;
    }
    opened_library opened;
    if (!open_library(file, kind, content != NULL, &opened)) {
        goto error;
    }
    if (content != NULL) {
        publish_storage(opened.pointer, copied);
        copied = NULL;
    }
    const char *tls = tls_of(kind, opened.accessor);
    thread_records_use_library(kind, opened.accessor, strcmp(tls, "static") == 0);
    notify_readers();
    void *again = dlopen(file, RTLD_NOW | RTLD_LOCAL); /* some readers trace this call instead */
    if (again != NULL) {
        dlclose(again);
    }
    tls_name = PyUnicode_FromString(tls);
error:
    free(copied);
    Py_DECREF(path);
    return tls_name;
}

PyObject *libraries_wait_for_linker(PyObject *module, PyObject *unused)
{
    if (!loaded_modules_is_linker_usable()) {
        Py_BEGIN_ALLOW_THREADS
        loaded_modules_wait_for_linker();
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

PyObject *libraries_load_labels(PyObject *module, PyObject *path)
{
    PyObject *encoded;
    return PyUnicode_FSConverter(path, &encoded) ? load_library(CUSTOM_LABELS, encoded, NULL) : NULL;
}

PyObject *libraries_load_elastic(PyObject *module, PyObject *args)
{
    PyObject *encoded, *content;
    if (!PyArg_ParseTuple(args, "O&S:load_elastic_library", PyUnicode_FSConverter, &encoded, &content)) {
        return NULL;
    }
    return load_library(ELASTIC, encoded, content);
}

PyObject *libraries_replace_storage(PyObject *module, PyObject *content)
{
    if (!PyBytes_Check(content)) {
        return PyErr_Format(PyExc_TypeError, "storage must be bytes, not %.100s", Py_TYPE(content)->tp_name);
    }
    if (storage.pointer == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the library of the storage is not loaded");
        return NULL;
    }
    void *copied = copy_bytes(content);
    if (copied == NULL) {
        return NULL;
    }
    set_storage_pointer(copied);
    notify_readers();
    Py_RETURN_NONE;
}

PyObject *libraries_clear_storage(PyObject *module, PyObject *unused)
{
    if (storage.pointer != NULL && storage.current != NULL) {
        set_storage_pointer(NULL);
    }
    Py_RETURN_NONE;
}
