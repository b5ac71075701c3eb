/* What the test programs share: clocks, the data pattern and its check, and the reading of options.
 *
 * Owns: the pattern. A payload is a function of (key, offset) alone, so sender and receiver need to agree on nothing but
 * the key, and a receiver can name the first wrong byte, what it should have been and what arrived instead.
 */
#ifndef RERAIL_TESTS_COMMON_H
#define RERAIL_TESTS_COMMON_H

#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000ull

/* Exit codes, so that a script can tell wrong data from a wrong call. */
enum { EXIT_WRONG_DATA = 3, EXIT_USAGE = 2 };

static inline uint64_t monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static inline uint64_t realtime_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* splitmix64's finalizer: turns related numbers into unrelated ones. */
static inline uint64_t mix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static inline uint64_t pattern_key(uint64_t seed, uint64_t a, uint64_t b) {
    return mix64(mix64(mix64(seed) ^ a) ^ b);
}

/* The word at `index` of the pattern. One multiplication and one shift: several GB/s, so that checking does not become
 * what is measured; and no two words of a message are alike, so that a fragment put in the wrong place is seen. */
static inline uint64_t pattern_word(uint64_t key, uint64_t index) {
    uint64_t x = key + index * 0x9E3779B97F4A7C15ull;
    return x ^ (x >> 29);
}

static inline void pattern_fill(void *buffer, size_t bytes, uint64_t key) {
    unsigned char *out = buffer;
    size_t words = bytes / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t word = pattern_word(key, i);
        memcpy(out + 8 * i, &word, 8);
    }
    if (bytes % 8) {
        uint64_t word = pattern_word(key, words);
        memcpy(out + 8 * words, &word, bytes % 8);
    }
}

/* Offset of the first byte that differs from the pattern, or -1 when all are right. */
static inline int64_t pattern_check(const void *buffer, size_t bytes, uint64_t key) {
    const unsigned char *in = buffer;
    size_t words = bytes / 8;
    size_t at = 0;
    /* In blocks without a branch per word, so that the compiler can vectorize. */
    while (at < words) {
        size_t end = at + 512 < words ? at + 512 : words;
        uint64_t difference = 0;
        for (size_t i = at; i < end; i++) {
            uint64_t word;
            memcpy(&word, in + 8 * i, 8);
            difference |= word ^ pattern_word(key, i);
        }
        if (difference) break;
        at = end;
    }
    for (size_t i = 8 * at; i < bytes; i++) {
        uint64_t word = pattern_word(key, i / 8);
        unsigned char expected;
        memcpy(&expected, (const unsigned char *)&word + i % 8, 1);
        if (in[i] != expected) return (int64_t)i;
    }
    return -1;
}

static inline unsigned char pattern_byte(uint64_t key, uint64_t offset) {
    uint64_t word = pattern_word(key, offset / 8);
    unsigned char byte;
    memcpy(&byte, (const unsigned char *)&word + offset % 8, 1);
    return byte;
}

/* Says what went wrong and takes the whole job down with `code`. */
__attribute__((format(printf, 2, 3), noreturn)) static void fail(int code, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s\n", text);
    fflush(stdout);
    fflush(stderr);
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized) MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
}

static void *allocate(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes ? bytes : 1)) fail(1, "out of memory: could not get %zu bytes", bytes);
    return memory;
}

/* "64KiB", "1M", "4096" -> bytes. */
static inline size_t parse_bytes(const char *text) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || errno || value < 0) fail(EXIT_USAGE, "'%s' is not a size; write for instance 65536, 64KiB or 1MiB", text);
    double unit = 1;
    if (*end == 'k' || *end == 'K') unit = 1024;
    if (*end == 'm' || *end == 'M') unit = 1024 * 1024;
    if (*end == 'g' || *end == 'G') unit = 1024.0 * 1024 * 1024;
    return (size_t)(value * unit);
}

static inline double parse_number(const char *option, const char *text) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end || errno || value < 0) fail(EXIT_USAGE, "%s needs a number, not '%s'", option, text);
    return value;
}

/* The value that follows option number *i. */
static inline const char *option_value(int argc, char **argv, int *i) {
    if (*i + 1 >= argc) fail(EXIT_USAGE, "%s needs a value", argv[*i]);
    return argv[++*i];
}

/* Which MPI library this process really runs on, such as "MPICH 5.0.2". Every summary carries it, because wheels of different
 * MPIs install libraries of the same name, and a figure under the wrong name is worse than none. */
static inline const char *mpi_library(void) {
    static char name[64];
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(text, &length);
    char version[32] = "";
    if (sscanf(text, "MPICH Version: %31s", version) == 1) snprintf(name, sizeof name, "MPICH %s", version);
    else snprintf(name, sizeof name, "%.*s", (int)strcspn(text, "\n,"), text);
    return name;
}

/* Tells the lab that the part of the program that it should disturb begins now: `rerail lab run --schedule-on-start` waits
 * for this file before it starts its clock. */
static inline void announce_start(void) {
    const char *path = getenv("RERAIL_LAB_START");
    if (!path || !*path) return;
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0) {
        fprintf(stderr, "could not create %s (RERAIL_LAB_START): %s\n", path, strerror(errno));
        return;
    }
    close(file);
}

#endif
