//! Groups of ranks, in the words of the library: what a server is told of one (`Directives`), and what it answers (`Reply`). Owns: the memory of an answer,
//! until the library releases it. Source: PMIx standard 4.1, `pmix_server_grp_fn_t`.

use crate::message::Bytes;
use rerail_pmix::abi::{
    BOOL, BYTE_OBJECT, ByteObject, DATA_ARRAY, Data, DataArray, Info, PROC, Proc, Release, SIZE, STATUS,
    SUCCESS, Status, Value,
};
use std::ffi::{CStr, c_void};

/// `pmix_info_cbfunc_t`: status, attributes, how many, the library's own, a function that frees them, its argument.
pub type Grouped = unsafe extern "C" fn(Status, *mut Info, usize, *mut c_void, Option<Release>, *mut c_void);

/// `PMIX_GROUP_ASSIGN_CONTEXT_ID`.
const NUMBERED: &CStr = c"pmix.grp.actxid";
/// `PMIX_GROUP_LOCAL_ONLY`.
const LOCAL: &CStr = c"pmix.grp.lcl";
/// `PMIX_GROUP_ENDPT_DATA`.
const DATA: &CStr = c"pmix.grp.endpt";
/// `PMIX_GROUP_CONTEXT_ID`.
const NUMBER: &CStr = c"pmix.grp.ctxid";
/// `PMIX_GROUP_MEMBERSHIP`.
const MEMBERS: &CStr = c"pmix.grp.mbrs";
/// `PMIX_LOCAL_COLLECTIVE_STATUS`.
const LOCAL_STATUS: &CStr = c"pmix.loc.col.st";

/// What ranks want of a group.
#[derive(Debug, PartialEq, Eq)]
pub struct Directives {
    /// It gets a number that no other group of the job has.
    pub numbered: bool,
    /// It has members of this host only, and the library needs no other host.
    pub local: bool,
    /// What the members of this host have put.
    pub data: Bytes,
    /// All members of this host are there.
    pub whole: bool,
}

impl Directives {
    /// # Safety
    /// It points to as many attributes.
    pub unsafe fn of(infos: *const Info, count: usize) -> Self {
        let mut found = Self { numbered: false, local: false, data: Bytes::new(), whole: true };
        for n in 0..count {
            // SAFETY: by the caller; a key ends in 0 within its room.
            let (info, key) = unsafe {
                let info = &*infos.add(n);
                (info, CStr::from_ptr(info.key.as_ptr()))
            };
            let value = &info.value;
            match key {
                _ if key == NUMBERED => found.numbered |= is_set(value),
                _ if key == LOCAL => found.local |= is_set(value),
                _ if key == DATA && value.kind == BYTE_OBJECT => {
                    // SAFETY: the type says that it is one; as many bytes as it says.
                    unsafe {
                        let ByteObject { bytes, size } = value.data.byte_object;
                        if !bytes.is_null() {
                            found
                                .data
                                .extend_from_slice(std::slice::from_raw_parts(bytes.cast::<u8>(), size));
                        }
                    }
                }
                _ if key == LOCAL_STATUS && value.kind == STATUS => {
                    // SAFETY: the type says that it is one.
                    found.whole &= unsafe { value.data.status } == SUCCESS;
                }
                _ => {}
            }
        }
        found
    }
}

/// `PMIX_INFO_TRUE`: a flag without a value is set.
fn is_set(value: &Value) -> bool {
    // SAFETY: the type says that it is one, of one byte.
    value.kind == 0 || value.kind == BOOL && unsafe { value.data.words[0] } as u8 != 0
}

/// The answer for a group that was made or dissolved.
pub struct Reply {
    infos: Vec<Info>,
    /// What one of them points to.
    _members: Vec<Proc>,
    _array: Box<DataArray>,
}

impl Reply {
    /// The bytes are allocated by malloc: the library takes them over, and puts null in their place.
    pub fn new(mut members: Vec<Proc>, number: Option<u64>, data: &[u8]) -> Box<Self> {
        let array = members.as_mut_ptr().cast();
        let mut array = Box::new(DataArray { kind: PROC, size: members.len(), array });
        let mut infos = vec![info(MEMBERS, DATA_ARRAY, Data { array: &raw mut *array })];
        if let Some(number) = number {
            infos.push(info(NUMBER, SIZE, Data { size: number as usize }));
        }
        if !data.is_empty() {
            // SAFETY: as many bytes as there are; without memory there is no data, and the ranks get an error for what they look for.
            let object = unsafe {
                let bytes = libc::malloc(data.len());
                let size = if bytes.is_null() { 0 } else { data.len() };
                std::ptr::copy_nonoverlapping(data.as_ptr(), bytes.cast(), size);
                ByteObject { bytes: bytes.cast(), size }
            };
            infos.push(info(DATA, BYTE_OBJECT, Data { byte_object: object }));
        }
        Box::new(Self { infos, _members: members, _array: array })
    }

    /// Gives it to the library, which releases it.
    pub fn give(mut self: Box<Self>, grouped: Grouped, own: *mut c_void) {
        let (infos, count) = (self.infos.as_mut_ptr(), self.infos.len());
        // SAFETY: the library's own function and argument; the attributes live until it calls `release`.
        unsafe { grouped(SUCCESS, infos, count, own, Some(release), Box::into_raw(self).cast()) };
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        for info in self.infos.iter().filter(|info| info.value.kind == BYTE_OBJECT) {
            // SAFETY: the type says that it is one; it is of malloc, or null where the library has taken it.
            unsafe { libc::free(info.value.data.byte_object.bytes.cast()) };
        }
    }
}

fn info(key: &CStr, kind: u16, data: Data) -> Info {
    let mut info = Info::new(key);
    info.value = Value { kind, data };
    info
}

/// Frees what [`Reply::give`] gave.
///
/// # Safety
/// The library calls it once, with what it was given.
unsafe extern "C" fn release(reply: *mut c_void) {
    // SAFETY: by the caller.
    drop(unsafe { Box::from_raw(reply.cast::<Reply>()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(infos: &[Info]) -> Directives {
        // SAFETY: as many attributes as it says.
        unsafe { Directives::of(infos.as_ptr(), infos.len()) }
    }

    fn status(status: Status) -> Info {
        info(LOCAL_STATUS, STATUS, Data { status })
    }

    #[test]
    fn what_ranks_want_is_read_from_the_attributes() {
        let nothing = Directives { numbered: false, local: false, data: Vec::new(), whole: true };
        assert_eq!(of(&[]), nothing);
        let mut bytes = *b"port";
        let object = ByteObject { bytes: bytes.as_mut_ptr().cast(), size: 4 };
        let all = [
            Info::flag(NUMBERED),
            info(LOCAL, BOOL, Data { words: [0; 3] }),
            status(SUCCESS),
            info(DATA, BYTE_OBJECT, Data { byte_object: object }),
            Info::flag(c"pmix.other"),
        ];
        assert_eq!(
            of(&all),
            Directives { numbered: true, local: false, data: b"port".to_vec(), whole: true }
        );
        // a flag needs no value; every member of this host brings its attributes
        assert!(of(&[Info::new(LOCAL), info(LOCAL, BOOL, Data { words: [0; 3] })]).local);
        let left = [status(SUCCESS), status(-62), status(SUCCESS)];
        assert!(!of(&left).whole, "one of them has left");
        // what is of another type says nothing
        let strange = [info(DATA, SIZE, Data { size: 7 }), info(LOCAL_STATUS, SIZE, Data { size: 7 })];
        assert_eq!(of(&strange), nothing);
    }
}
