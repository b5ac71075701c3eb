//! Engine, runtime and adapter together: what holds between two processes over IP holds over rails that write into memory by themselves.

#[path = "../../rerail-ip/tests/two/mod.rs"]
mod two;

use rerail_core::Options;
use two::Node;

fn pair(o: &Options) -> (Node, Node) {
    let node = || Node::new(rerail_example::attach(2).unwrap(), o.clone());
    (node(), node())
}
