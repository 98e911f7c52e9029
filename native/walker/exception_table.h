/* Reads the table of exceptions of a code object: which instructions have a handler, and how many values it finds on the
 * stack. Pure. */
#ifndef SPLUNK_PROFILER_WALKER_EXCEPTION_TABLE_H
#define SPLUNK_PROFILER_WALKER_EXCEPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Instructions with one handler of exceptions, in code units, and the number of values that stay on the stack. */
typedef struct {
    int start, end, depth;
} handled_range;

/* Read a number of 6 bits a byte, the highest first. Return the place after it, NULL at the end. */
static inline const uint8_t *exception_table_number(const uint8_t *at, const uint8_t *end, int *number)
{
    unsigned byte = 0x40, value = 0;
    while (byte & 0x40) {
        if (at == NULL || at >= end) {
            return NULL;
        }
        byte = *at++;
        value = value << 6 | (byte & 0x3F);
    }
    *number = (int)value;
    return at;
}

/* Return true and set `range` if the instruction at `unit` has a handler. Entries are in order and do not overlap. */
static inline bool exception_table_find(const uint8_t *at, size_t size, int unit, handled_range *range)
{
    const uint8_t *end = at + size;
    int length = 0, target, depth = 0;
    while (at < end) {
        at = exception_table_number(at, end, &range->start);
        at = exception_table_number(at, end, &length);
        at = exception_table_number(at, end, &target);
        at = exception_table_number(at, end, &depth);
        if (at == NULL || range->start > unit) {
            return false;
        }
        range->end = range->start + length;
        range->depth = depth >> 1; /* the lowest bit is about the handler */
        if (unit < range->end) {
            return true;
        }
    }
    return false;
}

#endif
