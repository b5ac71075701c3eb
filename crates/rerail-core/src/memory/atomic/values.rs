//! What the datatypes of atomic operations can do: integers, floats, the `long double` of the x87, and complex numbers.

/// What all datatypes can do.
///
/// # Safety
/// Any bytes are a value of the type, and it is laid out as C lays out its counterpart.
pub(super) unsafe trait Value: Copy + PartialEq {
    const ZERO: Self;
    const ONE: Self;
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($t:ty)+) => {$(
        // SAFETY: plain integer
        unsafe impl Value for $t {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
    )+};
}
integers!(i8 u8 i16 u16 i32 u32 i64 u64 i128 u128);

/// A part of a complex number.
pub(super) trait Real: Value + PartialOrd {
    const INFINITY: Self;
    fn difference(self, other: Self) -> Self;
    fn with_sign_of(self, other: Self) -> Self;
    fn is_nan(self) -> bool {
        self.partial_cmp(&self).is_none()
    }
    fn is_infinite(self) -> bool {
        self.with_sign_of(Self::ONE) == Self::INFINITY
    }
}

macro_rules! floats {
    ($($t:ty)+) => {$(
        // SAFETY: plain float
        unsafe impl Value for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            fn sum(self, other: Self) -> Self {
                self + other
            }
            fn product(self, other: Self) -> Self {
                self * other
            }
        }
        impl Real for $t {
            const INFINITY: Self = <$t>::INFINITY;
            fn difference(self, other: Self) -> Self {
                self - other
            }
            fn with_sign_of(self, other: Self) -> Self {
                self.copysign(other)
            }
        }
    )+};
}
floats!(f32 f64);

/// A complex number.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub(super) struct Complex<R> {
    re: R,
    im: R,
}

impl<R: Real> Complex<R> {
    fn is_infinite(self) -> bool {
        self.re.is_infinite() || self.im.is_infinite()
    }

    fn map(self, f: impl Fn(R) -> R) -> Self {
        Self { re: f(self.re), im: f(self.im) }
    }

    /// The product by the formula, which can be NaN when a factor is infinite; and whether one of its terms is infinite.
    fn plain_product(self, other: Self) -> (Self, bool) {
        let (rr, ii) = (self.re.product(other.re), self.im.product(other.im));
        let (ri, ir) = (self.re.product(other.im), self.im.product(other.re));
        let infinite = [rr, ii, ri, ir].into_iter().any(R::is_infinite);
        (Self { re: rr.difference(ii), im: ri.sum(ir) }, infinite)
    }

    /// Stands for a factor of an infinite product: an infinite number keeps its direction alone, another loses its NaN.
    fn direction(self) -> Self {
        let infinite = self.is_infinite();
        self.map(|part| {
            let size = match infinite {
                true if part.is_infinite() => R::ONE,
                false if !part.is_nan() => return part,
                _ => R::ZERO,
            };
            size.with_sign_of(part)
        })
    }
}

// SAFETY: two parts, the real one first, as in C
unsafe impl<R: Real> Value for Complex<R> {
    const ZERO: Self = Self { re: R::ZERO, im: R::ZERO };
    const ONE: Self = Self { re: R::ONE, im: R::ZERO };

    fn sum(self, other: Self) -> Self {
        Self { re: self.re.sum(other.re), im: self.im.sum(other.im) }
    }

    /// As C's `*` (C11, G.5.1): infinite where a factor is infinite and the other not zero.
    fn product(self, other: Self) -> Self {
        let (product, term_infinite) = self.plain_product(other);
        let lost = product.re.is_nan() && product.im.is_nan();
        if lost && (term_infinite || self.is_infinite() || other.is_infinite()) {
            let (product, _) = self.direction().plain_product(other.direction());
            return product.map(|part| R::INFINITY.product(part));
        }
        product
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x87::LongDouble;

/// `long double` of x86-64. Rust has no such type, so the x87 instructions are written by hand.
#[cfg(target_arch = "x86_64")]
mod x87 {
    use std::arch::asm;
    use std::cmp::Ordering;

    use super::{Real, Value};

    /// 10 bytes of value, least significant first, and padding, which is zero in what was computed.
    #[derive(Debug, Clone, Copy)]
    #[repr(C)]
    pub(in super::super) struct LongDouble([u8; 16]);

    /// Runs instructions with `$a` in `st(0)` and `$b` in `st(1)`; they take both off the stack.
    macro_rules! x87 {
        ($a:expr, $b:expr, $($line:literal),+; $($out:tt)*) => {
            // SAFETY: reads 10 bytes of both, and writes what the caller names. All of the stack is marked as clobbered,
            // so that it is empty here; the instructions leave it empty
            unsafe {
                asm!(
                    "fld tbyte ptr [{b}]",
                    "fld tbyte ptr [{a}]",
                    $($line),+,
                    a = in(reg) $a.0.as_ptr(),
                    b = in(reg) $b.0.as_ptr(),
                    $($out)*
                    out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                    out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                    options(nostack),
                )
            }
        };
    }

    macro_rules! arithmetic {
        ($name:ident, $instruction:literal) => {
            fn $name(self, other: Self) -> Self {
                let mut result = Self::ZERO;
                x87!(other, self, $instruction, "fstp tbyte ptr [{result}]";
                    result = in(reg) result.0.as_mut_ptr(),);
                result
            }
        };
    }

    impl PartialOrd for LongDouble {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            let (unordered, above, below): (u8, u8, u8);
            x87!(self, other, "fucomip st, st(1)", "fstp st(0)",
                "setp {unordered}", "seta {above}", "setb {below}";
                unordered = lateout(reg_byte) unordered, above = lateout(reg_byte) above,
                below = lateout(reg_byte) below,);
            match (unordered, above, below) {
                (1, ..) => None,
                (_, 1, _) => Some(Ordering::Greater),
                (_, _, 1) => Some(Ordering::Less),
                _ => Some(Ordering::Equal),
            }
        }
    }

    impl PartialEq for LongDouble {
        fn eq(&self, other: &Self) -> bool {
            self.partial_cmp(other) == Some(Ordering::Equal)
        }
    }

    // SAFETY: 16 bytes, as in the System V ABI
    unsafe impl Value for LongDouble {
        const ZERO: Self = Self([0; 16]);
        const ONE: Self = Self([0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f, 0, 0, 0, 0, 0, 0]);
        arithmetic!(sum, "faddp st(1), st");
        arithmetic!(product, "fmulp st(1), st");
    }

    impl Real for LongDouble {
        const INFINITY: Self = Self([0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x7f, 0, 0, 0, 0, 0, 0]);
        arithmetic!(difference, "fsubp st(1), st");
        fn with_sign_of(mut self, other: Self) -> Self {
            self.0[9] = (self.0[9] & 0x7f) | (other.0[9] & 0x80);
            self
        }
    }
}
