//! The first process of a lab's PID namespace: makes the nodes, starts the program, keeps the schedule, answers
//! requests. One thread, one loop.
//!
//! Invariant: when this process ends, for whatever reason, the kernel kills every other process of the lab, and
//! with the last of them the namespaces and all they contain.

use crate::control::{LinkStatus, RailStatus, Reply, Request, Server, Status, Traffic, WireStatus};
use crate::error::Attempt;
use crate::event::{Journal, unix_ns};
use crate::launch::{self, lab_env, phases_dir, start_path};
use crate::network::Network;
use crate::node::{self, Node};
use crate::schedule::{Action, Item, is_phase};
use crate::session::{Handover, Order, Report, Session};
use crate::sys::{self, Mailbox, Signals};
use crate::topology::rail_name;
use crate::{EXIT_LAB_FAILED, LabError, RUN_DIR};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// What a user can do when the kernel refuses.
pub const HOW_TO_ALLOW: &str = "run it as root, or allow unprivileged user namespaces (`sysctl -w user.max_user_namespaces=10000`; Debian also: `sysctl -w kernel.unprivileged_userns_clone=1`; Ubuntu also: `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`; in a container: start it privileged)";

/// The exit code of a program that cannot be started, as in a shell.
const EXIT_NOT_STARTED: i32 = 127;

/// Runs the lab; the process ends here.
pub(crate) fn main(session: &Session, handover: Handover) -> ! {
    let Handover { name, server, mailbox, signals, journal, tools, kit, rootless } = handover;
    let cores = cores_of_nodes(session);
    let result = make_private(session, rootless)
        .and_then(|()| {
            let nodes = (0..session.topology.nodes)
                .map(|number| Node::create(number, session.topology.nodes))
                .collect::<Result<Vec<_>, _>>()?;
            Network::build(session.topology.clone(), tools, nodes, kit, &cores)
        })
        .and_then(|network| {
            let inside = Server::bind_inside()?;
            Supervisor {
                session,
                name,
                servers: [server, inside],
                mailbox: &mailbox,
                signals,
                journal,
                network,
                cores,
                rootless,
                pending: session.schedule.items.clone(),
                clock: None,
                phases: BTreeMap::new(),
                children: Vec::new(),
            }
            .run()
        });
    mailbox.send(&match result {
        Ok(code) => Report::Ended { code },
        Err(error) => Report::Failed { message: error.to_string() },
    });
    sys::exit_now(0)
}

/// Leaves the host's namespaces; this process's network namespace becomes the switch.
fn make_private(session: &Session, rootless: bool) -> Result<(), LabError> {
    if session.detach {
        sys::new_session().attempt(|| "leave the terminal".into())?;
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.attempt(|| "open /dev/null".into())?;
        sys::replace_stdio(null.as_fd()).attempt(|| "leave the terminal".into())?;
    } else {
        sys::die_with_parent().attempt(|| "tie the lab to its session".into())?;
    }
    let kinds = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC;
    sys::unshare(kinds).map_err(|error| {
        let place = if rootless { " in a user namespace" } else { "" };
        LabError::Refused(format!(
            "this kernel does not let you make network namespaces{place} ({error}): {HOW_TO_ALLOW}"
        ))
    })?;
    sys::make_mounts_private().attempt(|| "make the lab's mounts private".into())?;
    sys::mount_new(c"proc", Path::new("/proc"), c"").map_err(|error| {
        LabError::Refused(format!("the lab cannot mount a /proc of its own ({error}): {HOW_TO_ALLOW}"))
    })?;
    sys::mount_new(c"tmpfs", Path::new("/dev/shm"), c"mode=1777")
        .attempt(|| "mount the lab's /dev/shm".into())?;
    fs::create_dir(RUN_DIR).attempt(|| format!("make {RUN_DIR}"))?;
    let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    Ok(())
}

/// The cores of each node: the machine's, dealt out in equal shares.
fn cores_of_nodes(session: &Session) -> Vec<Option<Vec<usize>>> {
    let nodes = session.topology.nodes;
    if !session.pin {
        return vec![None; nodes];
    }
    let cores = sys::affinity();
    let share = (cores.len() / nodes).max(1);
    (0..nodes)
        .map(|node| {
            let first = node * share % cores.len();
            let end = (first + share).min(cores.len());
            Some(cores[first..end].to_vec())
        })
        .collect()
}

struct Supervisor<'a> {
    session: &'a Session,
    name: String,
    servers: [Server; 2],
    mailbox: &'a Mailbox,
    signals: Signals,
    journal: Journal,
    network: Network,
    cores: Vec<Option<Vec<usize>>>,
    rootless: bool,
    /// What is still to happen, in order of time.
    pending: Vec<Item>,
    /// When the schedule's clock started.
    clock: Option<Instant>,
    /// The phases that programs have announced, and when.
    phases: BTreeMap<String, Instant>,
    /// The program's processes: one launcher, or one per node.
    children: Vec<libc::pid_t>,
}

