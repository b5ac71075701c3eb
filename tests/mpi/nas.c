/* nas: five kernels with the communication patterns of the NAS parallel benchmarks, in integers, every value verified.
 *
 *   cg   sparse matrix times vector: irregular point-to-point messages, and an allreduce per iteration
 *   ft   transform of a distributed matrix in two dimensions: alltoall transposes
 *   is   sort of skewed keys: alltoallv with unequal counts
 *   lu   wavefront that runs through the ranks and back: very many very small messages
 *   mg   cycle through grids of several sizes: halos from large to tiny
 *
 * Arithmetic is exact, so the result does not depend on the order of sums. Each rank computes the whole problem once more by
 * itself, without communication, and compares its part in every iteration: the first iteration that goes wrong is named.
 */
#include "common.h"

#define PRIME 998244353ull /* 119 * 2^23 + 1: has roots of unity for transforms of up to 2^23 */
#define PRIME_ROOT 3ull

static const char usage[] =
    "usage: nas cg|ft|is|lu|mg [options]\n"
    "  --seconds T      run for about T seconds (default 10)\n"
    "  --iterations N   or for N iterations\n"
    "  --size N         cg: rows; ft: rows and columns (a power of two); is: keys; lu: rows and columns; mg: rows per rank of\n"
    "                   the finest grid (a power of two)\n"
    "  --seed N         of all data (default 1)\n"
    "  --plant N        spoil one value in iteration N, to see that it is noticed\n";

static struct {
    const char *kernel;
    double seconds;
    uint64_t iterations, seed, plant;
    size_t size;
} opt = {.seconds = 10, .seed = 1, .plant = UINT64_MAX};

static int rank, ranks;
static uint64_t iteration, values_checked;

static uint64_t add(uint64_t a, uint64_t b) { return (a + b) % PRIME; }
static uint64_t multiply(uint64_t a, uint64_t b) { return a * b % PRIME; }

static uint64_t power(uint64_t base, uint64_t exponent) {
    uint64_t result = 1;
    for (; exponent; exponent >>= 1, base = multiply(base, base))
        if (exponent & 1) result = multiply(result, base);
    return result;
}

/* The value number `index` of stream `stream` of the data. */
static uint64_t datum(uint64_t stream, uint64_t index) { return mix64(pattern_key(opt.seed, stream, 0) + index); }

static uint64_t *words(size_t count) { return allocate(8 * count); }

static size_t first_of(size_t count, int of) { return count * (size_t)of / (size_t)ranks; }

/* Compares what came about by communication with what ought to be; spoils it before, if that was asked for. */
static void verify(uint64_t *got, const uint64_t *wanted, size_t count, const char *what) {
    if (iteration == opt.plant && rank == ranks - 1 && count) got[count / 2] ^= 1ull << 17;
    for (size_t i = 0; i < count; i++)
        if (got[i] != wanted[i])
            fail(EXIT_WRONG_DATA, "nas %s: rank %d, iteration %llu: %s: value %zu of %zu is %llx instead of %llx (seed %llu)", opt.kernel,
                 rank, (unsigned long long)iteration, what, i, count, (unsigned long long)got[i], (unsigned long long)wanted[i],
                 (unsigned long long)opt.seed);
    values_checked += count;
}

/* ---- cg ---- */

enum { CG_ENTRIES = 8, TAG = 7 };

static struct {
    size_t rows, first, count;
    uint32_t (*column)[CG_ENTRIES];
    uint64_t *x, *next, *whole, *whole_next; /* own part (in a vector of full length), and the whole as computed alone */
    /* Which elements go to and come from each rank. */
    uint32_t **out, **in;
    size_t *out_count, *in_count;
    uint64_t **out_buffer, **in_buffer;
} cg;

static uint64_t cg_entry(size_t row, int entry) { return 1 + datum(1, row * CG_ENTRIES + (size_t)entry) % (PRIME - 1); }

static uint64_t cg_row(const uint64_t *x, size_t row) {
    uint64_t sum = 0;
    for (int k = 0; k < CG_ENTRIES; k++) sum = add(sum, multiply(cg_entry(row, k), x[cg.column[row][k]]));
    return sum;
}

static size_t cg_needed(int by, int of, uint32_t *list) {
    unsigned char *seen = calloc(cg.rows, 1);
    if (!seen) fail(1, "out of memory");
    size_t count = 0;
    for (size_t row = first_of(cg.rows, by); row < first_of(cg.rows, by + 1); row++)
        for (int k = 0; k < CG_ENTRIES; k++) {
            uint32_t column = cg.column[row][k];
            if (column < first_of(cg.rows, of) || column >= first_of(cg.rows, of + 1) || seen[column]) continue;
            seen[column] = 1;
            list[count++] = column;
        }
    free(seen);
    return count;
}

