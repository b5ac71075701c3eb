//! A client of PMIx, as Open MPI's `mpirun` and `srun --mpi=pmix` serve it. Owns: the process's session with the library. Invariant: what the
//! library returns is checked before it is read. Source: PMIx standard 4.1, under the names of the functions and attributes.

mod library;

use crate::EXCHANGE_BYTES_MAX;
use crate::error::JoinError;
use crate::place::Place;
use library::Library;
use rerail_pmix::abi::{
    self, BYTE_OBJECT, ByteObject, Data, GLOBAL, Info, Proc, RANK_WILDCARD, Status, UINT32, Value,
};
use std::ffi::{CStr, c_char};
use std::ptr::{null, null_mut};

/// `PMIX_JOB_SIZE`: a number of 32 bits.
const JOB_SIZE: &CStr = c"pmix.job.size";
/// `PMIX_COLLECT_DATA`: a fence brings what was put to all processes.
const COLLECT_DATA: &CStr = c"pmix.collect";
/// Under which a process gives its bytes.
const KEY: &CStr = c"rwapi-address";

/// The library, initialized.
#[derive(Debug)]
pub struct Client {
    library: Library,
    namespace: [c_char; abi::NAMESPACE_BYTES],
    place: Place,
}

/// A value of the library, which is freed when it is dropped.
struct Got(*mut Value);

impl Got {
    fn value(&self) -> Option<&Value> {
        // SAFETY: null, or a value that PMIx_Get has allocated, initialized, and left to its caller, and that only drop frees.
        unsafe { self.0.as_ref() }
    }

    fn number(&self) -> Option<u32> {
        // SAFETY: the type says which field of the union there is, and every number is a u32.
        self.value().filter(|value| value.kind == UINT32).map(|value| unsafe { value.data.uint32 })
    }

    /// `None` also if there are more bytes than a process may give.
    fn bytes(&self) -> Option<&[u8]> {
        let object = self.byte_object().filter(|object| object.size <= EXCHANGE_BYTES_MAX)?;
        if object.size == 0 {
            return Some(&[]);
        }
        // SAFETY: not null; the library has allocated `size` bytes at it, which belong to the value that `self` keeps.
        (!object.bytes.is_null())
            .then(|| unsafe { std::slice::from_raw_parts(object.bytes.cast(), object.size) })
    }

    fn byte_object(&self) -> Option<ByteObject> {
        let value = self.value().filter(|value| value.kind == BYTE_OBJECT)?;
        // SAFETY: the type says which field of the union there is.
        Some(unsafe { value.data.byte_object })
    }
}

impl Drop for Got {
    fn drop(&mut self) {
        // What PMIX_VALUE_RELEASE of the header does in the program, for the types that are requested. What a value of
        // another type points to is not freed: its layout is not known here.
        let bytes = self.byte_object().map_or(null_mut(), |object| object.bytes);
        // SAFETY: both are null, or were allocated by malloc for the caller of PMIx_Get, which frees them here once; nothing else has them.
        unsafe {
            libc::free(bytes.cast());
            libc::free(self.0.cast());
        }
    }
}

/// What a function returned, as a result.
fn check(library: &Library, function: &'static str, status: Status) -> Result<(), JoinError> {
    if status == abi::SUCCESS {
        return Ok(());
    }
    // SAFETY: it takes every number, and returns a constant string.
    let why = unsafe { (library.error_string)(status).as_ref().map(|why| CStr::from_ptr(why)) };
    let why = why.map_or_else(|| status.to_string(), |why| format!("{}, {status}", why.to_string_lossy()));
    Err(JoinError::Pmix { function, why })
}

impl Client {
    /// Initializes the library, which connects to the server that the environment names.
    pub fn new() -> Result<Self, JoinError> {
        let library = Library::load()?;
        let mut own = Proc::new(c"", 0);
        // SAFETY: `own` may be written, and there are no attributes.
        let status = unsafe { (library.init)(&mut own, null_mut(), 0) };
        check(&library, "PMIx_Init", status)?;
        let mut client = Self { library, namespace: own.namespace, place: Place::ALONE };
        let size = client.get(RANK_WILDCARD, JOB_SIZE)?.number();
        let size = size.ok_or(JoinError::Pmix { function: "PMIx_Get", why: "the job has no size".into() })?;
        client.place = Place::new(own.rank.into(), size.into())?;
        Ok(client)
    }

