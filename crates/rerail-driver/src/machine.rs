//! What the driver calls of the engine.

use rerail_core::{
    Action, CloseReason, CqId, Datagram, Engine, Event, FarKernel, KeysUpdate, Locator, MemId, Place,
    RailEvent, RailId, RemoteKey, StreamId, Time, Train, Window, WorkId,
};

/// The engine as the driver sees it. Each method means what the one of the same name of [`Engine`] means; it is a trait so that the
/// driver's tests can put a script in the engine's place.
///
/// # Safety
/// The driver hands the pieces of a window to a port: those of [`Machine::stream_rx_window`] must be valid for writes, and untouched by
/// anything else, until [`Machine::stream_rx_done`] for that stream; those of [`Machine::stream_tx_window`] must be valid for reads
/// until [`Machine::stream_tx_done`], and what is offered in their place later must make the receiver discard them. The sources of its places
/// must be valid for reads until [`Machine::placed`], or until the stream is closed on request; the memory of
/// [`Action::Register`] for writes until [`Machine::invalidated`], or until every peer with the key has written
/// what it will write.
#[allow(missing_docs)]
pub unsafe trait Machine {
    fn handle_datagram(&mut self, rail: RailId, from: Locator, bytes: &[u8], now: Time);
    fn handle_damaged(&mut self, rail: RailId, from: Locator, cid: u64, now: Time);
    fn handle_unsealed(&mut self, now: Time);
    fn handle_rail(&mut self, rail: RailId, event: RailEvent, now: Time);
    fn handle_timeout(&mut self, now: Time);
    fn poll_timeout(&self) -> Option<Time>;

    fn expects_streams(&mut self) -> bool;
    fn stream_accepted(&mut self, rail: RailId, from: Locator, now: Time) -> StreamId;
    fn stream_connected(&mut self, stream: StreamId, now: Time);
    fn stream_closed(&mut self, stream: StreamId, why: CloseReason, now: Time);
    fn stream_inspected(&mut self, stream: StreamId, told: Option<FarKernel>, now: Time);
    fn stream_rx_window(&mut self, stream: StreamId, window: &mut Window) -> bool;
    fn stream_rx_done(&mut self, stream: StreamId, bytes: usize, now: Time);
    fn stream_tx_window(&mut self, stream: StreamId, window: &mut Window, now: Time) -> bool;
    fn stream_tx_done(&mut self, stream: StreamId, bytes: usize, now: Time);
    fn stream_writable(&mut self, stream: StreamId);

    fn placed(&mut self, work: WorkId, now: Time);
    /// An adapter cannot read the sources of these, which were offered last on the stream: nothing of them is lent.
    fn unreadable(&mut self, stream: StreamId, places: &[Place], now: Time);
    fn registered(&mut self, region: MemId, key: RemoteKey, now: Time);
    fn invalidated(&mut self, region: MemId, now: Time);

    fn stream_armed(&mut self, stream: StreamId, rail: RailId, now: Time);
    fn stream_unloaded(&mut self, stream: StreamId, now: Time);
    fn stream_migrated(&mut self, stream: StreamId, rail: RailId, now: Time);

    fn has_keys(&self) -> bool;
    fn poll_keys(&mut self) -> Option<KeysUpdate>;
    fn has_output(&self) -> bool;
    fn poll_datagram(&mut self, now: Time, out: &mut Datagram) -> bool;
    fn poll_train(&mut self, now: Time, out: &mut Train) -> bool;
    fn train_refused(&mut self, train: &Train, sent: usize, broken: bool, now: Time);
    fn poll_action(&mut self) -> Option<Action>;
    fn poll_writable(&mut self, now: Time) -> Option<StreamId>;
    fn poll_event(&mut self) -> Option<Event>;

    /// Whether a completion queue has an entry.
    fn has_completion(&self, cq: CqId) -> bool;
}

// SAFETY: the engine leases the pieces of a window to one stream, and leaves them unchanged until the `*_done` call of
// that window. When the memory of a begun frame is given back before all of it was taken, the frame ends with ABORT
// (hazard H1).
unsafe impl Machine for Engine {
    #[inline]
    fn handle_datagram(&mut self, rail: RailId, from: Locator, bytes: &[u8], now: Time) {
        Engine::handle_datagram(self, rail, from, bytes, now);
    }

