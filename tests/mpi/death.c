/* death: the last rank is killed in the middle of the job, and all others wait for a message of it.
 *
 * They set MPI to return errors instead of aborting, and print when the error came. Run it with the launcher's own
 * cleaning up switched off: it would end the others before the transport can report anything to them. With `--how fork`
 * the victim leaves a child behind, which has inherited its sockets and goes on living.
 */
#include "common.h"
#include <signal.h>

int main(int argc, char **argv) {
    const char *how = "kill";
    double after = 1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--how")) how = option_value(argc, argv, &i);
        else if (!strcmp(argv[i], "--after")) after = parse_number("--after", option_value(argc, argv, &i));
        else fail(EXIT_USAGE, "usage: death [--how kill|fork] [--after S]");
    }
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    size_t size = 1 << 20;
    unsigned char *out = allocate(size), *in = allocate(size);
    for (int distance = 1; distance < ranks; distance++) {
        int to = (rank + distance) % ranks, from = (rank - distance + ranks) % ranks;
        MPI_Sendrecv(out, (int)size, MPI_BYTE, to, 1, in, (int)size, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        announce_start();
        printf("death: %d ranks [%s]\n", ranks, mpi_library());
        fflush(stdout);
    }
    int victim = ranks - 1;
    if (rank == victim) {
        struct timespec t = {(time_t)after, (long)((after - (double)(time_t)after) * 1e9)};
        nanosleep(&t, NULL);
        if (!strcmp(how, "fork") && fork() == 0) {
            /* the launcher waits for the ends of these */
            for (int i = 0; i < 3; i++) close(i);
            sleep(20);
            _exit(0);
        }
        printf("death: rank %d dies at %llu\n", rank, (unsigned long long)realtime_ns());
        fflush(stdout);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
        kill(getpid(), SIGKILL);
    }
    int error = MPI_Recv(in, (int)size, MPI_BYTE, victim, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("death: rank %d was told at %llu: %s\n", rank, (unsigned long long)realtime_ns(),
           error == MPI_SUCCESS ? "a message that no rank sent" : "an error");
    fflush(stdout);
    /* MPI promises nothing after an error: leave without it, when the others have had their errors as well. */
    sleep(1);
    _exit(error == MPI_SUCCESS ? EXIT_WRONG_DATA : 0);
}
