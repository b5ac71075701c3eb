/* names: endpoints that are known by IP address and port (FI_SOCKADDR_IN, FI_SOCKADDR_IN6), between two processes over loopback.
 *
 * Usage: names. Needs FI_PROVIDER_PATH and FI_PROVIDER=rerail. The server tells its port beside the fabric, as a user would; what
 * else the two need of each other they exchange in messages. Prints a line per test; ends at the first that fails. Compiled and
 * run by library.rs.
 */
#include "checks.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static int beside;

static struct fi_info *hints_for(uint32_t addr_format)
{
    struct fi_info *hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV;
    hints->addr_format = addr_format;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->av_type = FI_AV_MAP;
    hints->fabric_attr->prov_name = strdup("rerail");
    return hints;
}

static void get_info(const char *node, const char *service, uint64_t flags, uint32_t addr_format)
{
    struct fi_info *hints = hints_for(addr_format);
    OK(fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, &info));
    CHECK(info->addr_format == FI_SOCKADDR_IN && info->src_addrlen == sizeof(struct sockaddr_in));
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

static void open_all(void)
{
    struct fi_av_attr av_attr = {.type = FI_AV_MAP};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    ep = open_ep();
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

static struct sockaddr_in name_of(struct fid_ep *e)
{
    struct sockaddr_in name;
    size_t len = 3;
    CHECK(fi_getname(&e->fid, &name, &len) == -FI_ETOOSMALL && len == sizeof name);
    OK(fi_getname(&e->fid, &name, &len));
    CHECK(name.sin_family == AF_INET && name.sin_port && name.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    return name;
}

static struct fi_cq_tagged_entry entry;
static fi_addr_t source;

static int await(void)
{
    for (double end = now() + PATIENCE_S; now() < end;) {
        ssize_t n = fi_cq_readfrom(cq, &entry, 1, &source);
        if (n == 1)
            return 0;
        if (n == -FI_EAVAIL) {
            struct fi_cq_err_entry e = {0};
            CHECK(fi_cq_readerr(cq, &e, 0) == 1);
            return e.err;
        }
        CHECK(n == -FI_EAGAIN);
    }
    FAIL("waited in vain for a completion");
}

static void put(struct fid_ep *e, const void *p, size_t n, fi_addr_t to)
{
    ssize_t rc;
    while ((rc = fi_tinject(e, p, n, to, 1)) == -FI_EAGAIN)
        fi_cq_read(cq, NULL, 0);
    OK(rc);
}

static void take(struct fid_ep *e, void *p, size_t n)
{
    OK(fi_trecv(e, p, n, NULL, FI_ADDR_UNSPEC, 1, 0, p));
    OK(await());
    CHECK(entry.op_context == p && entry.len == n);
}

static fi_addr_t insert(const void *name)
{
    fi_addr_t addr;
    CHECK(fi_av_insert(av, name, 1, &addr, 0, NULL) == 1);
    return addr;
}

static void tell(const void *p, size_t n)
{
    CHECK(write(beside, p, n) == (ssize_t)n);
}

static void hear(void *p, size_t n)
{
    CHECK(read(beside, p, n) == (ssize_t)n);
}

/* ---- IPv6 ---- */

static int has_ipv6(void)
{
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_DGRAM, 0);
    int has = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    if (fd >= 0)
        close(fd);
    return has;
}

static void get_info6(const char *node, const char *service, uint64_t flags, uint32_t addr_format)
{
    struct fi_info *hints = hints_for(addr_format);
    OK(fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, &info));
    struct sockaddr_in6 *own = info->src_addr;
    CHECK(info->addr_format == FI_SOCKADDR_IN6 && info->src_addrlen == sizeof *own);
    CHECK(own->sin6_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&own->sin6_addr));
    fi_freeinfo(hints);
}

static struct sockaddr_in6 name6_of(struct fid_ep *e)
{
    struct sockaddr_in6 name;
    size_t len = sizeof(struct sockaddr_in);
    CHECK(fi_getname(&e->fid, &name, &len) == -FI_ETOOSMALL && len == sizeof name);
    OK(fi_getname(&e->fid, &name, &len));
    CHECK(name.sin6_family == AF_INET6 && name.sin6_port && IN6_IS_ADDR_LOOPBACK(&name.sin6_addr));
    return name;
}

static void serve6(void)
{
    get_info6("::1", NULL, FI_SOURCE, 0);
    open_all();
    struct sockaddr_in6 own = name6_of(ep), theirs;
    tell(&own, sizeof own);
    take(ep, &theirs, sizeof theirs);
    CHECK(source == FI_ADDR_NOTAVAIL);
    put(ep, "y", 1, insert(&theirs));
    char c;
    hear(&c, 1);
    close_all();
}

