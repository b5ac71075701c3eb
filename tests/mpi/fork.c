/* fork: ranks that start other programs and fork in the middle of checked traffic, as programs do that call a shell, a
 * compiler or Python's multiprocessing.
 *
 * In every round each rank has large and small messages under way to and from every other rank, and meanwhile makes a child in
 * one of five ways: system(), popen(), fork and exit (with the destructors and exit handlers that it inherited), fork and
 * exec, fork and stay until the end. No child may disturb a message, hang, or keep the job from ending.
 */
#include "common.h"
#include <signal.h>
#include <sys/wait.h>

enum { WAYS = 5, LARGE = 700000, SMALL = 200, TAG = 7 };

static pid_t stays[1024];
static int staying;

static void wait_for(pid_t child, const char *what) {
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail(1, "fork: the child that was to %s ended with status %#x", what, status);
}

static void make_a_child(int way) {
    pid_t child;
    char line[16] = "";
    fflush(NULL);
    if (way == 0) {
        if (system("exit 5") != 5 << 8) fail(1, "fork: system() failed");
    } else if (way == 1) {
        FILE *pipe = popen("echo hello", "r");
        if (!pipe || !fgets(line, sizeof line, pipe) || strcmp(line, "hello\n") || pclose(pipe)) fail(1, "fork: popen() failed");
    } else if ((child = fork()) < 0) {
        fail(1, "fork: %s", strerror(errno));
    } else if (child == 0) {
        alarm(60); /* a child that hangs ends by a signal, which its parent sees */
        if (way == 2) exit(0);
        if (way == 3) execl("/bin/sh", "sh", "-c", "true", (char *)NULL);
        else if (way == 4) {
            /* Drops the SIGTERM handler of its parent's MPI. */
            signal(SIGTERM, SIG_DFL);
            alarm(300);
            pause();
        }
        _exit(9);
    } else if (way == 4) {
        stays[staying++] = child;
    } else {
        wait_for(child, way == 2 ? "exit" : "execute a shell");
    }
}

int main(int argc, char **argv) {
    int rounds = 20;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--rounds")) rounds = (int)parse_number("--rounds", option_value(argc, argv, &i));
        else fail(EXIT_USAGE, "usage: fork [--rounds N]");
    }
    if (rounds > 1000) fail(EXIT_USAGE, "fork: at most 1000 rounds");
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    size_t each = LARGE + SMALL;
    unsigned char *out = allocate(each * (size_t)ranks), *in = allocate(each * (size_t)ranks);
    MPI_Request *requests = allocate(sizeof *requests * 4 * (size_t)ranks);
    announce_start();
    for (int round = 0; round < rounds; round++) {
        int n = 0;
        memset(in, 0xA5, each * (size_t)ranks);
        for (int other = 0; other < ranks; other++) {
            unsigned char *to = out + each * (size_t)other, *from = in + each * (size_t)other;
            pattern_fill(to, each, pattern_key((uint64_t)round, (uint64_t)rank, (uint64_t)other));
            MPI_Irecv(from, LARGE, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &requests[n++]);
            MPI_Irecv(from + LARGE, SMALL, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &requests[n++]);
        }
        for (int other = 0; other < ranks; other++) {
            unsigned char *to = out + each * (size_t)other;
            MPI_Isend(to, LARGE, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &requests[n++]);
            MPI_Isend(to + LARGE, SMALL, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &requests[n++]);
        }
        make_a_child((round + rank) % WAYS);
        MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
        for (int other = 0; other < ranks; other++) {
            int64_t wrong = pattern_check(in + each * (size_t)other, each, pattern_key((uint64_t)round, (uint64_t)other, (uint64_t)rank));
            if (wrong >= 0)
                fail(EXIT_WRONG_DATA, "fork: rank %d, round %d: wrong byte from rank %d at offset %lld", rank, round, other,
                     (long long)wrong);
        }
    }
    int children = rounds, all = 0;
    MPI_Reduce(&children, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("fork: %d ranks, %d children in the middle of traffic, every byte right [%s]\n", ranks, all, mpi_library());
    MPI_Finalize();
    /* They have outlived the fabric; only we wait for them. */
    for (int i = 0; i < staying; i++) {
        kill(stays[i], SIGKILL);
        waitpid(stays[i], NULL, 0);
    }
    return 0;
}
