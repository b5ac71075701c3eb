//! Messages about alternate paths ([`crate::agreement`]), which only streams have.

use super::{Lane, Shape};
use crate::agreement::{self, Message};
use crate::message::{HEADER_BYTES, MessageKind};
use rerail_rail::CloseReason;

/// Messages about alternate paths that wait for a credit, or to be received.
const ABOUT_MAX: usize = 4;
impl Lane {
    /// Sends this about alternate paths, as soon as there is a credit for it. Of more than a few only the newest are of use.
    pub fn send_about_alternates(&mut self, message: Message) {
        if self.about_to_send.len() == ABOUT_MAX {
            self.about_to_send.pop_front();
        }
        self.about_to_send.push_back(message);
        self.send_about_alternates_on();
    }

    pub(super) fn send_about_alternates_on(&mut self) {
        while !self.about_to_send.is_empty() && self.has_room() && self.ended.is_none() {
            let Some(message) = self.about_to_send.pop_front() else { break };
            let slot = *self.free.last().expect("there is room");
            self.memory.slot_mut(slot)[HEADER_BYTES..][..agreement::BYTES]
                .copy_from_slice(&message.to_bytes());
            self.send_message(agreement::BYTES, MessageKind::Alternate);
            // At once: what is refused later would be taken for bytes of the stream.
            self.flush();
        }
    }

    /// The next message of the peer about them.
    pub fn receive_about_alternates(&mut self) -> Option<Message> {
        self.about_received.pop_front()
    }

    /// A message about alternate paths has come into a slot. Only streams have any.
    pub(super) fn take_message(&mut self, slot: usize) {
        let bytes = self.memory.slot(slot)[HEADER_BYTES..].first_chunk();
        match bytes.and_then(Message::read).filter(|_| self.shape == &Shape::STREAM) {
            Some(message) => {
                if self.about_received.len() == ABOUT_MAX {
                    self.about_received.pop_front();
                }
                self.about_received.push_back(message);
            }
            None => self.end(CloseReason::Damaged),
        }
    }
}
