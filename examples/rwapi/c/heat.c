/* The heat equation on a square plate of --cells by --cells cells, --steps explicit steps.
 *
 * Shows: an exchange of halos by one-sided writes, without a barrier.
 *
 * Each node has a range of rows, and one row more at each side: the halo, a copy of the neighbour's edge. There are two
 * grids. A step reads one and writes the other, then writes its edges into the neighbours' halos of the other one. Two
 * grids are enough: a node writes the halos of step s + 1 only after it received those of step s, which the neighbour
 * sends when it no longer reads the grid of step s - 1. That is the grid that is overwritten.
 *
 * At the end every node writes its rows into a block of node 0, which compares them with a serial computation, bit by
 * bit.
 */
#include "common.h"

enum kind { HALO_ADDRESS = 1, RESULT_ADDRESS, HALO_WRITTEN, RESULT_WRITTEN };
enum side { ABOVE, BELOW, SIDES };

static long cells = 128, steps = 200;

static int me, nodes;
static size_t width;                      /* of a row: the cells and the two borders */
static int neighbour[SIDES];              /* -1: the border of the plate */
static rwapi_net_t halo_net[SIDES][2];    /* the neighbour's halo that has our edge, for each grid */
static uint32_t halos_arrived[SIDES];     /* the last step whose halo arrived */
static rwapi_net_t result_net;
static int results_arrived;

static long first_row(int node) { return cells * node / nodes; }

/* Row 0 and row cells + 1 are borders, as are column 0 and column cells + 1. */
static double initial(long row, long column)
{
    if (row == 0) return 100.0;
    if (row == cells + 1 || column == 0 || column == cells + 1) return 0.0;
    return (double)((row * 7 + column * 13) % 100);
}

static void fill(double *grid, long row, long rows)
{
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < (long)width; j++)
            grid[(size_t)i * width + (size_t)j] = initial(row + i, j);
}

/* One step for `rows` rows; `from` and `to` begin with the row before them. The nodes and the serial computation use
 * this same function, so that the compiler rounds in the same way. */
static void step(const double *from, double *to, long rows)
{
    for (size_t i = 1; i <= (size_t)rows; i++)
        for (size_t j = 1; j < width - 1; j++) {
            const double *c = from + i * width + j;
            to[i * width + j] = c[0] + 0.2 * ((c[-(long)width] + c[width]) + (c[-1] + c[1]) - 4.0 * c[0]);
        }
}

static void handle(struct event event)
{
    const struct message *message = &event.message;
    if (event.gone) fail_gone(event.node);
    const int side = event.node == neighbour[ABOVE] ? ABOVE : BELOW;
    switch (message->kind) {
    case HALO_ADDRESS:
        halo_net[side][message->number % 2] = message->value;
        break;
    case RESULT_ADDRESS:
        result_net = message->value;
        break;
    case HALO_WRITTEN:
        if (message->number != halos_arrived[side] + 1) {
            errno = EPROTO;
            fail("a halo of another step");
        }
        halos_arrived[side]++;
        break;
    case RESULT_WRITTEN:
        results_arrived++;
        break;
    }
}

static void send_or_fail(int node, enum kind kind, uint32_t number, uint64_t value)
{
    if (!message_send(node, kind, number, value)) fail_gone(node);
}

static long compare(const double *result)
{
    const size_t size = (size_t)(cells + 2) * width;
    double *grid[2] = {malloc(size * sizeof(double)), malloc(size * sizeof(double))};
    if (!grid[0] || !grid[1]) fail("malloc");
    fill(grid[0], 0, cells + 2);
    fill(grid[1], 0, cells + 2);
    for (long s = 0; s < steps; s++) step(grid[s % 2], grid[(s + 1) % 2], cells);
    long wrong = 0;
    for (size_t i = 0; i < (size_t)cells * width; i++)
        if (memcmp(&result[i], &grid[steps % 2][width + i], sizeof(double)) != 0) wrong++;
    free(grid[0]);
    free(grid[1]);
    return wrong;
}