static void greet6(void)
{
    struct sockaddr_in6 name, own, other;
    char port[8], c, text[64];
    size_t len = sizeof text;
    hear(&name, sizeof name);
    snprintf(port, sizeof port, "%d", ntohs(name.sin6_port));
    get_info6("::1", port, 0, FI_SOCKADDR);
    struct sockaddr_in6 *dest = info->dest_addr;
    CHECK(info->dest_addrlen == sizeof *dest && dest->sin6_port == name.sin6_port);
    open_all();
    fi_addr_t known = insert(dest), same, next;
    fi_av_straddr(av, dest, text, &len);
    CHECK(!strncmp(text, "fi_sockaddr_in6://[::1]:", 24) && !strcmp(text + 24, port));
    len = sizeof other;
    OK(fi_av_lookup(av, known, &other, &len));
    CHECK(len == sizeof other && !memcmp(&other, dest, len));
    CHECK(fi_av_insertsvc(av, "::1", port, &same, 0, NULL) == 1);
    CHECK(fi_av_insertsvc(av, "127.0.0.1", port, &next, 0, NULL) == -FI_ENODATA);
    CHECK(fi_av_insertsym(av, "::2", 1, port, 1, &next, 0, NULL) == 1);
    len = sizeof other;
    OK(fi_av_lookup(av, next, &other, &len));
    CHECK(other.sin6_addr.s6_addr[15] == 2 && other.sin6_port == name.sin6_port);
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = name.sin6_port};
    memcpy(&other, &v4, sizeof v4);
    CHECK(fi_av_insert(av, &other, 1, NULL, 0, NULL) == 0); /* of the other kind */
    own = name6_of(ep);
    put(ep, &own, sizeof own, known);
    take(ep, &c, 1);
    CHECK(c == 'y' && source == known);
    tell("e", 1);
    close_all();
}

/* ---- the server ---- */

/* Answers a client twice: from the endpoint that is known, and from another with a name of its own. */
static void serve(const char *port)
{
    get_info(NULL, port, FI_SOURCE, 0);
    open_all();
    struct sockaddr_in own = name_of(ep), theirs, other;
    CHECK(!atoi(port) || ntohs(own.sin_port) == atoi(port));
    tell(&own, sizeof own);
    take(ep, &theirs, sizeof theirs);
    CHECK(source == FI_ADDR_NOTAVAIL);
    fi_addr_t client = insert(&theirs);
    ((struct sockaddr_in *)info->src_addr)->sin_port = 0;
    struct fid_ep *second = open_ep();
    other = name_of(second);
    CHECK(other.sin_port != own.sin_port);
    put(ep, &other, sizeof other, client);
    char c;
    take(second, &c, 1);
    CHECK(c == 'x' && source == client);
    put(second, "y", 1, client);
    hear(&c, 1);
    OK(fi_close(&second->fid));
    close_all();
}

static void server(void)
{
    char port[8], c;
    serve("0");
    hear(port, sizeof port);
    serve(port); /* under the same name again */
    hear(port, sizeof port);
    get_info(NULL, port, FI_SOURCE, 0);
    open_all();
    tell("o", 1);
    hear(&c, 1);
    close_all();
    if (has_ipv6())
        serve6();
}

/* ---- the client ---- */

static fi_addr_t greet(const char *port, uint32_t addr_format)
{
    struct sockaddr_in own, other;
    char c, text[64];
    size_t len = sizeof text;
    get_info("127.0.0.1", port, 0, addr_format);
    open_all();
    struct sockaddr_in *dest = info->dest_addr;
    CHECK(info->dest_addrlen == sizeof *dest && dest->sin_port == htons(atoi(port)));
    fi_addr_t known = insert(dest), same;
    CHECK(!strcmp(fi_av_straddr(av, dest, text, &len) + strlen("fi_sockaddr_in://127.0.0.1:"), port));
    len = sizeof other;
    OK(fi_av_lookup(av, known, &other, &len));
    CHECK(len == sizeof other && !memcmp(&other, dest, len));
    CHECK(fi_av_insertsvc(av, "localhost", port, &same, 0, NULL) == 1);
    /* two hosts with two ports each, in this order */
    fi_addr_t four[4];
    CHECK(fi_av_insertsym(av, "127.0.0.1", 2, port, 2, four, 0, NULL) == 4);
    for (int i = 0; i < 4; i++) {
        len = sizeof other;
        OK(fi_av_lookup(av, four[i], &other, &len));
        CHECK(ntohl(other.sin_addr.s_addr) == INADDR_LOOPBACK + (uint32_t)(i / 2));
        CHECK(ntohs(other.sin_port) == atoi(port) + i % 2);
    }
    CHECK(fi_av_insertsym(av, "nodes", 2, port, 1, four, 0, NULL) == -FI_EINVAL);
    CHECK(fi_av_insertsym(av, "127.0.0.1", 1, "65535", 2, four, 0, NULL) == -FI_EINVAL);
    own = name_of(ep);
    put(ep, &own, sizeof own, known);
    take(ep, &other, sizeof other);
    CHECK(source == known);
    fi_addr_t second = insert(&other);
    put(ep, "x", 1, second);
    take(ep, &c, 1);
    CHECK(c == 'y' && source == second);
    return known;
}

