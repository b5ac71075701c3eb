/* RWAPI: remote write over every network interface at once. Semantics: docs/rwapi.md.
 * Made by cbindgen from crates/rwapi/src/capi.rs. License: Apache-2.0 OR MIT. */

#ifndef RWAPI_H
#define RWAPI_H

#include <stddef.h>
#include <stdint.h>

/**
 * A network address: names a byte of a block everywhere in the job. 0 names nothing. Adding n moves n bytes further in the same
 * block.
 */
typedef uint64_t rwapi_net_t;

/**
 * A small message.
 */
typedef struct rwapi_small_t {
  /**
   * What it carries.
   */
  uint8_t bytes[16];
} rwapi_small_t;

/**
 * Names a write; greater than 0, and never used twice by a process.
 */
typedef int64_t rwapi_sid_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Joins the job that this process was started for: by `rerail launch`, `mpiexec`, `mpirun`, `srun --mpi=pmi2`, or alone. To be
 * called before all others, by all nodes. Which network interfaces are used, and how, the variables FI_RERAIL_… decide.
 *
 * \param argc, argv the arguments of main; they are not read.
 * \return 0; -1 and errno: EALREADY it was called before; ENETDOWN the job cannot begin (standard error says why).
 */
int rwapi_init(int argc,
               char **argv);

/**
 * Ends this node's part of the job. Collective: delivers what is under way, waits until all living nodes have called it. No node writes
 * into blocks any more; those that were not freed stay memory of the process.
 *
 * \return 0; -1 and errno: ENOTCONN.
 */
int rwapi_finalize(void);

/**
 * The number of this node, from 0. -1 and ENOTCONN outside a job.
 */
int rwapi_rank(void);

/**
 * The number of nodes, those that are gone among them. -1 and ENOTCONN outside a job.
 */
int rwapi_size(void);

/**
 * Allocates a block that all nodes may write: zeroed, and aligned to a page.
 *
 * \param size bytes, 1 to 8 TiB.
 * \param net where the network address of its first byte goes.
 * \return the block; NULL and errno: EINVAL the size is 0, or net is NULL; ENOMEM; EFAULT too large, or too many blocks; ENOTCONN.
 *
 * `net` is NULL or valid for a write.
 */
void *rwapi_alloc(size_t size,
                  rwapi_net_t *net);

/**
 * Gives a block back. When the call returns no node can write it any more.
 *
 * \return 0; -1 and errno: EFAULT it is no block of rwapi_alloc; ENOTCONN.
 */
int rwapi_free(void *block);

/**
 * Sends a small message. Never blocks. It arrives after the bytes of all writes that this node has made to the same node before.
 *
 * \return 0; -1 and errno: EAGAIN there is no room now (the node has not received 512 messages of this one): receive, and try
 * again; EINVAL there is no such node; EHOSTDOWN the node is gone; ENOTCONN.
 */
int rwapi_send(int to,
               struct rwapi_small_t small);

/**
 * Takes the oldest small message that has arrived. Never blocks.
 *
 * \return 1: *from and *small are set; 0: there is none; -1 and errno: EHOSTDOWN the node *from is gone (reported once for each,
 * after its last message; the others go on); EINVAL a pointer is NULL; ENOTCONN.
 *
 * The pointers are NULL or valid for a write.
 */
int rwapi_receive(int *from,
                  struct rwapi_small_t *small);

/**
 * Writes a range of a block of this process into a range of a block of a node. Never blocks. Up to 8 KiB are copied in the call; of more, the
 * local memory must not change until rwapi_issent gives 1.
 *
 * \param local where the bytes are: an address in a block of this process.
 * \param remote where they go: an address of that node.
 * \return the identifier of the write; -1 and errno: EAGAIN there is no room now; EINVAL no such node, or the size is 0; EFAULT local is in no
 * block of this process, remote is no address of that node, or a range leaves its block: no byte is touched; EHOSTDOWN the node is
 * gone; ENOBUFS 4096 writes have failed and rwapi_issent was not called for them; ENOTCONN.
 */
rwapi_sid_t rwapi_write(int to,
                        rwapi_net_t local,
                        rwapi_net_t remote,
                        size_t size);

/**
 * Whether a write is done: its bytes are in place at the target, and the local memory may be used again.
 *
 * \return 1; 0: not yet; -1 and errno: EFAULT the target refused it (it has no such block, or the range leaves the block): no byte was
 * touched; EHOSTDOWN the target is gone: some bytes may be in place; EINVAL no write had this identifier; ENOTCONN.
 */
int rwapi_issent(rwapi_sid_t sid);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RWAPI_H */
