//! Atomic operations on values in memory: every datatype and operation of libfabric (fi_atomic(3)).
//!
//! Source: fi_atomic(3), and for what goes together `prov/util/src/util_atomic.c` of libfabric 2.6 as built without the
//! compiler's atomics, which offers the most. `FI_DIFF` and the floats of 8 and 16 bits have a number in libfabric 2.x, but
//! that file does not offer them: they are not valid here either.
//!
//! Integers wrap. Floats follow IEEE 754, and compare as values: -0 equals 0, and a NaN is neither equal, less nor greater.
//! Values lie in the byte order of the machine and need no alignment.

#[cfg(test)]
mod tests;
mod values;

use std::mem;
use std::ops::{BitAnd, BitOr, BitXor, Not};

use crate::types::AtomicKind;
use values::{Complex, Value};

/// Most bytes of operands of one operation.
pub const ATOMIC_BYTES_MAX: usize = 16384;

/// Datatypes, as `enum fi_datatype` numbers them.
pub mod datatype {
    /// `int8_t`.
    pub const INT8: u8 = 0;
    /// `uint8_t`.
    pub const UINT8: u8 = 1;
    /// `int16_t`.
    pub const INT16: u8 = 2;
    /// `uint16_t`.
    pub const UINT16: u8 = 3;
    /// `int32_t`.
    pub const INT32: u8 = 4;
    /// `uint32_t`.
    pub const UINT32: u8 = 5;
    /// `int64_t`.
    pub const INT64: u8 = 6;
    /// `uint64_t`.
    pub const UINT64: u8 = 7;
    /// `float`.
    pub const FLOAT: u8 = 8;
    /// `double`.
    pub const DOUBLE: u8 = 9;
    /// Two `float`: the real part, and the imaginary part.
    pub const FLOAT_COMPLEX: u8 = 10;
    /// Two `double`.
    pub const DOUBLE_COMPLEX: u8 = 11;
    /// `long double`.
    pub const LONG_DOUBLE: u8 = 12;
    /// Two `long double`.
    pub const LONG_DOUBLE_COMPLEX: u8 = 13;
    /// `__int128`.
    pub const INT128: u8 = 14;
    /// `unsigned __int128`.
    pub const UINT128: u8 = 15;
}

/// Operations, as `enum fi_op` numbers them, and what each makes of the target `t`, the operand `o` and the value to
/// compare `c`.
pub mod op {
    /// `if o < t { o } else { t }`.
    pub const MIN: u8 = 0;
    /// `if o > t { o } else { t }`.
    pub const MAX: u8 = 1;
    /// `t + o`.
    pub const SUM: u8 = 2;
    /// `t * o`.
    pub const PROD: u8 = 3;
    /// `t || o`, as 1 or 0.
    pub const LOR: u8 = 4;
    /// `t && o`, as 1 or 0.
    pub const LAND: u8 = 5;
    /// `t | o`.
    pub const BOR: u8 = 6;
    /// `t & o`.
    pub const BAND: u8 = 7;
    /// `!t != !o`, as 1 or 0.
    pub const LXOR: u8 = 8;
    /// `t ^ o`.
    pub const BXOR: u8 = 9;
    /// `t`; only fetched.
    pub const ATOMIC_READ: u8 = 10;
    /// `o`.
    pub const ATOMIC_WRITE: u8 = 11;
    /// `if c == t { o } else { t }`.
    pub const CSWAP: u8 = 12;
    /// `if c != t { o } else { t }`.
    pub const CSWAP_NE: u8 = 13;
    /// `if c <= t { o } else { t }`.
    pub const CSWAP_LE: u8 = 14;
    /// `if c < t { o } else { t }`.
    pub const CSWAP_LT: u8 = 15;
    /// `if c >= t { o } else { t }`.
    pub const CSWAP_GE: u8 = 16;
    /// `if c > t { o } else { t }`.
    pub const CSWAP_GT: u8 = 17;
    /// `(o & c) | (t & !c)`.
    pub const MSWAP: u8 = 18;
}

