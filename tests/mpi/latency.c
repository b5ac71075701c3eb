/* latency: half the round trip of a small message between rank 0 and the last rank, median and percentiles.
 * Every answer is checked, and every size runs the same number of times.
 */
#include "common.h"

static int compare_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    size_t size = 8;
    int iterations = 20000;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--size")) size = parse_bytes(option_value(argc, argv, &i));
        else if (!strcmp(argv[i], "--iterations")) iterations = (int)parse_number("--iterations", option_value(argc, argv, &i));
        else fail(EXIT_USAGE, "usage: latency [--size BYTES] [--iterations N]");
    }
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 2) fail(EXIT_USAGE, "latency needs two ranks");
    unsigned char *buffer = allocate(size);
    double *half_us = malloc(sizeof(double) * (size_t)iterations);
    if (!half_us) fail(1, "out of memory");
    int warm_up = iterations / 10 + 10;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = -warm_up; i < iterations && (rank == 0 || rank == ranks - 1); i++) {
        uint64_t key = pattern_key(1, (uint64_t)(int64_t)i, 0);
        if (i == 0 && rank == 0) announce_start();
        if (rank == 0) {
            pattern_fill(buffer, size, key);
            uint64_t begin = monotonic_ns();
            MPI_Send(buffer, (int)size, MPI_BYTE, ranks - 1, 1, MPI_COMM_WORLD);
            MPI_Recv(buffer, (int)size, MPI_BYTE, ranks - 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (i >= 0) half_us[i] = (double)(monotonic_ns() - begin) / 2e3;
            if (pattern_check(buffer, size, ~key) >= 0) fail(EXIT_WRONG_DATA, "latency: wrong data in answer %d", i);
        } else {
            MPI_Recv(buffer, (int)size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (pattern_check(buffer, size, key) >= 0) fail(EXIT_WRONG_DATA, "latency: wrong data in message %d", i);
            pattern_fill(buffer, size, ~key);
            MPI_Send(buffer, (int)size, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
        }
    }
    if (rank == 0) {
        qsort(half_us, (size_t)iterations, sizeof(double), compare_double);
        printf("latency: %zu bytes, half round trip us: median %.2f, p99 %.2f, max %.2f (%d round trips) [%s]\n", size,
               half_us[iterations / 2], half_us[(size_t)(iterations * 0.99)], half_us[iterations - 1], iterations, mpi_library());
        fflush(stdout);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
