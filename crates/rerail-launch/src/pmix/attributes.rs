//! Attributes of PMIx: names with values. Owns: the memory of the values, which the library allocates.

use crate::message::Start;
use crate::pmix::library::Library;
use rerail_pmix::abi::{DATA_ARRAY, DataArray, INFO, Info, PROC_RANK, REGEX, STRING, UINT16, UINT32};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;

/// A list of attributes.
pub struct Attributes<'l> {
    library: &'l Library,
    all: Vec<Info>,
}

impl<'l> Attributes<'l> {
    pub fn new(library: &'l Library) -> Self {
        Self { library, all: Vec::new() }
    }

    /// # Safety
    /// `value` points to a value of the type.
    unsafe fn add(&mut self, key: &CStr, value: *const c_void, kind: u16) -> Result<(), String> {
        let mut info = Info::new(key);
        // SAFETY: name and value may be read, by the caller; the library copies both.
        let status = unsafe { (self.library.info_load)(&mut info, key.as_ptr(), value, kind) };
        self.library.check("PMIx_Info_load", status)?;
        self.all.push(info);
        Ok(())
    }

    pub fn text(&mut self, key: &CStr, value: &str) -> Result<(), String> {
        let value = CString::new(value).map_err(|_| format!("a name of the job has a byte 0: {value:?}"))?;
        // SAFETY: a string, which is copied.
        unsafe { self.add(key, value.as_ptr().cast(), STRING) }
    }

    pub fn number(&mut self, key: &CStr, value: u32) -> Result<(), String> {
        // SAFETY: a number of this type, which is copied.
        unsafe { self.add(key, (&raw const value).cast(), UINT32) }
    }

    pub fn short(&mut self, key: &CStr, value: u16) -> Result<(), String> {
        // SAFETY: a number of this type, which is copied.
        unsafe { self.add(key, (&raw const value).cast(), UINT16) }
    }

    pub fn rank(&mut self, key: &CStr, value: u32) -> Result<(), String> {
        // SAFETY: a number of this type, which is copied.
        unsafe { self.add(key, (&raw const value).cast(), PROC_RANK) }
    }

    /// A list, shortened by this function of the library.
    fn regex(&mut self, key: &CStr, list: &str, shorten: Shorten) -> Result<(), String> {
        let list = CString::new(list).map_err(|_| format!("a name of a host has a byte 0: {list:?}"))?;
        let mut short = null_mut();
        // SAFETY: a string, and room for a pointer.
        let status = unsafe { shorten(list.as_ptr(), &mut short) };
        self.library.check("PMIx_generate_regex", status)?;
        // SAFETY: what the library made, and that it copies by its own rules: it need not end in 0.
        let added = unsafe { self.add(key, short.cast(), REGEX) };
        // SAFETY: allocated by malloc for the caller, and nothing else has it.
        unsafe { libc::free(short.cast()) };
        added
    }

    fn list(&mut self, key: &CStr, mut list: Attributes<'_>) -> Result<(), String> {
        let array = list.all.as_mut_ptr().cast();
        let array = DataArray { kind: INFO, size: list.all.len(), array };
        // SAFETY: as many attributes as it says, which are copied with all that they hold.
        unsafe { self.add(key, (&raw const array).cast(), DATA_ARRAY) }
    }

    /// For a function of the library, while this lives.
    pub fn as_mut(&mut self) -> (*mut Info, usize) {
        (self.all.as_mut_ptr(), self.all.len())
    }
}

impl Drop for Attributes<'_> {
    fn drop(&mut self) {
        for info in &mut self.all {
            // SAFETY: the library filled the value, and it is freed once.
            unsafe { (self.library.value_destruct)(&mut info.value) };
        }
    }
}

type Shorten = unsafe extern "C" fn(*const c_char, *mut *mut c_char) -> i32;

/// The hosts of a job, as PMIx calls the node map; and the ranks of each, as it calls the process map.
fn maps(counts: &[(String, usize)]) -> (String, String) {
    let mut next = 0;
    let ranks = counts.iter().map(|(_, count)| {
        let own: Vec<String> = (next..next + count).map(|rank| rank.to_string()).collect();
        next += count;
        own.join(",")
    });
    let ranks: Vec<String> = ranks.collect();
    let hosts: Vec<&str> = counts.iter().map(|(name, _)| name.as_str()).collect();
    (hosts.join(","), ranks.join(";"))
}

/// What the ranks of a host may query of their job.
///
/// # Errors
/// A sentence for the user.
pub fn of_job<'l>(
    library: &'l Library,
    start: &Start,
    hosts: &[(String, usize)],
    directory: &str,
) -> Result<Attributes<'l>, String> {
    let mut job = Attributes::new(library);
    let (nodes, ranks) = maps(hosts);
    let size = start.size as u32;
    job.regex(c"pmix.nmap", &nodes, library.hosts_regex)?;
    job.regex(c"pmix.pmap", &ranks, library.ranks_regex)?;
    job.text(c"pmix.jobid", &start.job)?;
    for key in [c"pmix.univ.size", c"pmix.job.size", c"pmix.max.size"] {
        job.number(key, size)?;
    }
    job.number(c"pmix.num.nodes", hosts.len() as u32)?;
    job.number(c"pmix.job.napps", 1)?;
    job.number(c"pmix.local.size", start.count as u32)?;
    let own: Vec<String> = (0..start.count).map(|local| (start.first + local).to_string()).collect();
    job.text(c"pmix.lpeers", &own.join(","))?;
    job.rank(c"pmix.lldr", start.first as u32)?;
    // where ranks may put their own files, which the agent removes
    job.text(c"pmix.tmpdir", directory)?;
    job.text(c"pmix.nsdir", &format!("{directory}/job"))?;
    let mut rank = 0;
    for (node, (name, count)) in hosts.iter().enumerate() {
        for local in 0..*count {
            let mut one = Attributes::new(library);
            one.rank(c"pmix.rank", rank)?;
            one.short(c"pmix.lrank", local as u16)?;
            one.short(c"pmix.nrank", local as u16)?;
            one.number(c"pmix.nodeid", node as u32)?;
            one.text(c"pmix.hname", name)?;
            one.number(c"pmix.appnum", 0)?;
            one.rank(c"pmix.aldr", 0)?;
            one.rank(c"pmix.apprank", rank)?;
            one.rank(c"pmix.grank", rank)?;
            one.text(c"pmix.pdir", &format!("{directory}/job/{rank}"))?;
            job.list(c"pmix.pdata", one)?;
            rank += 1;
        }
    }
    Ok(job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_name_hosts_and_the_ranks_of_each() {
        let hosts = [("a".to_owned(), 2), ("b".to_owned(), 1), ("c".to_owned(), 2)];
        assert_eq!(maps(&hosts), ("a,b,c".to_owned(), "0,1;2;3,4".to_owned()));
    }
}
