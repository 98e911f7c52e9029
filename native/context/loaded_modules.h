/* What the dynamic linker has loaded: how to read a module's tables without trusting them, and how its memory is protected.
 *
 * Nothing here knows Python, takes a lock or keeps anything: what is returned is borrowed from the linker for as long as
 * the callback of dl_iterate_phdr runs.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_LOADED_MODULES_H
#define SPLUNK_PROFILER_CONTEXT_LOADED_MODULES_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

typedef ElfW(Sym) elf_symbol;
typedef ElfW(Rela) elf_relocation;
typedef ElfW(Dyn) elf_dynamic;

/* What is mapped of a module that its relocations lead to. All borrowed. */
typedef struct {
    const struct dl_phdr_info *info;
    const elf_symbol *symbols;
    size_t max_symbols; /* how many fit in their segment: their number is written nowhere */
    const char *strings;
    size_t strings_size;
    const elf_relocation *tables[2]; /* of calls, of data */
    size_t counts[2];
} loaded_module;

/* False: it has no tables, or they do not lie in its segments. */
bool loaded_module_read(loaded_module *module, const struct dl_phdr_info *info);

/* How many bytes there are from `address` to the end of the module's segment it lies in; 0: in none with these flags. */
size_t loaded_module_bytes_left(const struct dl_phdr_info *info, uintptr_t address, ElfW(Word) flags);

/* Whether the linker write-protects this address when it has finished with the module. */
bool loaded_module_is_relro(const struct dl_phdr_info *info, uintptr_t address, uintptr_t page_size);

/* PROT_* of the page at this address as the kernel has them; -1 if it does not say. */
int page_protection(uintptr_t address);

#pragma GCC visibility pop

#endif
