//! What is printed of a world that is traced.

/// A datagram in words, for a trace.
pub fn packet_text(b: &[u8]) -> String {
    use rerail_wire::frame::FRAME_HEADER_BYTES;
    use rerail_wire::packet::{PacketHeader, PacketKind, peek};
    use std::fmt::Write;
    let Some((_, kind)) = peek(b) else { return format!("{} bytes of garbage", b.len()) };
    if matches!(kind, PacketKind::Hello | PacketKind::Accept) {
        let path = u16::from_le_bytes([b[10], b[11]]);
        let epoch = u32::from_le_bytes([b[12], b[13], b[14], b[15]]);
        return format!("{kind:?} path {path} epoch {epoch}");
    }
    let Ok((h, mut rest)) = PacketHeader::parse(b) else { return "a broken packet".into() };
    let mut s = format!("{kind:?} path {} epoch {} number {}", h.path, h.epoch, h.number);
    if let (PacketKind::Bulk, Ok((b, _))) = (kind, rerail_wire::bulk::BulkHeader::parse(rest)) {
        let _ = write!(s, " [seq {} a {:#x} len {}]", b.seq, b.at, b.len);
    }
    if kind == PacketKind::Data {
        while let Ok(f) = rerail_wire::FrameHeader::parse(rest) {
            let _ = match f.kind {
                rerail_wire::FrameType::Ack => {
                    write!(
                        s,
                        " [Ack path {} epoch {} channel {} up to {} first {}]",
                        f.b as u16,
                        f.b >> 32,
                        f.b >> 16 & 1,
                        f.a,
                        f.x
                    )
                }
                _ => write!(
                    s,
                    " [{:?} seq {} a {:#x} total {} len {} x {}]",
                    f.kind, f.seq, f.a, f.total, f.len, f.x
                ),
            };
            let Some(r) = rest.get(FRAME_HEADER_BYTES + f.len as usize..) else { break };
            rest = r;
        }
    }
    s
}
