/* onesided: counters, queues, accumulates and blocks of memory that all ranks read and write in each other's windows, every sum and every
 * byte verified.
 *
 * In each round every rank, with MPI_Win_lock_all and nothing else:
 *   - counts on the ranks' counters by fetch-and-add: the values that come back are all different, and add up;
 *   - pushes numbers into the ranks' queues, whose tail it takes by compare-and-swap: none is lost, none is there twice;
 *   - accumulates into the ranks' arrays: the sums are exact;
 *   - puts a block into its neighbour's window, and gets it back.
 * Then all meet, and each looks at what is in its own window.
 */
#include "common.h"

enum { COUNTS = 24, PUSHES = 8, ARRAY = 64, SUMS = 8 };

static const char usage[] =
    "usage: onesided [options]\n"
    "  --seconds T   run for about T seconds (default 10)\n"
    "  --rounds N    or for N rounds\n"
    "  --max BYTES   largest block (default 1MiB)\n"
    "  --seed N      of all data (default 1)\n"
    "  --plant N     spoil one value in round N, to see that it is noticed\n";

static struct {
    double seconds;
    uint64_t rounds, seed, plant;
    size_t max;
} opt = {.seconds = 10, .seed = 1, .plant = UINT64_MAX, .max = 1 << 20};

static int rank, ranks;
static uint64_t round_number, values_checked;
static MPI_Win window;
static int64_t *mine;

/* The window, in words: counter, tail, the queue's slots, the array, the neighbour's block. */
enum { COUNTER = 0, TAIL = 1, QUEUE = 2 };
static MPI_Aint array_at(void) { return QUEUE + (MPI_Aint)PUSHES * ranks; }
static MPI_Aint block_at(void) { return array_at() + ARRAY; }

static uint64_t draw(uint64_t a, uint64_t b) { return mix64(pattern_key(opt.seed, round_number * 64 + a, b)); }

static void expect(const char *what, int64_t got, int64_t wanted) {
    if (got != wanted)
        fail(EXIT_WRONG_DATA, "onesided: rank %d, round %llu: %s is %lld instead of %lld (seed %llu)", rank,
             (unsigned long long)round_number, what, (long long)got, (long long)wanted, (unsigned long long)opt.seed);
    values_checked++;
}

static int64_t fetch(int target, MPI_Aint at, int64_t value, MPI_Op op) {
    int64_t former = -1;
    MPI_Fetch_and_op(&value, &former, MPI_INT64_T, target, at, op, window);
    MPI_Win_flush(target, window);
    return former;
}

/* In round r each rank counts on rank (rank + i) % ranks, so that every counter gets the same number. */
static void count(void) {
    int64_t last[64];
    for (int i = 0; i < 64; i++) last[i] = -1;
    for (int i = 0; i < COUNTS * ranks; i++) {
        int target = (rank + i) % ranks;
        int64_t former = fetch(target, COUNTER, 1, MPI_SUM);
        if (former <= last[target] || former >= (int64_t)COUNTS * ranks)
            fail(EXIT_WRONG_DATA, "onesided: rank %d, round %llu: the counter of rank %d gave %lld after %lld", rank,
                 (unsigned long long)round_number, target, (long long)former, (long long)last[target]);
        last[target] = former;
    }
}

static int64_t pushed(int who, int number) { return (int64_t)(draw(1, (uint64_t)who * PUSHES + (uint64_t)number) >> 8) | 1; }

static void push(void) {
    int target = (int)(round_number % (uint64_t)ranks);
    for (int n = 0; n < PUSHES; n++) {
        int64_t tail = fetch(target, TAIL, 0, MPI_NO_OP);
        for (;;) {
            int64_t next = tail + 1, found = -1;
            MPI_Compare_and_swap(&next, &tail, &found, MPI_INT64_T, target, TAIL, window);
            MPI_Win_flush(target, window);
            if (found == tail) break;
            tail = found;
        }
        if (tail >= (int64_t)PUSHES * ranks) fail(EXIT_WRONG_DATA, "onesided: rank %d: the tail of a queue is %lld", rank, (long long)tail);
        int64_t value = pushed(rank, n);
        MPI_Accumulate(&value, 1, MPI_INT64_T, target, QUEUE + tail, 1, MPI_INT64_T, MPI_REPLACE, window);
    }
}

static void sum(void) {
    int64_t values[ARRAY];
    for (int n = 0; n < SUMS; n++) {
        for (int i = 0; i < ARRAY; i++) values[i] = (int64_t)i * (rank + 1) + n;
        MPI_Accumulate(values, ARRAY, MPI_INT64_T, (rank + n) % ranks, array_at(), ARRAY, MPI_INT64_T, MPI_SUM, window);
        /* the buffer is used again */
        MPI_Win_flush_local_all(window);
    }
}

