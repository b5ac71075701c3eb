/* A librwapi.so of one process, for the unit tests: what a node sends or writes arrives at this node.
 *
 * With LOOPBACK_GONE=1 in the environment the job has a second node that is gone from the beginning.
 * Writes are copied when the next call makes progress, so that is_sent is False first.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t rwapi_net_t;
typedef struct rwapi_small { uint8_t bytes[16]; } rwapi_small_t;
typedef int64_t rwapi_sid_t;

enum { INBOX_MAX = 64, BLOCKS_MAX = 64, WRITES_MAX = 8 };

/* Network addresses are apart from local ones, to catch a binding that confuses them. */
static const rwapi_net_t NET_BASE = UINT64_C(0x5000000000000000);

struct block { char *memory; size_t size; };
/* A small message, or a write with a message after it if `notify` is set. They stay in order in one queue. */
struct item { rwapi_sid_t sid; rwapi_net_t local, remote; size_t size; int small; rwapi_small_t content; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static int state; /* 0 before init, 1 in the job, 2 after finalize */
static pid_t owner;
static int nodes, gone_reported;
static struct block blocks[BLOCKS_MAX];
static struct item under_way[WRITES_MAX + INBOX_MAX];
static int under_way_count, writes_under_way;
static rwapi_small_t inbox[INBOX_MAX];
static int inbox_first, inbox_count;
static rwapi_sid_t next_sid = 1;
static unsigned char refused[65536]; /* by sid */

static int fail(int error) { errno = error; return -1; }

static int enter(void)
{
    if (state != 1) return fail(ENOTCONN);
    if (getpid() != owner) return fail(EPERM);
    pthread_mutex_lock(&lock);
    return 0;
}

static int leave(int result, int error)
{
    pthread_mutex_unlock(&lock);
    if (result < 0) errno = error;
    return result;
}

static char *find(rwapi_net_t net, size_t size)
{
    for (int i = 0; i < BLOCKS_MAX; i++) {
        rwapi_net_t first = NET_BASE + (rwapi_net_t)(uintptr_t)blocks[i].memory;
        if (blocks[i].memory && net >= first && net - first <= blocks[i].size && size <= blocks[i].size - (net - first))
            return blocks[i].memory + (net - first);
    }
    return NULL;
}

static void progress(void)
{
    int taken = 0;
    while (taken < under_way_count) {
        struct item *item = &under_way[taken];
        if (item->small && inbox_count == INBOX_MAX) break;
        if (item->sid) {
            char *from = find(item->local, item->size), *to = find(item->remote, item->size);
            if (from && to) memmove(to, from, item->size);
            else refused[item->sid % 65536] = 1;
            writes_under_way--;
        }
        if (item->small) inbox[(inbox_first + inbox_count++) % INBOX_MAX] = item->content;
        taken++;
    }
    under_way_count -= taken;
    memmove(under_way, under_way + taken, under_way_count * sizeof *under_way);
}

int rwapi_init(int argc, char **argv)
{
    if (state) return fail(EALREADY);
    if (argc < 0 || (argc > 0 && argv[argc] != NULL)) return fail(EINVAL);
    nodes = getenv("LOOPBACK_GONE") ? 2 : 1;
    owner = getpid();
    state = 1;
    return 0;
}

int rwapi_finalize(void)
{
    if (enter()) return -1;
    state = 2;
    return leave(0, 0);
}

int rwapi_rank(void) { return state == 1 ? 0 : fail(ENOTCONN); }
int rwapi_size(void) { return state == 1 ? nodes : fail(ENOTCONN); }

void *rwapi_alloc(size_t size, rwapi_net_t *net)
{
    if (enter()) return NULL;
    progress();
    if (size == 0) { leave(-1, EINVAL); return NULL; }
    for (int i = 0; i < BLOCKS_MAX; i++) {
        if (blocks[i].memory) continue;
        void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) break;
        blocks[i] = (struct block){memory, size};
        *net = NET_BASE + (rwapi_net_t)(uintptr_t)memory;
        leave(0, 0);
        return memory;
    }
    leave(-1, ENOMEM);
    return NULL;
}

