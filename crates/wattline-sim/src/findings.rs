//! What measurements showed about the machines, in words.

use crate::instance::Instance;
use wattline_core::predictor::Finding;

/// One sentence with names instead of numbers.
pub(crate) fn tell(instance: &Instance, finding: &Finding) -> String {
    let slower = |factor: f64| {
        let by = (factor - 1.0) * 100.0;
        if by >= 0.0 { format!("{by:.0} % longer") } else { format!("{:.0} % less", -by) }
    };
    match finding {
        Finding::SlowNode { node, factor, runs } => {
            let name = &instance.cluster.node(*node).name;
            format!("runs take {} on {name} than on other nodes ({runs} runs)", slower(*factor))
        }
        Finding::SpeedChanged { workload, gpu_type, since, factor } => format!(
            "{} on {} takes {} than it did up to hour {:.1}",
            instance.physics.name(*workload),
            instance.cluster.gpu_type(*gpu_type).name,
            slower(*factor),
            (*since - instance.start).get() / 3600.0
        ),
        Finding::Refused { measurements, last } => {
            format!("{measurements} measurements refused; the last: {last}")
        }
    }
}
