/* What the three examples share: arguments, errors, and the wait for room.
 *
 * The calls of RWAPI return at once. EAGAIN means that there is no room now. A node that waits for room must go on to
 * receive: two nodes that send to each other and receive nothing would wait for ever. So this file moves messages that
 * arrive meanwhile into an inbox of its own, and message_await takes them from there.
 *
 * All nodes are assumed to have the same byte order.
 */
#ifndef RWAPI_EXAMPLES_COMMON_H
#define RWAPI_EXAMPLES_COMMON_H

#include <rwapi.h>
#include <rwapi_ext.h>

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A wait has a bound, so that the program does not depend on a wake-up for every kind of change. */
enum { WAIT_MS = 100 };

static const char *program = "rwapi"; /* each example sets its name */

/* ---- arguments: `--name number` ---- */

struct argument {
    const char *name;
    long *value; /* holds the default */
    long min, max;
};

static inline void usage(int count, const struct argument *arguments)
{
    fprintf(stderr, "usage: %s", program);
    for (int i = 0; i < count; i++)
        fprintf(stderr, " [%s %ld..%ld]", arguments[i].name, arguments[i].min, arguments[i].max);
    fprintf(stderr, "\n");
    exit(2);
}

static inline void parse(int argc, char **argv, int count, const struct argument *arguments)
{
    for (int word = 1; word < argc; word += 2) {
        const struct argument *found = NULL;
        for (int i = 0; i < count; i++)
            if (strcmp(argv[word], arguments[i].name) == 0) found = &arguments[i];
        if (!found || word + 1 == argc) usage(count, arguments);
        char *end;
        errno = 0;
        long value = strtol(argv[word + 1], &end, 10);
        if (errno || *end || end == argv[word + 1] || value < found->min || value > found->max)
            usage(count, arguments);
        *found->value = value;
    }
}

/* ---- errors: the process ends without rwapi_finalize, and the other nodes see that it is gone ---- */

static inline void fail(const char *what)
{
    fprintf(stderr, "%s: node %d: %s: %s\n", program, rwapi_rank(), what, strerror(errno));
    exit(1);
}

static inline void fail_gone(int node)
{
    fprintf(stderr, "%s: node %d: node %d is gone\n", program, rwapi_rank(), node);
    exit(1);
}

static inline void start(const char *name, int argc, char **argv)
{
    program = name;
    if (rwapi_init(argc, argv)) fail("rwapi_init");
}

static inline void finish(void)
{
    if (rwapi_finalize()) fail("rwapi_finalize");
}

static inline void *allocate(size_t size, rwapi_net_t *net)
{
    void *block = rwapi_alloc(size, net);
    if (!block) fail("rwapi_alloc");
    return block;
}

/* ---- small messages: 16 bytes as a kind and two numbers ---- */

struct message {
    uint32_t kind;
    uint32_t number;
    uint64_t value;
};
_Static_assert(sizeof(struct message) == sizeof(rwapi_small_t), "a message fills the 16 bytes");

struct event {
    int node;
    bool gone; /* the node is gone; there is no message */
    struct message message;
};

static struct {
    struct event *events;
    size_t first, count, room;
} inbox;

/* One event of the library; false if there is none. */
static inline bool library_receive(struct event *event)
{
    rwapi_small_t small;
    int result = rwapi_receive(&event->node, &small);
    if (result == 0) return false;
    event->gone = result < 0;
    if (event->gone && errno != EHOSTDOWN) fail("rwapi_receive");
    if (!event->gone) memcpy(&event->message, &small, sizeof small);
    return true;
}

static inline void inbox_add(const struct event *event)
{
    if (inbox.first + inbox.count == inbox.room) {
        if (inbox.first > 0) {
            memmove(inbox.events, inbox.events + inbox.first, inbox.count * sizeof *inbox.events);
            inbox.first = 0;
        } else {
            inbox.room = inbox.room ? 2 * inbox.room : 64;
            inbox.events = realloc(inbox.events, inbox.room * sizeof *inbox.events);
            if (!inbox.events) fail("realloc");
        }
    }
    inbox.events[inbox.first + inbox.count++] = *event;
}

/* After EAGAIN, or while a write is under way: receives what arrived, or sleeps until something changes. */
static inline void progress(void)
{
    struct event event;
    bool received = false;
    while (library_receive(&event)) {
        inbox_add(&event);
        received = true;
    }
    if (!received && rwapi_wait(WAIT_MS) < 0 && errno != EINTR) fail("rwapi_wait");
}

/* Waits for a message, or for the report that a node is gone. */
static inline struct event message_await(void)
{
    struct event event;
    for (;;) {
        if (inbox.count) {
            inbox.count--;
            return inbox.events[inbox.first++];
        }
        if (library_receive(&event)) return event;
        if (rwapi_wait(WAIT_MS) < 0 && errno != EINTR) fail("rwapi_wait");
    }
}

/* False if the node is gone. */
static inline bool message_send(int node, uint32_t kind, uint32_t number, uint64_t value)
{
    struct message message = {kind, number, value};
    rwapi_small_t small;
    memcpy(&small, &message, sizeof small);
    while (rwapi_send(node, small)) {
        if (errno == EHOSTDOWN) return false;
        if (errno != EAGAIN) fail("rwapi_send");
        progress();
    }
    return true;
}

/* ---- writes ---- */

static inline rwapi_sid_t data_write(int node, rwapi_net_t local, rwapi_net_t remote, size_t size)
{
    for (;;) {
        rwapi_sid_t sid = rwapi_write(node, local, remote, size);
        if (sid > 0) return sid;
        if (errno == EHOSTDOWN) fail_gone(node);
        if (errno != EAGAIN) fail("rwapi_write");
        progress();
    }
}

/* Waits until the local memory of a write may be used again. 0 is no write. */
static inline void data_wait_sent(rwapi_sid_t sid)
{
    if (sid == 0) return;
    for (;;) {
        int result = rwapi_issent(sid);
        if (result > 0) return;
        if (result < 0) fail("rwapi_issent");
        progress();
    }
}

#endif
