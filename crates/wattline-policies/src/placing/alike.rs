//! Which nodes are as good as each other.

use wattline_core::cluster::Node;

/// Whether two nodes with the same kind of GPUs have as many of them and draw the same.
pub(crate) fn alike(a: &Node, b: &Node) -> bool {
    a.gpus == b.gpus && a.draw == b.draw && a.sleep == b.sleep && a.boot == b.boot
}
