/* Reads the modules that the dynamic linker has loaded, without trusting their tables, and the protection of
 * their memory.
 *
 * Nothing here knows Python. Results are borrowed from the linker while the callback of dl_iterate_phdr runs.
 *
 * dl_iterate_phdr and dlopen wait for a lock of the linker that glibc does not free in a forked child, where the thread
 * that holds it may not exist: both wait for ever then.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_LOADED_MODULES_H
#define SPLUNK_PROFILER_CONTEXT_LOADED_MODULES_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* The kinds of relocations of calls, of data and of thread-local variables. */
#if defined(__x86_64__)
enum { JUMP_SLOT = R_X86_64_JUMP_SLOT, GLOB_DAT = R_X86_64_GLOB_DAT, TLS_DESCRIPTOR = R_X86_64_TLSDESC };
#elif defined(__aarch64__)
enum { JUMP_SLOT = R_AARCH64_JUMP_SLOT, GLOB_DAT = R_AARCH64_GLOB_DAT, TLS_DESCRIPTOR = R_AARCH64_TLSDESC };
#else
#error "call sites, and readers of the two ABIs, are known on x86-64 and aarch64"
#endif

typedef ElfW(Rela) elf_relocation;

/* The mapped tables of a module that its relocations refer to. All borrowed. */
typedef struct {
    const struct dl_phdr_info *info;
    const ElfW(Sym) * symbols;
    size_t max_symbols; /* how many fit in their segment: the real number is not stored */
    const char *strings;
    size_t strings_size;
    const elf_relocation *tables[2]; /* of calls, of data */
    size_t counts[2];
} loaded_module;

/* Return false in a forked child until loaded_modules_wait_for_linker has returned there. */
bool loaded_modules_is_linker_usable(void);

/* Call dl_iterate_phdr, unless that may wait for ever. The caller must not have the GIL: other threads that are in the
 * linker may need it, as callbacks in Python do. */
void loaded_modules_visit(int (*visit)(struct dl_phdr_info *, size_t, void *), void *argument);

/* Wait until the linker can be used. Never returns in a child that was forked while another thread held its lock. */
void loaded_modules_wait_for_linker(void);

/* Return false if the module has no tables, or they lie outside its segments. */
bool loaded_module_read(loaded_module *module, const struct dl_phdr_info *info);

/* Return true if the relocation refers to the symbol with this name. */
bool relocation_is_of(const loaded_module *module, const elf_relocation *relocation, const char *name);

/* Return the number of bytes from `address` to the end of its segment; 0: it is in no segment with these
 * flags. */
size_t loaded_module_bytes_left(const struct dl_phdr_info *info, uintptr_t address, ElfW(Word) flags);

/* Return the PROT_* flags of a slot's page; -1: unknown. `is_loading`: it should be write-protected and is not, because
 * another thread loads the module, or a tool has left it so. */
int loaded_module_slot_protection(const struct dl_phdr_info *info, const uintptr_t *slot, bool *is_loading);

/* Write a slot whose page has these PROT_* flags, or -1; return false if that cannot be. */
bool loaded_module_write_slot(uintptr_t *slot, uintptr_t value, int protection);

#pragma GCC visibility pop

#endif
