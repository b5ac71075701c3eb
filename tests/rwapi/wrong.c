/* wrong: every call that makes no sense is refused with the errno that the header says, and touches no byte. Two nodes or one.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rwapi_ext.h>

static int wrong;

#define REFUSED(call, failed, error)                                                                              \
    do {                                                                                                          \
        errno = 0;                                                                                                \
        if ((call) != (failed) || errno != (error)) {                                                             \
            fprintf(stderr, "wrong: %s: errno %d (%s) in the place of %d\n", #call, errno, strerror(errno), error); \
            wrong = 1;                                                                                            \
        }                                                                                                         \
    } while (0)

#define SIZE 10000

static int ends_with(rwapi_sid_t sid, int error) {
    int sent;
    while (!(sent = rwapi_issent(sid))) rwapi_wait(1000);
    return sent < 0 && errno == error;
}

int main(int argc, char **argv) {
    rwapi_small_t small = {{0}};
    rwapi_net_t net, gone, theirs;
    int node;
    REFUSED(rwapi_rank(), -1, ENOTCONN);
    REFUSED(rwapi_size(), -1, ENOTCONN);
    REFUSED(rwapi_alloc(1, &net), NULL, ENOTCONN);
    REFUSED(rwapi_send(0, small), -1, ENOTCONN);
    REFUSED(rwapi_receive(&node, &small), -1, ENOTCONN);
    REFUSED(rwapi_issent(1), -1, ENOTCONN);
    REFUSED(rwapi_wait(0), -1, ENOTCONN);
    REFUSED(rwapi_barrier(), -1, ENOTCONN);
    REFUSED(rwapi_finalize(), -1, ENOTCONN);
    if (rwapi_init(argc, argv) < 0) return 1;
    REFUSED(rwapi_init(argc, argv), -1, EALREADY);
    int me = rwapi_rank(), nodes = rwapi_size(), other = (me + 1) % nodes;
    unsigned char *block = rwapi_alloc(SIZE, &net), *freed = rwapi_alloc(SIZE, &gone);
    REFUSED(rwapi_alloc(0, &net), NULL, EINVAL);
    REFUSED(rwapi_alloc(1, NULL), NULL, EINVAL);
    REFUSED(rwapi_alloc((size_t)1 << 62, &theirs), NULL, ENOMEM);
    REFUSED(rwapi_free(block + 1), -1, EFAULT);
    REFUSED(rwapi_free(NULL), -1, EFAULT);
    if (rwapi_free(freed)) return 1;
    REFUSED(rwapi_free(freed), -1, EFAULT);
    memset(block, 7, SIZE);
    /* each sends the next one an address of a block, and that of a freed one */
    memcpy(small.bytes, &net, 8);
    memcpy(small.bytes + 8, &gone, 8);
    while (rwapi_send((me + nodes - 1) % nodes, small) < 0) rwapi_wait(100);
    while (rwapi_receive(&node, &small) != 1) rwapi_wait(100);
    memcpy(&theirs, small.bytes, 8);
    memcpy(&gone, small.bytes + 8, 8);
    REFUSED(rwapi_send(-1, small), -1, EINVAL);
    REFUSED(rwapi_send(nodes, small), -1, EINVAL);
    REFUSED(rwapi_receive(NULL, &small), -1, EINVAL);
    REFUSED(rwapi_receive(&node, NULL), -1, EINVAL);
    REFUSED(rwapi_issent(0), -1, EINVAL);
    REFUSED(rwapi_issent(-1), -1, EINVAL);
    REFUSED(rwapi_issent((rwapi_sid_t)1 << 62), -1, EINVAL);
    REFUSED(rwapi_write(nodes, net, theirs, 1), -1, EINVAL);
    REFUSED(rwapi_write(-1, net, theirs, 1), -1, EINVAL);
    REFUSED(rwapi_write(other, net, theirs, 0), -1, EINVAL);
    REFUSED(rwapi_write(other, 0, theirs, 1), -1, EFAULT);
    REFUSED(rwapi_write(other, net, theirs, SIZE + 1), -1, EFAULT);
    REFUSED(rwapi_write(other, net + SIZE, theirs, 1), -1, EFAULT);
    REFUSED(rwapi_write(other, net - 1, theirs, 1), -1, EFAULT);
    REFUSED(rwapi_write(other, net, theirs, (size_t)-1), -1, EFAULT);
    if (nodes > 1) {
        REFUSED(rwapi_write(other, theirs, theirs, 1), -1, EFAULT);
        REFUSED(rwapi_write(other, net, net, 1), -1, EFAULT);
    }
    /* what only the target can know */
    if (!ends_with(rwapi_write(other, net, theirs + 1, SIZE), EFAULT)) wrong = fprintf(stderr, "wrong: beyond a block\n");
    if (!ends_with(rwapi_write(other, net, theirs + SIZE - 1, 2), EFAULT)) wrong = fprintf(stderr, "wrong: over the end\n");
    if (!ends_with(rwapi_write(other, net, gone, 1), EFAULT)) wrong = fprintf(stderr, "wrong: a freed block\n");
    pid_t child = fork();
    if (child == 0) {
        REFUSED(rwapi_send(other, small), -1, EPERM);
        REFUSED(rwapi_receive(&node, &small), -1, EPERM);
        _exit(wrong);
    }
    int status;
    if (waitpid(child, &status, 0) < 0 || status) wrong = fprintf(stderr, "wrong: in a child\n");
    if (rwapi_barrier()) return 1;
    for (int i = 0; i < SIZE; i++)
        if (block[i] != 7) wrong = fprintf(stderr, "wrong: byte %d was touched\n", i);
    if (rwapi_finalize()) return 1;
    REFUSED(rwapi_finalize(), -1, ENOTCONN);
    REFUSED(rwapi_rank(), -1, ENOTCONN);
    if (!wrong) printf("wrong: node %d of %d: all refused\n", me, nodes);
    return !!wrong;
}
