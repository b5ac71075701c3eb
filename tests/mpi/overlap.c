/* overlap: how much of an exchange of large messages happens while the ranks compute, without a call into MPI.
 *
 * First the exchange alone, then the computation alone, which is made to take as long; then the exchange is begun, the same computation is
 * done, and the exchange is waited for. Overlap is the share of the exchange that took no time of its own: 100 % if both together take
 * as long as one, 0 % if one follows the other. The computation is a fixed amount of work, so that cycles which the transport takes
 * from it count against the transport. Every byte that arrives is checked.
 */
#include "common.h"

static volatile uint64_t sink;

static void work(uint64_t rounds) {
    uint64_t x = rounds | 1;
    for (uint64_t i = 0; i < rounds; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    sink = x;
}

static int compare_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof(double), compare_double);
    return values[n / 2];
}

int main(int argc, char **argv) {
    size_t size = 4 << 20;
    int iterations = 20;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--size")) size = parse_bytes(option_value(argc, argv, &i));
        else if (!strcmp(argv[i], "--iterations")) iterations = (int)parse_number("--iterations", option_value(argc, argv, &i));
        else fail(EXIT_USAGE, "usage: overlap [--size BYTES] [--iterations N]");
    }
    if (iterations < 1) fail(EXIT_USAGE, "overlap: --iterations is 1 or more");
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks % 2) fail(EXIT_USAGE, "overlap needs an even number of ranks");
    int peer = (rank + ranks / 2) % ranks;
    unsigned char *out = allocate(size), *in = allocate(size);
    double *ms = malloc(sizeof(double) * (size_t)iterations);
    if (!ms) fail(1, "out of memory");
    double alone = 0, computing = 0, together = 0;
    uint64_t rounds = 0;
    if (rank == 0) announce_start();
    for (int phase = 0; phase < 3; phase++) {
        if (phase == 1) {
            /* as long as the exchange, on every rank, whatever it measured itself */
            MPI_Bcast(&alone, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
            uint64_t begin = monotonic_ns();
            work(20u << 20);
            double each = (double)(monotonic_ns() - begin) / 1e6;
            rounds = (uint64_t)((20u << 20) * alone / each);
        }
        for (int i = -2; i < iterations; i++) {
            uint64_t number = (uint64_t)(phase * 1000000 + i + 2);
            pattern_fill(out, size, pattern_key(number, (uint64_t)rank, 1));
            MPI_Request two[2];
            MPI_Barrier(MPI_COMM_WORLD);
            uint64_t begin = monotonic_ns();
            if (phase != 1) {
                MPI_Irecv(in, (int)size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &two[0]);
                MPI_Isend(out, (int)size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &two[1]);
            }
            if (phase != 0) work(rounds);
            if (phase != 1) MPI_Waitall(2, two, MPI_STATUSES_IGNORE);
            if (i >= 0) ms[i] = (double)(monotonic_ns() - begin) / 1e6;
            if (phase != 1 && pattern_check(in, size, pattern_key(number, (uint64_t)peer, 1)) >= 0)
                fail(EXIT_WRONG_DATA, "overlap: rank %d: wrong data in exchange %d", rank, i);
        }
        *(phase == 0 ? &alone : phase == 1 ? &computing : &together) = median(ms, iterations);
    }
    if (rank == 0) {
        double overlap = 100 * (1 - (together - computing) / alone);
        printf("overlap: %zu bytes, exchange alone %.2f ms, computation alone %.2f ms, together %.2f ms: overlap %.1f %% [%s]\n", size, alone,
               computing, together, overlap, mpi_library());
        fflush(stdout);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
