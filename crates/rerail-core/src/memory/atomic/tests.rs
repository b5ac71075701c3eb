use super::AtomicKind::{Compare, Fetch, Update};
use super::*;

/// Carries out one operation on values at an odd address; gives what they became, and what came back.
fn run(d: u8, op: u8, kind: AtomicKind, target: &[u8], o: &[u8], c: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut room = vec![0xee_u8; target.len() + 17];
    let odd = 1 + room.as_ptr() as usize % 2;
    room[odd..odd + target.len()].copy_from_slice(target);
    let mut former = vec![7];
    // SAFETY: the room is ours
    unsafe { apply(d, op, kind, room.as_mut_ptr().add(odd), target.len(), o, c, &mut former) };
    let after = room[odd..odd + target.len()].to_vec();
    room.drain(odd..odd + target.len());
    assert!(room.iter().all(|b| *b == 0xee), "nothing around the values is touched");
    assert_eq!(former.remove(0), 7, "what is already there is kept");
    (after, former)
}

/// Runs every kind of every operation of a datatype on all combinations of `samples`, all in one call, and compares with
/// `model`, which gets operation, target, operand and value to compare.
fn check<T: Copy + std::fmt::Debug>(
    d: u8,
    samples: &[T],
    encode: impl Fn(T) -> Vec<u8>,
    same: impl Fn(&[u8], T) -> bool,
    model: impl Fn(u8, T, T, T) -> T,
) {
    let all = |n: usize| (0..n).flat_map(move |i| (0..n).flat_map(move |j| (0..n).map(move |k| [i, j, k])));
    let triples: Vec<[T; 3]> = all(samples.len()).map(|at| at.map(|i| samples[i])).collect();
    let column = |n: usize| triples.iter().flat_map(|t| encode(t[n])).collect::<Vec<u8>>();
    let (target, operand, compare) = (column(0), column(1), column(2));
    for (op, kind) in (0..=255).flat_map(|op| [Update, Fetch, Compare].map(|kind| (op, kind))) {
        let Some(size) = size_of(d, op, kind) else { continue };
        let operand = if op == op::ATOMIC_READ { &[] } else { &operand[..] };
        let compare = if kind == Compare { &compare[..] } else { &[] };
        let (after, former) = run(d, op, kind, &target, operand, compare);
        assert_eq!(former, if kind == Update { vec![] } else { target.clone() });
        for (value, [t, o, c]) in after.chunks(size).zip(&triples) {
            let want = model(op, *t, *o, *c);
            assert!(same(value, want), "{d} {op} {kind:?}: {t:?} {o:?} {c:?}: {value:?}, not {want:?}");
        }
    }
}

#[test]
fn integers_are_bits_that_wrap() {
    for (d, bits, signed) in
        [(0, 8, true), (1, 8, false), (2, 16, true), (3, 16, false), (4, 32, true), (5, 32, false)]
            .into_iter()
            .chain([(6, 64, true), (7, 64, false), (14, 128, true), (15, 128, false)])
    {
        let mask = u128::MAX >> (128 - bits);
        let sign = 1_u128 << (bits - 1);
        // order of two's complement is that of the bits with the sign turned
        let rank = |v: u128| if signed { v ^ sign } else { v };
        let pattern = 0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978 & mask;
        let samples = [0, 1, 2, 5, pattern, !pattern & mask, sign - 1, sign, sign + 1, mask - 2, mask];
        let encode = |v: u128| v.to_ne_bytes()[..bits / 8].to_vec();
        check(
            d,
            &samples,
            encode,
            |got, want| got == encode(want),
            |op, t, o, c| match op {
                0 => std::cmp::min_by_key(t, o, |v| rank(*v)),
                1 => std::cmp::max_by_key(t, o, |v| rank(*v)),
                2 => t.wrapping_add(o) & mask,
                3 => t.wrapping_mul(o) & mask,
                4 => u128::from(t > 0 || o > 0),
                5 => u128::from(t > 0 && o > 0),
                6 => t | o,
                7 => t & o,
                8 => u128::from((t > 0) ^ (o > 0)),
                9 => t ^ o,
                18 => (0..bits).map(|b| (if c >> b & 1 == 1 { o } else { t }) & 1 << b).sum(),
                10 => t,
                11 => o,
                _ => {
                    let order = rank(c).cmp(&rank(t));
                    let swap = [
                        order.is_eq(),
                        order.is_ne(),
                        order.is_le(),
                        order.is_lt(),
                        order.is_ge(),
                        order.is_gt(),
                    ];
                    if swap[usize::from(op) - 12] { o } else { t }
                }
            },
        );
    }
}