int rwapi_free(void *memory)
{
    if (enter()) return -1;
    progress();
    for (int i = 0; i < BLOCKS_MAX; i++)
        if (memory && blocks[i].memory == memory) {
            munmap(memory, blocks[i].size);
            blocks[i] = (struct block){0};
            return leave(0, 0);
        }
    return leave(-1, EFAULT);
}

static int refuse_node(int node)
{
    if (node < 0 || node >= nodes) return EINVAL;
    return node == 1 ? EHOSTDOWN : 0;
}

int rwapi_send(int node, rwapi_small_t small)
{
    if (enter()) return -1;
    int error = refuse_node(node);
    if (error) return leave(-1, error);
    progress();
    if (inbox_count + under_way_count >= INBOX_MAX) return leave(-1, EAGAIN);
    under_way[under_way_count++] = (struct item){.small = 1, .content = small};
    pthread_cond_broadcast(&arrived);
    return leave(0, 0);
}

int rwapi_receive(int *node, rwapi_small_t *small)
{
    if (enter()) return -1;
    progress();
    if (inbox_count) {
        *node = 0;
        *small = inbox[inbox_first];
        inbox_first = (inbox_first + 1) % INBOX_MAX;
        inbox_count--;
        return leave(1, 0);
    }
    if (nodes == 2 && !gone_reported) {
        gone_reported = 1;
        *node = 1;
        return leave(-1, EHOSTDOWN);
    }
    return leave(0, 0);
}

static rwapi_sid_t write_item(int node, struct item item)
{
    if (enter()) return -1;
    int error = refuse_node(node);
    if (!error && item.size == 0) error = EINVAL;
    if (!error && (!find(item.local, item.size) || !find(item.remote, item.size))) error = EFAULT;
    if (error) return leave(-1, error);
    if (writes_under_way >= WRITES_MAX || (item.small && inbox_count + under_way_count >= INBOX_MAX)) {
        progress();
        return leave(-1, EAGAIN);
    }
    item.sid = next_sid++;
    refused[item.sid % 65536] = 0;
    under_way[under_way_count++] = item;
    writes_under_way++;
    pthread_cond_broadcast(&arrived);
    leave(0, 0);
    return item.sid;
}

rwapi_sid_t rwapi_write(int node, rwapi_net_t local, rwapi_net_t remote, size_t size)
{
    return write_item(node, (struct item){.local = local, .remote = remote, .size = size});
}

rwapi_sid_t rwapi_write_notify(int node, rwapi_net_t local, rwapi_net_t remote, size_t size, rwapi_small_t small)
{
    struct item item = {.local = local, .remote = remote, .size = size, .small = 1, .content = small};
    return write_item(node, item);
}

int rwapi_issent(rwapi_sid_t sid)
{
    if (enter()) return -1;
    if (sid < 1 || sid >= next_sid) return leave(-1, EINVAL);
    int waits = 0;
    for (int i = 0; i < under_way_count; i++)
        if (under_way[i].sid == sid) waits = 1;
    progress();
    if (waits) return leave(0, 0);
    return refused[sid % 65536] ? leave(-1, EFAULT) : leave(1, 0);
}

int rwapi_wait(int timeout_ms)
{
    if (enter()) return -1;
    int changed = under_way_count > 0;
    progress();
    changed |= inbox_count > 0 || (nodes == 2 && !gone_reported);
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += timeout_ms / 1000;
    end.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (end.tv_nsec >= 1000000000L) { end.tv_sec++; end.tv_nsec -= 1000000000L; }
    for (int error = 0; !changed && !error; changed = under_way_count > 0)
        error = timeout_ms < 0 ? pthread_cond_wait(&arrived, &lock) : pthread_cond_timedwait(&arrived, &lock, &end);
    return leave(changed != 0, 0);
}

int rwapi_barrier(void) { return enter() ? -1 : leave(0, 0); }

const char *rwapi_error_string(int error)
{
    switch (error) {
    case EAGAIN: return "there is no room now: try again";
    case EFAULT: return "the address is in no block";
    case EHOSTDOWN: return "the node is gone";
    case ENOTCONN: return "rwapi_init was not called, or rwapi_finalize was";
    case EALREADY: return "rwapi_init was called before";
    default: return "the call failed";
    }
}
