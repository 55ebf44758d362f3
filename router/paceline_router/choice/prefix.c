/* The prefix index of prefix.py: the same operations with the same results, 10 to 20 times as fast.

   A text is cut into blocks; a block's key is chained over the block before it. For each key known: which replicas
   (bits) hold the block, in two generations, and how many texts went separate ways behind it. The least recently used
   key makes room for a new one. One thread at a time. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SMALL 256
#define LARGE 2048
#define SMALL_UNTIL 4096
#define MAX_BLOCKS 512
#define MAX_WORDS 4
#define MAX_LEVELS 8
#define VISITS_MOST 65535
#define NOTED_SHARE 32
#define NONE 0xFFFFFFFFu

typedef struct {
    uint64_t key;
    uint32_t chain, older, newer, visits;
    uint64_t masks[]; /* generation 0, generation 1: `words` each */
} Entry;

/* What one replica was noted for in one generation, so that forgetting it need not look at all entries. */
typedef struct {
    uint32_t count, size;
    int over; /* more than is kept: then all entries are looked at */
    struct { uint64_t key; uint32_t number; } *noted;
} Log;

/* What `match` found, read from Python as 64-bit numbers. */
typedef struct {
    uint64_t total, matched, visits, levels;
    uint64_t fresh[MAX_WORDS];                     /* hold all of it, so lately that nothing need be noted */
    uint64_t level[MAX_LEVELS][1 + MAX_WORDS];     /* deepest first: bytes, and who holds as many */
} Found;

typedef struct {
    uint64_t secret[4];
    uint32_t words, capacity, used, buckets, newest, oldest, most_noted;
    uint64_t swept; /* entries looked at in order to forget */
    size_t stride;
    uint32_t *heads;
    char *entries;
    uint64_t generation[MAX_WORDS];
    uint64_t filled[MAX_WORDS * 64], room[MAX_WORDS * 64];
    Log logs[2][MAX_WORDS * 64];
    uint32_t blocks, matched;
    uint64_t keys[MAX_BLOCKS];
    Found found;
} Index;

static inline uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* A block's key: products of words with each other and with secrets of this process, folded to 64 bits. The secrets
   keep clients from making texts whose keys collide. `size` is a multiple of 64. */
static uint64_t chained(const Index *x, const char *text, size_t size, uint64_t parent) {
    uint64_t a = parent ^ x->secret[0], b = parent ^ x->secret[1], c = parent ^ x->secret[2], d = parent ^ x->secret[3];
    for (size_t at = 0; at < size; at += 64) {
        uint64_t w[8];
        memcpy(w, text + at, sizeof w);
        a = fold(a ^ w[0], x->secret[1] ^ w[1]);
        b = fold(b ^ w[2], x->secret[2] ^ w[3]);
        c = fold(c ^ w[4], x->secret[3] ^ w[5]);
        d = fold(d ^ w[6], x->secret[0] ^ w[7]);
    }
    return fold(a ^ fold(b, x->secret[0]) ^ size, x->secret[2] ^ c ^ fold(d, x->secret[1]));
}

static inline Entry *entry(const Index *x, uint32_t number) { return (Entry *)(x->entries + number * x->stride); }

static inline uint32_t bucket(const Index *x, uint64_t key) { return (uint32_t)(key >> 20) & (x->buckets - 1); }

static uint32_t find(const Index *x, uint64_t key) {
    uint32_t number = x->heads[bucket(x, key)];
    while (number != NONE && entry(x, number)->key != key) number = entry(x, number)->chain;
    return number;
}

static void unlink_used(Index *x, uint32_t number) {
    Entry *e = entry(x, number);
    if (e->newer != NONE) entry(x, e->newer)->older = e->older; else x->newest = e->older;
    if (e->older != NONE) entry(x, e->older)->newer = e->newer; else x->oldest = e->newer;
}

static void link_newest(Index *x, uint32_t number) {
    Entry *e = entry(x, number);
    e->newer = NONE;
    e->older = x->newest;
    if (x->newest != NONE) entry(x, x->newest)->newer = number; else x->oldest = number;
    x->newest = number;
}

