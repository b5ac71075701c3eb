/* What RWAPI has beyond the ten calls of the paper.
 * Made by cbindgen from crates/rwapi/src/capi.rs. License: Apache-2.0 OR MIT. */

#ifndef RWAPI_EXT_H
#define RWAPI_EXT_H

#include "rwapi.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Writes as rwapi_write, and sends a small message behind it: both, or neither.
 *
 * \return as rwapi_write.
 */
rwapi_sid_t rwapi_write_notify(int to,
                               rwapi_net_t local,
                               rwapi_net_t remote,
                               size_t size,
                               rwapi_small_t small);

/**
 * Sleeps until something has arrived or changed since the last call of it returned: a message, a write that is done, room for more, a
 * node that is gone.
 *
 * \param timeout_ms longest time; negative: no bound.
 * \return 1; 0: the time is over; -1 and errno: ENOTCONN.
 */
int rwapi_wait(int timeout_ms);

/**
 * Waits until all living nodes have called it, and the bytes of all writes that they made before are in place.
 *
 * \return 0; -1 and errno: ENOTCONN.
 */
int rwapi_barrier(void);

/**
 * What a value of errno means after one of these calls: a sentence.
 */
const char *rwapi_error_string(int error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RWAPI_EXT_H */
