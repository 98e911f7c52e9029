/* Loads the two libraries that readers look for, checks that readers can follow their TLS descriptors, and
 * owns the process storage.
 *
 * A reader looks once, when it first sees the mapping of the library, and reads the storage then. So the
 * storage is complete before the library is loaded, and its pointer is stored immediately after that. Then
 * readers are made to look again.
 */
#include "publisher.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA           0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

#if defined(__x86_64__)
#define RELOCATION_TLSDESC 36
#elif defined(__aarch64__)
#define RELOCATION_TLSDESC 1031
#else
#error "readers of the two ABIs exist for x86-64 and aarch64"
#endif

/* A TLS descriptor in the global offset table. In a static one `argument` is an offset from the thread
 * pointer, which readers add. */
typedef struct {
    void *entry;
    intptr_t argument;
} tls_descriptor;

static struct {
    /* GIL */
    void **pointer;          /* exported by the library; NULL: the library is not loaded */
    void *current, *retired; /* owned; a reader may still read the retired one */
} storage;

typedef struct {
    const ElfW(Rela) * first;
    size_t bytes;
} relocation_table;

/* glibc stores addresses in a library's dynamic section; others leave the offsets of the file. */
static const void *address_of(const struct link_map *library, ElfW(Addr) value)
{
    return (const void *)(value < library->l_addr ? library->l_addr + value : value);
}

static const tls_descriptor *search_descriptor(const struct link_map *library, relocation_table table,
                                               const ElfW(Sym) * symbols, const char *names, const char *wanted)
{
    for (size_t i = 0; i < table.bytes / sizeof(ElfW(Rela)); i++) {
        const ElfW(Rela) *relocation = &table.first[i];
        if (ELF64_R_TYPE(relocation->r_info) == RELOCATION_TLSDESC
            && strcmp(names + symbols[ELF64_R_SYM(relocation->r_info)].st_name, wanted) == 0) {
            return (const tls_descriptor *)(library->l_addr + relocation->r_offset);
        }
    }
    return NULL;
}

static const tls_descriptor *find_descriptor(void *handle, const char *symbol)
{
    struct link_map *library = NULL;
    relocation_table data_relocations = {NULL, 0}, plt_relocations = {NULL, 0};
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &library) != 0) {
        return NULL;
    }
    for (const ElfW(Dyn) *entry = library->l_ld; entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_RELA:
            data_relocations.first = address_of(library, entry->d_un.d_ptr);
            break;
        case DT_RELASZ:
            data_relocations.bytes = entry->d_un.d_val;
            break;
        case DT_JMPREL:
            plt_relocations.first = address_of(library, entry->d_un.d_ptr);
            break;
        case DT_PLTRELSZ:
            plt_relocations.bytes = entry->d_un.d_val;
            break;
        case DT_SYMTAB:
            symbols = address_of(library, entry->d_un.d_ptr);
            break;
        case DT_STRTAB:
            names = address_of(library, entry->d_un.d_ptr);
            break;
        default:
            break;
        }
    }
    if (symbols == NULL || names == NULL) {
        return NULL;
    }
    const tls_descriptor *found = search_descriptor(library, plt_relocations, symbols, names, symbol);
    return found != NULL ? found : search_descriptor(library, data_relocations, symbols, names, symbol);
}

/* Return "static" if the address that a reader computes is the calling thread's pointer. */
static const char *tls_kind(void *handle, const char *symbol, slot_accessor accessor)
{
    const tls_descriptor *descriptor = find_descriptor(handle, symbol);
    if (descriptor == NULL) {
        return "unknown";
    }
    return thread_records_thread_pointer() + descriptor->argument == (intptr_t)accessor() ? "static" : "dynamic";
}

static void *open_library(PyObject *encoded)
{
    void *handle = dlopen(PyBytes_AS_STRING(encoded), RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        PyErr_Format(PyExc_OSError, "%s cannot be loaded: %s", PyBytes_AS_STRING(encoded), dlerror());
    }
    return handle;
}