/// What the operations make of reals; the samples have exact results in every format.
fn real_model(op: u8, t: f64, o: f64, c: f64) -> f64 {
    let truth = |v: f64| v != 0.0;
    let replace = match op {
        0 => o < t,
        1 => o > t,
        2 => return t + o,
        3 => return t * o,
        4 => return f64::from(truth(t) || truth(o)),
        5 => return f64::from(truth(t) && truth(o)),
        8 => return f64::from(truth(t) ^ truth(o)),
        10 => false,
        11 => true,
        12 => c == t,
        13 => c != t,
        14 => c <= t,
        15 => c < t,
        16 => c >= t,
        17 => c > t,
        _ => panic!("{op} is not for reals"),
    };
    if replace { o } else { t }
}

/// An `f64` as the x87 writes it, with `padding`; not for subnormals.
fn extended(v: f64, padding: u8) -> Vec<u8> {
    let (exponent, fraction) = (v.to_bits() >> 52 & 0x7ff, v.to_bits() << 12);
    let (exponent, mantissa) = match exponent {
        0 => (0, 0),
        0x7ff => (0x7fff, 1 << 63 | fraction >> 1),
        e => (e as u16 + 0x3fff - 0x3ff, 1 << 63 | fraction >> 1),
    };
    let mut bytes: Vec<u8> = u64::to_le_bytes(mantissa).to_vec();
    bytes.extend((exponent | u16::from(v.is_sign_negative()) << 15).to_le_bytes());
    bytes.extend([padding; 6]);
    bytes
}

/// Runs `f` with each format of reals: single, double, and its numbers, and how it writes and compares a value.
fn formats(f: impl Fn(u8, u8, &dyn Fn(f64) -> Vec<u8>, &dyn Fn(&[u8], f64) -> bool)) {
    f(8, 10, &|v| (v as f32).to_ne_bytes().to_vec(), &|got, want| {
        let got = f32::from_ne_bytes(got.try_into().unwrap());
        got.to_bits() == (want as f32).to_bits() || got.is_nan() && want.is_nan()
    });
    f(9, 11, &|v| v.to_ne_bytes().to_vec(), &|got, want| {
        let got = f64::from_ne_bytes(got.try_into().unwrap());
        got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan()
    });
    if cfg!(target_arch = "x86_64") {
        f(12, 13, &|v| extended(v, 0xaa), &|got, want| {
            let nan = got[9] & 0x7f == 0x7f && got[8] == 0xff && got[..8] != extended(f64::INFINITY, 0)[..8];
            // computed values have padding of zeros, copied ones what they came with
            (got[..10] == extended(want, 0)[..10] || nan && want.is_nan())
                && (got[10..] == [0; 6] || got[10..] == [0xaa; 6])
        });
    }
}

const REALS: [f64; 9] = [-2.5, -1.0, -0.0, 0.0, 0.5, 3.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];

#[test]
fn reals_compare_and_add_as_ieee_754_has_it() {
    formats(|d, _, encode, same| check(d, &REALS, encode, same, real_model));
}

#[test]
fn complex_numbers_have_no_order() {
    let samples: Vec<(f64, f64)> =
        [(0.0, 0.0), (0.0, -0.0), (0.0, 2.0), (-0.5, 0.0), (1.5, -3.0), (f64::NAN, 1.0)].into();
    formats(|_, d, encode, same| {
        let half = encode(0.0).len();
        let both = |got: &[u8], want: (f64, f64)| same(&got[..half], want.0) && same(&got[half..], want.1);
        let truth = |v: (f64, f64)| v.0 != 0.0 || v.1 != 0.0;
        check(
            d,
            &samples,
            |v| [encode(v.0), encode(v.1)].concat(),
            both,
            |op, t, o, c| match op {
                2 => (t.0 + o.0, t.1 + o.1),
                3 => (t.0 * o.0 - t.1 * o.1, t.0 * o.1 + t.1 * o.0),
                4 => (f64::from(truth(t) || truth(o)), 0.0),
                5 => (f64::from(truth(t) && truth(o)), 0.0),
                8 => (f64::from(truth(t) ^ truth(o)), 0.0),
                10 => t,
                11 => o,
                12 => {
                    if c.0 == t.0 && c.1 == t.1 {
                        o
                    } else {
                        t
                    }
                }
                13 => {
                    if c.0 != t.0 || c.1 != t.1 {
                        o
                    } else {
                        t
                    }
                }
                _ => panic!("{op} is not for complex numbers"),
            },
        );
    });
}

#[test]
fn an_infinite_factor_makes_an_infinite_complex_product() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    // what C's `*` gives
    for (a, b, want) in [
        ((inf, inf), (1.0, 0.0), (inf, inf)),
        ((inf, nan), (-2.0, 1.0), (-inf, inf)),
        ((0.0, 3.0), (nan, -inf), (inf, nan)),
        ((inf, inf), (inf, inf), (nan, inf)),
        ((inf, 0.0), (0.0, 0.0), (nan, nan)),
        ((nan, 1.0), (nan, 1.0), (nan, nan)),
    ] {
        formats(|_, d, encode, same| {
            let encode = |v: (f64, f64)| [encode(v.0), encode(v.1)].concat();
            let (got, _) = run(d, op::PROD, Update, &encode(a), &encode(b), &[]);
            let (re, im) = got.split_at(got.len() / 2);
            assert!(same(re, want.0) && same(im, want.1), "{d}: {a:?} {b:?}: {got:?}");
        });
    }
}

