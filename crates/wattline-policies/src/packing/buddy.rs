//! Buddy blocks: a node's GPUs are halved again and again, and a block is one of these halves.
//!
//! A block of 2^k GPUs begins at a multiple of 2^k. A free block is *whole* if it is no half of a
//! larger free one. Taking from the smallest whole block that is large enough keeps large ones.

/// Whole free blocks have one of these sizes: 1, 2, 4, … 64.
pub(super) const SIZES: usize = 7;

/// All GPUs of the block of 2^k that begins at `start`.
fn block(k: usize, start: usize) -> u64 {
    let size = 1_usize << k;
    if size >= 64 { u64::MAX } else { ((1_u64 << size) - 1) << start }
}

/// The starts of all blocks of 2^k.
fn starts(k: usize) -> impl Iterator<Item = usize> {
    (0..64).step_by(1 << k)
}

/// Bit `k`: the node has a whole free block of 2^k GPUs.
pub(super) fn whole_blocks(free: u64) -> u32 {
    let (mut sizes, mut left) = (0, free);
    for k in (0..SIZES).rev() {
        for start in starts(k) {
            let block = block(k, start);
            if left & block == block {
                left &= !block;
                sizes |= 1 << k;
            }
        }
    }
    sizes
}

/// The size, as an exponent, of the block that so many GPUs take.
pub(super) fn exponent(gpus: u32) -> usize {
    gpus.max(1).next_power_of_two().trailing_zeros() as usize
}

/// That many of the free GPUs of a node: out of the smallest whole block that holds them, else any.
/// `None` if there are not so many.
pub(crate) fn take(free: u64, gpus: u32) -> Option<u64> {
    if free.count_ones() < gpus {
        return None;
    }
    let mut left = free;
    let mut best: Option<(usize, u64)> = None;
    for k in (0..SIZES).rev() {
        for start in starts(k) {
            let whole = block(k, start);
            if left & whole == whole {
                left &= !whole;
                if k >= exponent(gpus) && best.is_none_or(|(size, _)| k < size) {
                    best = Some((k, whole));
                }
            }
        }
    }
    let from = best.map_or(free, |(_, whole)| whole);
    Some(crate::placing::lowest(from, gpus))
}

/// The aligned blocks of a node that so many GPUs could take, free or not.
pub(super) fn blocks(all: u64, gpus: u32) -> impl Iterator<Item = u64> {
    let k = exponent(gpus).min(SIZES - 1);
    starts(k).map(move |start| block(k, start) & all).filter(move |b| b.count_ones() >= gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_from_the_smallest_whole_block() {
        // 0 and 1 are a pair, 4 to 7 a block of four.
        let free = 0b1111_0011;
        assert_eq!(take(free, 1), Some(0b1));
        assert_eq!(take(free, 2), Some(0b11));
        assert_eq!(take(free, 3), Some(0b0111_0000));
        assert_eq!(take(free, 4), Some(0b1111_0000));
        assert_eq!(take(free, 7), None);
        assert_eq!(whole_blocks(free), 0b110);
    }

    #[test]
    fn a_block_that_is_not_aligned_is_the_last_choice() {
        assert_eq!(take(0b0011_1100, 4), Some(0b0011_1100));
        assert_eq!(take(0b0001_1000, 2), Some(0b0001_1000));
        assert_eq!(take(0b111_111, 6), Some(0b111_111));
        assert_eq!(take(u64::MAX, 64), Some(u64::MAX));
    }

    #[test]
    fn buddies_never_leave_fewer_whole_blocks_than_needed() {
        // Any free mask of eight GPUs, any count: the blocks not cut stay whole.
        for free in 0..256_u64 {
            for gpus in [1_u32, 2, 4, 8] {
                let k = exponent(gpus);
                let Some(taken) = take(free, gpus) else { continue };
                assert_eq!(taken.count_ones(), gpus);
                assert_eq!(taken & !free, 0);
                let exact = whole_blocks(free) >> k & 1 == 1;
                if exact {
                    let others = whole_blocks(free) & !(1 << k);
                    assert_eq!(whole_blocks(free & !taken) & others, others, "{free:b} {gpus}");
                }
            }
        }
    }

    #[test]
    fn blocks_of_a_node() {
        assert_eq!(blocks(0xff, 4).collect::<Vec<_>>(), [0x0f, 0xf0]);
        assert_eq!(blocks(0x3f, 6).collect::<Vec<_>>(), [0x3f]);
        assert_eq!(blocks(0x3f, 4).collect::<Vec<_>>(), [0x0f]);
    }
}
