//! The system calls that neither std nor socket2 wrap. Owns: every `unsafe` of this crate except the reads and writes of
//! user memory.

use rerail_rail::FarKernel;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

pub(crate) fn check(r: libc::c_int) -> io::Result<libc::c_int> {
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r) }
}

fn check_size(r: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(r).map_err(|_| io::Error::last_os_error())
}

/// Segments that were sent again on a connection, and the size of one (`TCP_INFO`).
pub(crate) fn resent(fd: RawFd) -> Option<(u64, u32)> {
    let (info, len) = tcp_info(fd)?;
    let known = mem::offset_of!(libc::tcp_info, tcpi_total_retrans) + mem::size_of::<u32>();
    (len >= known).then(|| (u64::from(info.tcpi_total_retrans), info.tcpi_snd_mss))
}

/// What the kernel reports of a connection, and how much of it.
fn tcp_info(fd: RawFd) -> Option<(libc::tcp_info, usize)> {
    // SAFETY: all zeros is a valid tcp_info.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut len = mem::size_of_val(&info) as libc::socklen_t;
    // SAFETY: pointer and length describe `info`, which lives through the call.
    let r = unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut len)
    };
    (r == 0).then_some((info, len as usize))
}

/// What the kernel at the other end of a connection has acknowledged (`TCP_INFO`, tcp(7)). Its answers to probes of a full window count as
/// signs of life (`tcpi_last_ack_recv`, in milliseconds), and what is sent again as sent (`tcpi_last_data_sent`).
pub(crate) fn far_kernel(fd: RawFd) -> Option<FarKernel> {
    let (info, len) = tcp_info(fd)?;
    // since Linux 4.1
    let known = mem::offset_of!(libc::tcp_info, tcpi_bytes_acked) + mem::size_of::<u64>();
    let usual = info.tcpi_rtt.saturating_add(info.tcpi_rttvar.saturating_mul(4));
    (len >= known).then(|| FarKernel {
        heard: Duration::from_millis(u64::from(info.tcpi_last_ack_recv)),
        has_all: has_all(fd),
        segments: info.tcpi_unacked,
        acked: info.tcpi_bytes_acked,
        sent: Duration::from_millis(u64::from(info.tcpi_last_data_sent)),
        usual: Duration::from_micros(u64::from(usual)),
    })
}

/// Segments of a connection that the other end's kernel has not acknowledged (`TCP_INFO`, tcp(7): `tcpi_unacked`).
pub(crate) fn in_flight(fd: RawFd) -> Option<u32> {
    let (info, len) = tcp_info(fd)?;
    let known = mem::offset_of!(libc::tcp_info, tcpi_unacked) + mem::size_of::<u32>();
    (len >= known).then_some(info.tcpi_unacked)
}

/// Whether the other end's kernel has acknowledged every byte that was written to a connection (`SIOCOUTQ`, tcp(7)).
pub(crate) fn has_all(fd: RawFd) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int, which lives through the call.
    check(unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) }).is_ok() && bytes == 0
}

/// Bytes written to a connection that the kernel has not sent once (`SIOCOUTQNSD`, linux/sockios.h).
pub(crate) fn unsent(fd: RawFd) -> Option<u32> {
    const SIOCOUTQNSD: libc::Ioctl = 0x894B;
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int, which lives through the call.
    check(unsafe { libc::ioctl(fd, SIOCOUTQNSD, &raw mut bytes) }).ok()?;
    u32::try_from(bytes).ok()
}

/// Has the kernel send what a connection has pending, as far as windows and queues allow (tcp(7), `TCP_NODELAY`).
pub(crate) fn push(fd: RawFd) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)
}

/// How many descriptors this process may have now.
pub(crate) fn descriptors_max() -> u64 {
    let mut l = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills `l`, which lives through the call.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut l) } {
        0 => l.rlim_cur,
        _ => u64::MAX,
    }
}

/// An option of a socket that is a number; `None` where the kernel has it not.
pub(crate) fn get_int(fd: RawFd, level: libc::c_int, name: libc::c_int) -> Option<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: pointer and length describe `value`.
    let r = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    (r == 0).then_some(value)
}

