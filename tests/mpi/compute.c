/* compute: ranks that are busy with themselves for long times, and exchange checked data in between.
 *
 * While it computes a rank makes no MPI call at all, so the library makes no progress on the application's threads: whatever
 * must go on meanwhile (answers to queries, noticing a broken rail) has to happen elsewhere. A busy peer is not a broken path.
 */
#include "common.h"

int main(int argc, char **argv) {
    double seconds = 5;
    int rounds = 2;
    size_t size = 1 << 20;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--seconds")) seconds = parse_number("--seconds", option_value(argc, argv, &i));
        else if (!strcmp(argv[i], "--rounds")) rounds = (int)parse_number("--rounds", option_value(argc, argv, &i));
        else if (!strcmp(argv[i], "--size")) size = parse_bytes(option_value(argc, argv, &i));
        else fail(EXIT_USAGE, "usage: compute [--seconds S] [--rounds N] [--size BYTES]");
    }
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    unsigned char *out = allocate(size), *in = allocate(size);
    volatile double sink = 1;
    double longest_ms = 0;
    for (int round = 0; round <= rounds; round++) {
        uint64_t begin = monotonic_ns();
        /* With each distance once, so that every pair of ranks talks in every round. */
        for (int distance = 1; distance < ranks; distance++) {
            int to = (rank + distance) % ranks, from = (rank - distance + ranks) % ranks;
            pattern_fill(out, size, pattern_key((uint64_t)round, (uint64_t)rank, (uint64_t)to));
            memset(in, 0xA5, size);
            MPI_Sendrecv(out, (int)size, MPI_BYTE, to, 1, in, (int)size, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            int64_t wrong = pattern_check(in, size, pattern_key((uint64_t)round, (uint64_t)from, (uint64_t)rank));
            if (wrong >= 0)
                fail(EXIT_WRONG_DATA, "compute: rank %d, round %d: wrong byte from rank %d at offset %lld", rank, round, from,
                     (long long)wrong);
        }
        double took_ms = (double)(monotonic_ns() - begin) / 1e6;
        if (took_ms > longest_ms) longest_ms = took_ms;
        if (round == rounds) break;
        if (round == 0 && rank == 0) announce_start();
        uint64_t end = monotonic_ns() + (uint64_t)(seconds * 1e9);
        while (monotonic_ns() < end)
            for (int i = 0; i < 10000; i++) sink = sink * 1.0000001 + 1e-9;
    }
    double longest_all = 0;
    MPI_Reduce(&longest_ms, &longest_all, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("compute: %d ranks, %d times %.1f s without an MPI call, every byte right; longest exchange %.1f ms [%s]\n",
               ranks, rounds, seconds, longest_all, mpi_library());
    MPI_Finalize();
    return 0;
}
