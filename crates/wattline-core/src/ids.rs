//! Identities. A number that names one kind of thing cannot name another.
//!
//! All of them are dense: the n-th job, node, GPU type … that the engine heard of. Names that
//! people and SLURM use are kept beside the thing they name.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The position in a table of such things.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A job.
    JobId(u32), "j"
);
id!(
    /// A node (a server).
    NodeId(u32), "n"
);
id!(
    /// A kind of GPU.
    GpuTypeId(u16), "g"
);
id!(
    /// A workload: model and data set, the key under which measurements are kept.
    WorkloadId(u32), "w"
);
id!(
    /// A user.
    UserId(u32), "u"
);
id!(
    /// A plan; later plans have larger ids. Doubles as the generation that actions carry.
    PlanId(u64), "p"
);
id!(
    /// One action handed to a backend.
    ActionId(u64), "a"
);
id!(
    /// A set of shapes that some jobs have in common, see [`Menu`](crate::cluster::Menu).
    MenuId(u32), "m"
);

/// One GPU of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GpuId {
    /// The node it sits in.
    pub node: NodeId,
    /// Its position there.
    pub index: u8,
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.index)
    }
}
