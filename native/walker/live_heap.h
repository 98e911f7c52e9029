/* The sampled blocks of memory that are in use, by address. Plain data: it owns no object. GIL, except the filter.
 *
 * Each hooked free asks the filter, which is a bit for each of 65,536 classes of addresses. Nearly all
 * blocks are not sampled, and their bit is 0. */
#ifndef SPLUNK_PROFILER_WALKER_LIVE_HEAP_H
#define SPLUNK_PROFILER_WALKER_LIVE_HEAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LIVE_HEAP_CAPACITY    8192
#define LIVE_HEAP_MAX_ENDED   (LIVE_HEAP_CAPACITY + 1024) /* all blocks, and those of one drain */
#define LIVE_HEAP_SLOT_BITS   14                          /* twice as many slots as blocks */
#define LIVE_HEAP_FILTER_BITS 16 /* not fewer than the above: blocks of one bit have one first slot */

typedef struct {
    uintptr_t address;
    uint64_t id;             /* of the sample; 0: the place is free */
    uint16_t previous, next; /* in the order of their samples, or the next free place; LIVE_HEAP_CAPACITY: none */
} live_block;

typedef struct {
    live_block blocks[LIVE_HEAP_CAPACITY];
    uint16_t slots[1 << LIVE_HEAP_SLOT_BITS]; /* open addressing: place of a block + 1, or 0 */
    uint16_t oldest, newest, free;            /* free: the first place that was used before */
    uint16_t used_count;                      /* places ever used */
    uint64_t reported_id;                     /* samples up to this one have been drained */
    uint64_t ended[LIVE_HEAP_MAX_ENDED];      /* drained samples whose blocks are no longer in use */
    size_t ended_count;
} live_heap;

#pragma GCC visibility push(hidden)

extern _Atomic uint64_t live_heap_filter[1 << (LIVE_HEAP_FILTER_BITS - 6)];

/* Of the low half: one instruction multiplies it by a constant. */
static inline uint32_t live_heap_hash(uintptr_t address)
{
    return (uint32_t)address * 0x9E3779B1u;
}

/* False: the block is surely not sampled. Any thread. */
static inline bool live_heap_may_have(const void *memory)
{
    uint32_t bit = live_heap_hash((uintptr_t)memory) >> (32 - LIVE_HEAP_FILTER_BITS);
    return atomic_load_explicit(&live_heap_filter[bit / 64], memory_order_relaxed) >> bit % 64 & 1;
}

void live_heap_init(live_heap *heap); /* all 0; after the previous one was closed */
void live_heap_close(void);           /* no block is looked for any more; their state stays as it is */
/* Add the block of a new sample. True: the oldest block had to go for it. */
bool live_heap_add(live_heap *heap, const void *memory, uint64_t id);
/* Forget a block if it is there. */
void live_heap_end(live_heap *heap, const void *memory);
/* Forget all blocks; return how many there were. */
size_t live_heap_end_all(live_heap *heap);
/* Return true if the block of the oldest undrained sample is in use. From now on its end is reported. */
bool live_heap_report(live_heap *heap, const void *memory, uint64_t id);

#pragma GCC visibility pop

#endif