static void touch(Index *x, uint32_t number) {
    if (x->newest == number) return;
    unlink_used(x, number);
    link_newest(x, number);
}

static uint32_t make(Index *x, uint64_t key) {
    uint32_t number;
    if (x->used < x->capacity) {
        number = x->used++;
    } else {
        number = x->oldest;
        unlink_used(x, number);
        uint32_t *at = &x->heads[bucket(x, entry(x, number)->key)];
        while (*at != number) at = &entry(x, *at)->chain;
        *at = entry(x, number)->chain;
    }
    Entry *e = entry(x, number);
    memset(e, 0, x->stride);
    e->key = key;
    uint32_t *head = &x->heads[bucket(x, key)];
    e->chain = *head;
    *head = number;
    link_newest(x, number);
    return number;
}

static inline size_t block_size(uint32_t number) { return number < SMALL_UNTIL / SMALL ? SMALL : LARGE; }

Index *pfx_new(uint32_t capacity, uint32_t words, const uint64_t *secret) {
    Index *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->words = words;
    x->capacity = capacity;
    x->most_noted = capacity / NOTED_SHARE + 1;
    x->newest = x->oldest = NONE;
    x->stride = sizeof(Entry) + 2 * words * sizeof(uint64_t);
    for (x->buckets = 64; x->buckets < capacity; x->buckets *= 2) {}
    x->heads = malloc(x->buckets * sizeof(uint32_t));
    x->entries = malloc(capacity * x->stride); /* the system gives its pages as they are first used */
    if (!x->heads || !x->entries) {
        free(x->heads);
        free(x->entries);
        free(x);
        return NULL;
    }
    memset(x->heads, 0xFF, x->buckets * sizeof(uint32_t));
    for (int i = 0; i < 4; i++) x->secret[i] = secret[i] | 1;
    return x;
}

void pfx_free(Index *x) {
    for (int g = 0; g < 2; g++)
        for (int slot = 0; slot < MAX_WORDS * 64; slot++) free(x->logs[g][slot].noted);
    free(x->heads);
    free(x->entries);
    free(x);
}

const Found *pfx_found(const Index *x) { return &x->found; }

uint32_t pfx_used(const Index *x) { return x->used; }

uint64_t pfx_swept(const Index *x) { return x->swept; }

void pfx_match(Index *x, const char *text, uint32_t length, uint32_t salt) {
    Found *f = &x->found;
    uint32_t words = x->words, n = 0, matched = 0, levels = 0, numbers[MAX_BLOCKS];
    uint64_t key = salt, live[MAX_WORDS], fresh[MAX_WORDS];
    size_t at = 0, deep = 0;
    int looking = 1;
    memset(live, 0xFF, sizeof live);
    memset(fresh, 0xFF, sizeof fresh);
    for (; n < MAX_BLOCKS && at + block_size(n) <= length; n++) {
        size_t size = block_size(n);
        key = chained(x, text + at, size, key);
        x->keys[n] = key;
        at += size;
        if (!looking) continue;
        uint32_t number = find(x, key);
        if (number == NONE) { looking = 0; continue; }
        Entry *e = entry(x, number);
        uint64_t some = 0, changed = 0, now[MAX_WORDS];
        for (uint32_t w = 0; w < words; w++) {
            uint64_t g = x->generation[w], zero = e->masks[w], one = e->masks[words + w];
            now[w] = live[w] & (zero | one);
            some |= now[w];
            changed |= now[w] ^ live[w];
            fresh[w] &= (zero & ~g) | (one & g);
        }
        if (!some) { looking = 0; continue; }
        if (changed && n) {
            if (levels == MAX_LEVELS) {
                memmove(f->level[0], f->level[1], sizeof f->level[0] * (MAX_LEVELS - 1));
                levels--;
            }
            f->level[levels][0] = deep;
            memcpy(&f->level[levels++][1], live, sizeof live);
        }
        memcpy(live, now, sizeof now);
        numbers[matched++] = number;
        deep = at;
    }
    f->visits = 0;
    if (matched) {
        if (levels == MAX_LEVELS) {
            memmove(f->level[0], f->level[1], sizeof f->level[0] * (MAX_LEVELS - 1));
            levels--;
        }
        f->level[levels][0] = deep;
        memcpy(&f->level[levels++][1], live, sizeof live);
        Entry *e = entry(x, numbers[matched - 1]);
        f->visits = e->visits;
        if (e->visits < VISITS_MOST) e->visits++;
        /* Parents last, so that they outlive their children. */
        for (uint32_t i = matched; i-- > 0;) touch(x, numbers[i]);
    }
    for (uint32_t i = 0, j = levels; i + 1 < j; i++) {
        uint64_t swap[1 + MAX_WORDS];
        j--;
        memcpy(swap, f->level[i], sizeof swap);
        memcpy(f->level[i], f->level[j], sizeof swap);
        memcpy(f->level[j], swap, sizeof swap);
    }
    for (uint32_t w = 0; w < words; w++) f->fresh[w] = matched == n && n ? fresh[w] : 0;
    f->total = at;
    f->matched = deep;
    f->levels = levels;
    x->blocks = n;
    x->matched = matched;
}

