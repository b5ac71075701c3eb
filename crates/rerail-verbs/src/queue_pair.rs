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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::fake::node;
    use crate::network::{Network, Subnet};
    use rerail_rail::Kind;

    const SUBNET: Subnet = Subnet { prefix: [0xfe, 0x80, 0, 0, 0, 0, 0, 7], global: false };

    fn queue_pair() -> (QueuePair, usize) {
        node::set_ports(vec![node::port(IBV_PORT_ACTIVE, 1)]);
        let device = Device::all(node::library()).0.remove(0);
        let network = Network::Subnet(SUBNET);
        let adapter = Adapter::of_device(node::library(), &device, (1, 0), network, Kind::IB).unwrap();
        // SAFETY: pointers and numbers, for which 0 is valid.
        let mut attributes: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        attributes.qp_type = IBV_QPT_RC;
        QueuePair::new(&Arc::new(adapter), attributes, 0xffff_0102_0304).unwrap()
    }

    #[test]
    fn a_queue_pair_is_connected_by_lid_with_the_smaller_mtu_and_a_patience_that_ends() {
        let (pair, _) = queue_pair();
        assert_eq!(pair.own(), End { queue_pair: 0x77, packet: 0x0002_0304, mtu: 4 });
        let peer = End { queue_pair: 0x99, packet: 0xabc, mtu: 3 };
        pair.connect(&SUBNET.place(0x1234, [0; 8]), peer).unwrap();
        let steps = node::steps();
        let states: Vec<u32> = steps.iter().map(|(_, a)| a.qp_state).collect();
        assert_eq!(states, [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS]);
        // what ibv_modify_qp(3) lists for each step
        let masks: Vec<i32> = steps.iter().map(|(mask, _)| *mask).collect();
        assert_eq!(masks, [0x39, 0x12_9181, 0x1_2e01]);
        assert_eq!(steps[0].1.qp_access_flags, IBV_ACCESS_REMOTE_WRITE as u32, "no reads, no atomics");
        let receive = &steps[1].1;
        assert_eq!((receive.dest_qp_num, receive.rq_psn, receive.path_mtu), (0x99, 0xabc, 3));
        let vector = &receive.ah_attr;
        assert_eq!((vector.dlid, vector.is_global, vector.port_num), (0x1234, 0, 1));
        let send = &steps[2].1;
        // 7 is for ever on some adapters, and below 12 a busy peer is given up
        assert_eq!((send.sq_psn, send.timeout, send.retry_cnt, send.rnr_retry), (0x0002_0304, 14, 6, 6));
    }

    #[test]
    fn it_is_destroyed_with_its_value_and_not_connected_to_another_subnet() {
        let (pair, _) = queue_pair();
        node::steps();
        let elsewhere = Subnet { prefix: [0xfe, 0x80, 0, 0, 0, 0, 0, 8], global: false };
        let why = pair.connect(&elsewhere.place(1, [0; 8]), pair.own()).unwrap_err();
        assert_eq!((why.kind(), node::steps().len()), (io::ErrorKind::HostUnreachable, 0));
        assert_eq!(node::open(), (1, 1));
        drop(pair);
        assert_eq!(node::open(), (0, 0));
    }
}
