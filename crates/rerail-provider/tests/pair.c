/* pair: two processes, joined by Rerail over loopback, and what must hold when one of them forks, leaves, stops or is lost.
 *
 * Usage: pair [name of one test]. Needs FI_PROVIDER_PATH and FI_PROVIDER=rerail. Each test has two sides, `left` and `right`, in
 * processes of their own, which a third watches: a side that does not end in time is a hang. Beside the fabric a pair of
 * sockets joins them, for addresses and for telling each other how far they are. Compiled and run by library.rs.
 */
#define _GNU_SOURCE
#include "checks.h"
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* ---- one side ---- */

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t there; /* the other side's endpoint */
static int beside;      /* the sockets beside the fabric */
static pid_t other;     /* the other side's process */
static uint64_t one_sided; /* capabilities beyond messages */

static void get_info(uint64_t tx_flags)
{
    struct fi_info *hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_SOURCE | one_sided;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup("rerail");
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    info->tx_attr->op_flags |= tx_flags;
    fi_freeinfo(hints);
}

static struct fid_ep *open_ep(void)
{
    struct fid_ep *e;
    OK(fi_endpoint(domain, info, &e, NULL));
    OK(fi_ep_bind(e, &av->fid, 0));
    OK(fi_ep_bind(e, &cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_enable(e));
    return e;
}

static void tell(const void *p, size_t n)
{
    CHECK(write(beside, p, n) == (ssize_t)n);
}

static void hear(void *p, size_t n)
{
    for (size_t got = 0; got < n;) {
        ssize_t k = read(beside, (char *)p + got, n - got);
        if (k <= 0)
            FAIL("the other side has ended");
        got += k;
    }
}

static int heard_something(void)
{
    struct pollfd p = {.fd = beside, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* Both sides are here. */
static void meet(void)
{
    char c = 'm';
    tell(&c, 1);
    hear(&c, 1);
}

/* The other side's next blob, inserted. */
static fi_addr_t hear_address(void)
{
    char blob[BLOB];
    fi_addr_t addr;
    hear(blob, BLOB);
    CHECK(fi_av_insert(av, blob, 1, &addr, 0, NULL) == 1);
    return addr;
}

static void tell_address(struct fid_ep *e)
{
    char blob[BLOB];
    size_t len = BLOB;
    OK(fi_getname(&e->fid, blob, &len));
    tell(blob, BLOB);
}

static void open_with(uint64_t tx_flags)
{
    struct fi_av_attr attr = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE};
    get_info(tx_flags);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &attr, &av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    ep = open_ep();
    tell_address(ep);
    there = hear_address();
    pid_t self = getpid();
    tell(&self, sizeof self);
    hear(&other, sizeof other);
}

static void open_all(void)
{
    open_with(0);
}

static void close_all(void)
{
    OK(fi_close(&ep->fid));
    OK(fi_close(&cq->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
    fi_freeinfo(info);
}

/* The next completion, or error entry; 0 when there is none now. */
static struct fi_cq_tagged_entry entry;
static struct fi_cq_err_entry failed;
static fi_addr_t source;

static int look(void)
{
    ssize_t n = fi_cq_readfrom(cq, &entry, 1, &source);
    if (n == -FI_EAVAIL) {
        memset(&failed, 0, sizeof failed);
        CHECK(fi_cq_readerr(cq, &failed, 0) == 1);
        return -1;
    }
    CHECK(n == 1 || n == -FI_EAGAIN);
    return n == 1;
}

static int await(void)
{
    for (double end = now() + PATIENCE_S; now() < end;) {
        int r = look();
        if (r)
            return r;
    }
    FAIL("waited in vain for a completion");
}

/* The next completion is an error, and this one. */
static void await_error(int err, const void *context)
{
    if (await() > 0)
        FAIL("%p succeeded", entry.op_context);
    if (failed.err != err || failed.op_context != context)
        FAIL("%p failed: %s; expected was %p: %s", failed.op_context, fi_strerror(failed.err), context, fi_strerror(err));
}

static void await_success(void)
{
    if (await() < 0)
        FAIL("operation %p failed: %s", failed.op_context, fi_strerror(failed.err));
}

/* No completion for a while. */
static void quiet(double seconds)
{
    for (double end = now() + seconds; now() < end;)
        if (look())
            FAIL("a completion for %p that must not be there", entry.op_context);
}

/* Makes progress, without a completion, until the other side has said something beside the fabric. */
static void until_heard(void)
{
    for (double end = now() + PATIENCE_S; !heard_something();) {
        if (look())
            FAIL("a completion for %p that must not be there", entry.op_context);
        if (now() > end)
            FAIL("waited in vain for the other side");
    }
}

#define RETRY(call)                                                                                                      \
    do {                                                                                                                 \
        ssize_t retry_rc_;                                                                                               \
        while ((retry_rc_ = (call)) == -FI_EAGAIN)                                                                       \
            fi_cq_read(cq, NULL, 0);                                                                                     \
        OK(retry_rc_);                                                                                                   \
    } while (0)

static void send_int(int value, uint64_t tag)
{
    RETRY(fi_tinject(ep, &value, sizeof value, there, tag));
}

static int recv_int(uint64_t tag)
{
    int value = -1;
    OK(fi_trecv(ep, &value, sizeof value, NULL, FI_ADDR_UNSPEC, tag, 0, NULL));
    await_success();
    return value;
}

/* Sends and receives something, so that the sides are connected. */
static void warm_up(void)
{
    send_int(1, 999);
    CHECK(recv_int(999) == 1);
}

/* Numbers to and fro, going on from call to call. */
static void exchange(int rounds)
{
    static int number;
    for (int i = 0; i < rounds; i++, number++) {
        send_int(number, 500);
        CHECK(recv_int(500) == number);
    }
}

/* ---- what happens to the other side ---- */

static void stop(pid_t p)
{
    kill(p, SIGSTOP);
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", p);
    for (double end = now() + PATIENCE_S; state != 'T' && now() < end;) {
        FILE *f = fopen(path, "r");
        CHECK(f && fscanf(f, "%*d %*s %c", &state) == 1);
        fclose(f);
    }
    CHECK(state == 'T');
}

static int descriptors(int sockets_only)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    CHECK(d);
    for (struct dirent *e; (e = readdir(d));) {
        char link[64] = "";
        if (readlinkat(dirfd(d), e->d_name, link, sizeof link - 1) > 0)
            n += !sockets_only || !strncmp(link, "socket:", 7);
    }
    closedir(d);
    return n;
}

/* ---- fork (hazard H16) ---- */

/* Runs `child` in a forked child; it must end by itself with 0. */
static void in_a_child(void (*child)(void))
{
    pid_t p = fork();
    CHECK(p >= 0);
    if (p == 0) {
        alarm(PATIENCE_S);
        child();
        exit(0); /* destructors and atexit handlers run, as those of the parent would */
    }
    int status;
    CHECK(waitpid(p, &status, 0) == p);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        FAIL("a child ended with status %#x", status);
}

static void nothing(void)
{
}

static void execute(void)
{
    execl("/bin/sh", "sh", "-c", "true", (char *)NULL);
    FAIL("cannot execute a shell");
}

static void call_everything(void)
{
    char b[64] = "x";
    uint64_t n = 0;
    size_t len = sizeof b;
    struct iovec v = {b, 1};
    struct fi_msg_tagged m = {.msg_iov = &v, .iov_count = 1, .addr = there};
    CHECK(fi_tsend(ep, b, 1, NULL, there, 1, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_tinject(ep, b, 1, there, 1) == -FI_EOPNOTSUPP);
    CHECK(fi_tsendmsg(ep, &m, FI_COMPLETION) == -FI_EOPNOTSUPP);
    CHECK(fi_trecv(ep, b, 1, NULL, there, 1, 0, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_recv(ep, b, 1, NULL, there, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_cancel(&ep->fid, b) == -FI_EOPNOTSUPP);
    CHECK(fi_cq_read(cq, &entry, 1) == -FI_EOPNOTSUPP);
    CHECK(fi_cq_sread(cq, &entry, 1, NULL, -1) == -FI_EOPNOTSUPP);
    CHECK(fi_cq_readerr(cq, &failed, 0) == -FI_EOPNOTSUPP);
    CHECK(fi_av_insert(av, b, 1, &there, 0, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_getname(&ep->fid, b, &len) == -FI_EOPNOTSUPP);
    CHECK(fi_control(&ep->fid, FI_GETOPSFLAG, &n) == -FI_EOPNOTSUPP);
    struct fid_ep *e;
    struct fid_mr *mr;
    CHECK(fi_endpoint(domain, info, &e, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_mr_reg(domain, b, 1, FI_REMOTE_READ, 0, 0, 0, &mr, NULL) == -FI_EOPNOTSUPP);
    /* Closing is what a child's clean-up may do; it does nothing. */
    close_all();
}

static void no_sockets(void)
{
    /* Only those beside the fabric. */
    CHECK(descriptors(1) == 1);
}

/* A child of a child, made without the handlers of fork. */
static void grandchild(void)
{
    pid_t p = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    CHECK(p >= 0);
    if (p == 0) {
        CHECK(fi_cq_read(cq, &entry, 1) == -FI_EOPNOTSUPP);
        _exit(0);
    }
    int status;
    CHECK(waitpid(p, &status, 0) == p && status == 0);
}

static void children_say_nothing_in_their_parents_name_left(void)
{
    void (*children[])(void) = {nothing, execute, call_everything, no_sockets, grandchild};
    open_all();
    warm_up();
    for (int i = 0; i < 5; i++) {
        exchange(20);
        in_a_child(children[i]);
    }
    exchange(20);
    if (system("exit 7") != 7 << 8)
        FAIL("system() does not work");
    FILE *f = popen("echo hello", "r");
    char line[16] = "";
    CHECK(f && fgets(line, sizeof line, f) && !strcmp(line, "hello\n") && pclose(f) == 0);
    exchange(20);
    close_all();
}

static void children_say_nothing_in_their_parents_name_right(void)
{
    open_all();
    warm_up();
    exchange(140);
    close_all();
}

static volatile int traffic_is_over;

static void *traffic(void *rounds)
{
    exchange((int)(intptr_t)rounds);
    traffic_is_over = 1;
    return NULL;
}

enum { BUSY_ROUNDS = 3000 };

static void forks_amid_traffic_hang_nobody_left(void)
{
    pthread_t t;
    open_all();
    warm_up();
    pthread_create(&t, NULL, traffic, (void *)(intptr_t)BUSY_ROUNDS);
    int forks = 0;
    while (!traffic_is_over || forks < 20) {
        in_a_child(forks++ % 2 ? nothing : no_sockets);
    }
    pthread_join(t, NULL);
    close_all();
}

static void forks_amid_traffic_hang_nobody_right(void)
{
    open_all();
    warm_up();
    exchange(BUSY_ROUNDS);
    close_all();
}

/* The child lives on when its parent has closed and gone. */
static void a_child_that_lives_on_holds_nothing_up_left(void)
{
    int ready[2];
    CHECK(pipe2(ready, O_CLOEXEC) == 0);
    open_all();
    warm_up();
    pid_t p = fork();
    CHECK(p >= 0);
    if (p == 0) {
        /* Until the watcher ends the group. */
        close(beside);
        write(ready[1], "r", 1);
        pause();
        _exit(0);
    }
    char c;
    CHECK(read(ready[0], &c, 1) == 1);
    exchange(10);
    close_all();
}

static void a_child_that_lives_on_holds_nothing_up_right(void)
{
    open_all();
    warm_up();
    exchange(10);
    /* The goodbye of the other side ends what only it could have satisfied. */
    int in;
    OK(fi_trecv(ep, &in, sizeof in, NULL, there, 1, 0, &in));
    await_error(FI_ECONNRESET, &in);
    close_all();
}

/* ---- exit without close (hazard H5) ---- */

enum { LAST_WORDS = 300 };

static void what_was_completed_arrives_after_exit_left(void)
{
    static char out[4096];
    open_all();
    warm_up();
    stop(other);
    for (int i = 0; i < LAST_WORDS; i++) {
        size_t n = 8 + (i * 37) % 4000;
        memcpy(out, &i, sizeof i);
        fill(out + 8, n - 8, i);
        RETRY(fi_tsend(ep, out, n, NULL, there, 1, &out));
        await_success();
    }
    /* Never completed: it may be withdrawn, and must not arrive as something else. */
    char *big = malloc(1 << 20);
    fill(big, 1 << 20, 3);
    OK(fi_tsend(ep, big, 1 << 20, NULL, there, 2, big));
    int after = 77;
    OK(fi_tsend(ep, &after, sizeof after, NULL, there, 3, NULL));
    memset(big, 0xee, 1 << 20);
    /* The other side wakes up while this one is leaving. A process that does not wait takes this child with it. */
    if (fork() == 0) {
        usleep(300000);
        kill(other, SIGCONT);
        _exit(0);
    }
    exit(0);
}

static void what_was_completed_arrives_after_exit_right(void)
{
    static char in[8192], big[1 << 20];
    open_all();
    warm_up();
    for (int i = 0; i < LAST_WORDS; i++) {
        OK(fi_trecv(ep, in, sizeof in, NULL, there, 1, 0, in));
        await_success();
        size_t n = 8 + (i * 37) % 4000;
        CHECK(entry.len == n && *(int *)in == i && same(in + 8, n - 8, i));
    }
    CHECK(recv_int(3) == 77);
    OK(fi_trecv(ep, big, sizeof big, NULL, FI_ADDR_UNSPEC, 2, 0, big));
    await_error(FI_ECONNRESET, big);
    OK(fi_trecv(ep, in, sizeof in, NULL, there, 1, 0, in));
    await_error(FI_ECONNRESET, in);
    int value = 0;
    CHECK(fi_tinject(ep, &value, sizeof value, there, 1) == -FI_ECONNRESET);
    close_all();
}

static void exit_from_a_signal(int s)
{
    (void)s;
    exit(0);
}

/* The handler interrupts a call, perhaps with a lock in hand: it must end all the same. */
static void exit_from_a_signal_handler_does_not_hang_left(void)
{
    open_all();
    warm_up();
    signal(SIGALRM, exit_from_a_signal);
    ualarm(20000, 0);
    for (;;)
        fi_cq_read(cq, &entry, 1);
}

static void exit_from_a_signal_handler_does_not_hang_right(void)
{
    open_all();
    warm_up();
    char c;
    CHECK(read(beside, &c, 1) == 0); /* it has ended */
    close_all();
}

/* ---- completion levels (hazard H14) ---- */

/* The default of FI_RERAIL_COPY_SIZE. */
enum { COPIED_BYTES = 16384 };

static void a_promised_delivery_waits_for_the_peers_engine_left(void)
{
    static char big[60000];
    char small[8] = "small";
    struct iovec v[3] = {{small, sizeof small}, {big, 1300}, {big, COPIED_BYTES}};
    open_all();
    warm_up();
    for (int i = 0; i < 3; i++) {
        struct fi_msg_tagged m = {
            .msg_iov = &v[i], .iov_count = 1, .addr = there, .tag = i ? 2 : 1, .context = &v[i]};
        stop(other);
        /* Without a promise it completes although the peer is stopped: the control for what follows. */
        OK(fi_tsendmsg(ep, &m, FI_COMPLETION));
        await_success();
        CHECK(entry.op_context == &v[i]);
        OK(fi_tsendmsg(ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
        quiet(0.15);
        kill(other, SIGCONT);
        await_success();
        CHECK(entry.op_context == &v[i]);
        if (v[i].iov_len <= info->tx_attr->inject_size) {
            /* An injected one gives its memory back at once, and keeps its promise. */
            stop(other);
            OK(fi_tsendmsg(ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE | FI_INJECT));
            quiet(0.15);
            kill(other, SIGCONT);
            await_success();
        }
    }
    /* What is not copied keeps its memory until the peer's process has it, without a promise too. */
    stop(other);
    OK(fi_tsend(ep, big, sizeof big, NULL, there, 2, big));
    quiet(0.15);
    kill(other, SIGCONT);
    await_success();
    CHECK(entry.op_context == big);
    meet();
    close_all();
}

static void a_promised_delivery_waits_for_the_peers_engine_right(void)
{
    open_all();
    warm_up();
    char c = 'm';
    /* The small ones are not received: a delivery is not a match. What fits no datagram may be announced while there is no stream, and
     * is then delivered when it is received. The service thread takes what comes. */
    static char in[5][60000];
    for (int i = 0; i < 5; i++)
        OK(fi_trecv(ep, in[i], sizeof in[i], NULL, there, 2, 0, in[i]));
    hear(&c, 1);
    tell(&c, 1);
    close_all();
}

/* Messages of the next test, by tag: four received late, one looked at and thrown away, one never received. */
enum { MATCHES = 4, DISCARDED = 10, ORPHANED = 11 };
static const size_t match_bytes[MATCHES] = {0, 8, COPIED_BYTES, 300000};

static void a_promised_match_waits_for_a_receive_left(void)
{
    static char out[300000];
    open_all();
    warm_up();
    for (int i = 0; i < 2 * MATCHES; i++) {
        size_t n = match_bytes[i / 2];
        uint64_t inject = i % 2 ? FI_INJECT : 0;
        if (inject && n > info->tx_attr->inject_size)
            continue;
        fill(out, n, i);
        struct iovec v = {out, n};
        struct fi_msg_tagged m = {.msg_iov = &v, .iov_count = 1, .addr = there, .tag = 2, .context = &out[i]};
        OK(fi_tsendmsg(ep, &m, FI_COMPLETION | FI_MATCH_COMPLETE | inject));
        if (inject)
            fill(out, n, 77); /* its memory is free at once */
        /* The other side makes progress all the time, and has no receive. */
        quiet(0.1);
        meet();
        await_success();
        CHECK(entry.op_context == &out[i]);
        meet();
    }
    for (int tag = DISCARDED; tag <= ORPHANED; tag++) {
        struct iovec v = {out, 8};
        struct fi_msg_tagged m = {.msg_iov = &v, .iov_count = 1, .addr = there, .tag = tag, .context = &v};
        OK(fi_tsendmsg(ep, &m, FI_COMPLETION | FI_MATCH_COMPLETE));
        quiet(0.1);
        meet();
        if (tag == DISCARDED)
            await_success();
        else
            await_error(FI_ECONNRESET, &v);
    }
    close_all();
}

static void a_promised_match_waits_for_a_receive_right(void)
{
    static char in[300000];
    open_all();
    warm_up();
    for (int i = 0; i < 2 * MATCHES; i++) {
        size_t n = match_bytes[i / 2];
        if (i % 2 && n > info->tx_attr->inject_size)
            continue;
        until_heard();
        meet();
        memset(in, 0, n);
        OK(fi_trecv(ep, in, n, NULL, there, 2, 0, in));
        await_success();
        CHECK(entry.len == n && same(in, n, i));
        until_heard();
        meet();
    }
    until_heard();
    meet();
    struct fi_msg_tagged m = {.addr = there, .tag = DISCARDED, .context = in};
    OK(fi_trecvmsg(ep, &m, FI_PEEK | FI_DISCARD | FI_COMPLETION));
    await_success();
    until_heard();
    meet();
    close_all();
}

static void the_default_flags_of_an_endpoint_promise_too_left(void)
{
    char small[8] = "small";
    open_with(FI_DELIVERY_COMPLETE);
    warm_up();
    stop(other);
    OK(fi_tsend(ep, small, sizeof small, NULL, there, 1, small));
    quiet(0.15);
    /* An inject promises nothing, and never completes. */
    OK(fi_tinject(ep, small, sizeof small, there, 1));
    kill(other, SIGCONT);
    await_success();
    CHECK(entry.op_context == small);
    /* And back: the flags can be set again. */
    uint64_t flags = FI_TRANSMIT;
    OK(fi_control(&ep->fid, FI_SETOPSFLAG, &flags));
    stop(other);
    OK(fi_tsend(ep, small, sizeof small, NULL, there, 1, small));
    await_success();
    kill(other, SIGCONT);
    quiet(0.1);
    meet();
    close_all();
}

/* ---- operations in flight (hazard H15) ---- */

enum { CANCELS = 300, CANCEL_BYTES = 300000 };

static void only_what_is_unmatched_is_cancelled_left(void)
{
    static char out[CANCEL_BYTES];
    open_all();
    warm_up();
    for (int i = 0; i < CANCELS; i++) {
        size_t n = i % 3 ? sizeof out : 2000;
        fill(out, n, i);
        CHECK(recv_int(2) == i);
        OK(fi_tsend(ep, out, n, NULL, there, 1, NULL));
        await_success();
    }
    close_all();
}

static void only_what_is_unmatched_is_cancelled_right(void)
{
    static char in[CANCEL_BYTES], again[CANCEL_BYTES];
    int cancelled = 0, came = 0;
    open_all();
    warm_up();
    for (int i = 0; i < CANCELS; i++) {
        size_t n = i % 3 ? sizeof in : 2000;
        memset(in, 0x55, n);
        OK(fi_trecv(ep, in, n, NULL, FI_ADDR_UNSPEC, 1, 0, in));
        send_int(i, 2);
        int r = 0;
        for (double end = now() + (i % 40) * 25e-6; !r && now() < end;)
            r = look();
        if (!r) {
            fi_cancel(&ep->fid, in);
            r = await();
        }
        if (r < 0) {
            CHECK(failed.err == FI_ECANCELED && failed.op_context == in);
            cancelled++;
            /* The message is there for another receive, and the first buffer is never touched. */
            OK(fi_trecv(ep, again, n, NULL, FI_ADDR_UNSPEC, 1, 0, again));
            await_success();
            CHECK(entry.len == n && same(again, n, i));
            for (size_t k = 0; k < n; k++)
                CHECK(in[k] == 0x55);
        } else {
            came++;
            CHECK(entry.len == n && same(in, n, i));
        }
    }
    CHECK(cancelled > 0 && came > 0);
    close_all();
}

static void truncation_leaves_the_rest_of_the_buffer_and_the_sender_alone_left(void)
{
    static char out[900000];
    open_all();
    warm_up();
    const size_t sizes[] = {1200, 50000, 200000, sizeof out};
    for (int i = 0; i < 8; i++) {
        size_t n = sizes[i % 4];
        fill(out, n, i);
        if (i < 4)
            CHECK(recv_int(2) == i); /* the receive is posted */
        OK(fi_tsenddata(ep, out, n, NULL, 40 + i, there, 1, NULL));
        if (i >= 4)
            send_int(i, 2); /* the message is there */
        await_success();
        memset(out, 0xee, n);
    }
    close_all();
}

static void truncation_leaves_the_rest_of_the_buffer_and_the_sender_alone_right(void)
{
    static char in[100000];
    const size_t sizes[] = {1200, 50000, 200000, 900000}, caps[] = {0, 900, 45000};
    open_all();
    warm_up();
    for (int i = 0; i < 8; i++) {
        size_t n = sizes[i % 4], cap = caps[i % 3] < n ? caps[i % 3] : 900;
        memset(in, 0x55, sizeof in);
        if (i >= 4)
            CHECK(recv_int(2) == i);
        OK(fi_trecv(ep, in, cap, NULL, there, 1, 0, in));
        if (i < 4)
            send_int(i, 2);
        await_error(FI_ETRUNC, in);
        CHECK(failed.len == cap && failed.olen == n - cap && failed.data == 40u + i && failed.tag == 1);
        CHECK(same(in, cap, i));
        quiet(0.02);
        for (size_t k = cap; k < sizeof in; k++)
            CHECK(in[k] == 0x55);
    }
    close_all();
}

enum { OWED = 50000 };

static void a_full_queue_stops_matching_and_never_acknowledging_left(void)
{
    open_all();
    warm_up();
    /* Every one is acknowledged although the other side reads nothing. */
    int posted = 0, done = 0;
    while (done < OWED) {
        if (posted < OWED && posted - done < 500) {
            struct iovec v = {&posted, sizeof posted};
            struct fi_msg m = {.msg_iov = &v, .iov_count = 1, .addr = there};
            if (fi_sendmsg(ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE | FI_INJECT) == 0)
                posted++;
        }
        int r = look();
        CHECK(r >= 0);
        done += r;
    }
    meet();
    exchange(1);
    close_all();
}

static void a_full_queue_stops_matching_and_never_acknowledging_right(void)
{
    static char area[OWED * 8 + 4096];
    struct iovec v = {area, sizeof area};
    struct fi_msg m = {.msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = area};
    open_all();
    warm_up();
    OK(fi_recvmsg(ep, &m, FI_MULTI_RECV | FI_COMPLETION));
    meet(); /* all were acknowledged, and no entry was read */
    for (int i = 0; i < OWED; i++) {
        await_success();
        CHECK(entry.op_context == area && entry.len == sizeof(int) && *(int *)entry.buf == i);
    }
    exchange(1);
    OK(fi_cancel(&ep->fid, area));
    CHECK(await() == -1 && failed.err == FI_ECANCELED);
    close_all();
}

enum { STRIPES = 60, STRIPE_BYTES = 3000000 };

static void remote_data_comes_with_the_last_byte_left(void)
{
    char *out = malloc(STRIPE_BYTES);
    open_all();
    warm_up();
    for (int i = 0; i < STRIPES; i++) {
        fill(out, STRIPE_BYTES, i);
        OK(fi_tsenddata(ep, out, STRIPE_BYTES, NULL, 1000 + i, there, 1, NULL));
        await_success();
        memset(out, 0xee, STRIPE_BYTES);
    }
    close_all();
}

static void remote_data_comes_with_the_last_byte_right(void)
{
    char *in = malloc(STRIPE_BYTES);
    open_all();
    warm_up();
    for (int i = 0; i < STRIPES; i++) {
        memset(in, 0x55, STRIPE_BYTES);
        OK(fi_trecv(ep, in, STRIPE_BYTES, NULL, there, 1, 0, NULL));
        await_success();
        CHECK(entry.flags & FI_REMOTE_CQ_DATA && entry.data == 1000u + i);
        CHECK(entry.len == STRIPE_BYTES && same(in, STRIPE_BYTES, i));
    }
    close_all();
}

enum { BURSTS = 300, IN_BURST = 8 };

/* Small messages wait for each other where their sender is known to make progress after them. This one has the habit, and then makes none. */
static void what_was_held_goes_out_while_its_sender_computes_left(void)
{
    char c;
    open_all();
    warm_up();
    for (int i = 0; i < BURSTS; i++) {
        for (int k = 0; k < IN_BURST; k++)
            send_int(i * IN_BURST + k, 600);
        look();
    }
    meet();
    for (int k = 0; k < IN_BURST; k++)
        RETRY(fi_tinject(ep, &k, sizeof k, there, 601));
    /* no call of the library until all have arrived */
    hear(&c, 1);
    close_all();
}

static void what_was_held_goes_out_while_its_sender_computes_right(void)
{
    char c = 'a';
    open_all();
    warm_up();
    for (int i = 0; i < BURSTS * IN_BURST; i++)
        CHECK(recv_int(600) == i);
    meet();
    for (int k = 0; k < IN_BURST; k++)
        CHECK(recv_int(601) == k);
    tell(&c, 1);
    close_all();
}

static void looks_find_claim_and_discard_left(void)
{
    static char out[200000];
    open_all();
    warm_up();
    for (int i = 0; i < 6; i++) {
        size_t n = i % 2 ? sizeof out : 100;
        fill(out, n, i);
        OK(fi_tsenddata(ep, out, n, NULL, i, there, 10 + i, NULL));
        await_success(); /* also when it was thrown away */
    }
    meet();
    close_all();
}

static void look_for(uint64_t tag, uint64_t flags, void *context)
{
    struct fi_msg_tagged m = {.addr = there, .tag = tag, .context = context};
    for (double end = now() + PATIENCE_S;;) {
        OK(fi_trecvmsg(ep, &m, flags | FI_PEEK | FI_COMPLETION));
        if (await() > 0)
            return;
        CHECK(failed.err == FI_ENOMSG && failed.op_context == context && now() < end);
    }
}

static void looks_find_claim_and_discard_right(void)
{
    static char in[200000];
    struct fi_context context;
    open_all();
    warm_up();
    for (int i = 0; i < 6; i++) {
        size_t n = i % 2 ? sizeof in : 100;
        look_for(10 + i, 0, &context);
        CHECK(entry.len == n && entry.tag == 10u + i && entry.data == (uint64_t)i && source == there);
        if (i < 2) {
            OK(fi_trecv(ep, in, n, NULL, there, 10 + i, 0, in));
        } else if (i < 4) {
            look_for(10 + i, FI_CLAIM, &context);
            struct iovec v = {in, n};
            struct fi_msg_tagged m = {.msg_iov = &v, .iov_count = 1, .addr = there, .context = &context};
            OK(fi_trecvmsg(ep, &m, FI_CLAIM | FI_COMPLETION));
        } else {
            look_for(10 + i, FI_DISCARD, &context);
            continue;
        }
        await_success();
        CHECK(entry.len == n && entry.data == (uint64_t)i && same(in, n, i));
    }
    meet();
    close_all();
}

/* ---- names (hazard H18) ---- */

static void an_address_that_is_removed_gets_nobody_elses_messages_left(void)
{
    static char in[500000];
    open_all();
    warm_up();
    fi_addr_t second = hear_address();
    /* A large message of the first endpoint is announced; it is received when its address is gone and others are there. */
    OK(fi_av_remove(av, &there, 1, 0));
    fi_addr_t third = hear_address();
    CHECK(second != there && third != there && third != second);
    OK(fi_trecv(ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    await_success();
    CHECK(entry.len == sizeof in && same(in, sizeof in, 1) && source == FI_ADDR_NOTAVAIL);
    int two = 2, three = 3;
    CHECK(fi_tinject(ep, &two, sizeof two, there, 2) == -FI_EADDRNOTAVAIL);
    RETRY(fi_tinject(ep, &two, sizeof two, second, 2));
    RETRY(fi_tinject(ep, &three, sizeof three, third, 2));
    CHECK(recv_int(3) == 3 && source == third);
    CHECK(recv_int(3) == 2 && source == second);
    close_all();
}

static void an_address_that_is_removed_gets_nobody_elses_messages_right(void)
{
    static char out[500000];
    int got[2] = {0, 0}, values[2] = {3, 2};
    open_all();
    warm_up();
    struct fid_ep *second = open_ep(), *third = open_ep();
    fill(out, sizeof out, 1);
    OK(fi_tsend(ep, out, sizeof out, NULL, there, 1, out));
    tell_address(second);
    tell_address(third);
    OK(fi_trecv(second, &got[0], sizeof got[0], NULL, FI_ADDR_UNSPEC, 2, 0, &got[0]));
    OK(fi_trecv(third, &got[1], sizeof got[1], NULL, FI_ADDR_UNSPEC, 2, 0, &got[1]));
    for (int i = 0; i < 3; i++)
        await_success();
    CHECK(got[0] == 2 && got[1] == 3);
    RETRY(fi_tinject(third, &values[0], sizeof values[0], there, 3));
    RETRY(fi_tinject(second, &values[1], sizeof values[1], there, 3));
    OK(fi_close(&second->fid));
    OK(fi_close(&third->fid));
    close_all();
}

enum { MANY = 16 };

/* Every endpoint of one side sends to every one of the other; the numbers identify sender and receiver. */
static void endpoints_share_listeners_and_connections_left(void)
{
    struct fid_ep *eps[MANY];
    fi_addr_t to[MANY];
    static int in[MANY * MANY], out[MANY * MANY];
    static char big_in[300000], big_out[300000];
    open_all();
    warm_up();
    /* Something large, so that the streams are there. */
    OK(fi_trecv(ep, big_in, sizeof big_in, NULL, there, 5, 0, NULL));
    OK(fi_tsend(ep, big_out, sizeof big_out, NULL, there, 5, NULL));
    await_success();
    await_success();
    int before = descriptors(0);
    for (int i = 0; i < MANY; i++) {
        eps[i] = open_ep();
        tell_address(eps[i]);
        to[i] = hear_address();
    }
    meet();
    for (int i = 0; i < MANY * MANY; i++) {
        in[i] = -1;
        out[i] = i;
        OK(fi_trecv(eps[i / MANY], &in[i], sizeof in[i], NULL, to[i % MANY], 6, 0, NULL));
        RETRY(fi_tsend(eps[i / MANY], &out[i], sizeof out[i], NULL, to[i % MANY], 6, NULL));
    }
    for (int i = 0; i < 2 * MANY * MANY; i++)
        await_success();
    /* What (i, j) has got, (j, i) of the other side has sent. */
    for (int i = 0; i < MANY * MANY; i++)
        CHECK(in[i] == i % MANY * MANY + i / MANY);
    CHECK(descriptors(0) == before);
    meet();
    for (int i = 0; i < MANY; i++)
        OK(fi_close(&eps[i]->fid));
    CHECK(descriptors(0) == before);
    meet();
    close_all();
}

/* ---- counters ---- */

static void counters_count_what_completes_left(void)
{
    struct fid_cntr *sent;
    static char big[100000];
    get_info(0);
    struct fi_av_attr attr = {.type = FI_AV_MAP};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &attr, &av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    OK(fi_cntr_open(domain, NULL, &sent, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
    OK(fi_ep_bind(ep, &sent->fid, FI_SEND));
    OK(fi_enable(ep));
    tell_address(ep);
    there = hear_address();
    for (int i = 0; i < 10; i++)
        RETRY(fi_tsend(ep, &i, sizeof i, NULL, there, 1, NULL));
    OK(fi_cntr_wait(sent, 10, PATIENCE_S * 1000));
    for (int i = 0; i < 5; i++)
        RETRY(fi_tinject(ep, &i, sizeof i, there, 1));
    OK(fi_tsend(ep, big, sizeof big, NULL, there, 2, NULL));
    CHECK(fi_cntr_wait(sent, 16, 50) == -FI_ETIMEDOUT); /* the large one is not received yet */
    CHECK(fi_cntr_read(sent) == 15);
    meet();
    OK(fi_cntr_wait(sent, 16, PATIENCE_S * 1000));
    CHECK(fi_cntr_read(sent) == 16 && fi_cntr_readerr(sent) == 0);
    CHECK(look() == 0);
    meet();
    OK(fi_close(&ep->fid));
    CHECK(fi_cntr_read(sent) == 16);
    OK(fi_close(&sent->fid));
    OK(fi_close(&cq->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
}

static void counters_count_what_completes_right(void)
{
    struct fid_cntr *received;
    static char big[100000];
    int in[15];
    get_info(0);
    struct fi_av_attr attr = {.type = FI_AV_MAP};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &attr, &av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    OK(fi_cntr_open(domain, NULL, &received, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_ep_bind(ep, &received->fid, FI_RECV));
    OK(fi_enable(ep));
    tell_address(ep);
    there = hear_address();
    for (int i = 0; i < 15; i++)
        OK(fi_trecv(ep, &in[i], sizeof in[i], NULL, there, 1, 0, &in[i]));
    OK(fi_cntr_wait(received, 15, PATIENCE_S * 1000));
    CHECK(fi_cntr_read(received) == 15);
    OK(fi_cntr_add(received, 100));
    meet();
    OK(fi_trecv(ep, big, sizeof big, NULL, there, 2, 0, big));
    OK(fi_cntr_wait(received, 116, PATIENCE_S * 1000));
    /* What is cancelled, or cut, counts as an error. */
    OK(fi_trecv(ep, big, sizeof big, NULL, there, 3, 0, big));
    OK(fi_cancel(&ep->fid, big));
    CHECK(fi_cntr_read(received) == 116 && fi_cntr_readerr(received) == 1);
    for (int i = 0; i < 16; i++)
        await_success();
    CHECK(await() == -1 && failed.err == FI_ECANCELED);
    OK(fi_cntr_seterr(received, 0));
    OK(fi_cntr_set(received, 0));
    CHECK(fi_cntr_read(received) == 0 && fi_cntr_readerr(received) == 0);
    meet();
    OK(fi_close(&ep->fid));
    OK(fi_close(&received->fid));
    OK(fi_close(&cq->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
}

/* ---- registered memory ---- */

/* What the other side needs to know of a region. */
struct place {
    uint64_t addr, key;
};

static void open_one_sided(void)
{
    one_sided = FI_RMA | FI_ATOMIC;
    open_all();
}

static struct fid_mr *tell_region(void *base, size_t len)
{
    struct fid_mr *mr;
    OK(fi_mr_reg(domain, base, len, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
    struct place p = {(uint64_t)(uintptr_t)base, fi_mr_key(mr)};
    tell(&p, sizeof p);
    return mr;
}

static struct place hear_region(void)
{
    struct place p;
    hear(&p, sizeof p);
    return p;
}

enum { WINDOW = 4 << 20 };

static void memory_is_reached_while_its_owner_is_away_left(void)
{
    static char out[WINDOW], in[WINDOW];
    const size_t sizes[] = {1, 100, 1400, 8000, 30000, 1000000, WINDOW};
    open_one_sided();
    struct place p = hear_region();
    for (int i = 0; i < 7; i++) {
        size_t n = sizes[i];
        fill(out, n, i);
        RETRY(fi_write(ep, out, n, NULL, there, p.addr + WINDOW - n, p.key, out));
        await_success();
        CHECK(entry.flags == (FI_RMA | FI_WRITE) && entry.op_context == out);
        memset(out, 0xee, n); /* complete: nothing reads it any more */
        RETRY(fi_read(ep, in, n, NULL, there, p.addr + WINDOW - n, p.key, in));
        await_success();
        CHECK(entry.flags == (FI_RMA | FI_READ) && same(in, n, i));
        /* The owner sees it, too. */
        tell(&n, sizeof n);
        meet();
    }
    meet();
    close_all();
}

static void memory_is_reached_while_its_owner_is_away_right(void)
{
    static char window[WINDOW];
    open_one_sided();
    memset(window, 0x55, WINDOW);
    struct fid_mr *mr = tell_region(window, WINDOW);
    for (int i = 0; i < 7; i++) {
        size_t n;
        hear(&n, sizeof n); /* without a call of the fabric */
        CHECK(same(window + WINDOW - n, n, i) && (n == WINDOW || window[WINDOW - n - 1] == 0x55));
        memset(window, 0x55, WINDOW);
        meet();
    }
    meet();
    OK(fi_close(&mr->fid));
    close_all();
}

enum { ADDED = 2000 };

/* Both sides add to one value at the same time, and to one of their own: no sum is seen twice. */
static void add(struct place p, fi_addr_t to, uint64_t *seen)
{
    for (int i = 0; i < ADDED; i++) {
        uint64_t one = 1;
        RETRY(fi_fetch_atomic(ep, &one, 1, NULL, &seen[i], NULL, to, p.addr, p.key, FI_UINT64, FI_SUM, &seen[i]));
        if (i % 16 == 15)
            for (int k = 0; k < 16; k++)
                await_success();
    }
}

static void values_that_both_sides_add_to_lose_nothing_left(void)
{
    static uint64_t value, seen[2 * ADDED];
    static char met[2 * ADDED];
    open_one_sided();
    struct fid_mr *mr = tell_region(&value, sizeof value);
    fi_addr_t self;
    char blob[BLOB];
    size_t len = BLOB;
    OK(fi_getname(&ep->fid, blob, &len));
    CHECK(fi_av_insert(av, blob, 1, &self, 0, NULL) == 1);
    meet();
    add((struct place){(uint64_t)(uintptr_t)&value, fi_mr_key(mr)}, self, seen);
    hear(seen + ADDED, ADDED * sizeof *seen);
    CHECK(value == 2 * ADDED);
    for (int i = 0; i < 2 * ADDED; i++) {
        CHECK(seen[i] < 2 * ADDED && !met[seen[i]]);
        met[seen[i]] = 1;
    }
    meet();
    OK(fi_close(&mr->fid));
    close_all();
}

static void values_that_both_sides_add_to_lose_nothing_right(void)
{
    static uint64_t seen[ADDED];
    open_one_sided();
    struct place p = hear_region();
    meet();
    add(p, there, seen);
    tell(seen, sizeof seen);
    meet();
    close_all();
}

static void what_the_other_side_does_not_allow_fails_left(void)
{
    static char buf[100000];
    const size_t sizes[] = {8, 3000, 100000};
    uint64_t one = 1, result = 7;
    open_one_sided();
    struct place readable = hear_region(), writable = hear_region();
    for (int i = 0; i < 3; i++) {
        size_t n = sizes[i];
        memset(buf, 0xee, sizeof buf);
        RETRY(fi_write(ep, buf, n, NULL, there, readable.addr, readable.key, &n));
        await_error(FI_EACCES, &n);
        CHECK(failed.flags == (FI_RMA | FI_WRITE));
        RETRY(fi_read(ep, buf, n, NULL, there, writable.addr, writable.key, &n));
        await_error(FI_EACCES, &n);
        RETRY(fi_write(ep, buf, n, NULL, there, writable.addr + 100000 - n + 1, writable.key, &n));
        await_error(FI_EACCES, &n);
        RETRY(fi_read(ep, buf, n, NULL, there, readable.addr - 1, readable.key, &n));
        await_error(FI_EACCES, &n);
        RETRY(fi_writedata(ep, buf, n, NULL, 5, there, writable.addr, writable.key + 12345, &n));
        await_error(FI_ENOKEY, &n);
        for (size_t k = 0; k < sizeof buf; k++)
            CHECK(buf[k] == (char)0xee);
    }
    RETRY(fi_inject_write(ep, buf, 8, there, readable.addr, readable.key));
    await_error(FI_EACCES, NULL);
    RETRY(fi_atomic(ep, &one, 1, NULL, there, readable.addr, readable.key, FI_UINT64, FI_SUM, &one));
    await_error(FI_EACCES, &one);
    RETRY(fi_fetch_atomic(ep, &one, 1, NULL, &result, NULL, there, writable.addr, writable.key, FI_UINT64, FI_SUM, &one));
    await_error(FI_EACCES, &one);
    CHECK(result == 7);
    /* A refusal breaks nothing. */
    RETRY(fi_write(ep, buf, 0, NULL, there, writable.addr + 100000, writable.key, buf));
    await_success();
    RETRY(fi_read(ep, buf, 100000, NULL, there, readable.addr, readable.key, buf));
    await_success();
    meet();
    close_all();
}

static void what_the_other_side_does_not_allow_fails_right(void)
{
    static char window[100000];
    memset(window, 0x55, sizeof window);
    open_one_sided();
    struct fid_mr *mrs[2];
    const uint64_t access[] = {FI_REMOTE_READ, FI_REMOTE_WRITE};
    for (int i = 0; i < 2; i++) {
        OK(fi_mr_reg(domain, window, sizeof window, access[i], 0, 0, 0, &mrs[i], NULL));
        struct place p = {(uint64_t)(uintptr_t)window, fi_mr_key(mrs[i])};
        tell(&p, sizeof p);
    }
    while (!heard_something())
        CHECK(look() == 0); /* no data comes with what is refused */
    meet();
    for (size_t k = 0; k < sizeof window; k++)
        CHECK(window[k] == 0x55);
    OK(fi_close(&mrs[0]->fid));
    OK(fi_close(&mrs[1]->fid));
    close_all();
}

enum { SLOTS = 48, SLOT_BYTES = 90000, PASSES = 25 };

/* Both sides write, read back and add in each other's memory, everything at once, with messages in between. */
static void many_operations_of_all_sorts_keep_apart_left(void)
{
    static char window[SLOTS][SLOT_BYTES], out[SLOTS][SLOT_BYTES], in[SLOTS][SLOT_BYTES];
    static uint64_t sum, before[SLOTS];
    struct slot {
        enum { WRITING, READING, ADDING, DONE } at;
        int pass;
        size_t bytes;
    } slots[SLOTS] = {0};
    const size_t sizes[] = {1, 64, 1000, 1500, 8192, 8193, 20000, 65536, SLOT_BYTES};
    open_one_sided();
    struct fid_mr *mr = tell_region(window, sizeof window), *sum_mr = tell_region(&sum, sizeof sum);
    struct place p = hear_region(), total = hear_region();
    uint64_t one = 1;
    int messages_in[2] = {0, 0}, sent = 0;
    meet();
    for (int i = 0; i < SLOTS; i++) {
        slots[i].bytes = sizes[i % 9];
        fill(out[i], slots[i].bytes, i);
        RETRY(fi_write(ep, out[i], slots[i].bytes, NULL, there, p.addr + i * SLOT_BYTES, p.key, (void *)(long)i));
    }
    OK(fi_trecv(ep, &messages_in[0], sizeof(int), NULL, there, 1, 0, messages_in));
    for (int done = 0, received = 0; done < SLOTS || received < SLOTS * PASSES;) {
        await_success();
        if (entry.flags & FI_RECV) {
            CHECK(messages_in[0] == received++);
            if (received < SLOTS * PASSES)
                OK(fi_trecv(ep, &messages_in[0], sizeof(int), NULL, there, 1, 0, messages_in));
            continue;
        }
        long i = (long)entry.op_context;
        CHECK(i >= 0 && i < SLOTS);
        struct slot *s = &slots[i];
        uint64_t addr = p.addr + i * SLOT_BYTES;
        switch (s->at) {
        case WRITING:
            CHECK(entry.flags == (FI_RMA | FI_WRITE));
            memset(out[i], 0xee, s->bytes);
            memset(in[i], 0x11, s->bytes);
            s->at = READING;
            RETRY(fi_read(ep, in[i], s->bytes, NULL, there, addr, p.key, (void *)i));
            break;
        case READING:
            CHECK(entry.flags == (FI_RMA | FI_READ) && same(in[i], s->bytes, (int)i + s->pass));
            s->at = ADDING;
            RETRY(fi_fetch_atomic(ep, &one, 1, NULL, &before[i], NULL, there, total.addr, total.key, FI_UINT64, FI_SUM,
                                  (void *)i));
            break;
        case ADDING:
            CHECK(entry.flags == (FI_ATOMIC | FI_READ) && before[i] < SLOTS * PASSES);
            RETRY(fi_tinject(ep, &sent, sizeof sent, there, 1));
            sent++;
            if (++s->pass == PASSES) {
                s->at = DONE;
                done++;
                break;
            }
            s->at = WRITING;
            s->bytes = sizes[(i + s->pass) % 9];
            fill(out[i], s->bytes, (int)i + s->pass);
            RETRY(fi_write(ep, out[i], s->bytes, NULL, there, addr, p.key, (void *)i));
            break;
        case DONE:
            FAIL("slot %ld completes once more", i);
        }
    }
    CHECK(sum == SLOTS * PASSES); /* the last message came after the last addition */
    quiet(0.05);
    meet();
    OK(fi_close(&mr->fid));
    OK(fi_close(&sum_mr->fid));
    close_all();
}

enum { ROUNDS = 40, GONE_BYTES = 1 << 20 };

static void a_region_that_is_closed_under_way_is_touched_no_more_left(void)
{
    static char out[GONE_BYTES], in[GONE_BYTES];
    open_one_sided();
    for (int i = 0; i < ROUNDS; i++) {
        struct place p = hear_region();
        for (int posted = 0, done = 0, gone = 0; !gone || done < posted;) {
            if (!gone && posted - done < 4) {
                int write = posted % 2;
                ssize_t rc = write ? fi_write(ep, out, GONE_BYTES, NULL, there, p.addr, p.key, out)
                                   : fi_read(ep, in, GONE_BYTES, NULL, there, p.addr, p.key, in);
                CHECK(rc == 0 || rc == -FI_EAGAIN);
                posted += rc == 0;
            }
            int r = look();
            if (r < 0) {
                CHECK(failed.err == FI_ENOKEY);
                gone = 1;
            }
            done += r != 0;
        }
        meet();
    }
    close_all();
}

static void a_region_that_is_closed_under_way_is_touched_no_more_right(void)
{
    open_one_sided();
    for (int i = 0; i < ROUNDS; i++) {
        char *window = mmap(NULL, GONE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(window != MAP_FAILED);
        struct fid_mr *mr = tell_region(window, GONE_BYTES);
        for (double end = now() + 0.001 * (i % 20); now() < end;)
            fi_cq_read(cq, &entry, 1);
        OK(fi_close(&mr->fid));
        /* An access from now on would end the process. */
        CHECK(munmap(window, GONE_BYTES) == 0);
        while (!heard_something())
            fi_cq_read(cq, &entry, 1);
        meet();
    }
    close_all();
}

enum { WRITES = 30 };

static void data_comes_with_the_last_byte_of_a_write_left(void)
{
    char *out = malloc(STRIPE_BYTES);
    open_one_sided();
    struct place p = hear_region();
    for (int i = 0; i < WRITES; i++) {
        size_t n = i % 3 ? STRIPE_BYTES : 100 + i;
        fill(out, n, i);
        RETRY(fi_writedata(ep, out, n, NULL, 1000 + i, there, p.addr, p.key, out));
        await_success();
        memset(out, 0xee, n);
        CHECK(recv_int(1) == i);
    }
    close_all();
}

static void data_comes_with_the_last_byte_of_a_write_right(void)
{
    char *in = malloc(STRIPE_BYTES);
    open_one_sided();
    struct fid_mr *mr = tell_region(in, STRIPE_BYTES);
    for (int i = 0; i < WRITES; i++) {
        size_t n = i % 3 ? STRIPE_BYTES : 100 + i;
        await_success();
        CHECK(entry.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA) && entry.data == 1000u + i);
        CHECK(entry.len == n && source == there && same(in, n, i));
        send_int(i, 1);
    }
    OK(fi_close(&mr->fid));
    close_all();
}

static void injected_writes_arrive_after_exit_left(void)
{
    open_one_sided();
    struct place p = hear_region();
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t value = i * i;
        RETRY(fi_inject_write(ep, &value, sizeof value, there, p.addr + 8 * i, p.key));
    }
    exit(0);
}

static void injected_writes_arrive_after_exit_right(void)
{
    static volatile uint64_t window[1000];
    open_one_sided();
    struct fid_mr *mr = tell_region((void *)window, sizeof window);
    for (uint64_t i = 0; i < 1000; i++)
        for (double end = now() + PATIENCE_S; window[i] != i * i;) {
            fi_cq_read(cq, &entry, 1);
            CHECK(now() < end);
        }
    OK(fi_close(&mr->fid));
    close_all();
}

static void one_sided_operations_on_a_dead_peer_end_left(void)
{
    static char big[2000000], in[2000000];
    uint64_t one = 1, result;
    setenv("FI_RERAIL_REFUSED_TIMEOUT", "1", 1);
    open_one_sided();
    struct place p = hear_region();
    RETRY(fi_write(ep, big, sizeof big, NULL, there, p.addr, p.key, big));
    await_success();
    stop(other);
    OK(fi_write(ep, big, sizeof big, NULL, there, p.addr, p.key, big));
    OK(fi_write(ep, big, 8, NULL, there, p.addr, p.key, big));
    OK(fi_read(ep, in, sizeof in, NULL, there, p.addr, p.key, in));
    OK(fi_fetch_atomic(ep, &one, 1, NULL, &result, NULL, there, p.addr, p.key, FI_UINT64, FI_SUM, &result));
    quiet(0.2);
    kill(other, SIGKILL);
    for (int i = 0; i < 4; i++) {
        if (await() > 0)
            FAIL("%p succeeded", entry.op_context);
        if (failed.err != FI_ECONNRESET)
            FAIL("%p failed: %s", failed.op_context, fi_strerror(failed.err));
    }
    CHECK(fi_inject_write(ep, big, 4, there, p.addr, p.key) == -FI_ECONNRESET);
    quiet(0.1);
    close_all();
}

static void one_sided_operations_on_a_dead_peer_end_right(void)
{
    static char window[2000000];
    open_one_sided();
    tell_region(window, sizeof window);
    for (;;)
        fi_cq_read(cq, &entry, 1);
}

/* ---- a peer that dies (hazard H6), or only stops ---- */

static void what_needs_a_dead_peer_ends_and_nothing_else_left(void)
{
    static char big[200000];
    int in[3];
    setenv("FI_RERAIL_PARTITION_TIMEOUT", "2", 1);
    setenv("FI_RERAIL_REFUSED_TIMEOUT", "1", 1);
    open_all();
    warm_up();
    OK(fi_trecv(ep, &in[0], sizeof in[0], NULL, there, 1, 0, &in[0]));
    OK(fi_trecv(ep, &in[1], sizeof in[1], NULL, FI_ADDR_UNSPEC, 1, 0, &in[1]));
    OK(fi_tsend(ep, big, sizeof big, NULL, there, 2, big));
    /* Stopped for longer than the deadline of a partition, it is not given up. */
    stop(other);
    struct iovec v = {in, sizeof in[0]};
    struct fi_msg_tagged m = {.msg_iov = &v, .iov_count = 1, .addr = there, .tag = 2, .context = &v};
    OK(fi_tsendmsg(ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
    quiet(3);
    kill(other, SIGKILL);
    int seen = 0;
    for (int i = 0; i < 3; i++) {
        if (await() > 0)
            FAIL("%p succeeded", entry.op_context);
        if (failed.err != FI_ECONNRESET)
            FAIL("%p failed: %s", failed.op_context, fi_strerror(failed.err));
        seen |= failed.op_context == &in[0] ? 1 : failed.op_context == big ? 2 : failed.op_context == &v ? 4 : 8;
    }
    CHECK(seen == 7);
    char text[200];
    CHECK(strstr(fi_cq_strerror(cq, failed.prov_errno, NULL, text, sizeof text), "ended without a goodbye"));
    /* What is posted afterwards is refused, or ends the same way. */
    CHECK(fi_tinject(ep, in, 4, there, 1) == -FI_ECONNRESET);
    OK(fi_trecv(ep, &in[2], sizeof in[2], NULL, there, 1, 0, &in[2]));
    await_error(FI_ECONNRESET, &in[2]);
    /* The other receive stands. */
    quiet(0.1);
    OK(fi_cancel(&ep->fid, &in[1]));
    await_error(FI_ECANCELED, &in[1]);
    close_all();
}

static void what_needs_a_dead_peer_ends_and_nothing_else_right(void)
{
    open_all();
    warm_up();
    for (;;)
        fi_cq_read(cq, &entry, 1);
}

static void a_child_that_outlives_a_killed_parent_hides_nothing_left(void)
{
    int in;
    char c;
    open_all();
    warm_up();
    OK(fi_trecv(ep, &in, sizeof in, NULL, there, 1, 0, &in));
    hear(&c, 1); /* the child is there */
    kill(other, SIGKILL);
    await_error(FI_ECONNRESET, &in);
    close_all();
}

static void a_child_that_outlives_a_killed_parent_hides_nothing_right(void)
{
    open_all();
    warm_up();
    if (fork() == 0) {
        setpgid(0, 0);
        alarm(PATIENCE_S); /* nothing else will end it */
        char c = 'c';
        tell(&c, 1);
        pause();
    }
    for (;;)
        fi_cq_read(cq, &entry, 1);
}

/* ---- all of them ---- */

#define KILLED (-SIGKILL)

static const struct {
    const char *name;
    void (*side[2])(void);
    int end; /* how the right side ends */
} tests[] = {
#define TEST(name) {#name, {name##_left, name##_right}, 0}
#define BOTH_THE_SAME(name) {#name, {name##_left, name##_left}, 0}
    TEST(children_say_nothing_in_their_parents_name),
    TEST(forks_amid_traffic_hang_nobody),
    TEST(a_child_that_lives_on_holds_nothing_up),
    TEST(what_was_completed_arrives_after_exit),
    TEST(exit_from_a_signal_handler_does_not_hang),
    TEST(a_promised_delivery_waits_for_the_peers_engine),
    {"the_default_flags_of_an_endpoint_promise_too",
     {the_default_flags_of_an_endpoint_promise_too_left, a_promised_delivery_waits_for_the_peers_engine_right},
     0},
    TEST(a_promised_match_waits_for_a_receive),
    TEST(only_what_is_unmatched_is_cancelled),
    TEST(truncation_leaves_the_rest_of_the_buffer_and_the_sender_alone),
    TEST(a_full_queue_stops_matching_and_never_acknowledging),
    TEST(remote_data_comes_with_the_last_byte),
    TEST(what_was_held_goes_out_while_its_sender_computes),
    TEST(looks_find_claim_and_discard),
    TEST(an_address_that_is_removed_gets_nobody_elses_messages),
    BOTH_THE_SAME(endpoints_share_listeners_and_connections),
    TEST(counters_count_what_completes),
    TEST(memory_is_reached_while_its_owner_is_away),
    TEST(values_that_both_sides_add_to_lose_nothing),
    TEST(what_the_other_side_does_not_allow_fails),
    BOTH_THE_SAME(many_operations_of_all_sorts_keep_apart),
    TEST(a_region_that_is_closed_under_way_is_touched_no_more),
    TEST(data_comes_with_the_last_byte_of_a_write),
    TEST(injected_writes_arrive_after_exit),
    {"one_sided_operations_on_a_dead_peer_end",
     {one_sided_operations_on_a_dead_peer_end_left, one_sided_operations_on_a_dead_peer_end_right},
     KILLED},
    {"what_needs_a_dead_peer_ends_and_nothing_else",
     {what_needs_a_dead_peer_ends_and_nothing_else_left, what_needs_a_dead_peer_ends_and_nothing_else_right},
     KILLED},
    {"a_child_that_outlives_a_killed_parent_hides_nothing",
     {a_child_that_outlives_a_killed_parent_hides_nothing_left, a_child_that_outlives_a_killed_parent_hides_nothing_right},
     KILLED},
};

static int ended(int status)
{
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/* Runs the two sides of a test, each in a process group of its own, which is ended with what is left in it. */
static int run(int t)
{
    int pair[2], good = 1;
    pid_t sides[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    double start = now();
    for (int s = 0; s < 2; s++) {
        sides[s] = fork();
        CHECK(sides[s] >= 0);
        if (sides[s] == 0) {
            setpgid(0, 0);
            close(pair[!s]);
            beside = pair[s];
            tests[t].side[s]();
            exit(0);
        }
        setpgid(sides[s], sides[s]);
    }
    close(pair[0]);
    close(pair[1]);
    int left = 2;
    for (double end = now() + 3 * PATIENCE_S; left && now() < end;) {
        int status, any = 0;
        for (int s = 0; s < 2; s++) {
            if (sides[s] && waitpid(sides[s], &status, WNOHANG) == sides[s]) {
                int wanted = s == 1 ? tests[t].end : 0;
                if (ended(status) != wanted) {
                    fprintf(stderr, "FAILED %s: the %s side ended with %d\n", running, s ? "right" : "left", ended(status));
                    good = 0;
                    end = now() + 2;
                }
                kill(-sides[s], SIGKILL);
                sides[s] = 0;
                left--;
                any = 1;
            }
        }
        if (!any)
            usleep(1000);
    }
    for (int s = 0; s < 2; s++) {
        if (sides[s]) {
            if (good)
                fprintf(stderr, "FAILED %s: the %s side hangs\n", running, s ? "right" : "left");
            good = 0;
            kill(-sides[s], SIGKILL);
            waitpid(sides[s], NULL, 0);
        }
    }
    printf("%s %s (%.0f ms)\n", good ? "ok" : "FAILED", running, (now() - start) * 1e3);
    fflush(stdout);
    return good;
}

int main(int argc, char **argv)
{
    int good = 1;
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (argc > 1 && strcmp(argv[1], tests[i].name))
            continue;
        running = tests[i].name;
        good &= run(i);
    }
    return !good;
}