static void cg_setup(void) {
    cg.rows = opt.size ? opt.size : 16384;
    cg.first = first_of(cg.rows, rank);
    cg.count = first_of(cg.rows, rank + 1) - cg.first;
    cg.column = allocate(cg.rows * sizeof *cg.column);
    /* Columns crowd towards the first rows, so that some pairs of ranks exchange much and some little. */
    for (size_t row = 0; row < cg.rows; row++)
        for (int k = 0; k < CG_ENTRIES; k++) {
            double u = (double)(datum(2, row * CG_ENTRIES + (size_t)k) >> 11) / 9007199254740992.0;
            cg.column[row][k] = (uint32_t)(u * u * (double)cg.rows);
        }
    uint64_t **vectors[] = {&cg.x, &cg.next, &cg.whole, &cg.whole_next};
    for (size_t i = 0; i < 4; i++) *vectors[i] = words(cg.rows);
    for (size_t i = 0; i < cg.rows; i++) cg.x[i] = cg.whole[i] = datum(3, i) % PRIME;
    cg.out = calloc((size_t)ranks, sizeof *cg.out), cg.in = calloc((size_t)ranks, sizeof *cg.in);
    cg.out_count = calloc((size_t)ranks, sizeof(size_t)), cg.in_count = calloc((size_t)ranks, sizeof(size_t));
    cg.out_buffer = calloc((size_t)ranks, sizeof *cg.out_buffer), cg.in_buffer = calloc((size_t)ranks, sizeof *cg.in_buffer);
    for (int k = 0; k < ranks; k++) {
        cg.out[k] = allocate(4 * cg.rows), cg.in[k] = allocate(4 * cg.rows);
        if (k != rank) cg.out_count[k] = cg_needed(k, rank, cg.out[k]), cg.in_count[k] = cg_needed(rank, k, cg.in[k]);
        cg.out_buffer[k] = words(cg.out_count[k] + 1), cg.in_buffer[k] = words(cg.in_count[k] + 1);
    }
}

static void cg_iteration(void) {
    MPI_Request requests[2 * 64];
    int count = 0;
    for (int k = 0; k < ranks; k++)
        if (cg.in_count[k])
            MPI_Irecv(cg.in_buffer[k], (int)cg.in_count[k], MPI_UINT64_T, k, TAG, MPI_COMM_WORLD, &requests[count++]);
    for (int k = 0; k < ranks; k++)
        if (cg.out_count[k]) {
            for (size_t i = 0; i < cg.out_count[k]; i++) cg.out_buffer[k][i] = cg.x[cg.out[k][i]];
            MPI_Isend(cg.out_buffer[k], (int)cg.out_count[k], MPI_UINT64_T, k, TAG, MPI_COMM_WORLD, &requests[count++]);
        }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    for (int k = 0; k < ranks; k++)
        for (size_t i = 0; i < cg.in_count[k]; i++) cg.x[cg.in[k][i]] = cg.in_buffer[k][i];
    uint64_t mine = 0, all = 0;
    for (size_t row = cg.first; row < cg.first + cg.count; row++) {
        cg.next[row] = cg_row(cg.x, row);
        mine = add(mine, multiply(cg.next[row], cg.x[row]));
    }
    MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    all %= PRIME;
    for (size_t row = cg.first; row < cg.first + cg.count; row++) cg.x[row] = add(cg.next[row], multiply(all, cg.x[row]));

    uint64_t product = 0;
    for (size_t row = 0; row < cg.rows; row++) {
        cg.whole_next[row] = cg_row(cg.whole, row);
        product = add(product, multiply(cg.whole_next[row], cg.whole[row]));
    }
    for (size_t row = 0; row < cg.rows; row++) cg.whole[row] = add(cg.whole_next[row], multiply(product, cg.whole[row]));
    verify(&all, &product, 1, "product");
    verify(cg.x + cg.first, cg.whole + cg.first, cg.count, "vector");
}

/* ---- ft ---- */

static struct {
    size_t n, rows; /* n x n, of which this rank has `rows` rows */
    uint64_t *data, *send, *wanted;
} ft;

