//! Pieces of memory, local and remote, as the calls describe them in C.

use crate::errno::{INVALID, Result};
use crate::ffi::*;
use crate::limits::IOV_MAX;
use libc::{c_void, iovec};
use rerail_core::{IoVec, RemotePiece};

const NOTHING: IoVec = IoVec { ptr: std::ptr::null_mut(), len: 0 };

/// Pieces of a message, or of local memory of a one-sided operation.
pub struct Pieces {
    pieces: [IoVec; IOV_MAX],
    count: usize,
}

impl Pieces {
    /// No memory at all.
    pub fn none() -> Self {
        Self { pieces: [NOTHING; IOV_MAX], count: 0 }
    }

    /// One piece.
    #[inline(always)]
    pub fn one(buf: *const c_void, len: usize) -> Self {
        let mut pieces = [NOTHING; IOV_MAX];
        pieces[0] = IoVec::new(buf.cast_mut().cast(), len);
        Self { pieces, count: 1 }
    }

    /// From C.
    ///
    /// # Safety
    /// `iov` has `count` elements; it may be null when that is zero.
    pub unsafe fn from_c(iov: *const iovec, count: usize) -> Result<Self> {
        // SAFETY: the caller's promise.
        let pieces = unsafe { gather(iov, count, NOTHING, |v| IoVec::new(v.iov_base.cast(), v.iov_len)) }?;
        Ok(Self { pieces, count })
    }

    /// From C: values of `size` bytes each, for atomic operations.
    ///
    /// # Safety
    /// As for [`Pieces::from_c`].
    pub unsafe fn from_values(ioc: *const fi_ioc, count: usize, size: usize) -> Result<Self> {
        let piece = |v: fi_ioc| IoVec::new(v.addr.cast(), v.count.saturating_mul(size));
        // SAFETY: the caller's promise.
        Ok(Self { pieces: unsafe { gather(ioc, count, NOTHING, piece) }?, count })
    }

    /// The pieces, in order.
    #[inline(always)]
    pub fn get(&self) -> &[IoVec] {
        &self.pieces[..self.count]
    }

    /// Bytes in all.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        self.get().iter().fold(0, |sum, p| sum.saturating_add(p.len))
    }
}

const NOWHERE: RemotePiece = RemotePiece { addr: 0, len: 0, key: 0 };

/// Pieces of a peer's memory.
pub struct Remote {
    pieces: [RemotePiece; IOV_MAX],
    count: usize,
}

impl Remote {
    /// One piece.
    #[inline(always)]
    pub fn one(addr: u64, len: usize, key: u64) -> Self {
        let mut pieces = [NOWHERE; IOV_MAX];
        pieces[0] = RemotePiece { addr, len, key };
        Self { pieces, count: 1 }
    }

    /// From C.
    ///
    /// # Safety
    /// `iov` has `count` elements; it may be null when that is zero.
    pub unsafe fn from_c(iov: *const fi_rma_iov, count: usize) -> Result<Self> {
        let piece = |v: fi_rma_iov| RemotePiece { addr: v.addr, len: v.len, key: v.key };
        // SAFETY: the caller's promise.
        Ok(Self { pieces: unsafe { gather(iov, count, NOWHERE, piece) }?, count })
    }

    /// From C: values of `size` bytes each, for atomic operations.
    ///
    /// # Safety
    /// As for [`Remote::from_c`].
    pub unsafe fn from_values(ioc: *const fi_rma_ioc, count: usize, size: usize) -> Result<Self> {
        let piece =
            |v: fi_rma_ioc| RemotePiece { addr: v.addr, len: v.count.saturating_mul(size), key: v.key };
        // SAFETY: the caller's promise.
        Ok(Self { pieces: unsafe { gather(ioc, count, NOWHERE, piece) }?, count })
    }

    /// The pieces, in order.
    #[inline(always)]
    pub fn get(&self) -> &[RemotePiece] {
        &self.pieces[..self.count]
    }

    /// Bytes in all.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        self.get().iter().fold(0, |sum, p| sum.saturating_add(p.len))
    }
}

/// Reads `count` descriptions of memory from C. The places behind them hold `nothing`.
///
/// # Safety
/// `from` has `count` elements; it may be null when that is zero.
unsafe fn gather<C: Copy, P: Copy>(
    from: *const C,
    count: usize,
    nothing: P,
    piece: impl Fn(C) -> P,
) -> Result<[P; IOV_MAX]> {
    if count > IOV_MAX || (from.is_null() && count > 0) {
        return Err(INVALID);
    }
    let mut pieces = [nothing; IOV_MAX];
    for (i, place) in pieces.iter_mut().enumerate().take(count) {
        // SAFETY: `i < count`.
        *place = piece(unsafe { from.add(i).read() });
    }
    Ok(pieces)
}
