//! Where jobs go so that free GPUs stay together: buddy blocks inside a node, whole nodes of as few
//! racks as possible beyond one, and moves that make room where small jobs are scattered.
//!
//! It knows nodes, GPUs and racks, and nothing of jobs' times or power: whether a move is worth its
//! restart is for the caller to say.

mod buddy;
mod defragment;
mod gang;
mod racks;
#[cfg(test)]
pub(crate) mod sample;
mod space;

pub(crate) use defragment::{Mover, make_room};
pub(crate) use gang::{Free, place_gang};
pub(crate) use space::{Space, Where};
