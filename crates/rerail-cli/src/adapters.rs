//! RDMA adapters as `rerail info` shows them: each is opened as a job would open it, so that what would fail there is said here.

use rerail_verbs::{Discovery, Found, KINDS, Kind, Settings, attach, discover};
use serde_json::{Value, json};

/// What became of an adapter that was opened.
enum Opened {
    /// Whether its port is up.
    Up(bool),
    /// Why it cannot be used: a sentence.
    Failed(String),
}

/// The adapters of this node.
pub struct Adapters {
    /// Each; or a sentence that says why there are none.
    found: Result<Vec<(Found, Opened)>, String>,
    /// Sentences about all of them, such as why sources do not stay registered.
    notes: Vec<String>,
}

/// Finds and opens them. `keep`: as a job with `FI_RERAIL_REGISTRATION_CACHE=on`.
pub fn adapters(keep: bool) -> Adapters {
    let Discovery { mut found, problems: mut notes } = match discover() {
        Ok(discovery) => discovery,
        Err(why) => return Adapters { found: Err(why.to_string()), notes: Vec::new() },
    };
    without_spare_ways(&mut found);
    let mut all = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| found.iter().any(|f| f.kind == *kind)) {
        let settings = Settings { keep_registrations: keep, ..Settings::default() };
        let opened = attach(kind, &settings, &|_| true);
        for one in found.iter().filter(|f| f.kind == kind) {
            let opened = match &opened {
                Ok(rails) => Opened::Up(rails.rails.iter().any(|rail| rail.name == one.name && rail.up)),
                Err(why) => Opened::Failed(why.to_string()),
            };
            all.push((one.clone(), opened));
        }
        for note in opened.map(|rails| rails.notes).unwrap_or_default() {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    Adapters { found: Ok(all), notes }
}

/// A port for RoCE is shown once: without RDMA-CM only where there is none.
fn without_spare_ways(found: &mut Vec<Found>) {
    let with = |kind| found.iter().filter(|f| f.kind == kind).map(|f| f.name.clone()).collect::<Vec<_>>();
    let roce = with(Kind::ROCE);
    found.retain(|f| f.kind != Kind::ROCE_NO_CM || !roce.contains(&f.name));
}

impl Adapters {
    /// Whether one has this name.
    pub fn has(&self, name: &str) -> bool {
        self.found.iter().flatten().any(|(adapter, _)| adapter.name == name)
    }

    /// Lines for a person. `rails`: the network interfaces that are rails.
    pub fn text(&self, rails: &[String]) -> String {
        let found = match &self.found {
            Ok(found) => found,
            Err(why) => return format!("no RDMA: {why}\n"),
        };
        let mut text = String::new();
        let mut sentences: Vec<&String> = Vec::new();
        for (a, opened) in found {
            let kind = a.kind.name();
            let state = match opened {
                Opened::Up(true) => "",
                Opened::Up(false) => ", its port is down",
                Opened::Failed(why) => {
                    // those of one kind fail together, with one sentence
                    if !sentences.contains(&why) {
                        sentences.push(why);
                    }
                    ", cannot be used"
                }
            };
            let on = if a.interface.is_empty() { String::new() } else { format!(" on {}", a.interface) };
            text.push_str(&format!("RDMA adapter ({kind}): {}{on}, {}{state}\n", a.name, a.address));
            if rails.contains(&a.interface) && !matches!(opened, Opened::Failed(_)) {
                let interface = &a.interface;
                text.push_str(&format!(
                    "  with FI_RERAIL_KINDS=ip,{kind} it carries, and {interface} stands by\n"
                ));
            }
        }
        for sentence in sentences.into_iter().chain(&self.notes) {
            text.push_str(&format!("note: {sentence}\n"));
        }
        text
    }

    /// The same for a program.
    pub fn add_to(&self, value: &mut Value) {
        let all = self.found.iter().flatten().map(|(a, opened)| {
            let (up, problem) = match opened {
                Opened::Up(up) => (Some(*up), None),
                Opened::Failed(why) => (None, Some(why)),
            };
            json!({
                "name": a.name,
                "kind": a.kind.name(),
                "interface": a.interface,
                "address": a.address.to_string(),
                "up": up,
                "problem": problem,
            })
        });
        value["adapters"] = all.collect();
        value["adapter_notes"] = json!(self.notes);
        value["no_adapters"] = json!(self.found.as_ref().err());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rerail_verbs::Address;

    fn adapter(number: usize) -> Found {
        let (name, interface) = (format!("mlx5_{number}"), format!("eth{number}"));
        let address = Address::Ip { ip: [10, 1, number as u8, 1].into(), prefix_bits: 24 };
        Found { kind: Kind::ROCE, name, interface, address }
    }

    #[test]
    fn a_port_for_roce_is_shown_once() {
        let without = |number| Found { kind: Kind::ROCE_NO_CM, ..adapter(number) };
        let mut found = vec![without(0), without(1), adapter(0)];
        without_spare_ways(&mut found);
        assert_eq!(found, [without(1), adapter(0)]);
    }

    #[test]
    fn a_port_of_infiniband_needs_no_interface() {
        let bare = Found {
            kind: Kind::IB,
            name: "mlx5_0:1".into(),
            interface: String::new(),
            address: Address::Lid(12),
        };
        let with_ipoib = Found { interface: "ib0".into(), ..bare.clone() };
        let adapters = Adapters {
            found: Ok(vec![(bare, Opened::Up(true)), (with_ipoib, Opened::Up(true))]),
            notes: vec!["port 2 of the InfiniBand adapter mlx5_0 is down: look at its cable".into()],
        };
        let text = adapters.text(&["ib0".to_string()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "RDMA adapter (ib): mlx5_0:1, LID 12");
        assert_eq!(lines[1], "RDMA adapter (ib): mlx5_0:1 on ib0, LID 12");
        assert_eq!(lines[2], "  with FI_RERAIL_KINDS=ip,ib it carries, and ib0 stands by");
        assert_eq!(lines[3], "note: port 2 of the InfiniBand adapter mlx5_0 is down: look at its cable");
    }

    #[test]
    fn what_would_fail_in_a_job_is_said_once() {
        let failed = || Opened::Failed("no memory: raise `ulimit -l`".into());
        let mut adapters = Adapters {
            found: Ok(vec![(adapter(0), failed()), (adapter(1), failed())]),
            notes: vec!["nothing is kept".into()],
        };
        let rails = ["eth1".to_string()];
        let text = adapters.text(&rails);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "RDMA adapter (roce): mlx5_0 on eth0, 10.1.0.1, cannot be used");
        assert_eq!(lines[2..], ["note: no memory: raise `ulimit -l`", "note: nothing is kept"]);
        adapters.found = Ok(vec![(adapter(0), Opened::Up(true)), (adapter(1), Opened::Up(false))]);
        let text = adapters.text(&rails);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "RDMA adapter (roce): mlx5_0 on eth0, 10.1.0.1");
        assert_eq!(lines[1], "RDMA adapter (roce): mlx5_1 on eth1, 10.1.1.1, its port is down");
        assert_eq!(lines[2], "  with FI_RERAIL_KINDS=ip,roce it carries, and eth1 stands by");
    }

    #[test]
    fn programs_read_the_state_of_each_adapter() {
        let all = vec![(adapter(0), Opened::Up(false)), (adapter(1), Opened::Failed("it is broken".into()))];
        let mut value = json!({});
        Adapters { found: Ok(all), notes: Vec::new() }.add_to(&mut value);
        assert_eq!(value["adapters"][0]["up"], json!(false));
        assert_eq!(value["adapters"][1]["up"], Value::Null);
        assert_eq!(value["adapters"][1]["problem"], "it is broken");
        assert_eq!(value["no_adapters"], Value::Null);
    }
}