/// Bytes of one value of a datatype, when this build can do `op` of `kind` on it; `None`: not valid together, or not
/// supported. Datatypes and operations are numbered as [`datatype`] and [`op`] have them. A `long double` is supported
/// where it is the 80-bit format of the x87, in 16 bytes.
pub fn size_of(datatype: u8, op: u8, kind: AtomicKind) -> Option<usize> {
    #[derive(PartialEq)]
    enum Class {
        Integer,
        Real,
        Complex,
    }
    use Class::{Complex, Integer, Real};
    let x87 = cfg!(target_arch = "x86_64");
    let (size, class) = match datatype {
        datatype::INT8 | datatype::UINT8 => (1, Integer),
        datatype::INT16 | datatype::UINT16 => (2, Integer),
        datatype::INT32 | datatype::UINT32 => (4, Integer),
        datatype::INT64 | datatype::UINT64 => (8, Integer),
        datatype::INT128 | datatype::UINT128 => (16, Integer),
        datatype::FLOAT => (4, Real),
        datatype::DOUBLE => (8, Real),
        datatype::LONG_DOUBLE if x87 => (16, Real),
        datatype::FLOAT_COMPLEX => (8, Complex),
        datatype::DOUBLE_COMPLEX => (16, Complex),
        datatype::LONG_DOUBLE_COMPLEX if x87 => (32, Complex),
        _ => return None,
    };
    let of_kind = match kind {
        AtomicKind::Update => op <= op::ATOMIC_WRITE && op != op::ATOMIC_READ,
        AtomicKind::Fetch => op <= op::ATOMIC_WRITE,
        AtomicKind::Compare => (op::CSWAP..=op::MSWAP).contains(&op),
    };
    let of_class = match op {
        op::BOR | op::BAND | op::BXOR | op::MSWAP => class == Integer,
        op::MIN | op::MAX | op::CSWAP_LE..=op::CSWAP_GT => class != Complex,
        _ => true,
    };
    (of_kind && of_class).then_some(size)
}

/// Carries out `op` on the values at `target`, one after the other: `operand` (empty for a read), `compare` (only for
/// [`AtomicKind::Compare`]) and the result have as many bytes. The former values are appended to `former` unless `kind` is
/// [`AtomicKind::Update`].
///
/// # Safety
/// `target` may be read and written for `len` bytes by this thread alone, and does not overlap the other memory; `len` is a
/// multiple of what [`size_of`] gives.
///
/// # Panics
/// When [`size_of`] gives nothing, or the lengths do not fit.
#[allow(clippy::too_many_arguments)] // the caller has them apart, and a struct for it would be named after it
pub unsafe fn apply(
    datatype: u8,
    op: u8,
    kind: AtomicKind,
    target: *mut u8,
    len: usize,
    operand: &[u8],
    compare: &[u8],
    former: &mut Vec<u8>,
) {
    let size = size_of(datatype, op, kind).expect("an operation that size_of allows");
    assert!(len % size == 0, "{len} bytes are not whole values of {size}");
    assert_eq!(operand.len(), if op == op::ATOMIC_READ { 0 } else { len }, "bytes of the operand");
    assert_eq!(compare.len(), if kind == AtomicKind::Compare { len } else { 0 }, "bytes to compare with");
    if len == 0 {
        return; // the target may be null
    }
    if kind != AtomicKind::Update {
        // SAFETY: the caller's
        former.extend_from_slice(unsafe { std::slice::from_raw_parts(target, len) });
    }
    let values = Values { target, len, operand, compare };
    match datatype {
        datatype::INT8 => integer::<i8>(op, &values),
        datatype::UINT8 => integer::<u8>(op, &values),
        datatype::INT16 => integer::<i16>(op, &values),
        datatype::UINT16 => integer::<u16>(op, &values),
        datatype::INT32 => integer::<i32>(op, &values),
        datatype::UINT32 => integer::<u32>(op, &values),
        datatype::INT64 => integer::<i64>(op, &values),
        datatype::UINT64 => integer::<u64>(op, &values),
        datatype::INT128 => integer::<i128>(op, &values),
        datatype::UINT128 => integer::<u128>(op, &values),
        datatype::FLOAT => ordered::<f32>(op, &values),
        datatype::DOUBLE => ordered::<f64>(op, &values),
        datatype::FLOAT_COMPLEX => number::<Complex<f32>>(op, &values),
        datatype::DOUBLE_COMPLEX => number::<Complex<f64>>(op, &values),
        #[cfg(target_arch = "x86_64")]
        datatype::LONG_DOUBLE => ordered::<values::LongDouble>(op, &values),
        #[cfg(target_arch = "x86_64")]
        datatype::LONG_DOUBLE_COMPLEX => number::<Complex<values::LongDouble>>(op, &values),
        _ => unreachable!("size_of knows all datatypes"),
    }
}

