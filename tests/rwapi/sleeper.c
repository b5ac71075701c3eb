/* sleeper: node 0 sends small messages to all others, which sleep at first and call nothing. All must arrive, in order, and no process may
 * grow with what waits. Prints the growth of node 0 in KiB.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <rwapi_ext.h>

static long resident_kib(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

int main(int argc, char **argv) {
    unsigned long long messages = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000;
    unsigned seconds = argc > 2 ? (unsigned)atoi(argv[2]) : 2;
    if (rwapi_init(argc, argv) < 0) return 1;
    int me = rwapi_rank(), nodes = rwapi_size();
    long before = resident_kib();
    rwapi_small_t small = {{0}};
    if (me == 0) {
        unsigned long long *sent = calloc((size_t)nodes, sizeof *sent);
        unsigned long long refused = 0;
        for (int left = nodes - 1; left;) {
            int moved = 0;
            left = 0;
            for (int node = 1; node < nodes; node++) {
                if (sent[node] == messages) continue;
                left++;
                unsigned long long number = sent[node] + 1;
                memcpy(small.bytes, &number, 8);
                if (!rwapi_send(node, small)) {
                    sent[node]++;
                    moved = 1;
                } else if (errno == EAGAIN) {
                    refused++;
                } else {
                    return 3;
                }
            }
            if (left && !moved) rwapi_wait(1000);
        }
        if (!refused) {
            fprintf(stderr, "sleeper: no message was ever refused\n");
            return 3;
        }
        free(sent);
    } else {
        sleep(seconds);
        for (unsigned long long expected = 1; expected <= messages;) {
            int node;
            unsigned long long number;
            int found = rwapi_receive(&node, &small);
            if (found < 0) return 3;
            if (!found) {
                rwapi_wait(1000);
                continue;
            }
            memcpy(&number, small.bytes, 8);
            if (node != 0 || number != expected++) {
                fprintf(stderr, "sleeper: node %d: message %llu of %d came where %llu was due\n", me, number, node, expected - 1);
                return 3;
            }
        }
    }
    long grown = resident_kib() - before;
    if (grown > 8192) {
        fprintf(stderr, "sleeper: node %d grew by %ld KiB\n", me, grown);
        return 3;
    }
    if (rwapi_finalize() < 0) return 4;
    if (me == 0) printf("sleeper: %llu messages to each of %d nodes, node 0 grew by %ld KiB\n", messages, nodes - 1, grown);
    return 0;
}
