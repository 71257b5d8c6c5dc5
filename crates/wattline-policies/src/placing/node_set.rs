//! A set of nodes that finds its smallest member fast.

use wattline_core::ids::NodeId;

/// One bit per node.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeSet {
    words: Vec<u64>,
    len: u32,
}

impl NodeSet {
    pub(super) fn with_capacity(nodes: usize) -> Self {
        Self { words: vec![0; nodes.div_ceil(64)], len: 0 }
    }
    pub(super) fn len(&self) -> u32 {
        self.len
    }
    pub(super) fn insert(&mut self, node: NodeId) {
        let (word, bit) = (node.index() / 64, 1 << (node.index() % 64));
        self.len += u32::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }
    pub(super) fn remove(&mut self, node: NodeId) {
        let (word, bit) = (node.index() / 64, 1 << (node.index() % 64));
        self.len -= u32::from(self.words[word] & bit != 0);
        self.words[word] &= !bit;
    }
    /// Members in rising order.
    pub(super) fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.words.iter().enumerate().flat_map(|(at, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(NodeId(at as u32 * 64 + bit))
            })
        })
    }
}