fn integer<T>(op: u8, values: &Values<'_>)
where
    T: Value + PartialOrd + BitAnd<Output = T> + BitOr<Output = T> + BitXor<Output = T> + Not<Output = T>,
{
    match op {
        op::BOR => values.update(|t: T, o| t | o),
        op::BAND => values.update(|t: T, o| t & o),
        op::BXOR => values.update(|t: T, o| t ^ o),
        op::MSWAP => values.update_compared(|t: T, o, c| (o & c) | (t & !c)),
        _ => ordered::<T>(op, values),
    }
}

fn ordered<T: Value + PartialOrd>(op: u8, values: &Values<'_>) {
    match op {
        op::MIN => values.update(|t: T, o| if o < t { o } else { t }),
        op::MAX => values.update(|t: T, o| if o > t { o } else { t }),
        op::CSWAP_LE => values.update_compared(|t: T, o, c| if c <= t { o } else { t }),
        op::CSWAP_LT => values.update_compared(|t: T, o, c| if c < t { o } else { t }),
        op::CSWAP_GE => values.update_compared(|t: T, o, c| if c >= t { o } else { t }),
        op::CSWAP_GT => values.update_compared(|t: T, o, c| if c > t { o } else { t }),
        _ => number::<T>(op, values),
    }
}

fn number<T: Value>(op: u8, values: &Values<'_>) {
    let logical = |value| if value { T::ONE } else { T::ZERO };
    match op {
        op::SUM => values.update(T::sum),
        op::PROD => values.update(T::product),
        op::LOR => values.update(|t, o| logical(t != T::ZERO || o != T::ZERO)),
        op::LAND => values.update(|t, o| logical(t != T::ZERO && o != T::ZERO)),
        op::LXOR => values.update(|t, o| logical((t != T::ZERO) != (o != T::ZERO))),
        op::ATOMIC_READ => {} // the former values are the result
        op::ATOMIC_WRITE => values.update(|_: T, o| o),
        op::CSWAP => values.update_compared(|t: T, o, c| if c == t { o } else { t }),
        op::CSWAP_NE => values.update_compared(|t: T, o, c| if c != t { o } else { t }),
        _ => unreachable!("size_of allows an operation only with its datatypes"),
    }
}

/// The values of one operation. Only [`apply`] makes one: `target` is valid for `len` bytes, and `operand` and `compare`
/// have as many bytes, where the operation takes them.
struct Values<'a> {
    target: *mut u8,
    len: usize,
    operand: &'a [u8],
    compare: &'a [u8],
}

impl Values<'_> {
    /// Replaces each value by what `f` makes of it and the operand.
    fn update<T: Value>(&self, f: impl Fn(T, T) -> T) {
        assert_eq!(self.operand.len(), self.len);
        for at in (0..self.len).step_by(mem::size_of::<T>()) {
            // SAFETY: `len` is a multiple of the size, so that a whole value lies there in both; any bytes are a value
            unsafe {
                let target = self.target.add(at).cast::<T>();
                let operand = self.operand.as_ptr().add(at).cast::<T>();
                target.write_unaligned(f(target.read_unaligned(), operand.read_unaligned()));
            }
        }
    }

    /// Replaces each value by what `f` makes of it, the operand and the value to compare.
    fn update_compared<T: Value>(&self, f: impl Fn(T, T, T) -> T) {
        assert_eq!(self.operand.len(), self.len);
        assert_eq!(self.compare.len(), self.len);
        for at in (0..self.len).step_by(mem::size_of::<T>()) {
            // SAFETY: `len` is a multiple of the size, so that a whole value lies there in all three; any bytes are a value
            unsafe {
                let target = self.target.add(at).cast::<T>();
                let operand = self.operand.as_ptr().add(at).cast::<T>();
                let compare = self.compare.as_ptr().add(at).cast::<T>();
                let new = f(target.read_unaligned(), operand.read_unaligned(), compare.read_unaligned());
                target.write_unaligned(new);
            }
        }
    }
}