/// Sets an option whose value is a C int.
pub(crate) fn set_int(
    fd: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which lives through the call.
    check(unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            (&raw const value).cast(),
            mem::size_of_val(&value) as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Puts `new` in the place of the descriptor `old`, at once for every thread.
pub(crate) fn replace_fd(old: RawFd, new: OwnedFd) -> io::Result<()> {
    // SAFETY: both are open descriptors of ours; `old` keeps its owner, which goes on owning what is there now.
    check(unsafe { libc::dup3(new.as_raw_fd(), old, libc::O_CLOEXEC) })?;
    Ok(())
}

/// A socket address in the kernel's form.
#[derive(Clone, Copy)]
pub(crate) struct RawAddr {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl From<SocketAddr> for RawAddr {
    fn from(a: SocketAddr) -> Self {
        // SAFETY: all zeros is a valid sockaddr_storage.
        let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let len = match a {
            SocketAddr::V4(a) => {
                let s = (&raw mut storage).cast::<libc::sockaddr_in>();
                // SAFETY: a sockaddr_storage is large enough and aligned for every kind of address.
                unsafe {
                    (*s).sin_family = libc::AF_INET as libc::sa_family_t;
                    (*s).sin_port = a.port().to_be();
                    (*s).sin_addr.s_addr = u32::from_ne_bytes(a.ip().octets());
                }
                mem::size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(a) => {
                let s = (&raw mut storage).cast::<libc::sockaddr_in6>();
                // SAFETY: as above.
                unsafe {
                    (*s).sin6_family = libc::AF_INET6 as libc::sa_family_t;
                    (*s).sin6_port = a.port().to_be();
                    (*s).sin6_addr.s6_addr = a.ip().octets();
                    (*s).sin6_scope_id = a.scope_id();
                }
                mem::size_of::<libc::sockaddr_in6>()
            }
        };
        Self { storage, len: len as libc::socklen_t }
    }
}

fn address_of(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which kind of address the storage holds.
            let s = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(s.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(s.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let s = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(s.sin6_addr.s6_addr);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(s.sin6_port), 0, s.sin6_scope_id)))
        }
        _ => None,
    }
}

/// Sends one datagram. Never blocks, raises no signal.
pub(crate) fn send_to(fd: RawFd, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
    let to = RawAddr::from(to);
    // SAFETY: buffer and address live through the call, with the lengths given.
    check_size(unsafe {
        libc::syscall(
            libc::SYS_sendto,
            libc::c_long::from(fd),
            bytes.as_ptr(),
            bytes.len(),
            libc::c_long::from(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL),
            &raw const to.storage,
            libc::c_long::from(to.len),
        ) as libc::ssize_t
    })
}

/// Flags of an empty send that sends nothing: `MSG_CONFIRM` confirms to the kernel that the neighbour is reachable
/// (send(2)), and with `MSG_PROBE` the kernel does no more than that (Linux, `udp_sendmsg`).
pub(crate) const KEEP_NEIGHBOUR: libc::c_int = libc::MSG_CONFIRM | MSG_PROBE;
/// From Linux's `socket.h`; the libc crate has it not.
const MSG_PROBE: libc::c_int = 0x10;

/// Makes the kernel keep its ARP/ND entry for `to` on the socket's device. Sends nothing.
pub(crate) fn keep_neighbour(fd: RawFd, to: SocketAddr) -> io::Result<()> {
    let to = RawAddr::from(to);
    let flags = KEEP_NEIGHBOUR | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: there are no bytes, and the address lives through the call, with the length given.
    let n = unsafe { libc::sendto(fd, std::ptr::null(), 0, flags, (&raw const to.storage).cast(), to.len) };
    check_size(n).map(drop)
}

/// Sends one datagram by a connected socket. Never blocks, raises no signal.
pub(crate) fn send_connected(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the buffer lives through the call, with the length given; there is no address.
    check_size(unsafe {
        libc::syscall(
            libc::SYS_sendto,
            libc::c_long::from(fd),
            bytes.as_ptr(),
            bytes.len(),
            libc::c_long::from(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL),
            std::ptr::null::<libc::sockaddr>(),
            0 as libc::c_long,
        ) as libc::ssize_t
    })
}

/// Receives one datagram by a connected socket: its length, which is more than `buf` has when it did not fit. `None`: there is none. Never
/// blocks.
pub(crate) fn recv_connected(fd: RawFd, buf: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: the kernel writes at most the length of `buf`; there is no address.
    none_yet(check_size(unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            libc::c_long::from(fd),
            buf.as_mut_ptr(),
            buf.len(),
            libc::c_long::from(libc::MSG_DONTWAIT | libc::MSG_TRUNC),
            std::ptr::null_mut::<libc::sockaddr>(),
            std::ptr::null_mut::<libc::socklen_t>(),
        ) as libc::ssize_t
    }))
}

