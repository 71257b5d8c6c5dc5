//! A cluster for tests.

use wattline_core::cluster::{Cluster, GpuType, Node, NodeDraw};
use wattline_core::ids::GpuTypeId;
use wattline_core::units::{Seconds, Watts};

/// Nodes of 8 GPUs in these racks.
pub(crate) fn cluster(racks: &[u32]) -> Cluster {
    let card = GpuType {
        name: "card".into(),
        idle: Watts::new(10.0),
        busy: Watts::new(100.0),
        min_limit: Watts::new(50.0),
        default_limit: Watts::new(100.0),
        max_limit: Watts::new(100.0),
        limit_step: Watts::new(10.0),
        tflops: None,
        links: None,
    };
    let node = |rack: &u32| Node {
        name: "node".into(),
        gpu_type: GpuTypeId(0),
        gpus: 8,
        draw: NodeDraw::Additive { base: Watts::new(100.0) },
        sleep: Watts::ZERO,
        boot: Watts::new(100.0),
        boot_time: Seconds::ZERO,
        shutdown_time: Seconds::ZERO,
        rack: *rack,
    };
    Cluster::new(vec![card], racks.iter().map(node).collect()).unwrap()
}
