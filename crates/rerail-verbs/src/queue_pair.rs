//! A reliable queue pair that is connected without RDMA-CM. Owns: it, and its way through its states.

use crate::abi::*;
use crate::adapter::{Adapter, done, made, with_inline};
use crate::identifier::{ACK_TIMEOUT, RETRIES};
use crate::setup::{End, NUMBER_MAX};
use std::io;
use std::sync::Arc;

/// How long a peer waits that met no receive: 0.64 ms (InfiniBand specification, table 45). Credits see to it that there is one.
const NO_RECEIVE_TIMER: u8 = 12;

/// See the module.
pub struct QueuePair {
    adapter: Arc<Adapter>,
    qp: *mut ibv_qp,
    own: End,
}

// SAFETY: libibverbs allows every call from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Receives may be posted from now on. `packet`: the number of its first packet, of which 24 bits count. Also returns how many
    /// bytes of a message fit into the work itself.
    ///
    /// # Errors
    /// The adapter has no more, for instance.
    pub fn new(
        adapter: &Arc<Adapter>,
        attributes: ibv_qp_init_attr,
        packet: u64,
    ) -> io::Result<(QueuePair, usize)> {
        let mtu = adapter.port_state()?.active_mtu as u8;
        let (qp, inline_max) = with_inline(attributes, |attributes| {
            // SAFETY: domain and queues live.
            made(unsafe { (adapter.library.ibv_create_qp)(adapter.domain, attributes) })
        })?;
        // SAFETY: it lives.
        let queue_pair = unsafe { (*qp).qp_num };
        let own = End { queue_pair, packet: packet as u32 & NUMBER_MAX, mtu };
        let pair = QueuePair { adapter: adapter.clone(), qp, own };
        let mut a = nothing();
        a.qp_state = IBV_QPS_INIT;
        a.port_num = adapter.port;
        a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE as u32;
        pair.modify(&mut a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)?;
        Ok((pair, inline_max))
    }

    /// For a lane.
    pub fn raw(&self) -> *mut ibv_qp {
        self.qp
    }

    /// What the peer has to know of it.
    pub fn own(&self) -> End {
        self.own
    }

    /// Connects it to the peer's, at a place of its network. Over Ethernet the kernel may ask that network for a second.
    ///
    /// # Errors
    /// There is no such place, or the network does not find it.
    pub fn connect(&self, place: &[u8], peer: End) -> io::Result<()> {
        let Adapter { network, port, gid_index, .. } = &*self.adapter;
        let vector = network.address_vector(place, *port, *gid_index);
        let mut a = nothing();
        a.qp_state = IBV_QPS_RTR;
        a.ah_attr = vector.ok_or(io::ErrorKind::HostUnreachable)?;
        a.path_mtu = peer.mtu.min(self.own.mtu).into();
        a.dest_qp_num = peer.queue_pair;
        a.rq_psn = peer.packet;
        a.min_rnr_timer = NO_RECEIVE_TIMER;
        // reads and atomics: none
        let receive = IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut a, IBV_QP_STATE | receive)?;
        let mut a = nothing();
        a.qp_state = IBV_QPS_RTS;
        a.sq_psn = self.own.packet;
        a.timeout = ACK_TIMEOUT;
        a.retry_cnt = RETRIES;
        a.rnr_retry = RETRIES;
        let send =
            IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut a, IBV_QP_STATE | send)
    }

    fn modify(&self, a: &mut ibv_qp_attr, mask: i32) -> io::Result<()> {
        // SAFETY: it lives.
        done(unsafe { (self.adapter.library.ibv_modify_qp)(self.qp, a, mask) })
    }
}

fn nothing() -> ibv_qp_attr {
    // SAFETY: numbers only, for which 0 is valid.
    unsafe { std::mem::zeroed() }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: it is not used any more: its lane was given back, or never made.
        unsafe { (self.adapter.library.ibv_destroy_qp)(self.qp) };
    }
}
