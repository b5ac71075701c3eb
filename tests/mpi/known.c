/* known: rank 0 sends messages full of known words to the last rank, small ones and large ones, which sends each back. Every byte is
 * checked. What looks at the wire meanwhile (tests/tools/wire.py) finds the words, unless the traffic is encrypted.
 */
#include "common.h"

static const char WORDS[] = "Rerail: these words are known to whoever looks at the wire. ";

static const size_t SIZES[] = {64, 1000, 4096, 65536, 1 << 20};

static unsigned char word(size_t at) { return (unsigned char)WORDS[at % (sizeof WORDS - 1)]; }

static void check(const unsigned char *buffer, size_t bytes, int round) {
    for (size_t i = 0; i < bytes; i++)
        if (buffer[i] != word(i)) fail(EXIT_WRONG_DATA, "known: wrong byte %zu of %zu in round %d", i, bytes, round);
}

int main(int argc, char **argv) {
    int rounds = 20;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--rounds")) rounds = (int)parse_number("--rounds", option_value(argc, argv, &i));
        else fail(EXIT_USAGE, "usage: known [--rounds N]");
    }
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 2) fail(EXIT_USAGE, "known needs two ranks");
    size_t most = SIZES[sizeof SIZES / sizeof SIZES[0] - 1];
    unsigned char *buffer = allocate(most);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) announce_start();
    for (int round = 0; round < rounds; round++) {
        for (size_t s = 0; s < sizeof SIZES / sizeof SIZES[0]; s++) {
            int bytes = (int)SIZES[s];
            if (rank == 0) {
                for (size_t i = 0; i < SIZES[s]; i++) buffer[i] = word(i);
                MPI_Send(buffer, bytes, MPI_BYTE, ranks - 1, 1, MPI_COMM_WORLD);
                memset(buffer, 0, SIZES[s]);
                MPI_Recv(buffer, bytes, MPI_BYTE, ranks - 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                check(buffer, SIZES[s], round);
            } else if (rank == ranks - 1) {
                MPI_Recv(buffer, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                check(buffer, SIZES[s], round);
                MPI_Send(buffer, bytes, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
            }
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        printf("known: %d rounds, every byte right [%s]\n", rounds, mpi_library());
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
