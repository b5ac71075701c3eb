/* plant: a preloaded library that breaks what an MPI program receives, to show that the programs here would notice.
 *
 * RERAIL_PLANT=flip    flips one bit of one message in 200
 *              late    writes into a receive buffer after MPI has said that it is complete
 *              swap    lets two receives in a row change places (order)
 *              beside  writes one byte behind a receive buffer
 * A check that has never failed proves nothing.
 */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { REMEMBERED = 1 << 12 };

static struct {
    MPI_Request request;
    unsigned char *buffer;
    size_t bytes;
} posted[REMEMBERED];

static unsigned long receives;
static unsigned char *late_at;

static int planted(const char *what) {
    const char *plant = getenv("RERAIL_PLANT");
    return plant && !strcmp(plant, what);
}

int MPI_Irecv(void *buffer, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request) {
    int result = PMPI_Irecv(buffer, count, type, source, tag, comm, request);
    if (type != MPI_BYTE || count < 64) return result;
    for (int i = 0; i < REMEMBERED; i++)
        if (!posted[i].buffer) {
            posted[i].request = *request;
            posted[i].buffer = buffer;
            posted[i].bytes = (size_t)count;
            break;
        }
    return result;
}

static void spoil(MPI_Request request, const MPI_Status *status) {
    for (int i = 0; i < REMEMBERED; i++) {
        if (!posted[i].buffer || posted[i].request != request) continue;
        int got;
        PMPI_Get_count(status, MPI_BYTE, &got);
        if (++receives % 200 == 0 && got >= 64) {
            if (planted("flip")) posted[i].buffer[got / 2] ^= 4;
            if (planted("beside")) posted[i].buffer[posted[i].bytes] ^= 1;
            if (planted("late")) late_at = posted[i].buffer + got / 2;
        }
        posted[i].buffer = NULL;
        return;
    }
}

static MPI_Request before[REMEMBERED];

int MPI_Waitsome(int count, MPI_Request *requests, int *finished, int *indices, MPI_Status *statuses) {
    if (count > REMEMBERED) abort();
    memcpy(before, requests, sizeof(MPI_Request) * (size_t)count);
    int result = PMPI_Waitsome(count, requests, finished, indices, statuses);
    for (int i = 0; i < *finished; i++) spoil(before[indices[i]], &statuses[i]);
    if (planted("swap"))
        for (int i = 1; i < *finished; i++)
            if (statuses[i].MPI_SOURCE != statuses[i - 1].MPI_SOURCE || statuses[i].MPI_TAG != statuses[i - 1].MPI_TAG) {
                MPI_Status other = statuses[i];
                statuses[i] = statuses[i - 1];
                statuses[i - 1] = other;
                break;
            }
    return result;
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
    MPI_Request was = *request;
    int result = PMPI_Test(request, flag, status);
    if (*flag && status != MPI_STATUS_IGNORE) spoil(was, status);
    return result;
}

/* The receives of a window are checked before a waiting cancel or a barrier; this comes in between. */
int MPI_Cancel(MPI_Request *request) {
    if (late_at) *late_at ^= 0xFF;
    late_at = NULL;
    return PMPI_Cancel(request);
}
