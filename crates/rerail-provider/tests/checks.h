/* What the test programs of the provider share: checks, patterns, time. Each says in `running` which test it is at. */
#ifndef CHECKS_H
#define CHECKS_H

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_S 20
#define BLOB 56

static const char *running = "start";

#define FAIL(...)                                                                                                        \
    do {                                                                                                                 \
        fprintf(stderr, "FAILED %s, line %d: ", running, __LINE__);                                                      \
        fprintf(stderr, __VA_ARGS__);                                                                                    \
        fprintf(stderr, "\n");                                                                                           \
        exit(1);                                                                                                         \
    } while (0)
#define CHECK(what)                                                                                                      \
    do {                                                                                                                 \
        if (!(what))                                                                                                     \
            FAIL("not so: %s", #what);                                                                                   \
    } while (0)
#define OK(call)                                                                                                         \
    do {                                                                                                                 \
        long ok_rc_ = (long)(call);                                                                                      \
        if (ok_rc_)                                                                                                      \
            FAIL("%s gave %ld (%s)", #call, ok_rc_, fi_strerror((int)-ok_rc_));                                          \
    } while (0)

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static inline void fill(char *p, size_t n, int seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (char)(seed + i * 7 + (i >> 8));
}

static inline int same(const char *p, size_t n, int seed)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != (char)(seed + i * 7 + (i >> 8)))
            return 0;
    return 1;
}

#endif
