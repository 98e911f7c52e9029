/* Calls of PyContext_Enter and PyContext_Exit by C code before 3.14: uvloop, eager tasks, extensions made with Cython.
 *
 * A module calls them through a slot that the dynamic linker filled in. Those slots are pointed at our functions here, in
 * every module but our own, and back again on removal. Nothing is remembered but the two directions: on removal the slots
 * are looked for anew, so a module that was unloaded meanwhile is never written to.
 *
 * A module that another thread is loading is listed before it is relocated. It is recognised (a slot that is not filled
 * in, or one that should be write-protected by now and is not) and left for the next time: the linker still writes there.
 */
#include "switch_hooks.h"

#include "switch_compat.h"

#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { MACHINE_KNOWN = 1, JUMP_SLOT = R_X86_64_JUMP_SLOT, GLOB_DAT = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { MACHINE_KNOWN = 1, JUMP_SLOT = R_AARCH64_JUMP_SLOT, GLOB_DAT = R_AARCH64_GLOB_DAT };
#else
enum { MACHINE_KNOWN = 0, JUMP_SLOT = -1, GLOB_DAT = -1 };
#endif

static int enter_noticed(PyObject *context)
{
    int result = PyContext_Enter(context);
    if (result == 0) {
        switch_noticed();
    }
    return result;
}

static int exit_noticed(PyObject *context)
{
    int result = PyContext_Exit(context);
    if (result == 0) {
        switch_noticed();
    }
    return result;
}

typedef struct {
    const char *name;
    size_t size; /* of the name, with its end */
    uintptr_t cpython, ours;
} call;

#define CALL(function, replacement) {#function, sizeof(#function), (uintptr_t)(function), (uintptr_t)(replacement)}

/* One pass over all loaded modules. */
typedef struct {
    call calls[2];
    bool redirect;                /* or back */
    bool found_in_cpython;        /* a slot in the module that defines the functions */
    bool unsettled;               /* some module was being loaded */
    int changed, failed;          /* slots */
    unsigned long long unchanged; /* the count of loads at which there is nothing to do */
    unsigned long long loads;
} pass;

/* What is mapped of a module, and its dynamic section. All borrowed from the linker for the duration of a callback. */
typedef struct {
    const struct dl_phdr_info *info;
    const ElfW(Sym) *symbols;
    size_t symbols_room; /* how many fit in their segment: their number is written nowhere */
    const char *strings;
    size_t strings_size;
    const ElfW(Rela) *tables[2];
    size_t counts[2];
} module;

/* How often a module that seems to be half loaded is looked at again: the linker needs milliseconds, but a tool that left
 * write-protected pages writable leaves them so. */
enum { PATIENCE = 100 };

static struct {
    bool installed;
    unsigned long long loads; /* at the last pass */
    int unsettled;            /* passes since the last load; 0: everything is done */
} state;

/* How many bytes there are from `address` to the end of the module's segment it lies in; 0: in none with these flags. */
static size_t room_at(const struct dl_phdr_info *info, uintptr_t address, ElfW(Word) flags)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_LOAD && (header->p_flags & flags) == flags && address >= start
            && address - start < header->p_memsz) {
            return header->p_memsz - (address - start);
        }
    }
    return 0;
}

/* glibc writes addresses into the dynamic section when it loads a module, musl leaves the offsets, as does the vdso. */
static uintptr_t address_of(const struct dl_phdr_info *info, ElfW(Addr) value)
{
    return room_at(info, value, PF_R) != 0 ? value : info->dlpi_addr + value;
}

static void read_table(module *m, int which, ElfW(Addr) value, size_t size)
{
    uintptr_t start = address_of(m->info, value);
    if (size != 0 && start % sizeof(void *) == 0 && room_at(m->info, start, PF_R) >= size) {
        m->tables[which] = (const ElfW(Rela) *)start;
        m->counts[which] = size / sizeof(ElfW(Rela));
    }
}