/// Why the loop goes on or ends.
enum Next {
    Continue,
    End(i32),
}

impl Supervisor<'_> {
    fn run(mut self) -> Result<i32, LabError> {
        let guests = self.network.guests().is_some();
        let roster = node::roster(self.network.nodes(), &self.cores, guests);
        let roster = serde_json::to_vec(&roster).expect("a roster is plain data");
        fs::write(node::roster_path(), roster).attempt(|| "write the list of nodes".into())?;
        // Watching starts before the program does, so that its files cannot be missed.
        let mut watch = None;
        if self.session.schedule_on_start {
            watch = Some(sys::watch_dir(Path::new(RUN_DIR)).attempt(|| format!("watch {RUN_DIR}"))?);
        }
        let phases_dir = phases_dir();
        fs::create_dir(&phases_dir).attempt(|| format!("make {}", phases_dir.display()))?;
        let phases_watch =
            sys::watch_dir(&phases_dir).attempt(|| format!("watch {}", phases_dir.display()))?;
        self.announce();
        self.mailbox.send(&Report::Ready);
        if let Err(code) = self.start_program()? {
            return Ok(code);
        }
        loop {
            let mut fds = vec![
                self.signals.as_fd(),
                self.servers[0].as_fd(),
                self.servers[1].as_fd(),
                phases_watch.as_fd(),
            ];
            // A detached lab has no session any more, and a mailbox without a reader is always readable.
            let mailbox_at = (!self.session.detach).then(|| {
                fds.push(self.mailbox.as_fd());
                fds.len() - 1
            });
            if let Some(watch) = &watch {
                fds.push(watch.as_fd());
            }
            let ready = sys::wait_readable(&fds, self.until_next_item());
            if let Some(waiting) = &watch {
                sys::drain(waiting.as_fd());
                if start_path().exists() {
                    self.clock = Some(Instant::now());
                    self.journal.say("schedule starts");
                    watch = None;
                }
            }
            let announced = if ready[3] { self.take_phases(phases_watch.as_fd())? } else { Vec::new() };
            self.do_due_items()?;
            for phase in announced {
                let done = phases_dir.join(format!("{phase}.done"));
                fs::write(&done, "").attempt(|| format!("write {}", done.display()))?;
            }
            if let Next::End(code) = self.take_signals() {
                return Ok(self.finish(code));
            }
            for at in [1, 2] {
                if !ready[at] {
                    continue;
                }
                if let Next::End(code) = self.serve(at - 1) {
                    return Ok(self.finish(code));
                }
            }
            if mailbox_at.is_some_and(|at| ready[at]) {
                match self.mailbox.receive() {
                    Some(Order::End { code }) => return Ok(self.finish(code)),
                    Some(Order::Forward { signal }) => {
                        self.children.iter().for_each(|&pid| sys::kill(pid, signal));
                    }
                    // The session is gone; the parent-death signal is on its way.
                    None => return Ok(self.finish(0)),
                }
            }
        }
    }

    fn announce(&mut self) {
        let topology = self.network.topology();
        let rails: Vec<String> = topology
            .rails
            .iter()
            .enumerate()
            .map(|(rail, plan)| format!("{} {plan}", rail_name(rail)))
            .collect();
        let (name, nodes) = (&self.name, topology.nodes);
        let guests = topology.rdma.map_or(String::new(), |kind| format!(" as guests with {kind}"));
        let fabric =
            topology.fabric.as_ref().map_or(String::new(), |plan| format!(", each rail behind {plan}"));
        let text = format!("lab `{name}`: {nodes} nodes{guests}, {}{fabric}", rails.join(", "));
        self.journal.say(&text);
    }

    /// Starts the program; the inner error is the exit code when it cannot be started.
    fn start_program(&mut self) -> Result<Result<(), i32>, LabError> {
        let Some(job) = &self.session.job else {
            return Ok(Ok(()));
        };
        launch::prepare(job)?;
        let commands = launch::commands(
            job,
            &self.name,
            self.network.topology(),
            self.session.events.as_deref(),
            self.network.nodes(),
            &self.cores,
        )?;
        self.journal.start();
        if !self.session.schedule_on_start {
            self.clock = Some(Instant::now());
        }
        for mut command in commands {
            match command.spawn() {
                // Reaped by its id in `take_signals`, together with orphans that this process inherits.
                Ok(child) => self.children.push(child.id() as libc::pid_t),
                Err(error) => {
                    let program = command.get_program().to_string_lossy().into_owned();
                    let text = format!("cannot start `{program}`: {error}");
                    self.journal.complain(&text);
                    return Ok(Err(self.finish(EXIT_NOT_STARTED)));
                }
            }
        }
        Ok(Ok(()))
    }

    /// Starts the clocks of the phases that were announced since the last time, and names them.
    fn take_phases(&mut self, watch: BorrowedFd<'_>) -> Result<Vec<String>, LabError> {
        sys::drain(watch);
        let dir = phases_dir();
        let what = || format!("read {}", dir.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(&dir).attempt(what)? {
            let name = entry.attempt(what)?.file_name().to_string_lossy().into_owned();
            // Our own answers have a dot in their names, which no phase has.
            if is_phase(&name) && !self.phases.contains_key(&name) {
                self.phases.insert(name.clone(), Instant::now());
                self.journal.say(&format!("phase {name} begins"));
                self.journal.phase(&name);
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The next item whose clock runs: its place and its moment. Among equals the one that was written first.
    fn next_item(&self) -> Option<(usize, Instant)> {
        let moment = |item: &Item| {
            let clock = match &item.phase {
                Some(phase) => self.phases.get(phase).copied(),
                None => self.clock,
            };
            Some(clock? + item.at)
        };
        self.pending
            .iter()
            .enumerate()
            .filter_map(|(place, item)| Some((place, moment(item)?)))
            .min_by_key(|&(place, at)| (at, place))
    }

    fn until_next_item(&self) -> Option<Duration> {
        Some(self.next_item()?.1.saturating_duration_since(Instant::now()))
    }

    fn do_due_items(&mut self) -> Result<(), LabError> {
        while let Some((place, at)) = self.next_item()
            && at <= Instant::now()
        {
            let item = self.pending.remove(place);
            // A cut that did not happen makes the whole run meaningless: end it rather than go on.
            self.act(&item.action)?;
        }
        Ok(())
    }

    fn act(&mut self, action: &Action) -> Result<(), LabError> {
        action.check(self.network.topology())?;
        let (begun, begun_ns) = (Instant::now(), unix_ns());
        self.network.act(action)?;
        let targets = action.targets(self.network.topology())?;
        let names: Vec<String> = targets.iter().map(|target| target.to_string()).collect();
        self.journal.acted(action, &names, begun_ns, begun.elapsed());
        Ok(())
    }

    fn take_signals(&mut self) -> Next {
        while let Some(signal) = self.signals.next() {
            // The session deals with the terminal's signals; a detached lab has no session.
            let ends = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].contains(&signal.number);
            if ends && self.session.detach {
                return Next::End(128 + signal.number);
            }
        }
        while let Some((pid, code)) = sys::reap_any() {
            if let Some(rail) = self.network.wire_of_process(pid) {
                let text = format!("the wire {} broke by itself: the lab cannot go on", rail_name(rail));
                self.journal.complain(&text);
                return Next::End(EXIT_LAB_FAILED);
            }
            if let Some((guests, node)) = self.network.guests().and_then(|g| Some((g, g.of_process(pid)?))) {
                let said = guests.last_words(node);
                let text = format!("the guest of node {node} ended by itself: {said}");
                self.journal.complain(&text);
                return Next::End(EXIT_LAB_FAILED);
            }
            let Some(at) = self.children.iter().position(|&child| child == pid) else {
                continue;
            };
            self.children.swap_remove(at);
            // With one process per node, the first failure ends the rest: a server would wait for ever.
            if code != 0 || self.children.is_empty() {
                return Next::End(code);
            }
        }
        Next::Continue
    }

    fn serve(&mut self, server: usize) -> Next {
        let mut next = Next::Continue;
        // The handler borrows the rest of the supervisor while the socket is in use.
        let socket = self.servers[server].as_fd().try_clone_to_owned();
        let Ok(socket) = socket else {
            return next;
        };
        Server::from(socket).serve(|request| match request {
            Request::Act { action } => (self.reply_to_act(&action), Vec::new()),
            Request::Status => {
                let status = Some(self.status());
                let reply = Reply { status, ..Reply::default() };
                (reply, Vec::new())
            }
            Request::Down => {
                self.journal.say("ended by `rerail lab down`");
                let code = if self.children.is_empty() { 0 } else { 128 + libc::SIGTERM };
                next = Next::End(code);
                (Reply::default(), sys::own_pidfd().into_iter().collect())
            }
            Request::Enter { node } => self.hand_over(node).unwrap_or_else(|error| {
                let error = Some(error.to_string());
                let reply = Reply { error, ..Reply::default() };
                (reply, Vec::new())
            }),
        });
        next
    }

    fn reply_to_act(&mut self, action: &Action) -> Reply {
        Reply { error: self.act(action).err().map(|error| error.to_string()), ..Reply::default() }
    }

    /// The namespaces of a node, for `rerail lab exec`.
    fn hand_over(&self, node: usize) -> Result<(Reply, Vec<OwnedFd>), LabError> {
        let topology = self.network.topology();
        let node = topology.node_numbered(node)?;
        let what = || "hand over the namespaces".to_string();
        let own: &[&str] = if self.rootless { &["user", "pid"] } else { &["pid"] };
        let mut fds = own
            .iter()
            .map(|name| File::open(format!("/proc/self/ns/{name}")).map(OwnedFd::from))
            .collect::<Result<Vec<_>, _>>()
            .attempt(what)?;
        let holder = self.network.nodes()[node].holder;
        fds.extend(node::open_namespaces(holder).attempt(what)?);
        let mut env = lab_env(&self.name, topology);
        env.push(("RERAIL_NODE".into(), node.to_string()));
        let reply = Reply {
            rootless: self.rootless,
            guest: self.network.guests().is_some(),
            cores: self.cores[node].clone(),
            env,
            ..Reply::default()
        };
        Ok((reply, fds))
    }

    fn status(&self) -> Status {
        let topology = self.network.topology().clone();
        let counters: Vec<String> = self
            .network
            .nodes()
            .iter()
            .map(|node| fs::read_to_string(format!("/proc/{}/net/dev", node.holder)).unwrap_or_default())
            .collect();
        let rails = (0..topology.rails.len())
            .map(|rail| RailStatus {
                rail: rail_name(rail),
                rate: self.network.rate(rail),
                state: self.network.state(rail).clone(),
                wire: self.network.wire(rail).map(|(faults, counts)| WireStatus { faults, counts }),
                traffic: counters.iter().map(|table| traffic_of(table, &rail_name(rail))).collect(),
            })
            .collect();
        let links = self.network.switches().into_iter().flat_map(|switches| switches.links());
        let links = links.map(|(link, state, rate, ends)| {
            let sent = ends.map(|(holder, device)| {
                let table = fs::read_to_string(format!("/proc/{holder}/net/dev")).unwrap_or_default();
                traffic_of(&table, &device).sent_bytes
            });
            let [up_bytes, down_bytes] = sent;
            LinkStatus { link: link.to_string(), rate, state: state.clone(), up_bytes, down_bytes }
        });
        let links = links.collect();
        Status { name: self.name.clone(), topology, rails, links }
    }

    /// Writes what is to be kept of the run.
    fn finish(&mut self, code: i32) -> i32 {
        for rail in 0..self.network.topology().rails.len() {
            if let Some((_, counts)) = self.network.wire(rail) {
                self.journal.wire(&rail_name(rail), &counts);
            }
        }
        if let Some(guests) = self.network.guests() {
            self.journal.add(&guests.events());
        }
        self.journal.end(code);
        if !self.pending.is_empty() {
            let count = self.pending.len();
            let text = format!("the program ended before {count} items of the schedule were due");
            self.journal.say(&text);
        }
        if let Some(dir) = &self.session.log {
            let status = serde_json::to_vec_pretty(&self.status()).expect("plain data");
            if let Some(Err(error)) = self.network.guests().map(|guests| guests.keep_consoles(dir)) {
                let text = format!("cannot keep the guests' consoles in `{}`: {error}", dir.display());
                self.journal.complain(&text);
            }
            let path = dir.join("status.json");
            if let Err(error) = fs::write(&path, status) {
                let text = format!("cannot write `{}`: {error}", path.display());
                self.journal.complain(&text);
            }
        }
        code
    }
}

/// Reads one interface's line of `/proc/PID/net/dev`.
fn traffic_of(table: &str, device: &str) -> Traffic {
    let line = table.lines().find_map(|line| {
        let (name, counters) = line.split_once(':')?;
        (name.trim() == device).then_some(counters)
    });
    let numbers: Vec<u64> =
        line.unwrap_or_default().split_whitespace().map(|number| number.parse().unwrap_or(0)).collect();
    let at = |index: usize| numbers.get(index).copied().unwrap_or(0);
    Traffic { received_bytes: at(0), received_packets: at(1), sent_bytes: at(8), sent_packets: at(9) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_one_interface_are_read() {
        let table = "Inter-|   Receive\n face |bytes packets\n rail0: 10 2 0 0 0 0 0 0 30 4 0 0 0 0 0 0\nrail10: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n";
        let traffic = traffic_of(table, "rail0");
        assert_eq!((traffic.received_bytes, traffic.received_packets), (10, 2));
        assert_eq!((traffic.sent_bytes, traffic.sent_packets), (30, 4));
        assert_eq!(traffic_of(table, "rail1").sent_bytes, 0);
    }
}
