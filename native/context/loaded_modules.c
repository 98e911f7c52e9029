/* Reads the tables of a loaded module. Every address from a file is checked against the module's segments. */
#include "loaded_modules.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static _Atomic pid_t usable_in; /* the process whose linker is usable */

/* Held by a thread that is in the linker, or forks: no child is left with the linker's lock by us. */
static pthread_mutex_t visit_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool has_visit_mutex; /* during a fork */

/* Waits a second at most: the thread that keeps another one in the linker may need the GIL, which a fork has. */
static void before_fork(void)
{
    const struct timespec pause = {.tv_nsec = 1000 * 1000};
    has_visit_mutex = pthread_mutex_trylock(&visit_mutex) == 0;
    for (int i = 0; i < 1000 && !has_visit_mutex; i++) { /* the clock of a timed lock may be set back */
        (void)nanosleep(&pause, NULL);
        has_visit_mutex = pthread_mutex_trylock(&visit_mutex) == 0;
    }
}

static void after_fork_in_parent(void)
{
    if (has_visit_mutex) {
        pthread_mutex_unlock(&visit_mutex);
    }
}

static void after_fork_in_child(void)
{
    pthread_mutex_init(&visit_mutex, NULL);
}

/* The linker has just loaded this module. */
__attribute__((constructor)) static void on_load(void)
{
    usable_in = getpid();
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

bool loaded_modules_is_linker_usable(void)
{
    return usable_in == getpid();
}

void loaded_modules_visit(int (*visit)(struct dl_phdr_info *, size_t, void *), void *argument)
{
    if (loaded_modules_is_linker_usable()) {
        pthread_mutex_lock(&visit_mutex);
        dl_iterate_phdr(visit, argument);
        pthread_mutex_unlock(&visit_mutex);
    }
}

static int stop_at_first(struct dl_phdr_info *info, size_t size, void *argument)
{
    return 1;
}

void loaded_modules_wait_for_linker(void)
{
    dl_iterate_phdr(stop_at_first, NULL);
    usable_in = getpid();
}

size_t loaded_module_bytes_left(const struct dl_phdr_info *info, uintptr_t address, ElfW(Word) flags)
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

/* glibc writes addresses into the dynamic section of a loaded module; musl and the vdso leave offsets. */
static uintptr_t address_of(const struct dl_phdr_info *info, ElfW(Addr) value)
{
    return loaded_module_bytes_left(info, value, PF_R) != 0 ? value : info->dlpi_addr + value;
}

static void read_table(loaded_module *m, int which, ElfW(Addr) value, size_t size)
{
    uintptr_t start = address_of(m->info, value);
    if (size != 0 && start % sizeof(void *) == 0 && loaded_module_bytes_left(m->info, start, PF_R) >= size) {
        m->tables[which] = (const elf_relocation *)start;
        m->counts[which] = size / sizeof(elf_relocation);
    }
}

/* Read the dynamic section; `values` are by tag. Higher tags are not needed. */
static void read_dynamic_section(const struct dl_phdr_info *info, ElfW(Addr) values[DT_NUM])
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + header->p_vaddr;
        if (header->p_type != PT_DYNAMIC || loaded_module_bytes_left(info, start, PF_R) < header->p_memsz) {
            continue;
        }
        const ElfW(Dyn) *entry = (const ElfW(Dyn) *)start;
        for (size_t k = header->p_memsz / sizeof(*entry); k > 0 && entry->d_tag != DT_NULL; k--, entry++) {
            if (entry->d_tag > 0 && entry->d_tag < DT_NUM) {
                values[entry->d_tag] = entry->d_un.d_val;
            }
        }
    }
}

bool loaded_module_read(loaded_module *m, const struct dl_phdr_info *info)
{
    ElfW(Addr) values[DT_NUM] = {0};
    *m = (loaded_module){.info = info};
    read_dynamic_section(info, values);
    if (values[DT_SYMTAB] == 0 || values[DT_STRTAB] == 0 || values[DT_SYMENT] != sizeof(ElfW(Sym))) {
        return false;
    }
    m->symbols = (const ElfW(Sym) *)address_of(info, values[DT_SYMTAB]);
    m->max_symbols = loaded_module_bytes_left(info, (uintptr_t)m->symbols, PF_R) / sizeof(ElfW(Sym));
    m->strings = (const char *)address_of(info, values[DT_STRTAB]);
    m->strings_size = values[DT_STRSZ];
    if (values[DT_PLTREL] == DT_RELA) {
        read_table(m, 0, values[DT_JMPREL], values[DT_PLTRELSZ]);
    }
    if (values[DT_RELAENT] == sizeof(elf_relocation)) {
        read_table(m, 1, values[DT_RELA], values[DT_RELASZ]);
    }
    return loaded_module_bytes_left(info, (uintptr_t)m->strings, PF_R) >= m->strings_size;
}

bool relocation_is_of(const loaded_module *m, const elf_relocation *relocation, const char *name)
{
    size_t number = ELF64_R_SYM(relocation->r_info), size = strlen(name) + 1;
    if (number == 0 || number >= m->max_symbols) {
        return false;
    }
    size_t start = m->symbols[number].st_name;
    return start < m->strings_size && m->strings_size - start >= size && memcmp(m->strings + start, name, size) == 0;
}

/* Return the PROT_* flags of the page at this address from the kernel; -1: unknown. */
static int page_protection(uintptr_t address)
{
    int protection = -1;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL) {
        return -1;
    }
    char line[512]; /* a longer line has a long path: its rest is read as lines that do not match */
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

/* Return true if the linker write-protects this address after relocation. It rounds both ends down to whole pages. */
static bool is_relro(const struct dl_phdr_info *info, uintptr_t address)
{
    const uintptr_t page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
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

int loaded_module_slot_protection(const struct dl_phdr_info *info, const uintptr_t *slot, bool *is_loading)
{
    const bool is_protected = is_relro(info, (uintptr_t)slot);
    const int protection = is_protected ? page_protection((uintptr_t)slot) : PROT_READ | PROT_WRITE;
    *is_loading = is_protected && protection >= 0 && (protection & PROT_WRITE) != 0;
    return protection;
}

bool loaded_module_write_slot(uintptr_t *slot, uintptr_t value, int protection)
{
    const uintptr_t page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)((uintptr_t)slot & ~(page_size - 1));
    const bool is_writable = protection >= 0 && (protection & PROT_WRITE);
    if (protection < 0 || (!is_writable && mprotect(page, page_size, protection | PROT_WRITE) != 0)) {
        return false;
    }
    __atomic_store_n(slot, value, __ATOMIC_RELEASE);
    if (!is_writable) {
        (void)mprotect(page, page_size, protection);
    }
    return true;
}