static void ft_transform_row(uint64_t *row, size_t n, int inverse) {
    for (size_t i = 1, j = 0; i < n; i++) {
        size_t bit = n >> 1;
        for (; j & bit; bit >>= 1) j ^= bit;
        j ^= bit;
        if (i < j) {
            uint64_t other = row[i];
            row[i] = row[j], row[j] = other;
        }
    }
    for (size_t length = 2; length <= n; length <<= 1) {
        uint64_t root = power(PRIME_ROOT, (PRIME - 1) / length);
        if (inverse) root = power(root, PRIME - 2);
        for (size_t begin = 0; begin < n; begin += length) {
            uint64_t w = 1;
            for (size_t k = 0; k < length / 2; k++, w = multiply(w, root)) {
                uint64_t a = row[begin + k], b = multiply(row[begin + k + length / 2], w);
                row[begin + k] = add(a, b);
                row[begin + k + length / 2] = add(a, PRIME - b);
            }
        }
    }
    if (inverse) {
        uint64_t scale = power(n, PRIME - 2);
        for (size_t i = 0; i < n; i++) row[i] = multiply(row[i], scale);
    }
}

static void ft_transpose(void) {
    size_t block = ft.rows * ft.rows;
    for (int k = 0; k < ranks; k++)
        for (size_t i = 0; i < ft.rows; i++)
            for (size_t j = 0; j < ft.rows; j++)
                ft.send[block * (size_t)k + j * ft.rows + i] = ft.data[i * ft.n + (size_t)k * ft.rows + j];
    uint64_t *received = ft.wanted; /* free between verifications */
    MPI_Alltoall(ft.send, (int)block, MPI_UINT64_T, received, (int)block, MPI_UINT64_T, MPI_COMM_WORLD);
    for (int k = 0; k < ranks; k++)
        for (size_t i = 0; i < ft.rows; i++)
            memcpy(ft.data + i * ft.n + (size_t)k * ft.rows, received + block * (size_t)k + i * ft.rows, 8 * ft.rows);
}

static void ft_setup(void) {
    ft.n = opt.size ? opt.size : 256;
    if (ft.n & (ft.n - 1) || ft.n % (size_t)ranks) fail(EXIT_USAGE, "nas ft: --size must be a power of two and a multiple of the number of ranks");
    ft.rows = ft.n / (size_t)ranks;
    ft.data = words(ft.rows * ft.n), ft.send = words(ft.rows * ft.n), ft.wanted = words(ft.rows * ft.n);
}

static uint64_t ft_begin(size_t row, size_t column) { return datum(4 + iteration, row * ft.n + column) % PRIME; }

/* Forward, then the known effect of one factor per row and column in the transformed domain: multiplying entry (i, j) by
 * w^i w^j shifts the matrix by one row and one column. So the outcome is known exactly without a second transform. */
static void ft_iteration(void) {
    size_t first = (size_t)rank * ft.rows;
    for (size_t i = 0; i < ft.rows; i++)
        for (size_t j = 0; j < ft.n; j++) ft.data[i * ft.n + j] = ft_begin(first + i, j);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < ft.rows; i++) ft_transform_row(ft.data + i * ft.n, ft.n, 0);
        ft_transpose();
    }
    uint64_t root = power(PRIME_ROOT, (PRIME - 1) / ft.n);
    uint64_t row_factor = power(root, first);
    for (size_t i = 0; i < ft.rows; i++, row_factor = multiply(row_factor, root)) {
        uint64_t factor = row_factor;
        for (size_t j = 0; j < ft.n; j++, factor = multiply(factor, root)) ft.data[i * ft.n + j] = multiply(ft.data[i * ft.n + j], factor);
    }
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < ft.rows; i++) ft_transform_row(ft.data + i * ft.n, ft.n, 1);
        ft_transpose();
    }
    for (size_t i = 0; i < ft.rows; i++)
        for (size_t j = 0; j < ft.n; j++) ft.wanted[i * ft.n + j] = ft_begin((first + i + ft.n - 1) % ft.n, (j + ft.n - 1) % ft.n);
    verify(ft.data, ft.wanted, ft.rows * ft.n, "matrix");
}

/* ---- is ---- */

static struct {
    size_t keys, first, count, capacity;
    uint64_t *own, *send, *received, *wanted;
    int *send_counts, *send_at, *receive_counts, *receive_at;
} is;

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The product of two uniform numbers: small keys are many, so ranks get unequal shares, other ones in each iteration. */
static uint64_t is_key(size_t index) {
    uint64_t value = datum(4 + iteration, index);
    return (value >> 32) * (value & 0xFFFFFFFF) >> 32;
}