static void *find_symbol(void *handle, PyObject *encoded, const char *name)
{
    void *found = dlsym(handle, name);
    if (found == NULL) {
        PyErr_Format(PyExc_OSError, "%s is not the profiler's library: it has no %s", PyBytes_AS_STRING(encoded), name);
    }
    return found;
}

static PyObject *encode_path(PyObject *path)
{
    PyObject *encoded;
    if (!PyUnicode_FSConverter(path, &encoded)) {
        return NULL;
    }
    if (PyBytes_AS_STRING(encoded)[0] != '/') { /* the loader would search for it */
        PyErr_Format(PyExc_ValueError, "the path of a library must be absolute, not %.200s",
                     PyBytes_AS_STRING(encoded));
        Py_CLEAR(encoded);
    }
    return encoded;
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

/* Make readers look again after a library and its data are complete. */
static void announce_library(PyObject *encoded)
{
    notify_readers();
    void *again = dlopen(PyBytes_AS_STRING(encoded), RTLD_NOW | RTLD_LOCAL); /* some readers trace this call instead */
    if (again != NULL) {
        dlclose(again);
    }
}

static PyObject *new_library(PyTypeObject *type, PyObject *encoded, const char *tls)
{
    PyObject *path = PyUnicode_DecodeFSDefault(PyBytes_AS_STRING(encoded));
    return path == NULL ? NULL : PyObject_CallFunction((PyObject *)type, "Ns", path, tls);
}

PyObject *libraries_load_labels(PyTypeObject *library, PyObject *path)
{
    PyObject *encoded = encode_path(path), *made = NULL;
    void *handle = encoded == NULL ? NULL : open_library(encoded);
    if (handle == NULL) {
        goto error;
    }
    slot_accessor accessor = (slot_accessor)find_symbol(handle, encoded, "splunk_profiler_labels_slot");
    if (accessor == NULL) {
        dlclose(handle);
        goto error;
    }
    const char *tls = tls_kind(handle, "custom_labels_current_set", accessor);
    /* From now on the library stays loaded. */
    thread_records_use_library(CUSTOM_LABELS, accessor, strcmp(tls, "static") == 0);
    announce_library(encoded);
    made = new_library(library, encoded, tls);
error:
    Py_XDECREF(encoded);
    return made;
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

PyObject *libraries_load_elastic(PyTypeObject *library, PyObject *path, PyObject *content)
{
    PyObject *encoded = encode_path(path), *made = NULL;
    void *copied = encoded == NULL ? NULL : copy_bytes(content);
    void *handle = copied == NULL ? NULL : open_library(encoded);
    if (handle == NULL) {
        goto error;
    }
    void **pointer = find_symbol(handle, encoded, "elastic_apm_profiling_correlation_process_storage_v1");
    slot_accessor accessor =
        pointer == NULL ? NULL : (slot_accessor)find_symbol(handle, encoded, "splunk_profiler_elastic_slot");
    if (accessor == NULL) {
        dlclose(handle);
        goto error;
    }
    if (storage.pointer != NULL && storage.pointer != pointer) {
        set_storage_pointer(NULL); /* another file than the previous one */
    }
    storage.pointer = pointer;
    set_storage_pointer(copied);
    copied = NULL;
    const char *tls = tls_kind(handle, "elastic_apm_profiling_correlation_tls_v1", accessor);
    thread_records_use_library(ELASTIC, accessor, strcmp(tls, "static") == 0);
    announce_library(encoded);
    made = new_library(library, encoded, tls);
error:
    free(copied);
    Py_XDECREF(encoded);
    return made;
}

PyObject *libraries_replace_storage(PyObject *Py_UNUSED(module), PyObject *content)
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

PyObject *libraries_clear_storage(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    if (storage.pointer != NULL && storage.current != NULL) {
        set_storage_pointer(NULL);
    }
    Py_RETURN_NONE;
}