#[test]
fn the_value_to_compare_stands_on_the_left() {
    let swapped = |op, compare: u32| {
        let compare = compare.to_ne_bytes();
        let (after, former) = run(5, op, Compare, &5_u32.to_ne_bytes(), &9_u32.to_ne_bytes(), &compare);
        assert_eq!(former, 5_u32.to_ne_bytes(), "swapped or not");
        after == 9_u32.to_ne_bytes()
    };
    // 4, 5 and 6 against a target of 5
    assert_eq!([4, 5, 6].map(|c| swapped(12, c)), [false, true, false], "CSWAP");
    assert_eq!([4, 5, 6].map(|c| swapped(13, c)), [true, false, true], "CSWAP_NE");
    assert_eq!([4, 5, 6].map(|c| swapped(14, c)), [true, true, false], "CSWAP_LE");
    assert_eq!([4, 5, 6].map(|c| swapped(15, c)), [true, false, false], "CSWAP_LT");
    assert_eq!([4, 5, 6].map(|c| swapped(16, c)), [false, true, true], "CSWAP_GE");
    assert_eq!([4, 5, 6].map(|c| swapped(17, c)), [false, false, true], "CSWAP_GT");
    assert_eq!(run(1, 18, Compare, &[0b1100], &[0b1010], &[0b0110]).0, [0b1010], "MSWAP");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn long_doubles_keep_64_bits_of_mantissa() {
    let value = |exponent: u16, mantissa: u64, padding: u8| {
        [&mantissa.to_le_bytes()[..], &exponent.to_le_bytes(), &[padding; 6]].concat()
    };
    let (one, top) = (0x3fff, 1 << 63);
    let tiny = value(one - 63, top, 0xbb); // 2^-63
    assert_eq!(run(12, 2, Update, &value(one, top, 0xaa), &tiny, &[]).0, value(one, top | 1, 0), "SUM");
    let root = value(one, top | 1 << 31, 0xaa); // 1 + 2^-32
    assert_eq!(run(12, 3, Update, &root, &root, &[]).0, value(one, top | 1 << 32, 0), "PROD, a tie to even");
    let (largest, infinity) = (value(0x7ffe, u64::MAX, 0xaa), value(0x7fff, top, 0));
    assert_eq!(run(12, 2, Update, &largest, &largest, &[]).0, infinity, "SUM over the range");
    let (less, more) = (value(one, top, 0xaa), value(one, top | 1, 0xbb)); // equal as doubles
    assert_eq!(run(12, 1, Update, &less, &more, &[]).0, more, "MAX, with its padding");
    assert_eq!(
        run(12, 12, Compare, &less, &more, &value(one, top, 0xcc)).0,
        more,
        "CSWAP, whatever the padding"
    );
    assert_eq!(run(12, 12, Compare, &less, &more, &more).0, less, "CSWAP of another value");
}

#[test]
fn what_goes_together_is_what_libfabric_offers() {
    // as the tables of util_atomic.c, a column for each datatype
    let (all, real, int) = ("1111111111111111", "1111111111001011", "1111111100000011");
    let rows = [real, real, all, all, all, all, int, int, all, int, all, all]; // MIN to ATOMIC_WRITE
    let swaps = [all, all, real, real, real, real, int]; // CSWAP to MSWAP
    let sizes = [1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16, 16, 32, 16, 16];
    for (d, op) in (0..=255_u8).flat_map(|d| (0..=255_u8).map(move |op| (d, op))) {
        let (column, row) = (usize::from(d), usize::from(op));
        let here = cfg!(target_arch = "x86_64") || !(12..=13).contains(&d);
        let of = |row: Option<&&str>| {
            row.and_then(|r| r.as_bytes().get(column)).filter(|c| here && **c == b'1').map(|_| sizes[column])
        };
        assert_eq!(size_of(d, op, Fetch), of(rows.get(row)), "{d} {op}");
        assert_eq!(size_of(d, op, Update), of(rows.get(row).filter(|_| op != op::ATOMIC_READ)), "{d} {op}");
        assert_eq!(size_of(d, op, Compare), of(row.checked_sub(12).and_then(|r| swaps.get(r))), "{d} {op}");
    }
}

#[test]
fn no_values_are_an_operation_too() {
    let mut former = Vec::new();
    // SAFETY: nothing is read or written
    unsafe { apply(7, op::SUM, Fetch, std::ptr::null_mut(), 0, &[], &[], &mut former) };
    assert!(former.is_empty());
}