static int is_owner(uint64_t key) {
    uint64_t slice = (1ull << 32) / (uint64_t)ranks + 1;
    return (int)((key + mix64(iteration) % slice) % (1ull << 32) / slice);
}

static void is_setup(void) {
    is.keys = opt.size ? opt.size : 1 << 17;
    is.first = first_of(is.keys, rank);
    is.count = first_of(is.keys, rank + 1) - is.first;
    is.own = words(is.count), is.send = words(is.count);
    is.received = words(is.keys), is.wanted = words(is.keys);
    int **lists[] = {&is.send_counts, &is.send_at, &is.receive_counts, &is.receive_at};
    for (size_t i = 0; i < 4; i++) *lists[i] = allocate((size_t)(ranks + 1) * sizeof(int));
}

static void is_iteration(void) {
    memset(is.send_counts, 0, (size_t)ranks * sizeof(int));
    for (size_t i = 0; i < is.count; i++) {
        is.own[i] = is_key(is.first + i);
        is.send_counts[is_owner(is.own[i])]++;
    }
    MPI_Alltoall(is.send_counts, 1, MPI_INT, is.receive_counts, 1, MPI_INT, MPI_COMM_WORLD);
    is.send_at[0] = is.receive_at[0] = 0;
    for (int k = 0; k < ranks; k++) {
        is.send_at[k + 1] = is.send_at[k] + is.send_counts[k];
        is.receive_at[k + 1] = is.receive_at[k] + is.receive_counts[k];
        if (is.receive_counts[k] < 0 || (size_t)is.receive_at[k + 1] > is.keys)
            fail(EXIT_WRONG_DATA, "nas is: rank %d, iteration %llu: rank %d announces %d keys (seed %llu)", rank,
                 (unsigned long long)iteration, k, is.receive_counts[k], (unsigned long long)opt.seed);
    }
    for (size_t i = 0; i < is.count; i++) is.send[is.send_at[is_owner(is.own[i])]++] = is.own[i];
    for (int k = 0; k < ranks; k++) is.send_at[k] -= is.send_counts[k];
    MPI_Alltoallv(is.send, is.send_counts, is.send_at, MPI_UINT64_T, is.received, is.receive_counts, is.receive_at, MPI_UINT64_T,
                  MPI_COMM_WORLD);
    size_t got = (size_t)is.receive_at[ranks], wanted = 0;
    qsort(is.received, got, 8, by_value);
    for (size_t i = 0; i < is.keys; i++) {
        uint64_t key = is_key(i);
        if (is_owner(key) == rank) is.wanted[wanted++] = key;
    }
    qsort(is.wanted, wanted, 8, by_value);
    uint64_t number = got, number_wanted = wanted;
    verify(&number, &number_wanted, 1, "number of keys");
    verify(is.received, is.wanted, got, "sorted keys");
}

/* ---- lu ---- */

enum { LU_EDGE = 4 }; /* words per message: what one row hands to the next rank */

static struct {
    size_t n, first, count;
    uint64_t *grid, *whole; /* n rows of `count` own, or of all n, columns */
} lu;

/* One cell of the sweep, from its neighbours behind it. */
static uint64_t lu_cell(uint64_t value, uint64_t vertical, uint64_t horizontal) {
    return add(add(multiply(value, 3), multiply(vertical, 5)), add(multiply(horizontal, 7), iteration % PRIME));
}

static void lu_sweep(uint64_t *grid, size_t width, size_t row, int down, uint64_t behind) {
    size_t n = lu.n, other = down ? row - 1 : row + 1;
    int is_edge = down ? row == 0 : row == n - 1;
    for (size_t k = 0; k < width; k++) {
        size_t column = down ? k : width - 1 - k;
        uint64_t vertical = is_edge ? 1 : grid[other * width + column];
        behind = grid[row * width + column] = lu_cell(grid[row * width + column], vertical, behind);
    }
}

static void lu_setup(void) {
    lu.n = opt.size ? opt.size : 256;
    lu.first = first_of(lu.n, rank);
    lu.count = first_of(lu.n, rank + 1) - lu.first;
    lu.grid = words(lu.n * lu.count), lu.whole = words(lu.n * lu.n);
    for (size_t i = 0; i < lu.n; i++) {
        for (size_t j = 0; j < lu.n; j++) lu.whole[i * lu.n + j] = datum(5, i * lu.n + j) % PRIME;
        memcpy(lu.grid + i * lu.count, lu.whole + i * lu.n + lu.first, 8 * lu.count);
    }
}

