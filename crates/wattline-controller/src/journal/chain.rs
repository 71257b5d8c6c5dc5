//! Checksums that show accidents: changed bytes, and rows that are missing, exchanged, reordered or
//! of another journal. They are CRC-32: whoever can write the file can also forge them.

use std::collections::BTreeMap;

/// What stands for all entries up to one: the checksum of that entry and of the link before it.
pub(super) type Link = u32;

/// The link before the first entry of a journal.
pub(super) fn first(journal: &str) -> Link {
    crc32fast::hash(journal.as_bytes())
}

/// The link of an entry.
pub(super) fn next(before: Link, number: u64, at: i64, text: &str) -> Link {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&before.to_le_bytes());
    hasher.update(&number.to_le_bytes());
    hasher.update(&at.to_le_bytes());
    hasher.update(text.as_bytes());
    hasher.finalize()
}

/// The checksum of something else in a journal: parts cannot run into each other.
pub(crate) fn checksum(journal: &str, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(journal.as_bytes());
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize()
}

/// The checksum of all that a journal says it is about.
pub(super) fn about(journal: &str, about: &BTreeMap<String, String>) -> u32 {
    let parts: Vec<&[u8]> =
        about.iter().flat_map(|(what, value)| [what.as_bytes(), value.as_bytes()]).collect();
    checksum(journal, &parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_depends_on_all_that_it_stands_for() {
        let link = next(first("a"), 1, 2, "text");
        assert_eq!(link, next(first("a"), 1, 2, "text"));
        let others = [
            next(first("b"), 1, 2, "text"),
            next(first("a"), 2, 2, "text"),
            next(first("a"), 1, 3, "text"),
            next(first("a"), 1, 2, "texT"),
        ];
        assert!(others.iter().all(|other| *other != link), "{others:?}");
        assert_ne!(checksum("a", &[b"ab", b"c"]), checksum("a", &[b"a", b"bc"]));
    }
}