    #[inline]
    fn handle_damaged(&mut self, rail: RailId, from: Locator, cid: u64, now: Time) {
        Engine::handle_damaged(self, rail, from, cid, now);
    }

    #[inline]
    fn handle_unsealed(&mut self, now: Time) {
        Engine::handle_unsealed(self, now);
    }

    #[inline]
    fn handle_rail(&mut self, rail: RailId, event: RailEvent, now: Time) {
        Engine::handle_rail(self, rail, event, now);
    }

    #[inline]
    fn handle_timeout(&mut self, now: Time) {
        Engine::handle_timeout(self, now);
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        Engine::poll_timeout(self)
    }

    #[inline]
    fn expects_streams(&mut self) -> bool {
        Engine::expects_streams(self)
    }

    #[inline]
    fn stream_accepted(&mut self, rail: RailId, from: Locator, now: Time) -> StreamId {
        Engine::stream_accepted(self, rail, from, now)
    }

    #[inline]
    fn stream_connected(&mut self, stream: StreamId, now: Time) {
        Engine::stream_connected(self, stream, now);
    }

    #[inline]
    fn stream_closed(&mut self, stream: StreamId, why: CloseReason, now: Time) {
        Engine::stream_closed(self, stream, why, now);
    }

    #[inline]
    fn stream_inspected(&mut self, stream: StreamId, told: Option<FarKernel>, now: Time) {
        Engine::stream_inspected(self, stream, told, now);
    }

    #[inline]
    fn stream_rx_window(&mut self, stream: StreamId, window: &mut Window) -> bool {
        Engine::stream_rx_window(self, stream, window)
    }

    #[inline]
    fn stream_rx_done(&mut self, stream: StreamId, bytes: usize, now: Time) {
        Engine::stream_rx_done(self, stream, bytes, now);
    }

    #[inline]
    fn stream_tx_window(&mut self, stream: StreamId, window: &mut Window, now: Time) -> bool {
        Engine::stream_tx_window(self, stream, window, now)
    }

    #[inline]
    fn stream_tx_done(&mut self, stream: StreamId, bytes: usize, now: Time) {
        Engine::stream_tx_done(self, stream, bytes, now);
    }

    #[inline]
    fn stream_writable(&mut self, stream: StreamId) {
        Engine::stream_writable(self, stream);
    }

    fn placed(&mut self, work: WorkId, now: Time) {
        Engine::placed(self, work, now);
    }

    fn unreadable(&mut self, stream: StreamId, places: &[Place], now: Time) {
        Engine::unreadable(self, stream, places, now);
    }

    fn registered(&mut self, region: MemId, key: RemoteKey, now: Time) {
        Engine::registered(self, region, key, now);
    }

    fn invalidated(&mut self, region: MemId, now: Time) {
        Engine::invalidated(self, region, now);
    }

    fn stream_armed(&mut self, stream: StreamId, rail: RailId, now: Time) {
        Engine::stream_armed(self, stream, rail, now);
    }

    fn stream_unloaded(&mut self, stream: StreamId, now: Time) {
        Engine::stream_unloaded(self, stream, now);
    }

    fn stream_migrated(&mut self, stream: StreamId, rail: RailId, now: Time) {
        Engine::stream_migrated(self, stream, rail, now);
    }

    #[inline]
    fn has_keys(&self) -> bool {
        Engine::has_keys(self)
    }

    fn poll_keys(&mut self) -> Option<KeysUpdate> {
        Engine::poll_keys(self)
    }

    #[inline]
    fn has_output(&self) -> bool {
        Engine::has_output(self)
    }

    #[inline]
    fn poll_datagram(&mut self, now: Time, out: &mut Datagram) -> bool {
        Engine::poll_datagram(self, now, out)
    }

    #[inline]
    fn poll_train(&mut self, now: Time, out: &mut Train) -> bool {
        Engine::poll_train(self, now, out)
    }

    #[inline]
    fn train_refused(&mut self, train: &Train, sent: usize, broken: bool, now: Time) {
        Engine::train_refused(self, train, sent, broken, now);
    }

    #[inline]
    fn poll_action(&mut self) -> Option<Action> {
        Engine::poll_action(self)
    }

    #[inline]
    fn poll_writable(&mut self, now: Time) -> Option<StreamId> {
        Engine::poll_writable(self, now)
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        Engine::poll_event(self)
    }

    #[inline]
    fn has_completion(&self, cq: CqId) -> bool {
        self.cq_head(cq).is_some()
    }
}