static void lu_iteration(void) {
    uint64_t edge[LU_EDGE];
    for (int down = 1; down >= 0; down--) {
        int from = down ? rank - 1 : rank + 1, to = down ? rank + 1 : rank - 1;
        for (size_t k = 0; k < lu.n; k++) {
            size_t row = down ? k : lu.n - 1 - k;
            uint64_t behind = 1;
            if (from >= 0 && from < ranks) {
                MPI_Recv(edge, LU_EDGE, MPI_UINT64_T, from, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                uint64_t wanted[LU_EDGE] = {edge[0], row, iteration, (uint64_t)from};
                verify(edge, wanted, LU_EDGE, "edge");
                behind = edge[0];
            }
            lu_sweep(lu.grid, lu.count, row, down, behind);
            if (to >= 0 && to < ranks) {
                uint64_t last = lu.grid[row * lu.count + (down ? lu.count - 1 : 0)];
                uint64_t message[LU_EDGE] = {last, row, iteration, (uint64_t)rank};
                MPI_Send(message, LU_EDGE, MPI_UINT64_T, to, TAG, MPI_COMM_WORLD);
            }
        }
    }
    for (int down = 1; down >= 0; down--)
        for (size_t k = 0; k < lu.n; k++) lu_sweep(lu.whole, lu.n, down ? k : lu.n - 1 - k, down, 1);
    for (size_t row = 0; row < lu.n; row++) verify(lu.grid + row * lu.count, lu.whole + row * lu.n + lu.first, lu.count, "row");
}

/* ---- mg ---- */

enum { MG_COARSEST = 4, MG_LEVELS_MAX = 16 }; /* rows per rank of the coarsest grid */

/* Grids wrap around in both dimensions. A rank has `rows` rows of each and one above and below; computing alone it has all. */
struct grid {
    size_t rows, columns;
    uint64_t *cells, *scratch;
};

static struct {
    int levels;
    struct grid part[MG_LEVELS_MAX], whole[MG_LEVELS_MAX];
} mg;

static uint64_t *mg_row(uint64_t *cells, const struct grid *g, size_t row) { return cells + row * g->columns; }

static void mg_halo(struct grid *g, int alone) {
    size_t bytes = 8 * g->columns;
    if (alone) {
        memcpy(mg_row(g->cells, g, 0), mg_row(g->cells, g, g->rows), bytes);
        memcpy(mg_row(g->cells, g, g->rows + 1), mg_row(g->cells, g, 1), bytes);
        return;
    }
    int up = (rank - 1 + ranks) % ranks, down = (rank + 1) % ranks, count = (int)g->columns;
    MPI_Request requests[4];
    MPI_Irecv(mg_row(g->cells, g, 0), count, MPI_UINT64_T, up, TAG, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(mg_row(g->cells, g, g->rows + 1), count, MPI_UINT64_T, down, TAG + 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(mg_row(g->cells, g, g->rows), count, MPI_UINT64_T, down, TAG, MPI_COMM_WORLD, &requests[2]);
    MPI_Isend(mg_row(g->cells, g, 1), count, MPI_UINT64_T, up, TAG + 1, MPI_COMM_WORLD, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
}

static void mg_smooth(struct grid *g, int alone) {
    mg_halo(g, alone);
    size_t n = g->columns;
    for (size_t i = 1; i <= g->rows; i++) {
        const uint64_t *above = mg_row(g->cells, g, i - 1), *here = mg_row(g->cells, g, i), *below = mg_row(g->cells, g, i + 1);
        uint64_t *out = mg_row(g->scratch, g, i);
        for (size_t j = 0; j < n; j++)
            out[j] = 5 * here[j] + 3 * above[j] + 7 * below[j] + 11 * here[(j + n - 1) % n] + 13 * here[(j + 1) % n] + iteration;
    }
    uint64_t *other = g->cells;
    g->cells = g->scratch, g->scratch = other;
}

/* Down to the coarsest grid and up again; in integers modulo 2^64. */
static void mg_cycle(struct grid *levels, int alone) {
    for (int l = 0; l + 1 < mg.levels; l++) {
        struct grid *fine = &levels[l], *coarse = &levels[l + 1];
        mg_smooth(fine, alone);
        mg_halo(fine, alone);
        for (size_t i = 0; i < coarse->rows; i++)
            for (size_t j = 0; j < coarse->columns; j++)
                mg_row(coarse->cells, coarse, i + 1)[j] += mg_row(fine->cells, fine, 2 * i)[2 * j] +
                                                          2 * mg_row(fine->cells, fine, 2 * i + 1)[2 * j] +
                                                          mg_row(fine->cells, fine, 2 * i + 2)[2 * j + 1];
    }
    for (int l = mg.levels - 1; l >= 0; l--) {
        mg_smooth(&levels[l], alone);
        if (l == 0) break;
        struct grid *coarse = &levels[l], *fine = &levels[l - 1];
        mg_halo(coarse, alone);
        for (size_t i = 0; i < fine->rows; i++)
            for (size_t j = 0; j < fine->columns; j++)
                mg_row(fine->cells, fine, i + 1)[j] +=
                    mg_row(coarse->cells, coarse, i / 2 + 1)[j / 2] + mg_row(coarse->cells, coarse, i / 2 + 2 * (i % 2))[j / 2];
    }
}

static void mg_setup(void) {
    size_t rows = opt.size ? opt.size : 128;
    if (rows & (rows - 1) || rows < MG_COARSEST) fail(EXIT_USAGE, "nas mg: --size must be a power of two, at least %d", MG_COARSEST);
    size_t columns = rows * 4;
    for (mg.levels = 0; rows >= MG_COARSEST; rows /= 2, columns /= 2, mg.levels++) {
        struct grid *part = &mg.part[mg.levels], *whole = &mg.whole[mg.levels];
        *part = (struct grid){rows, columns, words((rows + 2) * columns), words((rows + 2) * columns)};
        size_t all = rows * (size_t)ranks;
        *whole = (struct grid){all, columns, words((all + 2) * columns), words((all + 2) * columns)};
        for (size_t i = 0; i < all; i++)
            for (size_t j = 0; j < columns; j++) mg_row(whole->cells, whole, i + 1)[j] = datum(6 + (uint64_t)mg.levels, i * columns + j);
        memcpy(mg_row(part->cells, part, 1), mg_row(whole->cells, whole, rows * (size_t)rank + 1), 8 * rows * columns);
    }
}

static void mg_iteration(void) {
    mg_cycle(mg.part, 0);
    mg_cycle(mg.whole, 1);
    for (int l = 0; l < mg.levels; l++) {
        struct grid *part = &mg.part[l], *whole = &mg.whole[l];
        verify(mg_row(part->cells, part, 1), mg_row(whole->cells, whole, part->rows * (size_t)rank + 1), part->rows * part->columns,
               "grid");
    }
}

/* ---- the program ---- */

static const struct kernel {
    const char *name;
    void (*setup)(void);
    void (*iterate)(void);
} kernels[] = {
    {"cg", cg_setup, cg_iteration}, {"ft", ft_setup, ft_iteration}, {"is", is_setup, is_iteration},
    {"lu", lu_setup, lu_iteration}, {"mg", mg_setup, mg_iteration},
};

static const struct kernel *parse(int argc, char **argv) {
    const struct kernel *found = NULL;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--seconds")) opt.seconds = parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--iterations")) opt.iterations = (uint64_t)parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--size")) opt.size = (size_t)parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--seed")) opt.seed = (uint64_t)parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--plant")) opt.plant = (uint64_t)parse_number(name, option_value(argc, argv, &i));
        else {
            for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++)
                if (!strcmp(kernels[k].name, name)) found = &kernels[k];
            if (!found || strcmp(found->name, name)) {
                found = NULL;
                break;
            }
        }
    }
    if (!found) {
        fputs(usage, stderr);
        _exit(EXIT_USAGE);
    }
    opt.kernel = found->name;
    return found;
}

int main(int argc, char **argv) {
    const struct kernel *kernel = parse(argc, argv);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks > 64) fail(EXIT_USAGE, "nas: at most 64 ranks");
    kernel->setup();
    uint64_t begin = monotonic_ns();
    if (rank == 0) announce_start();
    for (int more = 1; more; iteration++) {
        kernel->iterate();
        if (rank == 0) more = opt.iterations ? iteration + 1 < opt.iterations : (double)(monotonic_ns() - begin) < opt.seconds * 1e9;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    double seconds = (double)(monotonic_ns() - begin) / 1e9;
    uint64_t all = 0;
    MPI_Reduce(&values_checked, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("nas %s: %d ranks, %llu iterations, %llu values, every byte right (seed %llu, %.1f s) [%s]\n", opt.kernel, ranks,
               (unsigned long long)iteration, (unsigned long long)all, (unsigned long long)opt.seed, seconds, mpi_library());
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