/// The same, with the sender's address.
pub(crate) fn recv_from(fd: RawFd, buf: &mut [u8]) -> io::Result<Option<(usize, Option<SocketAddr>)>> {
    // SAFETY: all zeros is a valid sockaddr_storage.
    let mut from: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut len = mem::size_of_val(&from) as libc::socklen_t;
    // SAFETY: buffer and address live through the call, with the lengths given.
    let got = none_yet(check_size(unsafe {
        libc::recvfrom(
            fd,
            buf.as_mut_ptr().cast(),
            buf.len(),
            libc::MSG_DONTWAIT | libc::MSG_TRUNC,
            (&raw mut from).cast(),
            &raw mut len,
        )
    }))?;
    Ok(got.map(|n| (n, address_of(&from))))
}

/// That there is nothing yet is no error.
fn none_yet<T>(r: io::Result<T>) -> io::Result<Option<T>> {
    match r {
        Ok(v) => Ok(Some(v)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}

/// Room for the control messages of one datagram: packet information of either family.
#[repr(C, align(8))]
struct Control([u8; 128]);

/// Sends one datagram out of interface `index` with source address `from`, whatever the socket is bound to; `flags` beside those of every send.
pub(crate) fn send_to_via(
    fd: RawFd,
    bytes: &[u8],
    to: SocketAddr,
    index: u32,
    from: IpAddr,
    flags: libc::c_int,
) -> io::Result<usize> {
    let mut to = RawAddr::from(to);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 128]);
    // SAFETY: all zeros is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_name = (&raw mut to.storage).cast();
    msg.msg_namelen = to.len;
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: `control` is zeroed, aligned for a cmsghdr, and larger than either control message with its header, so the
    // first header and its data lie inside; the kernel reads all of it only during the call.
    unsafe {
        match from {
            IpAddr::V4(from) => {
                let info = libc::in_pktinfo {
                    ipi_ifindex: index as libc::c_int,
                    ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(from.octets()) },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                put_control(&mut msg, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
            }
            IpAddr::V6(from) => {
                let info = libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr { s6_addr: from.octets() },
                    ipi6_ifindex: index,
                };
                put_control(&mut msg, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
            }
        }
        check_size(libc::sendmsg(fd, &raw const msg, flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL))
    }
}

/// Sends a train: the kernel (or the adapter) cuts `bytes` into datagrams of `segment` bytes (`UDP_SEGMENT`, udp(7)). All or
/// nothing. Never blocks, raises no signal.
pub(crate) fn send_train(fd: RawFd, bytes: &[u8], to: SocketAddr, segment: u16) -> io::Result<()> {
    let mut to = RawAddr::from(to);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 128]);
    // SAFETY: all zeros is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_name = (&raw mut to.storage).cast();
    msg.msg_namelen = to.len;
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: `control` is zeroed, aligned for a cmsghdr, and larger than the control message with its header; buffer, address
    // and control live through the call.
    unsafe {
        put_control(&mut msg, libc::SOL_UDP, libc::UDP_SEGMENT, segment);
        check_size(libc::sendmsg(fd, &raw const msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL))?;
    }
    Ok(())
}

/// Writes one control message at the beginning of `msg`'s control buffer.
///
/// # Safety
/// The control buffer is aligned for a cmsghdr and has room for the message.
unsafe fn put_control<T>(msg: &mut libc::msghdr, level: libc::c_int, kind: libc::c_int, value: T) {
    let bytes = mem::size_of::<T>() as u32;
    // SAFETY: promised by the caller; CMSG_DATA may be unaligned for T, hence the unaligned write.
    unsafe {
        msg.msg_controllen = libc::CMSG_SPACE(bytes) as _;
        let c = libc::CMSG_FIRSTHDR(msg);
        (*c).cmsg_level = level;
        (*c).cmsg_type = kind;
        (*c).cmsg_len = libc::CMSG_LEN(bytes) as _;
        libc::CMSG_DATA(c).cast::<T>().write_unaligned(value);
    }
}

