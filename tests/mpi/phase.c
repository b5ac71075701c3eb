/* phase: a preloaded library that tells the lab where an unmodified MPI program is, so that a cut can be there at that moment.
 *
 * RERAIL_PHASES=init,finalize,message-1,collective-20   which moments to announce (`rerail lab run --schedule "init+0s cut …"`)
 *   init          before MPI_Init begins
 *   finalize      before MPI_Finalize begins
 *   message-N     before a process makes its N-th call that communicates (point-to-point, collective, or a new communicator);
 *                 message-1 comes before anything is connected
 *   collective-N  before a process makes its N-th collective call
 *
 * The first process at a moment announces it. Every process waits there until the lab has done what was due,
 * so the cut is in place before the call begins. Built against the headers of one MPI, linked with none: processes that are no
 * MPI programs (shells, launchers) get it preloaded as well and must not mind.
 */
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A lab that does not answer has ended; then the program is to go on by itself. */
enum { PATIENCE_MS = 20000 };

static int is_wanted(const char *name) {
    const char *list = getenv("RERAIL_PHASES");
    size_t length = strlen(name);
    while (list && *list) {
        size_t item = strcspn(list, ",");
        if (item == length && !strncmp(list, name, length)) return 1;
        list += item + (list[item] == ',');
    }
    return 0;
}

static void announce(const char *name) {
    const char *directory = getenv("RERAIL_LAB_PHASES");
    if (!directory || !is_wanted(name)) return;
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0) {
        fprintf(stderr, "phase: could not create %s (RERAIL_LAB_PHASES): %s\n", path, strerror(errno));
        return;
    }
    close(file);
    snprintf(path, sizeof path, "%s/%s.done", directory, name);
    for (int waited = 0; access(path, F_OK) && waited < PATIENCE_MS; waited++) {
        struct timespec one_ms = {0, 1000000};
        nanosleep(&one_ms, NULL);
    }
}

static void count(atomic_ulong *counter, const char *what) {
    unsigned long number = atomic_fetch_add(counter, 1) + 1;
    char name[64];
    snprintf(name, sizeof name, "%s-%lu", what, number);
    announce(name);
}

static void message(void) {
    static atomic_ulong messages;
    count(&messages, "message");
}

static void collective(void) {
    static atomic_ulong collectives;
    message();
    count(&collectives, "collective");
}

int MPI_Init(int *argc, char ***argv) {
    announce("init");
    return PMPI_Init(argc, argv);
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    announce("init");
    return PMPI_Init_thread(argc, argv, required, provided);
}

int MPI_Finalize(void) {
    announce("finalize");
    return PMPI_Finalize();
}

#define WRAP(before, name, parameters, arguments) \
    int MPI_##name parameters {                   \
        before();                                 \
        return PMPI_##name arguments;             \
    }

WRAP(message, Send, (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c), (b, n, t, to, tag, c))
WRAP(message, Ssend, (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c), (b, n, t, to, tag, c))
WRAP(message, Isend, (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r), (b, n, t, to, tag, c, r))
WRAP(message, Issend, (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r), (b, n, t, to, tag, c, r))
WRAP(message, Sendrecv,
     (const void *b, int n, MPI_Datatype t, int to, int tag, void *rb, int rn, MPI_Datatype rt, int from, int rtag, MPI_Comm c, MPI_Status *s),
     (b, n, t, to, tag, rb, rn, rt, from, rtag, c, s))
WRAP(message, Comm_dup, (MPI_Comm c, MPI_Comm *made), (c, made))
WRAP(message, Comm_split, (MPI_Comm c, int color, int key, MPI_Comm *made), (c, color, key, made))
WRAP(message, Comm_create, (MPI_Comm c, MPI_Group g, MPI_Comm *made), (c, g, made))

WRAP(collective, Barrier, (MPI_Comm c), (c))
WRAP(collective, Bcast, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c), (b, n, t, root, c))
WRAP(collective, Reduce, (const void *b, void *rb, int n, MPI_Datatype t, MPI_Op o, int root, MPI_Comm c), (b, rb, n, t, o, root, c))
WRAP(collective, Allreduce, (const void *b, void *rb, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (b, rb, n, t, o, c))
WRAP(collective, Gather, (const void *b, int n, MPI_Datatype t, void *rb, int rn, MPI_Datatype rt, int root, MPI_Comm c),
     (b, n, t, rb, rn, rt, root, c))
WRAP(collective, Allgather, (const void *b, int n, MPI_Datatype t, void *rb, int rn, MPI_Datatype rt, MPI_Comm c),
     (b, n, t, rb, rn, rt, c))
WRAP(collective, Alltoall, (const void *b, int n, MPI_Datatype t, void *rb, int rn, MPI_Datatype rt, MPI_Comm c),
     (b, n, t, rb, rn, rt, c))
WRAP(collective, Alltoallv,
     (const void *b, const int *n, const int *at, MPI_Datatype t, void *rb, const int *rn, const int *rat, MPI_Datatype rt, MPI_Comm c),
     (b, n, at, t, rb, rn, rat, rt, c))
WRAP(collective, Ibarrier, (MPI_Comm c, MPI_Request *r), (c, r))
WRAP(collective, Ibcast, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c, MPI_Request *r), (b, n, t, root, c, r))
WRAP(collective, Iallreduce, (const void *b, void *rb, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *r),
     (b, rb, n, t, o, c, r))
WRAP(collective, Iallgather, (const void *b, int n, MPI_Datatype t, void *rb, int rn, MPI_Datatype rt, MPI_Comm c, MPI_Request *r),
     (b, n, t, rb, rn, rt, c, r))
WRAP(collective, Ialltoall, (const void *b, int n, MPI_Datatype t, void *rb, int rn, MPI_Datatype rt, MPI_Comm c, MPI_Request *r),
     (b, n, t, rb, rn, rt, c, r))