static void client(void)
{
    struct sockaddr_in name;
    char port[8] = "", c;
    hear(&name, sizeof name);
    snprintf(port, sizeof port, "%d", ntohs(name.sin_port));
    greet(port, 0);
    tell("e", 1);
    close_all();
    printf("ok two_who_know_a_port_find_each_other\n");

    tell(port, sizeof port);
    hear(&name, sizeof name);
    CHECK(ntohs(name.sin_port) == atoi(port));
    fi_addr_t before = greet(port, FI_SOCKADDR);
    int in;
    OK(fi_trecv(ep, &in, sizeof in, NULL, before, 7, 0, &in));
    tell("e", 1);
    CHECK(await() == FI_ECONNRESET); /* the server has left */
    tell(port, sizeof port);
    hear(&c, 1);
    /* What comes under the same name is another process, and known as such only when it is inserted again. */
    CHECK(fi_tinject(ep, "x", 1, before, 1) == -FI_ECONNRESET);
    fi_addr_t after = insert(&name);
    CHECK(after != before);
    put(ep, "x", 1, after);
    tell("e", 1);
    close_all();
    printf("ok who_comes_under_the_same_name_is_another\n");

    if (has_ipv6()) {
        greet6();
        printf("ok two_who_know_an_ipv6_address_and_a_port_find_each_other\n");
    } else {
        printf("SKIPPED two_who_know_an_ipv6_address_and_a_port_find_each_other: this machine has no IPv6\n");
    }

    struct fi_info *hints = hints_for(0), *none, *at_home;
    /* As fabtests ask: first for an address of their own, then, in its format, for that of the other. */
    OK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &at_home));
    struct sockaddr_in *home = at_home->src_addr;
    CHECK(at_home->addr_format == FI_SOCKADDR_IN && at_home->src_addrlen == sizeof *home);
    CHECK(home->sin_port == 0 && home->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    fi_freeinfo(at_home);
    CHECK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, 0, hints, &none) == -FI_ENODATA);
    hints->addr_format = FI_SOCKADDR_IN6;
    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, "5", FI_SOURCE, hints, &none) == -FI_ENODATA);
    fi_freeinfo(hints);
    get_info(NULL, NULL, 0, FI_SOCKADDR_IN);
    open_all();
    name = name_of(ep);
    char blob[BLOB] = {0};
    CHECK(fi_av_insert(av, blob, 1, NULL, 0, NULL) == 0);
    struct fid_ep *second;
    ((struct sockaddr_in *)info->src_addr)->sin_port = name.sin_port;
    OK(fi_endpoint(domain, info, &second, NULL));
    OK(fi_ep_bind(second, &av->fid, 0));
    OK(fi_ep_bind(second, &cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_enable(second) == -FI_EADDRINUSE);
    OK(fi_close(&second->fid));
    fi_addr_t self = insert(&name);
    put(ep, "z", 1, self);
    take(ep, &c, 1);
    CHECK(c == 'z' && source == self);
    /* Inserted before it is there. */
    OK(fi_close(&ep->fid));
    self = insert(&name);
    OK(fi_endpoint(domain, info, &ep, NULL)); /* on the same port */
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_enable(ep));
    put(ep, "w", 1, self);
    take(ep, &c, 1);
    CHECK(c == 'w' && source == self);
    close_all();
    printf("ok names_are_refused_with_a_reason_and_lead_home_too\n");
}

int main(void)
{
    int pair[2], status;
    setenv("FI_RERAIL_PARTITION_TIMEOUT", "2", 1);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t other = fork();
    CHECK(other >= 0);
    alarm(6 * PATIENCE_S);
    beside = pair[other != 0];
    close(pair[other == 0]);
    if (other == 0) {
        running = "the server";
        server();
        exit(0);
    }
    running = "the client";
    client();
    CHECK(waitpid(other, &status, 0) == other);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}