static size_t block_bytes(int who) { return 1 + (size_t)(draw(2, (uint64_t)who) % opt.max); }

static void exchange(unsigned char *out, unsigned char *in) {
    int target = (rank + 1) % ranks;
    size_t bytes = block_bytes(rank);
    uint64_t key = pattern_key(opt.seed, round_number, (uint64_t)rank);
    pattern_fill(out, bytes, key);
    MPI_Put(out, (int)bytes, MPI_BYTE, target, block_at(), (int)bytes, MPI_BYTE, window);
    MPI_Win_flush(target, window);
    memset(in, 0xEE, bytes);
    MPI_Get(in, (int)bytes, MPI_BYTE, target, block_at(), (int)bytes, MPI_BYTE, window);
    MPI_Win_flush(target, window);
    if (memcmp(in, out, bytes))
        fail(EXIT_WRONG_DATA, "onesided: rank %d, round %llu: what it gets is not what it put", rank, (unsigned long long)round_number);
    values_checked += bytes / 8;
}

static void look(unsigned char *scratch) {
    if (round_number == opt.plant && rank == ranks - 1) mine[array_at() + 7] ^= 1 << 9;
    expect("the counter", mine[COUNTER], (int64_t)COUNTS * ranks);
    int64_t queued = 0, wanted = 0;
    int here = rank == (int)(round_number % (uint64_t)ranks);
    for (int i = 0; i < PUSHES * ranks; i++) {
        queued += mine[QUEUE + i];
        if (here) wanted += pushed(i / PUSHES, i % PUSHES);
        for (int j = 0; here && j < i; j++)
            if (mine[QUEUE + i] == mine[QUEUE + j]) fail(EXIT_WRONG_DATA, "onesided: rank %d: a number is twice in its queue", rank);
    }
    expect("the tail", mine[TAIL], here ? (int64_t)PUSHES * ranks : 0);
    expect("the sum of the queue", queued, wanted);
    for (int i = 0; i < ARRAY; i++) {
        int64_t total = 0;
        for (int who = 0; who < ranks; who++)
            for (int n = 0; n < SUMS; n++)
                if ((who + n) % ranks == rank) total += (int64_t)i * (who + 1) + n;
        expect("a sum", mine[array_at() + i], total);
    }
    int from = (rank + ranks - 1) % ranks;
    size_t bytes = block_bytes(from);
    pattern_fill(scratch, bytes, pattern_key(opt.seed, round_number, (uint64_t)from));
    if (memcmp(&mine[block_at()], scratch, bytes))
        fail(EXIT_WRONG_DATA, "onesided: rank %d, round %llu: its block is not what was put", rank, (unsigned long long)round_number);
    values_checked += bytes / 8;
}

static void parse(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--seconds")) opt.seconds = parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--rounds")) opt.rounds = (uint64_t)parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--seed")) opt.seed = (uint64_t)parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--plant")) opt.plant = (uint64_t)parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--max")) opt.max = parse_bytes(option_value(argc, argv, &i));
        else {
            fputs(usage, stderr);
            _exit(EXIT_USAGE);
        }
    }
    if (opt.max == 0 || opt.max > 1 << 28) fail(EXIT_USAGE, "onesided: --max is 1 to 256MiB");
}

int main(int argc, char **argv) {
    parse(argc, argv);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks > 64) fail(EXIT_USAGE, "onesided: at most 64 ranks");
    MPI_Aint words = block_at() + (MPI_Aint)(opt.max / 8) + 2;
    MPI_Win_allocate(words * 8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &window);
    unsigned char *out = allocate(opt.max + 1), *in = allocate(opt.max + 1);
    uint64_t begin = monotonic_ns();
    if (rank == 0) announce_start();
    MPI_Win_lock_all(0, window);
    for (int more = 1; more; round_number++) {
        memset(mine, 0, (size_t)block_at() * 8);
        MPI_Win_sync(window);
        MPI_Barrier(MPI_COMM_WORLD);
        count();
        push();
        sum();
        exchange(out, in);
        MPI_Win_flush_all(window);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_sync(window);
        look(out);
        if (rank == 0) more = opt.rounds ? round_number + 1 < opt.rounds : (double)(monotonic_ns() - begin) < opt.seconds * 1e9;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    MPI_Win_unlock_all(window);
    double seconds = (double)(monotonic_ns() - begin) / 1e9;
    uint64_t all = 0;
    MPI_Reduce(&values_checked, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Win_free(&window);
    if (rank == 0) {
        printf("onesided: %d ranks, %llu rounds, %llu values, every byte right (seed %llu, %.1f s) [%s]\n", ranks,
               (unsigned long long)round_number, (unsigned long long)all, (unsigned long long)opt.seed, seconds, mpi_library());
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