static bool read_module(module *m, const struct dl_phdr_info *info)
{
    *m = (module){.info = info};
    const ElfW(Dyn) *entry = NULL;
    size_t entries = 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type == PT_DYNAMIC && room_at(info, info->dlpi_addr + header->p_vaddr, PF_R) >= header->p_memsz) {
            entry = (const ElfW(Dyn) *)(info->dlpi_addr + header->p_vaddr);
            entries = header->p_memsz / sizeof(*entry);
        }
    }
    ElfW(Addr) symbols = 0, strings = 0, plt = 0, rela = 0;
    size_t plt_size = 0, rela_size = 0, rela_entry = sizeof(ElfW(Rela)), symbol_entry = sizeof(ElfW(Sym));
    ElfW(Xword) plt_kind = DT_RELA;
    for (; entries > 0 && entry->d_tag != DT_NULL; entries--, entry++) {
        switch (entry->d_tag) {
        case DT_SYMTAB: symbols = entry->d_un.d_ptr; break;
        case DT_SYMENT: symbol_entry = entry->d_un.d_val; break;
        case DT_STRTAB: strings = entry->d_un.d_ptr; break;
        case DT_STRSZ: m->strings_size = entry->d_un.d_val; break;
        case DT_JMPREL: plt = entry->d_un.d_ptr; break;
        case DT_PLTRELSZ: plt_size = entry->d_un.d_val; break;
        case DT_PLTREL: plt_kind = entry->d_un.d_val; break;
        case DT_RELA: rela = entry->d_un.d_ptr; break;
        case DT_RELASZ: rela_size = entry->d_un.d_val; break;
        case DT_RELAENT: rela_entry = entry->d_un.d_val; break;
        default: break;
        }
    }
    if (symbols == 0 || strings == 0 || plt_kind != DT_RELA || rela_entry != sizeof(ElfW(Rela))
        || symbol_entry != sizeof(ElfW(Sym))) {
        return false;
    }
    m->symbols = (const ElfW(Sym) *)address_of(info, symbols);
    m->symbols_room = room_at(info, (uintptr_t)m->symbols, PF_R) / sizeof(ElfW(Sym));
    m->strings = (const char *)address_of(info, strings);
    read_table(m, 0, plt, plt_size);
    read_table(m, 1, rela, rela_size);
    return room_at(info, (uintptr_t)m->strings, PF_R) >= m->strings_size;
}

/* What the kernel lets be done with a page; -1 if it does not say. */
static int protection_of(uintptr_t address)
{
    int protection = -1;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL) {
        return -1;
    }
    char line[512]; /* what is longer than that is the path, and is read as lines that match nothing */
    uintptr_t start, end;
    char r, w, x;
    while (protection < 0 && fgets(line, sizeof(line), maps) != NULL) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %c%c%c", &start, &end, &r, &w, &x) == 5 && address >= start
            && address < end) {
            protection = (r == 'r' ? PROT_READ : 0) | (w == 'w' ? PROT_WRITE : 0) | (x == 'x' ? PROT_EXEC : 0);
        }
    }
    fclose(maps);
    return protection;
}

/* Whether the linker write-protects this address when it has finished with the module. It rounds down to whole pages. */
static bool is_protected_later(const struct dl_phdr_info *info, uintptr_t address, uintptr_t page_size)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + header->p_vaddr;
        uintptr_t end = (start + header->p_memsz) & ~(page_size - 1);
        if (header->p_type == PT_GNU_RELRO && address >= (start & ~(page_size - 1)) && address < end) {
            return true;
        }
    }
    return false;
}

static void store(pass *p, const struct dl_phdr_info *info, uintptr_t *slot, uintptr_t value)
{
    uintptr_t page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)((uintptr_t)slot & ~(page_size - 1));
    int protection = PROT_READ | PROT_WRITE;
    if (is_protected_later(info, (uintptr_t)slot, page_size)) {
        protection = protection_of((uintptr_t)slot);
        if (protection >= 0 && (protection & PROT_WRITE) && p->redirect) {
            p->unsettled = true;
            return;
        }
    }
    bool is_writable = protection >= 0 && (protection & PROT_WRITE);
    if (protection < 0 || (!is_writable && mprotect(page, page_size, protection | PROT_WRITE) != 0)) {
        p->failed++;
        return;
    }
    __atomic_store_n(slot, value, __ATOMIC_RELEASE);
    if (!is_writable) {
        (void)mprotect(page, page_size, protection);
    }
    p->changed++;
}

