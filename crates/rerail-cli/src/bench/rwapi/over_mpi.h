/* What figures.c measures, over an MPI: two-sided messages with receives that are posted before, and MPI_Put with a flush. An MPI does not
 * limit how many small messages wait at their receiver, so that the window of the program holds for all sizes. */
#include <mpi.h>

enum { TAG_DATA = 1, TAG_CONTROL = 2 };

static MPI_Request sends[SLOTS], receives[SLOTS];
/* messages received and posted in this test, and those still to be posted */
static uint64_t taken, posted, to_post;
static MPI_Win window;

static void over_abort(void) { MPI_Abort(MPI_COMM_WORLD, 1); }

static void over_begin(int *argc, char ***argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &nodes);
    other = me == 0 ? nodes - 1 : 0;
}

static void over_tell(uint64_t value, double more) {
    unsigned char small[16];
    memcpy(small, &value, 8);
    memcpy(small + 8, &more, 8);
    MPI_Send(small, 16, MPI_BYTE, other, TAG_CONTROL, MPI_COMM_WORLD);
}

static uint64_t over_hear(double *more) {
    unsigned char small[16];
    uint64_t value;
    MPI_Recv(small, 16, MPI_BYTE, other, TAG_CONTROL, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    memcpy(&value, small, 8);
    memcpy(more, small + 8, 8);
    return value;
}

static void over_place(void) {
    source = calloc(SLOTS, size_max);
    if (!source) fail("out of memory");
    MPI_Win_allocate((MPI_Aint)(SLOTS * size_max), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &target, &window);
    MPI_Win_lock_all(0, window);
    for (int k = 0; k < SLOTS; k++) sends[k] = receives[k] = MPI_REQUEST_NULL;
}

static void over_meet(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    taken = posted = 0;
}

static void post_next(size_t size) {
    if (!to_post) return;
    to_post--;
    uint64_t slot = ++posted % SLOTS;
    MPI_Irecv(target + slot * size, (int)size, MPI_BYTE, other, TAG_DATA, MPI_COMM_WORLD, &receives[slot]);
}

static void over_prepare(size_t size, uint64_t messages) {
    to_post = messages;
    for (int k = 0; k < SLOTS; k++) post_next(size);
}

static int over_windowed(size_t size) {
    (void)size;
    return 1;
}
static int over_has_bytes(size_t size) { return size > 0; }

static void over_free_slot(uint64_t number) { MPI_Wait(&sends[number % SLOTS], MPI_STATUS_IGNORE); }

static void over_send(uint64_t number, size_t size) {
    size_t slot = number % SLOTS;
    MPI_Isend(source + slot * size, (int)size, MPI_BYTE, other, TAG_DATA, MPI_COMM_WORLD, &sends[slot]);
}

/* The receive of a slot is posted again with the message behind it, as the bytes have yet to be checked. */
static uint64_t over_receive(size_t size) {
    if (taken >= 1 && posted < taken + SLOTS) post_next(size);
    uint64_t slot = ++taken % SLOTS;
    MPI_Wait(&receives[slot], MPI_STATUS_IGNORE);
    return 0;
}

static void over_put(uint64_t number, size_t size) {
    size_t slot = number % SLOTS;
    MPI_Put(source + slot * size, (int)size, MPI_BYTE, other, (MPI_Aint)(slot * size), (int)size, MPI_BYTE, window);
    MPI_Win_flush(other, window);
}

static void over_visible(void) { MPI_Win_sync(window); }

static int over_end(void) {
    MPI_Waitall(SLOTS, sends, MPI_STATUSES_IGNORE);
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    free(source);
    MPI_Finalize();
    return 0;
}
