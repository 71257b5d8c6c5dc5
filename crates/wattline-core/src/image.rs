//! Exact images: all that something knows, so that another made in the same way goes on as it would
//! have, to the last digit.
//!
//! Not to be confused with a [`snapshot`](crate::snapshot), a file that people read and write and
//! that leaves out whatever they need not know. An image is for the very program that took it. It
//! must be written in a format for machines, in which numbers come back as they are.

use thiserror::Error;

/// Why nothing can go on from an image.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImageError {
    /// It cannot be read.
    #[error("the image cannot be read: {0}")]
    Unreadable(String),
    /// It is of something else, or says two things at once.
    #[error("the image does not fit: {0}")]
    Wrong(&'static str),
}

/// Says what is wrong unless something holds.
///
/// # Errors
/// When it does not.
pub fn require(holds: bool, otherwise: &'static str) -> Result<(), ImageError> {
    holds.then_some(()).ok_or(ImageError::Wrong(otherwise))
}
