//! Independent parts of a plan, side by side.
//!
//! How many cores there are decides how long a plan takes and never what is in it: parts do not see
//! each other, and what comes of them is in their order.

use rayon::prelude::*;

/// Does something with each, on all cores where nobody else uses them.
///
/// Whoever runs many simulations at once has given each core one already. A worker that waited for
/// its parts there would begin another simulation meanwhile, and the plan would seem to take as long.
pub(crate) fn ordered_par_map<T: Sync, R: Send>(
    parts: &[T],
    each: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let alone = rayon::current_thread_index().is_some() || rayon::current_num_threads() < 2;
    if alone || parts.len() < 2 {
        parts.iter().map(each).collect()
    } else {
        parts.par_iter().map(&each).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn results_are_in_order_wherever_they_come_from() {
        let parts: Vec<u64> = (0..1000).collect();
        let squares: Vec<u64> = parts.iter().map(|part| part * part).collect();
        assert_eq!(ordered_par_map(&parts, |part| part * part), squares);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let thread = |_: &u64| rayon::current_thread_index();
        let (inside, threads) = pool.install(|| {
            (ordered_par_map(&parts, |part| part * part), ordered_par_map(&parts, thread))
        });
        assert_eq!(inside, squares);
        assert!(threads.windows(2).all(|pair| pair[0] == pair[1]), "a worker does all of it");
    }
}