static void note(Index *x, uint32_t slot, int generation, uint32_t number) {
    Log *log = &x->logs[generation][slot];
    if (log->count == log->size && !log->over) {
        uint32_t size = log->size ? 2 * log->size : 16;
        if (size > x->most_noted) size = x->most_noted;
        void *more = log->size < size ? realloc(log->noted, size * sizeof *log->noted) : NULL;
        if (more) { log->noted = more; log->size = size; } else log->over = 1;
    }
    if (log->over) return;
    log->noted[log->count].key = entry(x, number)->key;
    log->noted[log->count++].number = number;
}

/* Looks at as many entries as were noted, or at all of them after a share of all has been noted: either way at no more
   than NOTED_SHARE for each that was. */
static void forget_in(Index *x, uint32_t slot, int generation) {
    uint64_t keep = ~((uint64_t)1 << (slot & 63));
    size_t at = generation * x->words + (slot >> 6);
    Log *log = &x->logs[generation][slot];
    uint32_t count = log->over ? x->used : log->count;
    for (uint32_t i = 0; i < count; i++) {
        Entry *e = entry(x, log->over ? i : log->noted[i].number);
        /* Another block may have its room by now. */
        if (log->over || e->key == log->noted[i].key) e->masks[at] &= keep;
    }
    x->swept += count;
    log->count = 0;
    log->over = 0;
}

void pfx_insert(Index *x, uint32_t slot) {
    uint32_t word = slot >> 6, words = x->words;
    uint64_t bit = (uint64_t)1 << (slot & 63), added = 0;
    int generation = (x->generation[word] & bit) != 0;
    for (uint32_t i = x->blocks; i-- > 0;) {
        uint32_t number = find(x, x->keys[i]);
        if (number == NONE) number = make(x, x->keys[i]); else touch(x, number);
        Entry *e = entry(x, number);
        if (!((e->masks[word] | e->masks[words + word]) & bit)) added += block_size(i);
        uint64_t *mask = &e->masks[generation * words + word];
        if (!(*mask & bit)) {
            *mask |= bit;
            note(x, slot, generation, number);
        }
    }
    x->filled[slot] += added;
    if (x->room[slot] && x->filled[slot] >= x->room[slot] / 2) {
        x->filled[slot] = 0;
        x->generation[word] ^= bit;
        forget_in(x, slot, !generation);
    }
}

void pfx_forget(Index *x, uint32_t slot) {
    forget_in(x, slot, 0);
    forget_in(x, slot, 1);
    x->filled[slot] = 0;
}

void pfx_room(Index *x, uint32_t slot, uint64_t bytes) { x->room[slot] = bytes; }
