/* The map of sampled blocks that are in use: a hash table with linear probing. A full map loses its oldest block.
 *
 * The end of a block is reported only if its sample was reported. So there is room for all that are due, unless drains
 * fail. */
#include "live_heap.h"

#define NONE      LIVE_HEAP_CAPACITY
#define SLOT_MASK ((1u << LIVE_HEAP_SLOT_BITS) - 1)

_Atomic uint64_t live_heap_filter[1 << (LIVE_HEAP_FILTER_BITS - 6)];

static unsigned first_slot(uintptr_t address)
{
    return live_heap_hash(address) >> (32 - LIVE_HEAP_SLOT_BITS);
}

static unsigned filter_bit(uintptr_t address)
{
    return live_heap_hash(address) >> (32 - LIVE_HEAP_FILTER_BITS);
}

/* The bit is 1 while a block of its class is in use. Blocks of one class have one first slot, so the others are in
 * the slots from there to the next free one. */
static void update_filter(const live_heap *heap, uintptr_t address)
{
    unsigned bit = filter_bit(address);
    uint64_t mask = (uint64_t)1 << bit % 64;
    for (unsigned slot = first_slot(address); heap->slots[slot] != 0; slot = (slot + 1) & SLOT_MASK) {
        if (filter_bit(heap->blocks[heap->slots[slot] - 1].address) == bit) {
            atomic_fetch_or_explicit(&live_heap_filter[bit / 64], mask, memory_order_relaxed);
            return;
        }
    }
    atomic_fetch_and_explicit(&live_heap_filter[bit / 64], ~mask, memory_order_relaxed);
}

/* Return the slot of a block, or the free one where it belongs. */
static unsigned find_slot(const live_heap *heap, uintptr_t address)
{
    unsigned slot = first_slot(address);
    while (heap->slots[slot] != 0 && heap->blocks[heap->slots[slot] - 1].address != address) {
        slot = (slot + 1) & SLOT_MASK;
    }
    return slot;
}

/* Free a slot, and move later blocks up that could otherwise not be found any more. */
static void clear_slot(live_heap *heap, unsigned hole)
{
    for (unsigned slot = (hole + 1) & SLOT_MASK; heap->slots[slot] != 0; slot = (slot + 1) & SLOT_MASK) {
        unsigned first = first_slot(heap->blocks[heap->slots[slot] - 1].address);
        if (((slot - first) & SLOT_MASK) >= ((slot - hole) & SLOT_MASK)) {
            heap->slots[hole] = heap->slots[slot];
            hole = slot;
        }
    }
    heap->slots[hole] = 0;
}

/* Change the end of a link: `previous` of the next block, or `newest`; and so on. */
static uint16_t *link_to_previous(live_heap *heap, uint16_t next)
{
    return next == NONE ? &heap->newest : &heap->blocks[next].previous;
}

static uint16_t *link_to_next(live_heap *heap, uint16_t previous)
{
    return previous == NONE ? &heap->oldest : &heap->blocks[previous].next;
}

static void remove_slot(live_heap *heap, unsigned slot)
{
    uint16_t place = (uint16_t)(heap->slots[slot] - 1);
    live_block *block = &heap->blocks[place];
    clear_slot(heap, slot);
    update_filter(heap, block->address);
    if (block->id <= heap->reported_id && heap->ended_count < LIVE_HEAP_MAX_ENDED) {
        heap->ended[heap->ended_count++] = block->id;
    }
    *link_to_next(heap, block->previous) = block->next;
    *link_to_previous(heap, block->next) = block->previous;
    *block = (live_block){.next = heap->free};
    heap->free = place;
}

void live_heap_init(live_heap *heap)
{
    heap->oldest = heap->newest = heap->free = NONE;
}

void live_heap_close(void)
{
    for (size_t i = 0; i < sizeof(live_heap_filter) / sizeof(live_heap_filter[0]); i++) {
        atomic_store_explicit(&live_heap_filter[i], 0, memory_order_relaxed);
    }
}

/* A place that was never used comes last: memory is touched as it is needed. */
static uint16_t take_place(live_heap *heap)
{
    if (heap->free == NONE) {
        return heap->used_count++;
    }
    uint16_t place = heap->free;
    heap->free = heap->blocks[place].next;
    return place;
}

bool live_heap_add(live_heap *heap, const void *memory, uint64_t id)
{
    live_heap_end(heap, memory); /* its end may have been missed */
    bool is_full = heap->free == NONE && heap->used_count == LIVE_HEAP_CAPACITY;
    if (is_full) {
        remove_slot(heap, find_slot(heap, heap->blocks[heap->oldest].address));
    }
    uint16_t place = take_place(heap);
    live_block *block = &heap->blocks[place];
    *block = (live_block){(uintptr_t)memory, id, heap->newest, NONE};
    *link_to_next(heap, heap->newest) = place;
    heap->newest = place;
    heap->slots[find_slot(heap, block->address)] = (uint16_t)(place + 1);
    update_filter(heap, block->address);
    return is_full;
}

void live_heap_end(live_heap *heap, const void *memory)
{
    unsigned slot = find_slot(heap, (uintptr_t)memory);
    if (heap->slots[slot] != 0) {
        remove_slot(heap, slot);
    }
}

size_t live_heap_end_all(live_heap *heap)
{
    size_t count = 0;
    for (; heap->oldest != NONE; count++) {
        remove_slot(heap, find_slot(heap, heap->blocks[heap->oldest].address));
    }
    return count;
}

bool live_heap_report(live_heap *heap, const void *memory, uint64_t id)
{
    unsigned slot = find_slot(heap, (uintptr_t)memory);
    heap->reported_id = id;
    return heap->slots[slot] != 0 && heap->blocks[heap->slots[slot] - 1].id == id;
}