/// One datagram with its packet information, or several of one sender that the kernel has put together (`UDP_GRO`).
pub(crate) struct Packet {
    pub len: usize,
    /// Bytes of each datagram but the last; 0 when there is only one.
    pub segment: usize,
    pub truncated: bool,
    pub from: Option<SocketAddr>,
    /// Interface it came in on, 0 when the kernel did not say.
    pub index: u32,
    /// Address it was sent to.
    pub to: Option<IpAddr>,
}

/// Receives one datagram; `None` when there is none. Never blocks.
pub(crate) fn recv_packet(fd: RawFd, buf: &mut [u8]) -> io::Result<Option<Packet>> {
    // Not zeroed: the kernel says how much of each it has filled, and this is the hottest call of all.
    let mut name = MaybeUninit::<libc::sockaddr_storage>::uninit();
    let mut control = MaybeUninit::<Control>::uninit();
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: all zeros is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_name = name.as_mut_ptr().cast();
    msg.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = mem::size_of::<Control>() as _;
    // Not by the C library's function, nor is the send above: those are cancellation points, which cost two atomic operations each in a
    // program of several threads, and a thread must not be cancelled while it holds the engine.
    // SAFETY: every pointer in `msg` is valid for the length beside it during the call.
    let received = unsafe {
        let flags = libc::c_long::from(libc::MSG_DONTWAIT);
        libc::syscall(libc::SYS_recvmsg, libc::c_long::from(fd), &raw mut msg, flags)
    };
    let len = match check_size(received as libc::ssize_t) {
        Ok(n) => n,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(e) => return Err(e),
    };
    let from = if msg.msg_namelen as usize >= mem::size_of::<libc::sockaddr_in>() {
        // SAFETY: the kernel has filled at least a sockaddr_in, and address_of reads a sockaddr_in6 only when the family
        // says so, in which case the kernel filled that.
        address_of(unsafe { &*name.as_ptr() })
    } else {
        None
    };
    let mut packet =
        Packet { len, segment: 0, truncated: msg.msg_flags & libc::MSG_TRUNC != 0, from, index: 0, to: None };
    // SAFETY: the kernel has set msg_controllen to what it filled; CMSG_* stay inside it; the data of each kind has the
    // size of the structure that is read, unaligned.
    unsafe {
        let mut c = libc::CMSG_FIRSTHDR(&raw const msg);
        while !c.is_null() {
            match ((*c).cmsg_level, (*c).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = libc::CMSG_DATA(c).cast::<libc::in_pktinfo>().read_unaligned();
                    packet.index = info.ipi_ifindex as u32;
                    packet.to = Some(IpAddr::V4(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes())));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = libc::CMSG_DATA(c).cast::<libc::in6_pktinfo>().read_unaligned();
                    packet.index = info.ipi6_ifindex;
                    packet.to = Some(IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)));
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let segment = libc::CMSG_DATA(c).cast::<libc::c_int>().read_unaligned();
                    packet.segment = usize::try_from(segment).unwrap_or(0);
                }
                _ => {}
            }
            c = libc::CMSG_NXTHDR(&raw const msg, c);
        }
    }
    Ok(Some(packet))
}

/// Breaks a TCP connection at once: a reset goes out even when a forked child still holds a copy of the descriptor, which
/// `close` with a zero linger time would wait for.
pub(crate) fn disconnect(fd: RawFd) {
    // SAFETY: all zeros with AF_UNSPEC (0) is a valid address for connect, which then dissolves the association.
    unsafe {
        let addr: libc::sockaddr = mem::zeroed();
        libc::connect(fd, &raw const addr, mem::size_of::<libc::sockaddr>() as libc::socklen_t);
    }
}

/// An epoll instance.
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub fn new() -> io::Result<Self> {
        // SAFETY: a plain system call; the new descriptor has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) }))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.0)
    }

    fn control(&self, op: libc::c_int, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
        let mut e = libc::epoll_event { events, u64: token };
        // SAFETY: the event lives through the call.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd, &raw mut e) })?;
        Ok(())
    }

    pub fn add(&self, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, events, token)
    }

    pub fn modify(&self, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, events, token)
    }

    pub fn remove(&self, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// What is ready now: (token, events). Never blocks.
    pub fn ready<'a>(&self, room: &'a mut [libc::epoll_event]) -> &'a [libc::epoll_event] {
        // SAFETY: the kernel writes at most as many events as there is room for.
        let n =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), room.as_mut_ptr(), room.len() as libc::c_int, 0) };
        &room[..usize::try_from(n).unwrap_or(0)]
    }
}