    /// Where this process is in the job.
    pub fn place(&self) -> Place {
        self.place
    }

    fn get(&self, rank: u32, key: &CStr) -> Result<Got, JoinError> {
        let of = Proc { namespace: self.namespace, rank };
        let mut value = null_mut();
        // SAFETY: `of` and `key` are read only, there are no attributes, and `value` may be written.
        let status = unsafe { (self.library.get)(&of, key.as_ptr(), null(), 0, &mut value) };
        // the library sets the value only if it has one
        check(&self.library, "PMIx_Get", status)?;
        Ok(Got(value))
    }

    /// Gives bytes, at most [`EXCHANGE_BYTES_MAX`], and returns what each process gave.
    pub fn exchange(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, JoinError> {
        // const only in fact: the library copies the bytes
        let object = ByteObject { bytes: own.as_ptr().cast_mut().cast(), size: own.len() };
        let mut value = Value { kind: BYTE_OBJECT, data: Data { byte_object: object } };
        // SAFETY: key and value are read only, and copied before it returns.
        let status = unsafe { (self.library.put)(GLOBAL, KEY.as_ptr(), &mut value) };
        check(&self.library, "PMIx_Put", status)?;
        // SAFETY: the library is initialized.
        check(&self.library, "PMIx_Commit", unsafe { (self.library.commit)() })?;
        let collect = Info::flag(COLLECT_DATA);
        // SAFETY: no processes are all of the job, and there is one attribute, which is read only and outlives the call.
        let status = unsafe { (self.library.fence)(null(), 0, &collect, 1) };
        check(&self.library, "PMIx_Fence", status)?;
        let of = |rank: usize| match rank == self.place.rank() {
            true => Ok(own.to_vec()),
            false => {
                let got = self.get(rank as u32, KEY)?;
                got.bytes().map(<[u8]>::to_vec).ok_or(JoinError::Peer { rank })
            }
        };
        (0..self.place.size()).map(of).collect()
    }

    /// Reports that this process has ended its part.
    pub fn finalize(self) -> Result<(), JoinError> {
        // SAFETY: the library is initialized, and there are no attributes.
        check(&self.library, "PMIx_Finalize", unsafe { (self.library.finalize)(null(), 0) })
    }
}

/// For the fuzzer: what is read of a value of the library.
#[cfg(feature = "hostile")]
pub fn read(kind: u16, words: [u64; 3], bytes: Option<&[u8]>) -> (Option<u32>, Option<Vec<u8>>) {
    let mut data = Data { words };
    if let Some(bytes) = bytes {
        // SAFETY: new memory of at least one byte, which is checked before it is written, and freed by `Got` as memory of the library.
        let copy = unsafe { libc::malloc(bytes.len().max(1)) }.cast::<u8>();
        assert!(!copy.is_null(), "there is memory");
        // SAFETY: both are of this length, and the copy is new.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len()) };
        data.byte_object = ByteObject { bytes: copy.cast(), size: bytes.len() };
    } else if kind == BYTE_OBJECT {
        // the library promises that a pointer points to that many bytes, and nothing of the size
        data.byte_object = ByteObject { bytes: null_mut(), size: words[0] as usize };
    }
    let kind = if bytes.is_some() { BYTE_OBJECT } else { kind };
    // SAFETY: new memory of the size of a value, which is checked before it is written, and freed by `Got` as memory of the library.
    let value = unsafe { libc::malloc(size_of::<Value>()) }.cast::<Value>();
    assert!(!value.is_null(), "there is memory");
    // SAFETY: it is new, and large enough.
    unsafe { value.write(Value { kind, data }) };
    let got = Got(value);
    (got.number(), got.bytes().map(<[u8]>::to_vec))
}