static void visit_slot(pass *p, const module *m, const ElfW(Rela) *relocation, const call *c)
{
    uintptr_t *slot = (uintptr_t *)(m->info->dlpi_addr + relocation->r_offset);
    if ((uintptr_t)slot % sizeof(*slot) != 0 || room_at(m->info, (uintptr_t)slot, PF_W) < sizeof(*slot)) {
        return;
    }
    uintptr_t value = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    p->found_in_cpython |= room_at(m->info, c->cpython, PF_X) != 0;
    if (!p->redirect) {
        if (value == c->ours) {
            store(p, m->info, slot, c->cpython);
        }
        return;
    }
    bool bound_lazily = ELF64_R_TYPE(relocation->r_info) == JUMP_SLOT && room_at(m->info, value, PF_X) != 0;
    if (value == c->cpython || bound_lazily) {
        store(p, m->info, slot, c->ours);
    }
    else if (value == 0 || room_at(m->info, m->info->dlpi_addr + value, PF_X) != 0) {
        p->unsettled = true; /* as it is in the file */
    } /* else ours already, or another tool's, which is left to it */
}

static void visit_table(pass *p, const module *m, const ElfW(Rela) *table, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t type = ELF64_R_TYPE(table[i].r_info), number = ELF64_R_SYM(table[i].r_info);
        if ((type != JUMP_SLOT && type != GLOB_DAT) || number == 0 || number >= m->symbols_room) {
            continue;
        }
        size_t name = m->symbols[number].st_name;
        for (size_t k = 0; k < 2; k++) {
            const call *c = &p->calls[k];
            if (name < m->strings_size && m->strings_size - name >= c->size
                && memcmp(m->strings + name, c->name, c->size) == 0) {
                visit_slot(p, m, &table[i], c);
            }
        }
    }
}

static int visit_module(struct dl_phdr_info *info, size_t size, void *argument)
{
    pass *p = argument;
    if (size >= offsetof(struct dl_phdr_info, dlpi_adds) + sizeof(info->dlpi_adds)) {
        p->loads = info->dlpi_adds;
        if (p->loads == p->unchanged) {
            return 1;
        }
    }
    module m;
    if (room_at(info, p->calls[0].ours, PF_X) == 0 && read_module(&m, info)) {
        visit_table(p, &m, m.tables[0], m.counts[0]);
        visit_table(p, &m, m.tables[1], m.counts[1]);
    }
    return 0;
}

static pass make_pass(bool redirect, unsigned long long unchanged)
{
    pass p = {
        .calls = {CALL(PyContext_Enter, enter_noticed), CALL(PyContext_Exit, exit_noticed)},
        .redirect = redirect,
        .unchanged = unchanged,
    };
    if (MACHINE_KNOWN) {
        dl_iterate_phdr(visit_module, &p);
    }
    return p;
}

static pass redirect(unsigned long long unchanged)
{
    pass p = make_pass(true, unchanged);
    if (p.loads != unchanged || unchanged == 0) {
        bool again = p.unsettled && p.loads == state.loads;
        state.unsettled = !p.unsettled ? 0 : again ? state.unsettled + 1 : 1;
        state.loads = p.loads;
    }
    return p;
}

/* Eager tasks are entered by _asyncio; where that is part of the interpreter the linker has no slot for it. */
static bool misses_eager_tasks(const pass *p)
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
    if (!MACHINE_KNOWN) {
        return "not known for this processor: tasks run by uvloop and eager tasks are published with the span of "
               "whatever ran before them on their thread";
    }
    pass p = redirect(0);
    state.installed = true;
    if (p.failed > 0) {
        return "the system does not let call sites be changed: tasks run by uvloop and eager tasks are published with "
               "the span of whatever ran before them on their thread";
    }
    if (misses_eager_tasks(&p)) {
        return "asyncio is built into this interpreter: eager tasks are published with the span of their creator until "
               "they first wait";
    }
    return NULL;
}

int relocations_refresh(void)
{
    if (!state.installed) {
        return 0;
    }
    bool look_again = state.unsettled > 0 && state.unsettled < PATIENCE;
    return redirect(look_again ? 0 : state.loads).changed;
}

void relocations_remove(void)
{
    if (state.installed) {
        state.installed = false;
        (void)make_pass(false, 0);
    }
}
