//! Engine, runtime and the shortcut together: what holds between two processes over IP holds between neighbours.

#[path = "../../rerail-ip/tests/two/mod.rs"]
mod two;

use rerail_core::Options;
use two::Node;

fn pair(o: &Options) -> (Node, Node) {
    let node = || {
        let rails = rerail_ip::attach_loopback(1..3).unwrap();
        Node::new(rerail_shm::over(rails, true).map_err(|(_, why)| why).unwrap(), o.clone())
    };
    (node(), node())
}