/// A counter to wake a poller with.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> io::Result<Self> {
        // SAFETY: a plain system call; the new descriptor has no other owner.
        Ok(Self(unsafe {
            OwnedFd::from_raw_fd(check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?)
        }))
    }

    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes are read from `one`.
        unsafe { libc::write(self.raw(), (&raw const one).cast(), 8) };
    }

    pub fn silence(&self) {
        let mut n = 0u64;
        // SAFETY: eight bytes are written to `n`.
        unsafe { libc::read(self.raw(), (&raw mut n).cast(), 8) };
    }
}

/// A routing netlink socket that receives the multicast `groups` (a bit mask; 0: none).
pub(crate) fn netlink(groups: u32) -> io::Result<OwnedFd> {
    // SAFETY: plain system calls; the new descriptor has no other owner; the address lives through the call.
    unsafe {
        let fd = OwnedFd::from_raw_fd(check(libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            libc::NETLINK_ROUTE,
        ))?);
        let mut a: libc::sockaddr_nl = mem::zeroed();
        a.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        a.nl_groups = groups;
        check(libc::bind(
            fd.as_raw_fd(),
            (&raw const a).cast(),
            mem::size_of::<libc::sockaddr_nl>() as libc::socklen_t,
        ))?;
        Ok(fd)
    }
}

/// Sends bytes to the kernel.
pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the buffer lives through the call.
    check_size(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) })
}

/// Receives one message; `wait` blocks for it.
pub(crate) fn recv(fd: RawFd, buf: &mut [u8], wait: bool) -> io::Result<usize> {
    if wait {
        let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd. The kernel answers a dump at once; the bound is for a kernel that does not.
        check(unsafe { libc::poll(&raw mut p, 1, 2000) })?;
    }
    // SAFETY: the kernel writes at most the length of `buf`.
    check_size(unsafe { libc::recv(fd, buf.as_mut_ptr().cast(), buf.len(), libc::MSG_DONTWAIT) })
}

fn request(name: &str) -> Option<libc::ifreq> {
    // SAFETY: all zeros is a valid ifreq.
    let mut r: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= r.ifr_name.len() {
        return None;
    }
    for (d, s) in r.ifr_name.iter_mut().zip(name.bytes()) {
        *d = s as libc::c_char;
    }
    Some(r)
}

/// Flags of an interface (`IFF_*`); `None` when it does not exist. `fd` is any socket.
pub(crate) fn interface_flags(fd: RawFd, name: &str) -> Option<u32> {
    let mut r = request(name)?;
    // SAFETY: SIOCGIFFLAGS fills the flags of an ifreq.
    unsafe {
        check(libc::ioctl(fd, libc::SIOCGIFFLAGS, &raw mut r)).ok()?;
        Some(r.ifr_ifru.ifru_flags as u16 as u32)
    }
}

/// Nominal speed of an interface in Mbit/s, 0 when unknown. By ioctl, because `/sys` may belong to another network
/// namespace.
pub(crate) fn interface_speed(fd: RawFd, name: &str) -> u32 {
    /// `struct ethtool_cmd` of linux/ethtool.h.
    #[repr(C)]
    #[derive(Default)]
    struct EthtoolCmd {
        cmd: u32,
        supported: u32,
        advertising: u32,
        speed: u16,
        duplex: u8,
        port: u8,
        phy_address: u8,
        transceiver: u8,
        autoneg: u8,
        mdio_support: u8,
        maxtxpkt: u32,
        maxrxpkt: u32,
        speed_hi: u16,
        eth_tp_mdix: u8,
        eth_tp_mdix_ctrl: u8,
        lp_advertising: u32,
        reserved: [u32; 2],
    }
    const ETHTOOL_GSET: u32 = 1;
    let mut cmd = EthtoolCmd { cmd: ETHTOOL_GSET, ..EthtoolCmd::default() };
    let Some(mut r) = request(name) else { return 0 };
    r.ifr_ifru.ifru_data = (&raw mut cmd).cast();
    // SAFETY: SIOCETHTOOL with ETHTOOL_GSET fills an ethtool_cmd behind ifru_data.
    if check(unsafe { libc::ioctl(fd, libc::SIOCETHTOOL, &raw mut r) }).is_err() {
        return 0;
    }
    match u32::from(cmd.speed_hi) << 16 | u32::from(cmd.speed) {
        u32::MAX | 0xffff => 0,
        s => s,
    }
}