int main(int argc, char **argv)
{
    const struct argument arguments[] = {{"--cells", &cells, 1, 10000}, {"--steps", &steps, 1, 1000000}};
    program = "heat";
    parse(argc, argv, 2, arguments);
    start("heat", argc, argv);
    me = rwapi_rank();
    nodes = rwapi_size();
    if (cells < nodes) {
        errno = EINVAL;
        fail("every node needs a row: --cells");
    }
    width = (size_t)cells + 2;
    neighbour[ABOVE] = me - 1;
    neighbour[BELOW] = me + 1 < nodes ? me + 1 : -1;

    /* One block with both grids. */
    const long rows = first_row(me + 1) - first_row(me);
    const size_t grid_size = (size_t)(rows + 2) * width;
    rwapi_net_t net, own_result_net = 0;
    double *block = allocate(2 * grid_size * sizeof(double), &net);
    double *grid[2] = {block, block + grid_size};
    for (int g = 0; g < 2; g++) fill(grid[g], first_row(me), rows + 2);

    double *result = NULL;
    if (me == 0) {
        result = allocate((size_t)cells * width * sizeof(double), &own_result_net);
        for (int node = 1; node < nodes; node++) send_or_fail(node, RESULT_ADDRESS, 0, own_result_net);
    }
    for (uint32_t g = 0; g < 2; g++) {
        const rwapi_net_t grid_net = net + g * grid_size * sizeof(double);
        if (neighbour[ABOVE] >= 0) send_or_fail(neighbour[ABOVE], HALO_ADDRESS, g, grid_net);
        if (neighbour[BELOW] >= 0)
            send_or_fail(neighbour[BELOW], HALO_ADDRESS, g, grid_net + (size_t)(rows + 1) * width * sizeof(double));
    }

    rwapi_sid_t sid[2][SIDES] = {{0}};
    for (uint32_t s = 1; s <= (uint32_t)steps; s++) {
        const int to = s % 2;
        /* The edges of this grid may still be on their way since two steps. */
        for (int side = 0; side < SIDES; side++) data_wait_sent(sid[to][side]);
        step(grid[1 - to], grid[to], rows);
        for (int side = 0; side < SIDES; side++) {
            if (neighbour[side] < 0) continue;
            while (!halo_net[side][to]) handle(message_await());
            const size_t edge = (size_t)(side == ABOVE ? 1 : rows) * width;
            const rwapi_net_t edge_net = net + ((size_t)to * grid_size + edge) * sizeof(double);
            sid[to][side] = data_write(neighbour[side], edge_net, halo_net[side][to], width * sizeof(double));
            send_or_fail(neighbour[side], HALO_WRITTEN, s, 0);
        }
        for (int side = 0; side < SIDES; side++)
            while (neighbour[side] >= 0 && halos_arrived[side] < s) handle(message_await());
    }

    bool right = true;
    const size_t own_offset = ((size_t)(steps % 2) * grid_size + width) * sizeof(double);
    const size_t own_size = (size_t)rows * width * sizeof(double);
    if (me == 0) {
        memcpy(result, (char *)block + own_offset, own_size);
        while (results_arrived < nodes - 1) handle(message_await());
        const long wrong = compare(result);
        right = wrong == 0;
        if (right) printf("heat: %d nodes, %ld steps, right\n", nodes, steps);
        else printf("heat: %d nodes, %ld steps, wrong: %ld cells\n", nodes, steps, wrong);
    } else {
        while (!result_net) handle(message_await());
        data_write(0, net + own_offset, result_net + (size_t)first_row(me) * width * sizeof(double), own_size);
        send_or_fail(0, RESULT_WRITTEN, 0, 0);
    }
    finish(); /* delivers what is under way */
    return right ? 0 : 1;
}
